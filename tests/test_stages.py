"""Programs too long to compile in one piece run in stages, and mean what the whole program means."""

from __future__ import annotations

import gc
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax
from oracle import square_of
from tapejax import config
from tapejax.engine import parts, stages
from tapejax.engine.cache import CACHE

torch = pytest.importorskip("torch")


@pytest.fixture
def limit(monkeypatch):
    """Set how many equations are compiled as one piece; whatever was compiled before is forgotten."""

    def set_to(n):
        monkeypatch.setattr(config, "segment_limit", n)
        CACHE.clear()

    return set_to


NEVER = 1 << 62


def newest():
    """The program that was compiled last."""
    return max(CACHE.entries.values(), key=lambda e: e.number).call


def scramble(lib, seed, n, leaves, watch=None):
    """`n` operations in which nothing repeats: products with the leaves, sums with values up to five back, functions, writes."""
    rng = random.Random(seed)
    functions = [lib.tanh, lib.sin, lib.sigmoid, lib.cos, lambda h: h * 0.9, lambda h: h.sin().exp() * 0.5, lambda h: h - 0.3]
    x, *weights = leaves
    states = [x @ weights[0] @ weights[1] @ weights[2]]  # every leaf is used
    for i in range(n):
        h, what = states[-1], rng.randrange(9)
        if what < 2:
            h = h @ rng.choice(weights)
        elif what < 4:
            h = (h + states[-min(len(states), rng.randrange(1, 6))]) * 0.5
        elif what == 4:
            old, h = h, h.clone()
            h[rng.randrange(2)] = old[2].sin()
        elif what == 5:
            h = (h * 1.0).mul_(0.7).add_(weights[0].sum())
        else:
            h = rng.choice(functions)(h)
        states.append(h)
        if watch is not None:
            watch(i, h)
    return states[-1].square().mean()


def leaves_of(lib, seed=0, d=6):
    rng = np.random.default_rng(seed)
    made = [lib.tensor(rng.normal(size=s) * 0.4) for s in ((4, d), (d, d), (d, d), (d, d))]
    return [x.requires_grad_() for x in made]


def close(mine, theirs):
    assert (mine is None) == (theirs is None)
    if mine is not None:
        np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=1e-9, atol=1e-12)


def both(run):
    """`run(lib, leaves)` gives tensors; tapejax's and torch's must be equal."""
    outcome = [run(lib, leaves_of(lib)) for lib in (tapejax, torch)]
    for mine, theirs in zip(*outcome, strict=True):
        close(mine, theirs)


def counted(step):
    """Programs compiled and launched by `step`."""
    before = CACHE.compiled, CACHE.launches
    step()
    return CACHE.compiled - before[0], CACHE.launches - before[1]


# ---------------------------------------------------------------- where


def equations(function, *shapes):
    return jax.make_jaxpr(function)(*[jnp.ones(s) for s in shapes]).jaxpr.eqns


def patchwork(h, a):
    rng = random.Random(1)
    for _ in range(150):
        h = rng.choice([jnp.sin, jnp.cos, jnp.exp, lambda h: h @ a, lambda h: h + a])(h)
    return h.sum()


def test_stretches_are_short_and_cover_the_program(limit):
    found = equations(patchwork, (4, 4), (4, 4))
    limit(30)
    cuts = stages._cuts(found, {})
    edges = [0, *cuts, len(found)]
    assert cuts == sorted(set(cuts)) and cuts[0] > 0 and cuts[-1] < len(found)
    assert all(15 <= b - a <= 30 for a, b in itertools.pairwise(edges[:-1])) and edges[-1] - edges[-2] <= 30
    limit(len(found) // 2 + 1)
    assert stages._cuts(found, {}) == []


def test_a_cut_lies_where_little_crosses(limit):
    def function(a):
        h = a.sum()
        for _ in range(3):
            big = jnp.sin(h * a) @ a
            h = (jnp.tanh(big) * big).sum()
        return h

    found = equations(function, (4, 4))
    limit(8)
    cuts = stages._cuts(found, {})
    assert cuts and all(found[c - 1].primitive.name == "reduce_sum" for c in cuts)


def test_a_loop_is_never_cut_and_counts_once(limit):
    def function(a, b):
        h, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ a + b), None), a, None, length=1000)
        for i in range(20):
            h = jnp.sin(h) if i % 3 else jnp.cos(h)
        return h.sum()

    found = equations(function, (4, 4), (4,))
    assert len(found) <= stages.weight(jax.make_jaxpr(function)(jnp.ones((4, 4)), jnp.ones(4))) < 40
    limit(10)
    assert stages._cuts(found, {})
    limit(20)
    assert stages._cuts(found, {}) == []


# ---------------------------------------------------------------- what


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length", [9, 25])
def test_values_and_gradients(limit, seed, length):
    def run(lib, leaves):
        loss = scramble(lib, seed, 40, leaves)
        loss.backward()
        return [loss, *(x.grad for x in leaves)]

    limit(length)
    both(run)


