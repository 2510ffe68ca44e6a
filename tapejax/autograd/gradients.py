"""Gradients as values: seeds, sums, zeros, what user code may return, and how one is put into `.grad`."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp

from tapejax.dispatch import CAST
from tapejax.errors import refuse
from tapejax.storage.view import write
from tapejax.tape.aval import Aval
from tapejax.tape.node import Kind, Node
from tapejax.tape.note import Meta
from tapejax.tape.op import Array, Op, op
from tapejax.tape.record import record, record_kind
from tapejax.tensor import Tensor, wrap


@op("", oracle=None)
def sum_of(left: Array, right: Array) -> Any:
    """Add two gradients of one value."""
    return left + right  # type: ignore[operator]


@op("", oracle=None, differentiable=False)
def ones_seed(input: Array) -> Any:
    """The implicit seed of a scalar root."""
    return jnp.ones_like(input)  # type: ignore[arg-type]


@op("", oracle=None, differentiable=False)
def zeros_seed(input: Array, batch: int | None) -> Any:
    """The seed of an output that no gradient reached."""
    return jnp.zeros(input.shape if batch is None else (batch, *input.shape), input.dtype)  # type: ignore[attr-defined]


def add(left: Node | None, right: Node) -> Node:
    return right if left is None else record(sum_of, (1, 1), (), (left, right))


def deposit(meta: Meta, value: Node) -> None:
    """Make `value` (old gradient included) the gradient kept in `meta`, inside the same `.grad` object."""
    old = meta.grad
    if old is None:
        meta.grad = wrap(value)
    elif old._alias is None:
        old._node = value
    else:
        write(old, value)


def zeros_like_aval(aval: Aval) -> Node:
    """A pending tensor of zeros."""
    key = ("zeros", aval)
    kind = ZEROS.kinds.get(key)
    if kind is None:
        kind = Kind(ZEROS, (), (aval,), (), ())
        kind.aval = aval
        ZEROS.kinds[key] = kind
    return record_kind(kind, ())


def _zeros_body(aval: Aval) -> Any:
    return jnp.zeros(aval.shape, aval.dtype.np)


ZEROS = Op(_zeros_body, "", {"name": "zeros_of", "oracle": None, "differentiable": False})


def checked_gradient(name: str, i: int, g: Node, expected: Aval) -> Node:
    """A gradient returned by user code, made to fit the input it belongs to (broadcast axes are summed)."""
    if g.aval is expected:
        return g
    if g.aval.shape != expected.shape:
        padded = (1,) * (g.aval.ndim - expected.ndim) + expected.shape
        if g.aval.ndim < expected.ndim or any(p not in (1, s) for p, s in zip(padded, g.aval.shape, strict=True)):
            raise refuse(
                RuntimeError,
                name,
                f"Function {name} returned an invalid gradient at index {i} - got {list(g.aval.shape)} but expected shape compatible with"
                f" {list(expected.shape)}",
            )
        g = record(sum_to, (1,), (expected.shape,), (g,))
    if g.aval.dtype is not expected.dtype:
        g = record(CAST, (1,), (expected.dtype,), (g,))
    return g


@op("", oracle=None)
def sum_to(input: Array, shape: Any) -> Any:
    """Sum the axes over which `shape` was broadcast."""
    extra = input.ndim - len(shape)  # type: ignore[attr-defined]
    x = input.sum(tuple(range(extra))) if extra else input  # type: ignore[attr-defined]
    axes = tuple(i for i, s in enumerate(shape) if s == 1 and x.shape[i] != 1)
    return x.sum(axes, keepdims=True) if axes else x


def checked_hook_result(result: Any, g: Node) -> Node:
    if not isinstance(result, Tensor):
        raise refuse(TypeError, "hook", f"expected Variable, but hook returned {type(result).__name__} → return a Tensor or None")
    node = result.node
    if node.aval.shape != g.aval.shape:
        raise refuse(
            RuntimeError, "hook", f"hook '{result!r:.40}' has changed the size of value: {tuple(node.aval.shape)} returned, {tuple(g.aval.shape)} given"
        )
    if node.aval.dtype is not g.aval.dtype:
        raise refuse(RuntimeError, "hook", f"hook has changed the type of value (was {g.aval.dtype} got {node.aval.dtype})")
    return node


def node_hook_results(result: Any, given: list[Node | None]) -> list[Node | None]:
    """What a hook on a graph node made of the gradients `given`: None leaves them, None in the tuple makes one undefined."""
    if result is None:
        return given
    if not isinstance(result, tuple):
        if len(given) != 1:
            raise refuse(TypeError, "hook", f"expected tuple, but hook returned '{type(result).__name__}'")
        result = (result,)
    if len(result) != len(given):
        raise refuse(RuntimeError, "hook", f"hook has returned an incorrect number of values (got {len(result)}, but expected {len(given)})")
    found: list[Node | None] = []
    for new, old in zip(result, given, strict=True):
        if new is not None and old is None:
            raise refuse(RuntimeError, "hook", "can't replace a None gradient with a non-None value")
        found.append(None if new is None or old is None else checked_hook_result(new, old))
    return found


def warn_create_graph() -> None:
    warnings.warn(
        "Using backward() with create_graph=True will create a reference cycle between the parameter and its gradient which can cause a memory"
        " leak. We recommend using autograd.grad when creating the graph to avoid this. If you have to use this function, make sure to reset"
        " the .grad fields of your parameters to None after use to break the cycle and avoid the leak.",
        UserWarning,
        stacklevel=3,
    )

