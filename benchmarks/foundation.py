"""The foundation's speed: raw training loops, recording, chains, second order, early values, compile time, memory.

    python benchmarks/foundation.py [--quick] [--only NAME]      (torch and JAX side by side; writes foundation.json)
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from harness import Row, race, report, row

import tapejax as tj
from tapejax.engine.cache import CACHE

RATE = 0.01


def mlp_data(width: int, batch: int = 32, layers: int = 3) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    params = []
    for _ in range(layers):
        params += [(rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32), np.zeros(width, np.float32)]
    x, y = (rng.standard_normal((batch, width)).astype(np.float32) for _ in range(2))
    return params, x, y


def mlp(lib: Any, params: Any, x: Any) -> Any:
    h = x
    for i in range(0, len(params), 2):
        h = lib.tanh(h @ params[i] + params[i + 1])
    return h


def mlp_loss(lib: Any, params: Any, x: Any, y: Any) -> Any:
    return ((mlp(lib, params, x) - y) ** 2).mean()


def torch_like_step(lib: Any, loss_of: Any, arrays: list[np.ndarray], data: list[np.ndarray], peek: bool = False) -> Any:
    """`(step, finish)` of a raw loop: forward, backward, update under no_grad."""
    params = [lib.tensor(a, requires_grad=True) for a in arrays]
    inputs = [lib.tensor(d) for d in data]

    def step() -> None:
        loss = loss_of(lib, params, *inputs)
        if peek:
            loss.item()
        loss.backward()
        with lib.no_grad():
            for p in params:
                p -= RATE * p.grad
                p.grad = None

    def finish() -> None:
        if lib is tj:
            jax.block_until_ready([p.array() for p in params])
        else:
            params[0].sum().item()

    return step, finish


def jit_step(loss_of: Any, arrays: list[np.ndarray], data: list[np.ndarray]) -> Any:
    """The hand-written twin: one jitted, donated value_and_grad step."""

    def update(params: Any, inputs: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda p: loss_of(jnp, p, *inputs))(params)
        return [p - RATE * g for p, g in zip(params, grads, strict=True)], loss

    jitted = jax.jit(update, donate_argnums=0)
    state = [[jnp.asarray(a) for a in arrays]]
    inputs = [jnp.asarray(d) for d in data]

    def step() -> None:
        state[0], _ = jitted(state[0], inputs)

    return step, lambda: jax.block_until_ready(state[0])


def raw_loops(rows: list[Row], rounds: int) -> None:
    for width, steps, target, base in ((16, 400, 0.8, "torch"), (64, 300, 0.8, "torch"), (256, 100, 1.1, "jit"), (512, 40, 1.1, "jit")):
        arrays, x, y = mlp_data(width)
        makers = {
            "torch": lambda arrays=arrays, x=x, y=y: torch_like_step(torch, mlp_loss, arrays, [x, y]),
            "tapejax": lambda arrays=arrays, x=x, y=y: torch_like_step(tj, mlp_loss, arrays, [x, y]),
            "peek": lambda arrays=arrays, x=x, y=y: torch_like_step(tj, mlp_loss, arrays, [x, y], peek=True),
            "jit": lambda arrays=arrays, x=x, y=y: jit_step(mlp_loss, arrays, [x, y]),
        }

        def pair(subject: str, other: str, makers: Any = makers, steps: int = steps) -> dict[str, list[float]]:
            return race({subject: makers[subject](), other: makers[other]()}, steps, rounds)

        other = "jit" if base == "torch" else "torch"
        rows.append(row(f"MLP width {width}, raw loop", pair("tapejax", base), "tapejax", base, target))
        rows.append(row(f"MLP width {width}, raw loop", pair("tapejax", other), "tapejax", other, None))
        if width in (64, 256):
            seconds = pair("peek", "tapejax")
            named = {"peek": seconds["peek"], "without": seconds["tapejax"]}
            rows.append(row(f"MLP width {width}, with loss.item()", named, "peek", "without", 2.0 if width == 64 else 1.3))


def transformer_data(d: int = 128, t: int = 64, b: int = 8, layers: int = 2) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    arrays = []
    for _ in range(layers):
        for shape in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)):
            arrays.append((rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))
    return arrays, [rng.standard_normal((b, t, d)).astype(np.float32) for _ in range(2)]


def transformer_loss(lib: Any, params: Any, x: Any, y: Any) -> Any:
    heads = 4
    h = x
    for i in range(0, len(params), 4):
        qkv, out, up, down = params[i : i + 4]
        b, t, d = h.shape
        z = (h - h.mean(-1, keepdims=True)) if lib is jnp else (h - h.mean(-1, keepdim=True))
        q, k, v = ((z @ qkv)[..., j * d : (j + 1) * d].reshape(b, t, heads, d // heads) for j in range(3))
        if lib is jnp:
            q, k, v = (a.transpose(0, 2, 1, 3) for a in (q, k, v))
            w = jax.nn.softmax(q @ k.swapaxes(-1, -2) / (d // heads) ** 0.5, axis=-1)
            a = (w @ v).transpose(0, 2, 1, 3).reshape(b, t, d)
        else:
            q, k, v = (a.permute(0, 2, 1, 3) for a in (q, k, v))
            w = lib.softmax(q @ k.transpose(-1, -2) / (d // heads) ** 0.5, -1)
            a = (w @ v).permute(0, 2, 1, 3).reshape(b, t, d)
        h = h + a @ out
        h = h + lib.tanh(h @ up) @ down
    return ((h - y) ** 2).mean()


def transformer(rows: list[Row], rounds: int) -> None:
    arrays, data = transformer_data()
    seconds = race(
        {
            "torch": torch_like_step(torch, transformer_loss, arrays, data),
            "tapejax": torch_like_step(tj, transformer_loss, arrays, data),
            "jit": jit_step(transformer_loss, arrays, data),
        },
        4,
        rounds,
    )
    rows.append(row("transformer d=128 T=64 B=8", seconds, "tapejax", "jit", 1.1))
    rows.append(row("transformer d=128 T=64 B=8", seconds, "tapejax", "torch", None))


def chain(rows: list[Row], rounds: int) -> None:
    def make(lib: Any) -> Any:
        x = lib.tensor(np.full(100, 0.5, np.float32), requires_grad=True)

        def step() -> None:
            y = x
            for _ in range(100):
                y = lib.sin(y) * 1.1
            y.sum().backward()
            x.grad = None

        return step, (lambda: x.detach().numpy())

    seconds = race({"torch": make(torch), "tapejax": make(tj)}, 100, rounds)
    rows.append(row("chain of 200 elementwise ops", seconds, "tapejax", "torch", 0.35))


def hessian_vector(rows: list[Row], rounds: int) -> None:
    for width, target in ((64, 1.5), (256, 1.15)):
        arrays, x, y = mlp_data(width)
        vectors = [np.ones_like(a) for a in arrays]

        def make(lib: Any, arrays: Any = arrays, x: Any = x, y: Any = y, vectors: Any = vectors) -> Any:
            params = [lib.tensor(a, requires_grad=True) for a in arrays]
            vs = [lib.tensor(v) for v in vectors]
            xt, yt = lib.tensor(x), lib.tensor(y)
            last: list[Any] = [None]

            def step() -> None:
                grads = lib.autograd.grad(mlp_loss(lib, params, xt, yt), params, create_graph=True)
                dot = sum((g * v).sum() for g, v in zip(grads, vs, strict=True))
                last[0] = lib.autograd.grad(dot, params)

            return step, (lambda: [h.numpy() for h in last[0]])

        twin = jax.jit(
            lambda p, v, x, y: jax.grad(
                lambda q: sum((g * w).sum() for g, w in zip(jax.grad(lambda r: mlp_loss(jnp, r, x, y))(q), v, strict=True))
            )(p)
        )
        p, v, xj, yj = [jnp.asarray(a) for a in arrays], [jnp.asarray(a) for a in vectors], jnp.asarray(x), jnp.asarray(y)
        last: list[Any] = [None]

        def jit_hvp(last: Any = last, twin: Any = twin, p: Any = p, v: Any = v, xj: Any = xj, yj: Any = yj) -> None:
            last[0] = twin(p, v, xj, yj)

        seconds = race(
            {"torch": make(torch), "tapejax": make(tj), "jit": (jit_hvp, lambda last=last: jax.block_until_ready(last[0]))},
            200 if width == 64 else 60,
            rounds,
        )
        rows.append(row(f"Hessian-vector product, width {width}", seconds, "tapejax", "jit", target))
        rows.append(row(f"Hessian-vector product, width {width}", seconds, "tapejax", "torch", None))


def recording(rows: list[Row], rounds: int, facts: dict[str, Any]) -> None:
    """What one small op costs to record, beside torch's eager forward of the same op."""

    def make(lib: Any) -> Any:
        x = lib.tensor(np.ones(4, np.float32), requires_grad=True)
        y = lib.tensor(np.ones(4, np.float32))

        def step() -> None:
            a = x * y
            b = a + y
            c = lib.tanh(b)
            d = c - a
            e = d * b
            lib.exp(e)
            c.sum()
            _ = b > y
            _ = e / b
            lib.relu(d)

        return step, (lambda: None)

    seconds = race({"torch": make(torch), "tapejax": make(tj)}, 500, rounds)
    rows.append(row("recording an op", seconds, "tapejax", "torch", 1.0))
    facts["record_microseconds_per_op_best_round"] = min(seconds["tapejax"]) / 10 * 1e6
    facts["torch_microseconds_per_op_best_round"] = min(seconds["torch"]) / 10 * 1e6


