"""Python loops against torch eager and against hand-written `lax.scan` twins: first step, steady state, memory.

    python benchmarks/loops.py [--quick] [--only NAME]      (writes loops.json)

Every loop is written as a torch user writes it; the twin is what a JAX user would have to write by hand.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from harness import Row, race, report, row

import tapejax as tj
from tapejax.engine.cache import CACHE
from tapejax.engine.reroll import Finder
from tapejax.tape.program import Linear, in_order, pending

Arrays = list[np.ndarray]


class Loop(NamedTuple):
    """A loss written for torch (and tapejax) and for JAX, its parameters and its data."""

    loss: Callable[..., Any]
    twin: Callable[..., Any]
    params: Arrays
    data: Arrays


def normal(seed: int, *shapes: tuple[int, ...], scale: float = 1.0) -> Arrays:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(s) * scale / np.sqrt(s[0] if len(s) > 1 else 1)).astype(np.float32) for s in shapes]


# ---------------------------------------------------------------- recurrent nets


def rnn(steps: int, d: int = 64, batch: int = 8) -> Loop:
    def loss(lib: Any, params: Any, x: Any) -> Any:
        W, U, b = params
        h = lib.zeros(batch, d)
        for t in range(steps):
            h = lib.tanh(h @ W + x[t] @ U + b)
        return h.sum()

    def twin(params: Any, x: Any) -> Any:
        W, U, b = params
        h, _ = jax.lax.scan(lambda h, v: (jnp.tanh(h @ W + v @ U + b), None), jnp.zeros((batch, d)), x)
        return h.sum()

    return Loop(loss, twin, normal(0, (d, d), (d, d), (d,), scale=0.7), normal(1, (steps, batch, d)))


def rnn_states(steps: int, d: int = 64, batch: int = 8) -> Loop:
    """All hidden states are kept in a list and stacked."""

    def loss(lib: Any, params: Any, x: Any) -> Any:
        W, U, b = params
        h, states = lib.zeros(batch, d), []
        for t in range(steps):
            h = lib.tanh(h @ W + x[t] @ U + b)
            states.append(h)
        return (lib.stack(states) ** 2).mean()

    def twin(params: Any, x: Any) -> Any:
        W, U, b = params

        def step(h: Any, v: Any) -> Any:
            h = jnp.tanh(h @ W + v @ U + b)
            return h, h

        return (jax.lax.scan(step, jnp.zeros((batch, d)), x)[1] ** 2).mean()

    return Loop(loss, twin, normal(0, (d, d), (d, d), (d,), scale=0.7), normal(1, (steps, batch, d)))


def lstm(steps: int, d: int = 64, batch: int = 8) -> Loop:
    """Two layers."""

    def cell(lib: Any, v: Any, h: Any, c: Any, W: Any, U: Any, b: Any) -> Any:
        z = v @ W + h @ U + b
        i, f, g, o = (z[:, k * d : (k + 1) * d] for k in range(4))
        sigmoid = jax.nn.sigmoid if lib is jnp else lib.sigmoid
        c = sigmoid(f) * c + sigmoid(i) * lib.tanh(g)
        return sigmoid(o) * lib.tanh(c), c

    def loss(lib: Any, params: Any, x: Any) -> Any:
        h1 = c1 = h2 = c2 = lib.zeros(batch, d)
        for t in range(steps):
            h1, c1 = cell(lib, x[t], h1, c1, *params[:3])
            h2, c2 = cell(lib, h1, h2, c2, *params[3:])
        return h2.sum()

    def twin(params: Any, x: Any) -> Any:
        def step(carry: Any, v: Any) -> Any:
            h1, c1, h2, c2 = carry
            h1, c1 = cell(jnp, v, h1, c1, *params[:3])
            return (h1, c1, *cell(jnp, h1, h2, c2, *params[3:])), None

        return jax.lax.scan(step, (jnp.zeros((batch, d)),) * 4, x)[0][2].sum()

    return Loop(loss, twin, normal(0, *[(d, 4 * d), (d, 4 * d), (4 * d,)] * 2, scale=0.7), normal(1, (steps, batch, d)))


# ---------------------------------------------------------------- solvers and filters


def ode(steps: int, d: int = 16, batch: int = 32) -> Loop:
    """A neural ODE, classical Runge-Kutta."""
    size = 2.0 / steps

    def field(lib: Any, params: Any, y: Any) -> Any:
        A, a, B = params
        return lib.tanh(y @ A + a) @ B

    def advance(lib: Any, params: Any, y: Any) -> Any:
        k1 = field(lib, params, y)
        k2 = field(lib, params, y + size / 2 * k1)
        k3 = field(lib, params, y + size / 2 * k2)
        k4 = field(lib, params, y + size * k3)
        return y + size / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def loss(lib: Any, params: Any, y: Any, target: Any) -> Any:
        for _ in range(steps):
            y = advance(lib, params, y)
        return ((y - target) ** 2).mean()

    def twin(params: Any, y: Any, target: Any) -> Any:
        y, _ = jax.lax.scan(lambda y, _: (advance(jnp, params, y), None), y, length=steps)
        return ((y - target) ** 2).mean()

    return Loop(loss, twin, normal(0, (d, 64), (64,), (64, d)), normal(1, (batch, d), (batch, d)))


def kalman(steps: int, n: int = 6, m: int = 2) -> Loop:
    """A Kalman filter's negative log-likelihood (up to constants), its matrices learnt."""
    eye = np.eye(n, dtype=np.float32)

    def update(lib: Any, params: Any, x: Any, P: Any, z: Any, one: Any) -> Any:
        A, H, q, r = params
        x, P = A @ x, A @ P @ A.T + q * q * one
        S = H @ P @ H.T + (r * r + 0.1) * one[:m, :m]
        residual = z - H @ x
        gain = lib.linalg.solve(S, H @ P).T
        x, P = x + gain @ residual, (one - gain @ H) @ P
        return x, P, residual @ lib.linalg.solve(S, residual) + lib.log(lib.linalg.det(S))

    def loss(lib: Any, params: Any, z: Any, one: Any) -> Any:
        x, P, total = lib.zeros(n), one, 0.0
        for t in range(steps):
            x, P, more = update(lib, params, x, P, z[t], one)
            total = total + more
        return total / steps

    def twin(params: Any, z: Any, one: Any) -> Any:
        def step(carry: Any, z: Any) -> Any:
            x, P, more = update(jnp, params, *carry, z, one)
            return (x, P), more

        return jax.lax.scan(step, (jnp.zeros(n), one), z)[1].mean()

    params = [
        0.95 * eye + normal(0, (n, n), scale=0.05)[0],
        *normal(2, (m, n)),
        np.float32(0.3).reshape(()),
        np.float32(0.5).reshape(()),
    ]
    return Loop(loss, twin, params, [*normal(1, (steps, m)), eye])


