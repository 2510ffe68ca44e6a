"""Function transforms against their JAX twins: Jacobians, batched gradients, per-sample gradients, Hessians.

python benchmarks/func.py [--quick] [--only NAME]      (writes func.json)
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import Row, race, report, row

import tapejax as tj
from tapejax.engine.cache import CACHE

TARGET = 1.3


def layers(width: int, count: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        found += [
            (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32),
            np.zeros(width, np.float32),
        ]
    return found


def net(lib: Any, params: Any, x: Any) -> Any:
    h = x
    for i in range(0, len(params), 2):
        h = lib.tanh(h @ params[i] + params[i + 1])
    return h


def contest(
    rows: list[Row], name: str, ours: Any, twin: Any, steps: int, rounds: int, target: float | None = TARGET
) -> None:
    """`ours` gives tensors, `twin` arrays; both are called and finished."""
    last: dict[str, Any] = {}

    def tape() -> None:
        last["tape"] = ours()
        for t in last["tape"]:
            t.array()

    def jitted() -> None:
        last["twin"] = twin()

    for a, b in zip(ours(), twin(), strict=True):
        np.testing.assert_allclose(np.asarray(a.detach().array()), np.asarray(b), rtol=2e-3, atol=1e-4)
    seconds = race(
        {
            "tapejax": (tape, lambda: jax.block_until_ready([t.array() for t in last["tape"]])),
            "jax": (jitted, lambda: jax.block_until_ready(last["twin"])),
        },
        steps,
        rounds,
    )
    rows.append(row(name, seconds, "tapejax", "jax", target))
    best = min(seconds["tapejax"]) / min(seconds["jax"])
    rows.append(Row(f"{name} (minima)", "jax", best, None, (best, best)))


def jacobians(rows: list[Row], rounds: int) -> None:
    for width, batch, steps, target in (
        (64, 1, 20, None),
        (64, 32, 10, None),
        (256, 64, 3, TARGET),
    ):  # the small ones are launch-bound
        arrays = layers(width)
        x = np.random.default_rng(1).standard_normal((batch, width)).astype(np.float32)
        params, inputs = [tj.tensor(a) for a in arrays], tj.tensor(x)
        jparams, jinputs = [jnp.asarray(a) for a in arrays], jnp.asarray(x)

        def f(z: Any, params: Any = params) -> Any:
            return net(tj, params, z).sum(0)[:64]

        twin = jax.jit(jax.jacrev(lambda z, p: net(jnp, p, z).sum(0)[:64]))
        name = f"jacrev, 64 outputs, width {width}, batch {batch}"
        contest(
            rows,
            name,
            lambda f=f, i=inputs: [tj.func.jacrev(f)(i)],
            lambda t=twin, i=jinputs, p=jparams: [t(i, p)],
            steps,
            rounds,
            target,
        )

        eye = tj.eye(64)
        tracked = inputs.clone().requires_grad_()

        def batched(f: Any = f, x: Any = tracked, eye: Any = eye) -> Any:
            return tj.autograd.grad(f(x), x, eye, is_grads_batched=True)

        name = f"is_grads_batched, 64 outputs, width {width}, batch {batch}"
        contest(rows, name, batched, lambda t=twin, i=jinputs, p=jparams: [t(i, p)], steps, rounds, target)


def per_sample(rows: list[Row], rounds: int, facts: dict[str, Any]) -> None:
    for width, batch, steps, target in ((32, 64, 20, None), (128, 128, 5, TARGET), (256, 128, 3, TARGET)):
        arrays = layers(width)
        rng = np.random.default_rng(1)
        x, y = (rng.standard_normal((batch, width)).astype(np.float32) for _ in range(2))
        params, data = [tj.tensor(a) for a in arrays], (tj.tensor(x), tj.tensor(y))
        jparams, jdata = [jnp.asarray(a) for a in arrays], (jnp.asarray(x), jnp.asarray(y))
        ours = tj.vmap(tj.func.grad(lambda p, a, b: ((net(tj, p, a) - b) ** 2).mean()), in_dims=(None, 0, 0))
        twin = jax.jit(jax.vmap(jax.grad(lambda p, a, b: ((net(jnp, p, a) - b) ** 2).mean()), in_axes=(None, 0, 0)))

        def norms(grads: Any) -> Any:
            return [sum((g * g).sum() for g in grads)]

        jnorms = jax.jit(lambda p, a, b, twin=twin: [sum((g * g).sum() for g in twin(p, a, b))])
        before = CACHE.compiled
        norms(ours(params, *data))[0].item()
        facts[f"programs for per-sample gradients, width {width}"] = CACHE.compiled - before
        contest(
            rows,
            f"per-sample gradients, width {width}, batch {batch}",
            lambda o=ours, p=params, d=data: norms(o(p, *d)),
            lambda p=jparams, d=jdata, j=jnorms: j(p, *d),
            steps,
            rounds,
            target,
        )


def hessians(rows: list[Row], rounds: int) -> None:
    arrays = layers(32)
    x = np.random.default_rng(1).standard_normal(32).astype(np.float32)
    params, jparams = [tj.tensor(a) for a in arrays], [jnp.asarray(a) for a in arrays]
    z, jz = tj.tensor(x), jnp.asarray(x)
    ours = tj.func.hessian(lambda v: (net(tj, params, v) ** 2).sum())
    twin = jax.jit(jax.hessian(lambda v: (net(jnp, jparams, v) ** 2).sum()))
    contest(rows, "hessian, 32 inputs", lambda: [ours(z)], lambda: [twin(jz)], 20, rounds, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rounds = 5 if options.quick else 25
    rows: list[Row] = []
    facts: dict[str, Any] = {"jax": jax.__version__, "rounds": rounds}
    parts = {
        "jacobian": lambda: jacobians(rows, rounds),
        "sample": lambda: per_sample(rows, rounds, facts),
        "hessian": lambda: hessians(rows, rounds),
    }
    for name, part in parts.items():
        if options.only in ("", name):
            part()
    report(rows, None if options.only or options.quick else Path(__file__).with_suffix(".json"), facts)
    for fact, value in facts.items():
        print(f"{fact}: {value}")


if __name__ == "__main__":
    main()
