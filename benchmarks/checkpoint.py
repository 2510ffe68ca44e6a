"""Checkpointing an 8-block MLP: XLA's temporary memory and the time of a step, with and without, and against `jax.checkpoint`.

    python benchmarks/checkpoint.py [--quick]      (writes checkpoint.json)

Target: at most half the temporary memory of the step without checkpoints.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import Row, race, report, row

import tapejax as tj
from tapejax.engine.cache import CACHE
from tapejax.utils.checkpoint import checkpoint

BLOCKS, WIDTH = 8, 128


def parameters() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        ((rng.standard_normal((WIDTH, 4 * WIDTH)) / WIDTH**0.5).astype(np.float32), (rng.standard_normal((4 * WIDTH, WIDTH)) / WIDTH).astype(np.float32))
        for _ in range(BLOCKS)
    ]


def of_tapejax(batch: np.ndarray, checkpointed: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    blocks = [(tj.tensor(a, requires_grad=True), tj.tensor(b, requires_grad=True)) for a, b in parameters()]
    x = tj.tensor(batch)

    def block(h: tj.Tensor, a: tj.Tensor, b: tj.Tensor) -> tj.Tensor:
        return h + tj.tanh(tj.tanh(h @ a).sin() @ b)

    def step() -> None:
        for pair in blocks:
            for p in pair:
                p.grad = None
        h = x
        for a, b in blocks:
            h = checkpoint(block, h, a, b, use_reentrant=False) if checkpointed else block(h, a, b)
        (h * h).mean().backward()

    def finish() -> None:
        jax.block_until_ready([p.grad.array() for pair in blocks for p in pair])

    return step, finish


def of_jax(batch: np.ndarray, checkpointed: bool) -> tuple[Callable[[], Any], Callable[[], Any], Any]:
    def block(h: Any, a: Any, b: Any) -> Any:
        return h + jnp.tanh(jnp.sin(jnp.tanh(h @ a)) @ b)

    one = jax.checkpoint(block) if checkpointed else block

    def loss(params: Any, x: Any) -> Any:
        h = x
        for a, b in params:
            h = one(h, a, b)
        return (h * h).mean()

    grad = jax.jit(jax.value_and_grad(loss))
    params = [(jnp.asarray(a), jnp.asarray(b)) for a, b in parameters()]
    x = jnp.asarray(batch)
    last: list[Any] = [None]

    def step() -> None:
        last[0] = grad(params, x)

    return step, lambda: jax.block_until_ready(last[0]), grad.lower(params, x).compile()


def temporary(compiled: Any) -> int:
    return compiled.memory_analysis().temp_size_in_bytes


def of_last_program(step: Callable[[], None]) -> int:
    """XLA's temporary bytes of the step's largest program."""
    CACHE.clear()
    step()
    return max(temporary(c) for e in CACHE.entries.values() for c in e.compiled())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    batch = np.random.default_rng(1).standard_normal((512, WIDTH)).astype(np.float32)
    plain, saving = of_tapejax(batch, False), of_tapejax(batch, True)
    jax_plain, jax_saving = of_jax(batch, False), of_jax(batch, True)
    facts = {
        "tapejax": of_last_program(plain[0]),
        "tapejax, checkpointed": of_last_program(saving[0]),
        "jax": temporary(jax_plain[2]),
        "jax, checkpointed": temporary(jax_saving[2]),
    }
    for name, size in facts.items():
        print(f"{name:<24} {size / 2**20:8.2f} MiB of temporary memory")
    memory = facts["tapejax, checkpointed"] / facts["tapejax"]
    seconds = race(
        {"tapejax": plain, "tapejax, checkpointed": saving, "jax": jax_plain[:2], "jax, checkpointed": jax_saving[:2]},
        3 if quick else 10,
        3 if quick else 9,
    )
    rows = [
        Row("temporary memory, checkpointed", "tapejax", memory, 0.5, (memory, memory)),
        row("step, checkpointed", seconds, "tapejax, checkpointed", "tapejax", None),
        row("step, checkpointed", seconds, "tapejax, checkpointed", "jax, checkpointed", None),
    ]
    report(rows, None if quick else Path(__file__).with_name("checkpoint.json"), facts)


if __name__ == "__main__":
    main()