def maml(steps: int, width: int = 32, batch: int = 16) -> Loop:
    """An unrolled optimizer: gradients inside the loop, differentiated through."""
    rate = 0.05

    def inner(lib: Any, w: Any, x: Any, y: Any) -> Any:
        return ((lib.tanh(x @ w[0] + w[1]) @ w[2] + w[3] - y) ** 2).mean()

    def loss(lib: Any, params: Any, x: Any, y: Any) -> Any:
        w = params
        for _ in range(steps):
            w = [
                p - rate * g
                for p, g in zip(w, lib.autograd.grad(inner(lib, w, x, y), w, create_graph=True), strict=True)
            ]
        return inner(lib, w, x, y)

    def twin(params: Any, x: Any, y: Any) -> Any:
        def step(w: Any, _: Any) -> Any:
            return [p - rate * g for p, g in zip(w, jax.grad(lambda w: inner(jnp, w, x, y))(w), strict=True)], None

        return inner(jnp, jax.lax.scan(step, params, length=steps)[0], x, y)

    return Loop(
        loss, twin, normal(0, (1, width), (width,), (width, 1), (1,), scale=0.5), normal(1, (batch, 1), (batch, 1))
    )


def patchwork(steps: int, d: int = 16) -> Loop:
    """Every step another operation: nothing to roll."""
    names = ["sin", "cos", "tanh", "exp", "add", "mul"]
    plan = [names[i] for i in np.random.default_rng(0).integers(0, len(names), steps)]

    def run(lib: Any, params: Any, h: Any) -> Any:
        for i, name in enumerate(plan):
            f = getattr(lib, "multiply" if name == "mul" else name)
            h = f(h * 0.5) if name in names[:4] else f(h, params[i % len(params)]) * 0.5
        return h.sum()

    return Loop(run, lambda params, h: run(jnp, params, h), normal(0, *[(d, d)] * 3), normal(1, (d, d)))


# ---------------------------------------------------------------- measuring


def contestant(lib: Any, loop: Loop) -> tuple[Callable[[], Any], Callable[[], Any]]:
    params = [lib.tensor(a, requires_grad=True) for a in loop.params]
    data = [lib.tensor(a) for a in loop.data]

    def step() -> None:
        for p in params:
            p.grad = None
        loop.loss(lib, params, *data).backward()

    def finish() -> None:
        if lib is tj:
            jax.block_until_ready([p.grad.array() for p in params])

    return step, finish


def twin_contestant(loop: Loop) -> tuple[Callable[[], Any], Callable[[], Any], Any]:
    params, data = [jnp.asarray(a) for a in loop.params], [jnp.asarray(a) for a in loop.data]
    jitted = jax.jit(jax.value_and_grad(loop.twin))
    last: list[Any] = [None]

    def step() -> None:
        last[0] = jitted(params, *data)

    return step, lambda: jax.block_until_ready(last[0]), lambda: jitted.lower(params, *data).compile()


