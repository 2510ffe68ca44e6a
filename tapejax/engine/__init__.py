"""How programs run: programs in, arrays out. The only home of `jax.jit`, `jax.vjp`, `jax.jvp` and `jax.vmap`; never sees a Tensor."""