def test_the_same_as_in_one_piece(limit):
    def run():
        leaves = leaves_of(tapejax)
        loss = scramble(tapejax, 19, 40, leaves)
        loss.backward()
        return [loss, *(x.grad for x in leaves)]

    limit(12)
    mine = run()
    limit(NEVER)
    for a, b in zip(mine, run(), strict=True):
        close(a, b)


def test_the_second_step_compiles_nothing(limit):
    limit(20)
    leaves = leaves_of(tapejax)

    def step():
        for x in leaves:
            x.grad = None
        scramble(tapejax, 3, 60, leaves).backward()

    compiled, launched = counted(step)
    assert (compiled, launched) == (1, 1) and len(newest().stages) >= 6
    ready = {*parts.PARTS}
    assert counted(step) == (0, 1) and {*parts.PARTS} == ready


def test_a_short_program_is_not_touched(limit):
    leaves = leaves_of(tapejax)
    limit(1000)
    assert counted(lambda: scramble(tapejax, 3, 20, leaves).backward()) == (1, 1)
    assert not isinstance(newest(), stages.Staged)


def test_equal_pieces_are_compiled_once(limit):
    """Six rounds are no loop; cut where bodies end they are one part forward and one backward."""
    a = tapejax.randn(4, 4, requires_grad=True)
    b = tapejax.randn(4, 4, requires_grad=True)

    def step():
        a.grad = b.grad = None
        h = a * 1
        for _ in range(6):
            big = tapejax.cat([h.sin() @ b, h.cos()])
            h = (big.tanh() * big.exp())[:4] + 0.5
        h.sum().backward()

    limit(12)
    step()
    made = newest().stages
    assert len({id(s.part) for s in made}) < len(made)


def test_stages_are_compiled_side_by_side(limit, monkeypatch):
    """All that a program lacks is compiled before its first launch; what another program has is not compiled again."""
    prepared = []
    lowered = stages.Staged._lowered

    def watching(self, args, chosen):
        found = lowered(self, args, chosen)
        prepared.append(len(found))
        return found

    monkeypatch.setattr(stages.Staged, "_lowered", watching)
    limit(20)
    leaves = leaves_of(tapejax)
    scramble(tapejax, 3, 60, leaves).backward()
    scramble(tapejax, 3, 60, leaves).backward()  # adds into .grad: a program of its own, with the same forward
    assert prepared[0] >= 6 and prepared[1] <= 2


def test_no_gradients(limit):
    limit(15)

    def run(lib, leaves):
        with lib.no_grad():
            return [scramble(lib, 4, 80, leaves)]

    both(run)


def test_kept_graphs(limit):
    def run(lib, leaves):
        loss = scramble(lib, 5, 40, leaves)
        loss.backward(retain_graph=True)
        first = [x.grad.clone() for x in leaves]
        (loss * 2).backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        return [*first, *(x.grad for x in leaves)]

    limit(15)
    both(run)


def test_second_order(limit):
    def run(lib, leaves):
        loss = scramble(lib, 6, 30, leaves)
        grads = lib.autograd.grad(loss, leaves, create_graph=True)
        total = sum((g * g).sum() for g in grads)
        total.backward()
        return [loss, total, *(x.grad for x in leaves)]

    limit(10)
    both(run)


def test_second_order_of_a_value_that_was_read(limit):
    def run(lib, leaves):
        loss = scramble(lib, 6, 30, leaves)
        loss.item()
        grads = lib.autograd.grad(loss, leaves, create_graph=True)
        return [loss, *lib.autograd.grad(sum((g * g).sum() for g in grads), leaves)]

    limit(10)
    both(run)


@pytest.mark.parametrize("at", [0, 8, 23, 49])
def test_targets_inside(limit, at):
    def run(lib, leaves):
        kept = []
        loss = scramble(lib, 7, 50, leaves, lambda i, h: kept.append(h) if i in (at, 30) else None)
        return [loss, *lib.autograd.grad(loss, [*kept, leaves[1]], allow_unused=True, retain_graph=True), *lib.autograd.grad(loss, leaves)]

    limit(12)
    both(run)


def test_every_state_is_held(limit):
    def run(lib, leaves):
        states = []
        loss = scramble(lib, 8, 50, leaves, lambda _, h: states.append(h))
        (loss + lib.stack(states).mean()).backward()
        return [*states, *(x.grad for x in leaves)]

    limit(25)
    both(run)


def test_hooks_and_retained_gradients(limit):
    def run(lib, leaves):
        seen, kept = [], []

        def watch(i, h):
            if i % 11 == 3:
                h.register_hook(lambda g: seen.append(g) or g * 0.5)
            if i % 17 == 5:
                h.retain_grad()
                kept.append(h)

        scramble(lib, 9, 40, leaves, watch).backward()
        return [*seen, *(h.grad for h in kept), *(x.grad for x in leaves)]

    limit(12)
    both(run)


