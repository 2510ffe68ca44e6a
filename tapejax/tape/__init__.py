"""What was asked for: operations, nodes, modes, recording, and programs read off the tape. Knows no jit and no Tensor."""