def first_step(rows: list[Row], rounds: int) -> None:
    """Compile time of a first step: the tape's program against the jitted twin, fresh shapes every round."""
    ratios = []
    for i in range(max(3, rounds // 4)):
        arrays, x, y = mlp_data(40 + i)
        step, finish = jit_step(mlp_loss, arrays, [x, y])
        started = time.perf_counter()
        step()
        finish()
        twin = time.perf_counter() - started
        step, finish = torch_like_step(tj, mlp_loss, arrays, [x, y])
        started = time.perf_counter()
        step()
        # the first step's program; the pending update belongs to the second
        ratios.append((time.perf_counter() - started) / twin)
        finish()
    ratios.sort()
    rows.append(Row("first step (compile)", "jit", ratios[len(ratios) // 2], 1.25, (ratios[0], ratios[-1])))


def imports(rows: list[Row], facts: dict[str, Any]) -> None:
    code = "import time; t=time.perf_counter(); import jax, jax.numpy; a=time.perf_counter(); import tapejax; print(time.perf_counter()-a)"
    seconds = sorted(float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(5))
    facts["import_seconds_beyond_jax"] = seconds[2]
    rows.append(Row("import tapejax beyond import jax (s)", "0.3 s", seconds[2] / 0.3, 1.0, (seconds[0] / 0.3, seconds[-1] / 0.3)))


def flat_memory(rows: list[Row], facts: dict[str, Any], iterations: int) -> None:
    arrays, x, y = mlp_data(32)
    step, finish = torch_like_step(tj, mlp_loss, arrays, [x, y])

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(200):
        step()
    finish()
    programs, before = CACHE.compiled, resident()
    for _ in range(iterations):
        step()
    finish()
    facts["raw_loop_iterations"] = iterations
    facts["programs_compiled_after_warm_up"] = CACHE.compiled - programs
    facts["resident_growth_bytes"] = resident() - before
    rows.append(Row(f"resident memory after {iterations} iterations", "before", resident() / before, 1.05, (1, 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rounds = 5 if options.quick else 15
    rows: list[Row] = []
    facts: dict[str, Any] = {"jax": jax.__version__, "torch": torch.__version__, "rounds": rounds}
    parts: dict[str, Any] = {
        "record": lambda: recording(rows, rounds, facts),
        "raw": lambda: raw_loops(rows, rounds),
        "transformer": lambda: transformer(rows, rounds),
        "chain": lambda: chain(rows, rounds),
        "hvp": lambda: hessian_vector(rows, rounds),
        "first": lambda: first_step(rows, rounds),
        "import": lambda: imports(rows, facts),
        "memory": lambda: flat_memory(rows, facts, 500 if options.quick else 10_000),
    }
    for name, part in parts.items():
        if options.only in ("", name):
            part()
    report(rows, None if options.only or options.quick else Path(__file__).with_suffix(".json"), facts)
    for name, value in facts.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
