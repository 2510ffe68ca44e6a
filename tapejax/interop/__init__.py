"""Tensors beside JAX and other array libraries.

Owns the two bridges to JAX (`from_jax` records a JAX function, `to_jax` replays a tape function) and the exchange of
arrays. May import everything but `nn` and `optim`. No array is copied where the other side allows it.
"""

from tapejax.interop.exchange import from_dlpack, from_numpy, to_dlpack
from tapejax.interop.export_jax import to_jax
from tapejax.interop.wrap_jax import from_jax
