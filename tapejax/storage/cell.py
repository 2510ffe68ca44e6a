"""The mutable cell that a base tensor, its views and its detached aliases share."""

from __future__ import annotations

import weakref
from typing import Any

from tapejax.tape.node import Node
from tapejax.tape.waiting import WAITING


class Counter:
    """A version counter: how often a storage was written. Nodes refer to it, never to the storage (no cycles)."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = 0


class Storage:
    """`head` is the base's current value. `epoch` counts every write, `counter` those that torch counts."""

    __slots__ = ("__weakref__", "counter", "epoch", "head", "meta", "waiting")

    def __init__(self, head: Node, meta: Any) -> None:
        self.head = head
        self.meta = meta  # of the base tensor, when it is a leaf that requires grad
        self.epoch = 0
        self.counter = Counter()
        self.waiting = False
        head.home = (self.counter, 0)

    def rewrite(self, head: Node, counted: bool) -> None:
        """Replace the value; `counted` is False for writes through `.data`."""
        self.head = head
        self.epoch += 1
        if counted:
            self.counter.version += 1
        head.home = (self.counter, self.counter.version)
        if not self.waiting and head.value is None:
            self.waiting = True
            WAITING.written.append(weakref.ref(self))


#: Flags of an alias: made while not recording; `.data` (writes do not count); cut off from the base's history; made in
#: inference mode.
NO_GRAD, HIDDEN, DETACHED, INFERENCE = 1, 2, 4, 8


class Alias:
    """How one tensor looks at a storage: through which lenses, and up to which epoch its node is current."""

    __slots__ = ("flags", "lenses", "multi", "seen", "storage")

    def __init__(self, storage: Storage, lenses: tuple[Any, ...] = (), flags: int = 0) -> None:
        self.storage = storage
        self.lenses = lenses
        self.seen = storage.epoch
        self.flags = flags
        self.multi: str | None = None  # the name of the several-view op that made this view
