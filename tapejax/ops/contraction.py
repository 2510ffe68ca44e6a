"""Contractions over named axes, and products built from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from tapejax.errors import refuse
from tapejax.ops.linalg import same_type
from tapejax.ops.reduce import axis, mixed
from tapejax.tape.op import Array, Arrays, composite, error_sample, op, sample


def _check_equation(operands: Any, equation: str) -> None:
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        which = "more" if len(terms) < len(operands) else "fewer"
        message = f"{which} operands were provided than specified in the equation {equation!r}: {len(operands)}"
        raise refuse(RuntimeError, "einsum", message)
    seen: dict[str, int] = {}
    for i, (term, x) in enumerate(zip(terms, operands, strict=True)):
        letters = term.replace("...", "", 1)
        if not all(c.isascii() and c.isalpha() for c in letters):
            message = f"invalid subscript given in the equation {equation!r}: subscripts must be in [a-zA-Z] or ..."
            raise refuse(RuntimeError, "einsum", message)
        if len(letters) > x.ndim or (letters == term and len(letters) != x.ndim):
            message = f"the number of subscripts in the equation ({len(letters)}) does not match the number of dimensions"
            tail = " and no ellipsis was given" if letters == term else ""
            raise refuse(RuntimeError, "einsum", f"{message} ({x.ndim}) for operand {i}{tail}")
        before, dots, after = term.partition("...")
        named = zip(before, x.shape, strict=False), zip(after[::-1], x.shape[::-1], strict=False)
        for c, extent in [*named[0], *(named[1] if dots else ())]:
            known = seen.setdefault(c, extent)
            if extent not in (1, known) and known != 1:
                message = f"subscript {c} has size {extent} for operand {i} which does not broadcast with previously seen"
                raise refuse(RuntimeError, "einsum", f"{message} size {known}")
            seen[c] = max(known, extent) if 0 not in (known, extent) else 0
    for c in right.replace("...", "", 1) if arrow else "":
        if c not in seen:
            message = f"output subscript {c} does not appear in the equation for any input operand"
            raise refuse(RuntimeError, "einsum", f"{message}: {equation!r}")


@op("", promote=mixed, saves="operands", grad_name="Bmm", oracle=None)
def einsum_op(operands: Arrays, equation: str) -> Array:
    """Return the contraction that an equation without spaces describes; see the public `einsum`."""
    _check_equation(operands, equation)
    return jnp.einsum(equation, *operands)


@einsum_op.samples
def _(make: Any) -> Iterator[Any]:
    yield (make(2, 3), make(3, 4)), "ij,jk->ik"
    yield (make(2, 3, 3),), "...ii->...i"
    yield (make(2, 3), make(2, 3), make(3)), "bi,bj,j->bi"


@einsum_op.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "subscript j has size 4 for operand 1", (make(2, 3), make(4, 2)), "ij,jk->ik")
    yield error_sample(RuntimeError, "fewer operands were provided", (make(2, 3),), "ij,jk->ik")
    yield error_sample(RuntimeError, "output subscript z does not appear", (make(2, 3),), "ij->z")


@composite("torch")
def einsum(*args: Any) -> Any:
    """Return the sum of products that an equation describes: `einsum("bij,bjk->bik", x, y)`.

    Each letter is an axis; letters absent after `->` are summed over; `...` stands for broadcast leading axes; without
    `->` the letters that occur once follow in alphabetical order. Operands may also come as one list, or alternate
    with lists of axis numbers (`einsum(x, [0, 1], y, [1, 2], [0, 2])`).

    >>> import tapejax as tj
    >>> tj.einsum("ij,j->i", tj.tensor([[1., 2.], [3., 4.]]), tj.tensor([1., 1.]))
    tensor([3., 7.])
    """
    if not args:
        raise refuse(ValueError, "einsum", "at least one operand must be provided")
    if isinstance(args[0], str):
        equation, operands = args[0], args[1:]
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
    else:
        operands = args[: len(args) // 2 * 2 : 2]
        terms = [_letters(t) for t in args[1::2]]
        equation = ",".join(terms) + ("->" + _letters(args[-1]) if len(args) % 2 else "")
    if not operands:
        raise refuse(ValueError, "einsum", "must provide at least one operand")
    return einsum_op(list(operands), equation.replace(" ", ""))


def _letters(sublist: Any) -> str:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join("..." if n is ... else alphabet[n] for n in sublist)


@op("torch", saves={"a": "b", "b": "a"}, grad_name="View")
def tensordot(a: Array, b: Array, dims: Any = 2) -> Array:
    """Return the contraction of `a` and `b` over `dims`: a number of last axes of `a` and first axes of `b`, or the
    pair of axis lists. Raises RuntimeError where contracted extents differ.
    """
    same_type("tensordot", a, b)
    if isinstance(dims, int):
        if dims < 0 or dims > min(a.ndim, b.ndim):
            raise refuse(RuntimeError, "tensordot", f"expects dims >= 0 and at most the ranks {a.ndim}, {b.ndim}, got {dims}")
        dims = (tuple(range(a.ndim - dims, a.ndim)), tuple(range(dims)))
    left, right = ((d,) if isinstance(d, int) else tuple(d) for d in dims)
    if len(left) != len(right):
        raise refuse(RuntimeError, "tensordot", f"both dimension lists should have same length, got {left} and {right}")
    left = tuple(axis("tensordot", d, a.ndim) for d in left)
    right = tuple(axis("tensordot", d, b.ndim) for d in right)
    for i, j in zip(left, right, strict=True):
        if a.shape[i] != b.shape[j]:
            message = f"contracted dimensions need to match, but first has size {a.shape[i]} in dim {i} and second has size"
            raise refuse(RuntimeError, "tensordot", f"{message} {b.shape[j]} in dim {j}")
    return jnp.tensordot(a, b, (left, right))


@tensordot.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3, 4), make(3, 4, 2)
    yield make(2, 3), make(3, 2), 1
    yield make(2, 3), make(4, 2), ((0,), (1,))
    yield make(2), make(3), 0


@tensordot.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "contracted dimensions need to match", make(2, 3), make(2, 3), 1)


@op("torch Tensor", promote=mixed, saves="computed", grad_name="View")
def kron(input: Array, other: Array) -> Array:
    """Return the Kronecker product: blocks `input[i, j] * other`, axes aligned at the end."""
    return jnp.kron(input, other)


@kron.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 2), make(2, 3)
    yield make(2), make(2, 3)


def _cross(name: str, a: Any, b: Any, dim: int) -> Any:
    d = axis(name, dim, max(a.ndim, b.ndim))
    if a.ndim != b.ndim:
        raise refuse(RuntimeError, name, f"inputs must have the same number of dimensions, got {a.ndim} and {b.ndim}")
    if a.shape[d] != 3 or b.shape[d] != 3:
        message = f"inputs dimension {dim} must have length 3. Got {a.shape[d]} and {b.shape[d]}"
        raise refuse(RuntimeError, name, message)
    a, b = jnp.broadcast_arrays(a, b)
    return jnp.cross(a, b, axis=d)


@op("", promote="common", saves={"input": "other", "other": "input"}, grad_name="LinalgCross", oracle="linalg.cross")
def cross_op(input: Array, other: Array, *, dim: int = -1) -> Array:
    """Return the cross product of the 3-vectors along `dim`; see the public `cross`."""
    return _cross("linalg.cross", input, other, dim)


@cross_op.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3), make(2, 3)
    yield sample(make(3, 2), make(3, 1), dim=0)


@cross_op.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "must have length 3", make(2, 2), make(2, 2))


@composite("torch Tensor")
def cross(input: Any, other: Any, dim: int | None = None) -> Any:
    """Return the cross product of the 3-vectors along `dim` (the first axis of length 3 if None)."""
    if dim is None:
        dim = next((i for i, n in enumerate(input.shape) if n == 3), None)
        if dim is None:
            raise refuse(RuntimeError, "cross", f"no dimension of size 3 in input of shape {tuple(input.shape)}")
    return cross_op(input, other, dim=dim)


@composite("linalg", name="cross")
def _linalg_cross(input: Any, other: Any, *, dim: int = -1) -> Any:
    """Return the cross product of the 3-vectors along `dim`."""
    return cross_op(input, other, dim=dim)


@op("linalg", saves="tensors", oracle="linalg.multi_dot", grad_name="Mm")
def multi_dot(tensors: Arrays) -> Array:
    """Return the product of two or more matrices, in the cheapest order; the first and the last may be vectors."""
    if len(tensors) < 2:
        raise refuse(RuntimeError, "multi_dot", f"expected at least 2 tensors but got {len(tensors)}")
    return jnp.linalg.multi_dot(tensors)


@multi_dot.samples
def _(make: Any) -> Iterator[Any]:
    yield ((make(2, 3), make(3, 4), make(4, 2)),)
    yield ((make(3), make(3, 4), make(4)),)
