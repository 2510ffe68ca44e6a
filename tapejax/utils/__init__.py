"""torch.utils on the tape. May import everything below it; nothing below imports it."""

from tapejax.utils import checkpoint

__all__ = ["checkpoint"]