def seconds_of(step: Callable[[], Any], finish: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()
    finish()
    return time.perf_counter() - started


def held(*stages: Any) -> int:
    """Bytes that an executable needs at its peak beside its arguments; of one in stages, what they need if none of their results were let go."""
    stats = [x.memory_analysis() for x in stages]
    return max(s.temp_size_in_bytes for s in stats) + sum(s.output_size_in_bytes for s in stats)


def best(work: Callable[[], Any], times: int) -> float:
    found = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def measure(
    name: str,
    loop: Loop,
    rows: list[Row],
    facts: dict[str, Any],
    rounds: int,
    steps: int,
    targets: tuple[float | None, float | None],
) -> None:
    ours, theirs = contestant(tj, loop), contestant(torch, loop)
    *twin, compiled = twin_contestant(loop)
    before = CACHE.compiled
    first = {"tapejax": seconds_of(*ours), "twin": seconds_of(*twin), "torch": seconds_of(*theirs)}
    programs = CACHE.compiled - before
    newest = max(CACHE.entries.values(), key=lambda e: e.number)
    memory = held(*newest.compiled()) / max(held(compiled()), 1)
    params, data = [tj.tensor(a, requires_grad=True) for a in loop.params], [tj.tensor(a) for a in loop.data]
    recording = best(lambda: loop.loss(tj, params, *data), 3)
    loss = loop.loss(tj, params, *data)
    program = Linear(in_order(pending([loss._node]))).program()
    finding = best(lambda: Finder(program).loops(), 3)
    facts[name] = {
        "instructions": len(program.instructions),
        "loops": [(x.rounds, x.period) for x in Finder(program).loops()],
        "programs": programs,
        "first step, seconds": {k: round(v, 2) for k, v in first.items()},
        "memory beside arguments, × twin": round(memory, 2),
        "finding loops (once per compile), × recording (every step)": round(finding / recording, 2),
    }
    seconds = race({"torch": theirs, "tapejax": ours, "twin": tuple(twin)}, steps, rounds, warm=1)
    rows.append(row(name, seconds, "tapejax", "torch", targets[0]))
    rows.append(row(name, seconds, "tapejax", "twin", targets[1]))


def one_more_round(facts: dict[str, Any]) -> None:
    """What a new length costs: the same loop, one round longer."""
    for steps in (1000, 10000):
        firsts = [seconds_of(*contestant(tj, rnn(n))) for n in (steps, steps + 1)]
        facts[f"RNN {steps} + 1 steps, first step in seconds"] = round(firsts[1], 2)


def long_tape(facts: dict[str, Any], rows: list[Row], rounds: int) -> None:
    """3,000 operations in which nothing repeats: compiled in pieces. A JAX user would write the same, so there is no twin."""
    loop = patchwork(1500)
    ours, theirs = contestant(tj, loop), contestant(torch, loop)
    before = CACHE.compiled
    first = {"tapejax": seconds_of(*ours), "torch": seconds_of(*theirs)}
    name = "nothing repeats, 3000 operations"
    facts[name] = {"programs": CACHE.compiled - before, "first step, seconds": {k: round(v, 2) for k, v in first.items()}}
    rows.append(row(name, race({"torch": theirs, "tapejax": ours}, 1, rounds, warm=1), "tapejax", "torch", None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rounds = 3 if options.quick else 11
    torch.set_num_threads(1)  # for work this small its threads only get in each other's way
    rows: list[Row] = []
    facts: dict[str, Any] = {"jax": jax.__version__, "torch": torch.__version__, "rounds": rounds}
    parts: dict[str, tuple[Callable[[], Loop], int, tuple[float | None, float | None]]] = {
        "RNN, 1000 steps": (lambda: rnn(1000), 4, (0.5, 2.0)),
        "RNN, 10000 steps": (lambda: rnn(10000), 1, (None, None)),
        "RNN, 1000 states stacked": (lambda: rnn_states(1000), 4, (None, None)),
        "LSTM of two layers, 1000 steps": (lambda: lstm(1000), 4, (0.5, 2.0)),
        "Runge-Kutta ODE, 500 steps": (lambda: ode(500), 2, (None, None)),
        "Kalman filter, 1000 steps": (lambda: kalman(1000), 1, (None, None)),
        "unrolled optimizer, 50 steps": (lambda: maml(50), 2, (None, None)),
        "nothing repeats, 300 steps": (lambda: patchwork(300), 4, (None, None)),
    }
    for name, (make, steps, targets) in parts.items():
        if options.only in name:
            measure(name, make(), rows, facts, rounds, steps, targets)
            print(name, facts[name], flush=True)
    if options.only in "nothing repeats, 3000 operations":
        long_tape(facts, rows, rounds)
    if not options.only:
        one_more_round(facts)
    report(rows, None if options.only or options.quick else Path(__file__).with_suffix(".json"), facts)
    for fact, value in facts.items():
        print(f"{fact}: {value}")


if __name__ == "__main__":
    main()
