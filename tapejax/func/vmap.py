"""vmap: a function of one example, mapped over a batch as one recorded node."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tapejax.autograd.batch import Trace, running
from tapejax.errors import refuse
from tapejax.func.tree import broadcast_prefix, flatten, unflatten
from tapejax.tensor import Tensor, wrap


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return `func` mapped over a batch: func is written for one example and runs once, on stand-ins; the whole batch is one program.

    `in_dims`: the batch axis of every argument (an int, None for an argument without one, or a tree of them like the
    arguments); `out_dims` the same for results. `randomness`: "error" refuses random operations, "different" draws for
    every example, "same" once for all. `chunk_size` limits how many examples are computed at a time. Keyword arguments are
    not mapped.
    RuntimeError where the function needs a number (`.item()`, `if`), or writes a mapped value into an unmapped tensor in place.

    >>> import tapejax as tj
    >>> tj.func.vmap(tj.dot)(tj.ones(3, 2), tj.ones(3, 2))
    tensor([2., 2., 2.])
    """
    if randomness not in ("error", "different", "same"):
        raise refuse(
            RuntimeError,
            "vmap",
            f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}",
        )
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        return _mapped(func, in_dims, out_dims, randomness, chunk_size, args, kwargs)

    return run


def _mapped(
    func: Any,
    in_dims: Any,
    out_dims: Any,
    randomness: str,
    chunk: int | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    name = getattr(func, "__name__", type(func).__name__)
    leaves, spec, axes = _inputs(name, in_dims, args)
    size = _size(leaves, axes)
    trace = Trace(size, randomness)
    with running(trace):
        given = [x if a is None else trace.lift(x, a) for x, a in zip(leaves, axes, strict=True)]
        output = func(*unflatten(spec, given), **kwargs)
    outs, out_spec = flatten(output)
    out_axes = _out_axes(name, out_dims, outs, out_spec, trace)
    chosen = [(o.node, a) for o, a in zip(outs, out_axes, strict=True) if a is not None]
    made = iter(trace.close([o for o, _ in chosen], [a for _, a in chosen], chunk))
    results = [o if a is None else wrap(next(made)) for o, a in zip(outs, out_axes, strict=True)]
    trace.write_back()
    return unflatten(out_spec, results)


def _inputs(name: str, in_dims: Any, args: tuple[Any, ...]) -> tuple[list[Any], Any, list[Any]]:
    where = f"vmap({name}, in_dims={in_dims}, ...)(<inputs>)"
    if not isinstance(in_dims, (int, tuple, list)):
        raise ValueError(
            f"{where}: expected `in_dims` to be int or a (potentially nested) tuple matching the structure of inputs, got: {type(in_dims)}."
        )
    if not args:
        raise ValueError(
            f"vmap({name})(<inputs>): got no inputs. Maybe you forgot to add inputs, or you are trying to vmap over a function with no inputs."
            " The latter is unsupported."
        )
    leaves, spec = flatten(args)
    prefix = tuple(in_dims) if isinstance(in_dims, list) else in_dims
    found = broadcast_prefix(prefix, spec, lambda d: not isinstance(d, (tuple, list, dict)))
    if found is None:
        raise ValueError(
            f"{where}: in_dims is not compatible with the structure of `inputs`. in_dims has structure {flatten(prefix)[1]} but inputs has"
            f" structure {spec}."
        )
    axes: list[int | None] = []
    for x, d in zip(leaves, found, strict=True):
        if d is None:
            axes.append(None)
            continue
        if not isinstance(d, int):
            raise ValueError(
                f"{where}: Got in_dim={d} for an input but in_dim must be either an integer dimension or None."
            )
        if not isinstance(x, Tensor):
            raise ValueError(
                f"{where}: Got in_dim={d} for an input but the input is of type {type(x)}. We cannot vmap over non-Tensor arguments, please use"
                " None as the respective in_dim"
            )
        n = x._node.aval.ndim
        if not -n <= d < n:
            raise ValueError(
                f"{where}: Got in_dim={d} for some input, but that input is a Tensor of dimensionality {n} so expected in_dim to satisfy"
                f" -{n} <= in_dim < {n}."
            )
        axes.append(d % n)
    return leaves, spec, axes


def _size(leaves: list[Any], axes: list[int | None]) -> int:
    sizes = [x.node.aval.shape[a] for x, a in zip(leaves, axes, strict=True) if a is not None]
    if not sizes:
        raise ValueError("vmap: at least one of the inputs must be mapped over → give it an int in in_dims")
    if any(s != sizes[0] for s in sizes):
        raise ValueError(
            f"vmap: Expected all tensors to have the same size in the mapped dimension, got sizes {sizes} for the mapped dimension"
        )
    return sizes[0]


def _out_axes(name: str, out_dims: Any, outs: list[Any], spec: Any, trace: Trace) -> list[int | None]:
    found = broadcast_prefix(out_dims, spec, lambda d: not isinstance(d, (tuple, list, dict)))
    if found is None and spec.kind is None and isinstance(out_dims, (tuple, list)) and len(out_dims) == 1:
        found = [out_dims[0]]
    if found is None:
        raise ValueError(
            f"vmap({name}, ..., out_dims={out_dims})(<inputs>): out_dims is not compatible with the structure of `outputs`. out_dims has"
            f" structure {flatten(out_dims)[1]} but outputs has structure {spec}."
        )
    axes: list[int | None] = []
    for o, d in zip(outs, found, strict=True):
        if d is not None and not isinstance(d, int):
            raise ValueError(
                f"vmap({name}, ..., out_dims={out_dims}): `out_dims` must be an int, None or a python collection of ints representing where in"
                " the outputs the vmapped dimension should appear."
            )
        if not isinstance(o, Tensor):
            if d is None:
                axes.append(None)
                continue
            raise ValueError(
                f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(o)}. Did you mean to set out_dims= to None for output?"
            )
        if d is None:
            if trace.varies(o.node):
                raise ValueError(f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None")
            axes.append(None)
            continue
        n = o.node.aval.ndim + 1
        if not -n <= d < n:
            raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {d})")
        axes.append(d % n)
    return axes


__all__ = ["vmap"]
