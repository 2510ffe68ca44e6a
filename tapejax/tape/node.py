"""Nodes: one recorded application of an op, or a leaf that holds a value.

A node never changes what it means. Three slots fill in or empty over its life, none of which changes that meaning:
`value` (None while pending), `inputs` (dropped once they are no longer needed: `()` after materialising, None after a
backward freed the graph) and `note` (what autograd attached).
"""

from __future__ import annotations

import itertools
from typing import Any

from tapejax.tape import aval as avals
from tapejax.tape.aval import Aval
from tapejax.tape.op import Op

next_seq = itertools.count(1).__next__  # the tape's clock
NEVER = 1 << 62  # `oldest` of a node that does not wait for anything


class Kind:
    """An op applied to inputs of known avals: everything about a node except which nodes feed it. Interned."""

    __slots__ = ("aval", "avals", "casts", "differentiable", "form", "inputs", "lens", "name", "op", "operands", "reach", "saves", "statics")

    def __init__(
        self, op: Op, form: tuple[Any, ...], statics: tuple[Any, ...], inputs: tuple[Aval, ...], operands: tuple[str, ...]
    ) -> None:
        self.op = op
        self.name = op.name
        self.form = form  # per operand parameter: 1, None (absent) or (n,) for a list
        self.statics = statics
        self.inputs = inputs
        self.operands = operands  # the parameter name behind each input
        self.casts: tuple[Any, ...] = ()
        self.aval: Any = None  # of the result; for a several-output kind the tuple `avals`
        self.avals: tuple[Aval, ...] | None = None
        self.differentiable: Any = False  # whether results may require grad (an object that raises: they must not)
        self.saves = op.saves if {*op.operands} <= {*operands} else _of_present(op, operands)
        self.lens: Any = None  # of a view kind without further operands: its lens
        self.reach: Any = None  # of a PULL kind: per output, the inputs it depends on

    @property
    def saved_at_most(self) -> set[str]:
        """What the backward needs where every input that can require grad does."""
        tracked = {n for n, a in zip(self.operands, self.inputs, strict=True) if a.differentiable and not a.weak} | {"*"}
        return {name for of, names in self.saves.items() if of in tracked for name in names}

    def __repr__(self) -> str:
        return f"<kind {self.name}{self.statics} {self.inputs}>"


def _of_present(op: Op, operands: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """`op.saves` without the operands that this kind was not given."""
    absent = {*op.operands} - {*operands}
    kept = {of: tuple(n for n in names if n not in absent) for of, names in op.saves.items() if of not in absent}
    return {of: names for of, names in kept.items() if names}


class Node:
    """`kind` applied to `inputs`; see the module's docstring for the slots that change."""

    __slots__ = ("__weakref__", "aval", "freed", "home", "inputs", "kind", "note", "oldest", "requires_grad", "seq", "value")

    def __init__(self, kind: Any, inputs: Any, aval: Aval, requires_grad: bool, oldest: int = NEVER, value: Any = None) -> None:
        self.kind = kind
        self.inputs = inputs
        self.aval = aval
        self.requires_grad = requires_grad
        self.value = value
        self.seq = seq = next_seq()
        self.oldest = oldest if oldest < seq else seq if value is None else NEVER  # the oldest pending node it waits for
        self.home: Any = None  # (version counter, version) once a storage holds it
        self.note: Any = None  # autograd's attachments: see tape/note.py
        self.freed: Any = None  # where it led, once its graph was freed: autograd/freed.py

    def __repr__(self) -> str:
        name = self.kind if isinstance(self.kind, str) else self.kind.name
        return f"<node {self.seq} {name} {self.aval}{'' if self.value is None else ' ready'}>"


#: `kind` of a leaf holding an array, of a Python number, of a traced function's argument, of a grad-requiring leaf.
LEAF, SCALAR, ARGUMENT, VAR = "leaf", "scalar", "argument", "var"


def leaf(value: Any, aval: Aval) -> Node:
    return Node(LEAF, (), aval, False, NEVER, value)


_WEAK = {float: avals.WEAK_FLOAT, int: avals.WEAK_INT, bool: avals.WEAK_BOOL, complex: avals.WEAK_COMPLEX}


def scalar(value: Any) -> Node:
    """A Python number as a leaf: its value is an argument of the program, never a constant in it."""
    return Node(SCALAR, (), _WEAK[type(value)], False, NEVER, value)


def variable(of: Node, meta: Any) -> Node:
    """The node through which a grad-requiring leaf tensor is read: gradients that arrive here go to `meta`."""
    made = Node(VAR, () if of.value is not None else (of,), of.aval, True, of.oldest, of.value)
    made.note = meta
    return made
