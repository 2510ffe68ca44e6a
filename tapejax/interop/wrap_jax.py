"""JAX functions on Tensors: recorded as one operation, differentiated by JAX."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dispatch, dtypes
from tapejax.errors import refuse
from tapejax.tape.op import Op, Param
from tapejax.tensor import Tensor, leaf_tensor

_empty = inspect.Parameter.empty


class _Call:
    """What is fixed of a call: the arguments' structure, everything in it that is no array, and JAX's precision mode. Part of a key."""

    __slots__ = ("_hash", "rest", "tree", "trees", "wide")

    def __init__(self, tree: Any, rest: tuple[Any, ...], wide: bool) -> None:
        self.tree = tree
        self.rest = rest  # per leaf: (value,), or None for an array
        self.wide = wide
        self.trees: dict[Any, Any] = {}  # shapes and dtypes of the arrays -> structure of the result
        self._hash = hash((tree, tuple((type(r[0]), r[0]) if r else r for r in rest), wide))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self._same(other)

    def _same(self, other: _Call) -> bool:
        if self.tree != other.tree or self.wide != other.wide or self.rest != other.rest:
            return False
        return all(type(a[0]) is type(b[0]) for a, b in zip(self.rest, other.rest, strict=True) if a and b)  # 1, 1.0 and True are equal

    def __repr__(self) -> str:
        return f"({', '.join(repr(r[0]) for r in self.rest if r)})"


def _mark(arrays: Any) -> Any:
    return tuple((x.shape, x.dtype) for x in arrays)


def _body(function: Callable[..., Any]) -> Callable[..., Any]:
    def body(arrays: Any, call: _Call) -> Any:
        given = iter(arrays if call.wide else map(_narrow, arrays))
        leaves = [next(given) if r is None else r[0] for r in call.rest]
        args, kwargs = jax.tree.unflatten(call.tree, leaves)
        with jax.enable_x64(call.wide):
            found, tree = jax.tree.flatten(function(*args, **kwargs))
            results = []
            for x in found:
                if not isinstance(x, (jax.Array, np.ndarray, np.generic, int, float, complex)):
                    raise refuse(TypeError, _name(function), f"returned a {type(x).__name__} → a function for from_jax returns arrays, in any nesting")
                results.append(jnp.asarray(x))
        if not results:
            raise refuse(TypeError, _name(function), "returned no array → a function for from_jax returns at least one")
        call.trees[_mark(arrays)] = tree
        return results[0] if len(results) == 1 else tuple(results)

    return body


def _narrow(x: Any) -> Any:
    """64-bit integers as JAX has them in its 32-bit mode."""
    return x.astype({"int64": jnp.int32, "uint64": jnp.uint32}[x.dtype.name]) if x.dtype.name in ("int64", "uint64") else x


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "jax_function"


@functools.lru_cache(1024)
def _op_of(function: Callable[..., Any]) -> Op:
    parameters = [Param("arrays", "arrays", False, _empty, False), Param("call", "static", False, _empty, False)]
    return Op(_body(function), "", {"name": _name(function), "oracle": None, "saves": "arrays"}, parameters)


def from_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a JAX function as a function of Tensors: recorded as one operation, differentiable to any order, without a cut.

    Arguments and results are pytrees. Tensors, NumPy and JAX arrays among the arguments become arrays; everything else
    (numbers, strings, None) is fixed, hashable, and part of the program, so that it may steer Python control flow: pass a
    0-d Tensor for a number that changes. The function must be pure. It runs in the process's own JAX precision, or with
    64-bit types if a floating argument has one (otherwise 64-bit integers enter as 32-bit ones). Values it closes over are
    constants; gradients reach its arguments only.
    The same function object is the same operation: define it once, not in the loop.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> f = tj.interop.from_jax(lambda x: jnp.sin(x["a"]) * x["b"])
    >>> a = tj.tensor(0.0, requires_grad=True)
    >>> f({"a": a, "b": tj.tensor(3.0)}).backward()
    >>> a.grad
    tensor(3.)
    """
    if not callable(function):
        raise refuse(TypeError, "from_jax", f"expected a function, got {type(function).__name__}")
    try:
        op = _op_of(function)
    except TypeError:  # not hashable
        op = _op_of.__wrapped__(function)
    name = op.name

    @functools.wraps(function, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_tensor)
        arrays: list[Any] = []
        rest: list[Any] = []
        for x in leaves:
            if isinstance(x, np.ndarray):
                x = leaf_tensor(x, dtypes.of(x.dtype))
            if isinstance(x, (Tensor, jax.Array)):
                arrays.append(x)
                rest.append(None)
            else:
                rest.append((x,))
        wide = bool(jax.config.read("jax_enable_x64")) or any(dtypes.of(x.dtype) in (dtypes.float64, dtypes.complex128) for x in arrays)
        try:
            call = _Call(tree, tuple(rest), wide)
        except TypeError:
            kinds = ", ".join(sorted({type(r[0]).__name__ for r in rest if r}))
            raise refuse(TypeError, name, f"arguments that are no arrays must be hashable, got {kinds} → pass arrays or Tensors") from None
        made = dispatch.call(op, (arrays,), (call,))
        outputs = made if isinstance(made, tuple) else (made,)
        kind = outputs[0]._node.kind if len(outputs) == 1 else outputs[0]._node.inputs[0].kind
        known: _Call = kind.statics[0]
        mark = tuple((tuple(a.shape), np.dtype(a.dtype.np)) for a in kind.inputs)
        return jax.tree.unflatten(known.trees[mark], outputs)

    return run


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


__all__ = ["from_jax"]