def test_custom_functions(limit):
    def run(lib, leaves):
        loss = scramble(lib, 10, 25, leaves)
        loss = scramble(lib, 11, 25, [square_of(lib).apply(loss * leaves[0]), *leaves[1:]])
        loss.backward()
        return [loss, *(x.grad for x in leaves)]

    limit(8)
    both(run)


def test_several_roots_and_seeds(limit):
    def run(lib, leaves):
        kept = []
        loss = scramble(lib, 12, 50, leaves, lambda i, h: kept.append(h) if i in (20, 35) else None)
        grads = lib.autograd.grad([loss, *kept], leaves, [lib.tensor(2.0, dtype=lib.float64), *(h.detach().sin() for h in kept)])
        return [loss, *grads]

    limit(12)
    both(run)


def test_batched_seeds(limit):
    def run(lib, leaves):
        kept = []
        scramble(lib, 13, 40, leaves, lambda i, h: kept.append(h))
        seeds = lib.stack([kept[-1].detach() * k for k in (1.0, -2.0, 0.5)])
        return lib.autograd.grad(kept[-1], leaves, seeds, is_grads_batched=True, allow_unused=True)

    limit(12)
    both(run)


def test_pending_updates_go_along(limit):
    def run(lib, leaves):
        losses = []
        for _ in range(3):
            loss = scramble(lib, 14, 40, leaves)
            losses.append(loss)
            for x in leaves:
                x.grad = None
            loss.backward()
            with lib.no_grad():
                for x in leaves:
                    x -= 0.1 * x.grad
        return [*losses, *leaves]

    limit(12)
    both(run)


def test_gradients_accumulate(limit):
    def run(lib, leaves):
        for seed in (15, 16):
            scramble(lib, seed, 40, leaves).backward()
        return [x.grad for x in leaves]

    limit(12)
    both(run)


def test_inside_a_transform(limit):
    leaves = leaves_of(tapejax)
    limit(12)
    mine = tapejax.func.grad(lambda *xs: scramble(tapejax, 17, 40, xs), argnums=(0, 1, 2, 3))(*leaves)
    theirs = leaves_of(torch)
    scramble(torch, 17, 40, theirs).backward()
    for a, b in zip(mine, theirs, strict=True):
        close(a, b.grad)


# ---------------------------------------------------------------- when something goes wrong


@pytest.mark.parametrize("fails_at", [0, 2, 5])
def test_a_failure_in_the_middle_leaves_nothing_half_written(limit, monkeypatch, fails_at):
    """The n-th stage does not run: no `.grad` has changed, and the same backward goes through afterwards."""
    limit(12)

    def backward():
        leaves = leaves_of(tapejax)
        for x in leaves:
            x.grad = tapejax.ones_like(x)
        loss = scramble(tapejax, 18, 30, leaves)
        return leaves, loss

    _, loss = backward()
    loss.backward()
    part = newest().stages[fails_at].part
    leaves, loss = backward()
    monkeypatch.setattr(part, "call", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    monkeypatch.undo()
    assert all(x.grad.tolist() == np.ones(tuple(x.shape)).tolist() for x in leaves)
    limit(12)
    loss.backward()
    theirs = leaves_of(torch)
    scramble(torch, 18, 30, theirs).backward()
    for a, b in zip(leaves, theirs, strict=True):
        close(a.grad, b.grad + 1)


# ---------------------------------------------------------------- memory


def live_bytes():
    gc.collect()
    return sum(x.nbytes for x in jax.live_arrays())


def test_residuals_are_let_go_on_the_way(limit, monkeypatch):
    """While the backward runs, what is alive stays within what torch would hold and a stage's temporaries, and shrinks."""
    rows, d, n = 512, 32, 240
    rng = np.random.default_rng(0)
    x, w = tapejax.tensor(rng.normal(size=(rows, d))), tapejax.tensor(rng.normal(size=(d, d)) * 0.2).requires_grad_()
    functions = [tapejax.tanh, tapejax.sigmoid, tapejax.exp, tapejax.sin]

    def step():
        w.grad = None
        pick = random.Random(1)
        h = x @ w
        for _ in range(n):
            h = pick.choice(functions)(h) if pick.randrange(3) else h @ w
        h.mean().backward()

    limit(90)
    step()
    w.grad = None
    before = live_bytes()
    seen = []
    for part in {id(s.part): s.part for s in newest().stages}.values():
        monkeypatch.setattr(part, "call", lambda *args, call=part.call: (seen.append(live_bytes() - before), call(*args))[1])
    step()
    one = rows * d * 8
    torch_holds = (n + 2) * one  # each operation here saves its operand or its result
    assert len(seen) >= 8
    assert max(seen) <= torch_holds + 30 * one
    assert seen[-1] <= torch_holds / 2 and live_bytes() - before < 20 * one
