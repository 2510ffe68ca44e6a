"""torch.linalg: linear algebra, filled from the op table."""
