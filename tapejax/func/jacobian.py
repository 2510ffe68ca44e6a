"""Whole derivatives: jacrev, jacfwd, hessian. A row (column) is a vjp (jvp); all of them are one map."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tapejax.autograd.batch import units
from tapejax.func.forward import jvp_at
from tapejax.func.reverse import replaced, select, vjp_at
from tapejax.func.tree import flatten, unflatten
from tapejax.func.vmap import vmap
from tapejax.tensor import Tensor


def jacrev(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Callable[..., Any]:
    """Return the function that computes the Jacobian of `func` by reverse mode: best for few outputs and many inputs.

    For an output of shape `(*out)` and an argument of shape `(*in)` the result is `(*out, *in)`; trees of outputs outside,
    trees of arguments inside. `chunk_size` limits how many rows are computed at a time.

    >>> import tapejax as tj
    >>> tj.func.jacrev(tj.sin)(tj.zeros(2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError("jacrev: `chunk_size` should be greater than 0.")

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        call = func if not kwargs else functools.partial(func, **kwargs)
        output, pull, *aux = vjp_at(call, args, argnums, has_aux, "jacrev")
        outs, out_spec = flatten(output)
        _, in_spec = flatten(select(args, argnums))
        avals = [o.node.aval for o in outs]
        rows = vmap(lambda *seeds: tuple(flatten(pull(unflatten(out_spec, seeds)))[0]), chunk_size=chunk_size)(
            *units(avals)
        )
        by_output: list[Any] = []
        offset = 0
        for a in avals:
            blocks = [
                (r if len(outs) == 1 else r[offset : offset + a.size]).reshape((*a.shape, *r.shape[1:])) for r in rows
            ]
            by_output.append(unflatten(in_spec, blocks))
            offset += a.size
        jacobian = unflatten(out_spec, by_output)
        return (jacobian, *aux) if has_aux else jacobian

    return run


def jacfwd(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Callable[..., Any]:
    """Return the function that computes the Jacobian of `func` by forward mode: best for few inputs and many outputs.

    Shapes and trees as for `jacrev`. `randomness` as for `vmap`, since func runs inside a map.
    """

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        call = func if not kwargs else functools.partial(func, **kwargs)
        chosen = select(args, argnums)
        leaves, in_spec = flatten(chosen)
        avals = [x.node.aval if isinstance(x, Tensor) else _not_tensor(x) for x in leaves]
        found: dict[str, Any] = {}

        def push(*directions: Any) -> Any:
            given = jvp_at(
                call,
                args,
                chosen,
                unflatten(in_spec, directions),
                lambda new: replaced(args, argnums, new),
                False,
                has_aux,
            )
            outs, found["spec"] = flatten(given[1])
            found["aux"] = given[2] if has_aux else None
            return tuple(outs)

        columns = vmap(push, randomness=randomness)(*units(avals))
        by_output = []
        for c in columns:
            out_shape = tuple(c.shape[1:])
            blocks = []
            offset = 0
            for a in avals:
                block = c if len(avals) == 1 else c[offset : offset + a.size]
                block = block.movedim(0, -1) if out_shape else block
                blocks.append(block.reshape((*out_shape, *a.shape)))
                offset += a.size
            by_output.append(unflatten(in_spec, blocks))
        jacobian = unflatten(found["spec"], by_output)
        return (jacobian, found["aux"]) if has_aux else jacobian

    return run


def _not_tensor(x: Any) -> Any:
    raise RuntimeError(f"jvp(f, primals, tangents): Expected primals to only contain Tensors, got {type(x)}")


def hessian(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Return the function that computes the Hessian of a scalar-valued `func`: forward over reverse.

    >>> import tapejax as tj
    >>> tj.func.hessian(lambda x: (x**3).sum())(tj.ones(2))
    tensor([[6., 0.],
            [0., 6.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)


__all__ = ["hessian", "jacfwd", "jacrev"]
