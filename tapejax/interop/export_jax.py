"""Functions of Tensors as pure JAX functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tapejax.engine.materialise import force
from tapejax.tape import waiting
from tapejax.tape.node import next_seq
from tapejax.tape.program import pending
from tapejax.tensor import Tensor, from_array


def to_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Tensors as a pure JAX function: it takes and returns arrays, and goes through jit, grad, vmap, scan.

    Arguments and results are pytrees; arrays among the arguments reach `function` as Tensors that do not require grad, and
    everything else as it is. What `function` records is replayed inside JAX's trace, so values may steer Python only where
    JAX knows them (outside jit). Tensors it closes over are constants of the trace, as they are when it is traced.

    >>> import jax, jax.numpy as jnp, tapejax as tj
    >>> f = tj.interop.to_jax(lambda x: (x ** 2).sum())
    >>> jax.jit(jax.grad(f))(jnp.arange(3.0))
    Array([0., 2., 4.], dtype=float32)
    """

    @functools.wraps(function, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        start = next_seq()
        _compute_outside(waiting.take())
        args, kwargs = jax.tree.map(_given, (args, kwargs))
        leaves, tree = jax.tree.flatten(function(*args, **kwargs), is_leaf=_is_tensor)
        nodes = [x.node for x in leaves if _is_tensor(x)]
        _compute_outside([n for n in pending(nodes) if n.seq < start])
        force(nodes, keep_residuals=False)
        return jax.tree.unflatten(tree, [x.array() if _is_tensor(x) else x for x in leaves])

    return run


def _given(x: Any) -> Any:
    if isinstance(x, jax.Array):
        return from_array(x)
    return from_array(jax.numpy.asarray(x)) if isinstance(x, np.ndarray) else x  # in JAX's precision: it is a JAX function


def _compute_outside(nodes: Any) -> None:
    """Compute what was recorded before the trace now, so that no tracer is left in tensors that outlive it."""
    if nodes:
        with jax.ensure_compile_time_eval():
            force(nodes, keep_residuals=False)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


__all__ = ["to_jax"]
