"""torch.utils on the tape. May import everything below it; nothing below imports it."""
