"""Pending values that no later program is sure to reach, so that the next one takes them along.

Two kinds: storages written in place (an optimizer's state, an average of weights, running statistics), and values that
have waited for many programs (`total = total + loss`). Held weakly, per thread.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from tapejax import config
from tapejax.tape.node import Node


class _Waiting(threading.local):
    def __init__(self) -> None:
        self.written: list[weakref.ref[Any]] = []  # storages with a pending head
        self.stale: list[weakref.ref[Node]] = []


WAITING = _Waiting()

#: Sequence numbers at which the last programs ran; a pending value older than the first of them is stale.
HORIZON: list[int] = [0] * config.patience


def program_ran(seq: int) -> None:
    HORIZON.append(seq)
    del HORIZON[0]


def take() -> list[Node]:
    """The nodes to compute along; each is taken once."""
    nodes = []
    if WAITING.written:
        for ref in WAITING.written:
            storage = ref()
            if storage is not None:
                storage.waiting = False
                if storage.head.value is None:
                    nodes.append(storage.head)
        WAITING.written = []
    if WAITING.stale:
        nodes += [n for r in WAITING.stale if (n := r()) is not None and n.value is None]
        WAITING.stale = []
    return nodes
