"""Nested tuples, lists and dicts of values: taken apart and put together, in the order the user wrote them.

(`jax.tree` sorts the keys of a dict and takes None for an empty branch; torch does neither.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class Spec:
    """The structure of a tree: `kind` is the container's class, or None for a leaf."""

    __slots__ = ("branches", "keys", "kind", "leaves")

    def __init__(self, kind: Any, keys: Any, branches: tuple[Spec, ...]) -> None:
        self.kind = kind
        self.keys = keys
        self.branches = branches
        self.leaves: int = 1 if kind is None else sum(b.leaves for b in branches)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Spec)
            and self.kind is other.kind
            and self.keys == other.keys
            and self.branches == other.branches
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.branches))

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        inner = [repr(b) for b in self.branches]
        if self.keys is not None:
            return "{" + ", ".join(f"{k!r}: {b}" for k, b in zip(self.keys, inner, strict=True)) + "}"
        open_, close = ("[", "]") if self.kind is list else ("(", ")")
        return open_ + ", ".join(inner) + ("," if self.kind is tuple and len(inner) == 1 else "") + close


LEAF = Spec(None, None, ())


def _branches(tree: Any) -> tuple[Any, Any, list[Any]] | None:
    kind = type(tree)
    if kind in (tuple, list):
        return kind, None, list(tree)
    if kind in (dict, OrderedDict) or isinstance(tree, dict):
        return kind, tuple(tree), list(tree.values())
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return kind, None, list(tree)
    return None


def flatten(tree: Any) -> tuple[list[Any], Spec]:
    """The leaves in order, and the structure."""
    found = _branches(tree)
    if found is None:
        return [tree], LEAF
    kind, keys, children = found
    leaves: list[Any] = []
    specs = []
    for child in children:
        if isinstance(child, (tuple, list, dict)):
            below, spec = flatten(child)
            leaves += below
            specs.append(spec)
        else:
            leaves.append(child)
            specs.append(LEAF)
    return leaves, Spec(kind, keys, tuple(specs))


def unflatten(spec: Spec, leaves: Any) -> Any:
    """The tree of structure `spec` with these leaves."""
    return _build(spec, iter(leaves))


def _build(spec: Spec, leaves: Any) -> Any:
    if spec.kind is None:
        return next(leaves)
    children = [_build(b, leaves) for b in spec.branches]
    if spec.keys is not None:
        pairs = zip(spec.keys, children, strict=True)
        if issubclass(spec.kind, OrderedDict):
            return spec.kind(pairs)
        return dict(pairs)
    if hasattr(spec.kind, "_fields"):
        return spec.kind(*children)
    return spec.kind(children)


def tree_map(function: Callable[..., Any], tree: Any) -> Any:
    leaves, spec = flatten(tree)
    return unflatten(spec, [function(x) for x in leaves])


def broadcast_prefix(prefix: Any, spec: Spec, leaf: Callable[[Any], bool]) -> list[Any] | None:
    """The leaves of `prefix` repeated over the branches they stand for; None where the structures do not fit."""
    if leaf(prefix):
        return [prefix] * spec.leaves
    found = _branches(prefix)
    if found is None or spec.kind is None:
        return None
    kind, keys, children = found
    if len(children) != len(spec.branches) or (keys is None) != (spec.keys is None):
        return None
    if keys is None and kind is not spec.kind:
        return None
    if keys is not None:
        if set(keys) != set(spec.keys):
            return None
        order = dict(zip(keys, children, strict=True))
        children = [order[k] for k in spec.keys]
    out: list[Any] = []
    for child, branch in zip(children, spec.branches, strict=True):
        below = broadcast_prefix(child, branch, leaf)
        if below is None:
            return None
        out += below
    return out
