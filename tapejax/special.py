"""torch.special: special functions, filled from the op table."""
