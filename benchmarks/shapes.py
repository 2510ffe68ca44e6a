"""What varying shapes cost: a text loader whose batches have 30 lengths, as it comes and padded to a multiple of 16.

    python benchmarks/shapes.py [--quick]      (torch beside it; writes shapes.json)

Two models: one whose shapes follow the length (embed, attend, pool), one that loops over the tokens in Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Row, race, report, row

import tapejax as tj

WORDS, WIDTH, BATCH, CLASSES = 1000, 32, 16, 5
LENGTHS = list(range(11, 41))


def batches(lengths: Sequence[int], count: int, multiple: int = 1, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Tokens (BATCH, T), mask (BATCH, T), classes (BATCH,); every length once per `len(lengths)` batches, in random order."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        if i % len(lengths) == 0:
            order = rng.permutation(lengths)
        n = int(order[i % len(lengths)])
        padded = -(-n // multiple) * multiple
        tokens = np.zeros((BATCH, padded), np.int64)
        tokens[:, :n] = rng.integers(1, WORDS, (BATCH, n))
        found.append((tokens, (np.arange(padded) < n).astype(np.float32) * np.ones((BATCH, 1), np.float32), rng.integers(0, CLASSES, BATCH)))
    return found


def parameters(lib: Any, names: str) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    shapes = {"embed": (WORDS, WIDTH), "q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "out": (WIDTH, CLASSES)}
    return {n: lib.tensor((rng.standard_normal(s) / np.sqrt(s[0] if n != "embed" else WIDTH)).astype(np.float32), requires_grad=True) for n, s in shapes.items() if n in names.split()}


def attend(lib: Any, p: Any, tokens: Any, mask: Any) -> Any:
    x = p["embed"][tokens]
    scores = (x @ p["q"]) @ (x @ p["k"]).transpose(1, 2) / WIDTH**0.5 + (mask[:, None, :] - 1) * 1e4
    y = lib.softmax(scores, -1) @ (x @ p["v"])
    return (y * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True) @ p["out"]


def recur(lib: Any, p: Any, tokens: Any, mask: Any) -> Any:
    x = p["embed"][tokens] @ p["v"]
    h = lib.zeros(BATCH, WIDTH)
    for t in range(tokens.shape[1]):
        new = lib.tanh(x[:, t] + h @ p["q"])
        h = h + (new - h) * mask[:, t, None]
    return h @ p["out"]


USES = {attend: "embed q k v out", recur: "embed q v out"}


def contestant(lib: Any, model: Callable[..., Any], data: list[Any]) -> Any:
    """`(step, finish)`: an ordinary training step on the next batch."""
    p = parameters(lib, USES[model])
    given = [tuple(lib.tensor(a) for a in batch) for batch in data]
    place = iter(range(10**9))

    def step() -> None:
        tokens, mask, classes = given[next(place) % len(given)]
        loss = lib.nn.functional.cross_entropy(model(lib, p, tokens, mask), classes)
        loss.backward()
        with lib.no_grad():
            for w in p.values():
                w -= 0.1 * w.grad
                w.grad = None

    return step, lambda: [w.sum().item() for w in p.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    quick = parser.parse_args().quick
    torch.set_num_threads(2)
    rows: list[Row] = []
    facts: dict[str, Any] = {}
    for name, model in (("attention", attend), ("recurrence", recur)):
        loaders = {
            "30 lengths": batches(LENGTHS, 60),
            "multiples of 16": batches(LENGTHS, 60, 16),
            "one length": batches([26], 60),  # the mean
        }
        contestants: dict[str, Any] = {}
        for loader, data in loaders.items():
            contestants[loader] = contestant(tj, model, data)
            step, finish = contestants[loader]
            before = tj.debug.cache_info()
            for _ in range(60):
                step()
            finish()
            after = tj.debug.cache_info()
            for _ in range(60):
                step()
            facts[f"{name}: {loader}: programs in the first two epochs, in the next two"] = [
                after.misses - before.misses,
                tj.debug.compile_count() - after.misses,
            ]
            facts[f"{name}: {loader}: seconds per compile"] = round((after.seconds - before.seconds) / (after.misses - before.misses), 3)
        contestants["torch"] = contestant(torch, model, loaders["30 lengths"])
        seconds = race(contestants, 60, 3 if quick else 11, warm=2)
        for loader in loaders:
            rows.append(row(f"{name}, {loader}", seconds, loader, "torch", None))
        rows.append(row(f"{name}, 30 lengths", seconds, "30 lengths", "one length", None))
        per_step = sorted(seconds["30 lengths"])[len(seconds["30 lengths"]) // 2]
        facts[f"{name}: a compile in steps"] = round(facts[f"{name}: 30 lengths: seconds per compile"] / per_step)
    for k, v in facts.items():
        print(f"{k}: {v}")
    report(rows, Path(__file__).with_suffix(".json"), facts)


if __name__ == "__main__":
    main()
