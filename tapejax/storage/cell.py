"""The mutable cell that a base tensor, its views and its detached aliases share."""

from __future__ import annotations

import weakref
from typing import Any

from tapejax.tape.node import Node, next_seq
from tapejax.tape.waiting import WAITING


class Counter:
    """A version counter: how often a storage was written. Nodes refer to it, never to the storage (no cycles)."""

    __slots__ = ("version",)

    #: The sequence number at which any counter moved last: nodes recorded since read nothing that was written later.
    last_move = 0

    def __init__(self) -> None:
        self.version = 0

    def move(self, version: int | None = None) -> None:
        """Count one write (or take over a count)."""
        self.version = self.version + 1 if version is None else version
        Counter.last_move = max(Counter.last_move, next_seq())


class Storage:
    """`head` is the base's current value, with the base's history. `epoch` counts every write, `counter` those that torch counts.

    `detach()` makes a storage of its own (another history) that *mirrors* its source: same values, and for `detach()`
    the same counter. A write to one makes the other stale or is carried over (storage/view.py). Both links are weak; only
    a mirror's mirror holds what stands between it and the first source.
    """

    __slots__ = ("__weakref__", "base", "between", "counter", "epoch", "head", "meta", "mirrors", "source", "stale", "waiting")

    def __init__(self, head: Node, meta: Any, counter: Counter | None = None) -> None:
        self.head = head
        self.meta = meta  # of the base tensor, when it is a leaf that requires grad
        self.base: weakref.ref[Any] | None = None  # the base tensor
        self.epoch = 0
        self.counter = Counter() if counter is None else counter
        self.waiting = False
        self.mirrors: list[weakref.ref[Storage]] | None = None
        self.source: tuple[weakref.ref[Storage], tuple[Any, ...]] | None = None  # what this mirrors, through which lenses
        self.between: Storage | None = None  # the source, where it is a mirror itself
        self.stale = False  # the source was written since
        if head.home is None:  # a second look at a node that a storage already watches leaves it there
            head.home = (self.counter, self.counter.version)

    def mirror(self, head: Node, lenses: tuple[Any, ...], counter: Counter | None) -> Storage:
        """A storage with a history of its own that shows this one's values (through `lenses`) and counts with `counter`."""
        made = Storage(head, None, counter)
        made.source = (weakref.ref(self), lenses)
        if self.source is not None and self.source[0]() is not None:
            made.between = self
        alive = [] if self.mirrors is None else [m for m in self.mirrors if m() is not None]
        self.mirrors = [*alive, weakref.ref(made)]
        return made

    def rewrite(self, head: Node, counted: bool = True) -> None:
        """Replace the value; not `counted` where the write was counted already, or happened through `.data`."""
        self.head = head
        self.epoch += 1
        if counted:
            self.counter.move()
        head.home = (self.counter, self.counter.version)
        if not self.waiting and head.value is None:
            self.waiting = True
            WAITING.written.append(weakref.ref(self))

    def outdate_mirrors(self, but: Storage | None = None) -> None:
        """Tell the storages that mirror this one that it was written."""
        for ref in self.mirrors or ():
            m = ref()
            if m is not None and m is not but:
                m.stale = True
                m.epoch += 1
                m.outdate_mirrors()


#: Flags of an alias: made while not recording; made in inference mode.
NO_GRAD, INFERENCE = 1, 2


class Alias:
    """How one tensor looks at a storage: through which lenses, and up to which epoch its node is current."""

    __slots__ = ("flags", "lenses", "multi", "seen", "storage")

    def __init__(self, storage: Storage, lenses: tuple[Any, ...] = (), flags: int = 0, multi: str | None = None) -> None:
        self.storage = storage
        self.lenses = lenses
        self.seen = storage.epoch
        self.flags = flags
        self.multi = multi  # the name of the several-view op that made this view
