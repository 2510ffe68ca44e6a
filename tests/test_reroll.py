"""Loops recorded on the tape compile as loops, and mean what the unrolled program means."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest

import tapejax
from tapejax.engine import parts, stages
from tapejax.engine.cache import CACHE
from tapejax.engine.reroll import _known, loops_of
from tapejax.tape.program import Linear, in_order, pending

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore::tapejax.debug.RecompileWarning"),  # one line checks many programs
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # torch's own forward mode
]


@pytest.fixture(params=["whole", "staged", "masked"], autouse=True)
def how(request, monkeypatch):
    """Loops inside their program; compiled apart for all lengths; and the latter as on a GPU."""
    CACHE.clear()
    parts.SEEN.clear()
    few = 1 << 30 if request.param == "whole" else parts.FEW_ROUNDS // 2
    monkeypatch.setattr(parts, "MANY_ROUNDS", few)
    monkeypatch.setattr(parts, "FEW_ROUNDS", few)
    if request.param == "masked":
        monkeypatch.setattr(stages, "_platform", lambda args: "gpu")
    yield request.param
    CACHE.clear()


def program_of(*tensors):
    return Linear(in_order(pending([t._node for t in tensors]))).program()


def loops(*tensors):
    """(rounds, period) of every loop that the pending values of `tensors` were recorded from."""
    return [(x.rounds, x.period) for x in loops_of(program_of(*tensors))]


class Case:
    """The same program in tapejax and torch: `body(lib, *leaves)` returns the loss."""

    def __init__(self, body, *shapes, scale=0.3, seed=0):
        rng = np.random.default_rng(seed)
        self.body = body
        self.arrays = [rng.normal(size=s) * scale for s in shapes]

    def leaves(self, lib, fixed=()):
        made = [lib.tensor(a) for a in self.arrays]
        for i, x in enumerate(made):
            x.requires_grad_(i not in fixed)
        return made

    def check(self, expected=None, fixed=(), tolerance=1e-9):
        """Value and every gradient against torch; `expected`: what loops the program must have."""
        outcome = []
        for lib in (tapejax, torch):
            leaves = self.leaves(lib, fixed)
            loss = self.body(lib, *leaves)
            if lib is tapejax and expected is not None:
                assert loops(loss) == expected
            loss.backward()
            outcome.append([loss, *(x.grad for i, x in enumerate(leaves) if i not in fixed)])
        for mine, theirs in zip(*outcome, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=tolerance, atol=tolerance)


def rnn(lib, W, U, b, x, h=None):
    h = lib.zeros(x.shape[1], W.shape[0], dtype=lib.float64) if h is None else h
    for t in range(x.shape[0]):
        h = lib.tanh(h @ W + x[t] @ U + b)
    return h


RNN = ((4, 4), (3, 4), (4,), (40, 2, 3))


@pytest.mark.parametrize("fixed", [(), (3,), (0, 1)])
def test_rnn(fixed):
    Case(lambda lib, *p: rnn(lib, *p).sum(), *RNN).check([(40, 6)], fixed)


def test_initial_state_is_a_leaf():
    Case(lambda lib, h, *p: (rnn(lib, *p, h) ** 2).mean(), (2, 4), *RNN).check([(40, 6)])


def test_all_states_are_stacked():
    def body(lib, W, U, b, x, h):
        states = []
        for t in range(x.shape[0]):
            h = lib.tanh(h @ W + x[t] @ U + b)
            states.append(h)
        return (lib.stack(states, 1) ** 2).mean() + lib.cat(states[3:-2], -1).sin().sum() + states[7].sum()

    Case(body, *RNN, (2, 4)).check([(40, 6)])


def test_states_stay_readable_after_backward():
    x, W = (tapejax.tensor(a) for a in Case(None, (2, 4), (4, 4)).arrays)
    W.requires_grad_()
    h, states, expected = x, [], x.numpy()
    for _ in range(30):
        h = tapejax.tanh(h @ W)
        states.append(h)
    h.sum().backward()
    for s in states:
        expected = np.tanh(expected @ W.detach().numpy())
        np.testing.assert_allclose(s.detach().numpy(), expected, atol=1e-12)


def test_states_are_held_and_the_loss_is_read_before_backward():
    outcome = []
    for lib in (tapejax, torch):
        leaves = Case(None, *RNN).leaves(lib)
        W, U, b, x = leaves
        h, states = lib.zeros(2, 4, dtype=lib.float64), []
        for t in range(40):
            h = lib.tanh(h @ W + x[t] @ U + b)
            states.append(h)
        loss = (lib.stack(states) ** 2).mean()
        value = loss.item()
        loss.backward()
        outcome.append([value, *(v.grad.numpy() for v in leaves), *(s.detach().numpy() for s in states)])
    for mine, theirs in zip(*outcome, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_a_held_state_starts_the_next_loop():
    """Truncated backpropagation: states of one program are read by the next."""
    outcome = []
    for lib in (tapejax, torch):
        W, h = Case(None, (4, 4), (2, 4)).leaves(lib)
        for _ in range(3):
            states = [h]
            for _ in range(40):
                states.append(lib.tanh(states[-1] @ W))
            (states[-1] ** 2).sum().backward()
            h = states[-1].detach() + states[7].detach()
        outcome.append([W.grad.numpy(), h.numpy()])
    for mine, theirs in zip(*outcome, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_loss_is_added_up_in_the_loop():
    def body(lib, W, U, b, x, y):
        h = lib.zeros(2, 4, dtype=lib.float64)
        loss = 0.0
        for t in range(40):
            h = lib.tanh(h @ W + x[t] @ U + b)
            loss = loss + ((h - y[t]) ** 2).mean() * (t + 1)
        return loss / 40

    Case(body, *RNN, (40, 2, 4)).check()
    leaves = Case(body, *RNN, (40, 2, 4)).leaves(tapejax)
    assert [p for _, p in loops(body(tapejax, *leaves))] == [12]


def test_losses_are_added_up_after_the_loop():
    def body(lib, W, U, b, x):
        h = lib.zeros(2, 4, dtype=lib.float64)
        losses = []
        for t in range(40):
            h = lib.tanh(h @ W + x[t] @ U + b)
            losses.append((h**2).mean())
        return sum(losses)

    Case(body, *RNN).check()


def test_two_bodies_alternate():
    def body(lib, A, B, h):
        for t in range(60):
            h = lib.tanh(h @ (A if t % 2 else B))
        return h.sum()

    Case(body, (4, 4), (4, 4), (2, 4)).check([(30, 4)])


def test_every_third_round_differs():
    def body(lib, A, h):
        for t in range(60):
            h = lib.tanh(h @ A)
            if t % 3 == 0:
                h = h * 0.5 + 0.1
        return h.sum()

    Case(body, (4, 4), (2, 4)).check()


def test_several_loops_and_what_lies_between():
    def body(lib, A, B, h):
        h = lib.sin(h @ A) * 2
        for _ in range(40):
            h = lib.tanh(h @ A)
        h = h.exp() / 3
        for _ in range(30):
            h = lib.sin(h @ B) + lib.cos(h)
        return (h * h).sum()

    Case(body, (4, 4), (4, 4), (2, 4)).check([(40, 2), (30, 4)])


def test_encoder_and_decoder_have_the_same_body():
    def body(lib, A, B, h):
        for _ in range(40):
            h = lib.tanh(h @ A)
        for _ in range(40):
            h = lib.tanh(h @ B)
        return h.sum()

    Case(body, (4, 4), (4, 4), (2, 4)).check([(40, 2), (40, 2)])


def test_values_from_two_and_three_rounds_ago():
    def body(lib, a, b):
        for _ in range(50):
            a, b = b, lib.sin(a * 0.9 + b * 0.3)
        x = [a, b, a * b]
        for _ in range(50):
            x.append(lib.tanh(x[-1] * 0.5 - x[-3] * 0.4))
        return x[-1].sum() + x[-2].sum()

    Case(body, (3,), (3,)).check()


def test_a_value_of_the_first_round_is_used_by_all():
    def body(lib, A, h):
        first = None
        for _ in range(40):
            h = lib.tanh(h @ A if first is None else h @ A + first)
            first = h if first is None else first
        return h.sum()

    Case(body, (4, 4), (2, 4)).check()


def test_layer_by_layer_over_lists():
    def body(lib, A, B, x):
        values = [x[t] for t in range(40)]
        for W in (A, B):
            h, made = lib.zeros(2, 4, dtype=lib.float64), []
            for v in values:
                h = lib.tanh(h @ W + v)
                made.append(h)
            values = made
        return lib.stack(values).square().mean()

    Case(body, (4, 4), (4, 4), (40, 2, 4)).check()


def test_layers_inside_time():
    def body(lib, A, B, C, x):
        states = [lib.zeros(2, 4, dtype=lib.float64) for _ in range(3)]
        for t in range(40):
            v = x[t]
            for i, W in enumerate((A, B, C)):
                states[i] = v = lib.tanh(states[i] @ W + v)
        return states[-1].sum() + states[0].mean()

    Case(body, (4, 4), (4, 4), (4, 4), (40, 2, 4)).check([(40, 10)])


def test_a_nest_has_loops_in_its_body():
    def body(lib, W, x):
        h = lib.zeros(2, 4, dtype=lib.float64)
        for t in range(12):
            for i in range(40):
                h = lib.tanh(h @ W[i] + h)
            h = h + x[t]
        return h.sum()

    Case(body, (40, 4, 4), (12, 2, 4)).check([(12, 162)])


def test_many_weights_are_stacked():
    def body(lib, *given):
        h = given[0]
        for W, b in zip(given[1::2], given[2::2], strict=True):
            h = lib.tanh(h @ W + b)
        return h.sum()

    Case(body, (2, 4), *[(4, 4), (4,)] * 120).check([(120, 3)])


def test_lstm_of_two_layers():
    def body(lib, W0, U0, W1, U1, x):
        state = [[lib.zeros(2, 4, dtype=lib.float64) for _ in range(2)] for _ in range(2)]
        for t in range(30):
            v = x[t]
            for i, (W, U) in enumerate(((W0, U0), (W1, U1))):
                h, c = state[i]
                a, f, g, o = (h @ W + v @ U).chunk(4, -1)
                c = lib.sigmoid(f) * c + lib.sigmoid(a) * lib.tanh(g)
                h = v = lib.sigmoid(o) * lib.tanh(c)
                state[i] = [h, c]
        return state[1][0].sum() + state[0][1].mean()

    case = Case(body, (4, 16), (4, 16), (4, 16), (4, 16), (30, 2, 4))
    case.check()
    ((rounds, _),) = loops(body(tapejax, *case.leaves(tapejax)))
    assert rounds in (29, 30)


def test_runge_kutta():
    def body(lib, A, B, y):
        def f(t, y):
            return lib.tanh(y @ A) @ B + 0.1 * t

        step = 0.05
        for i in range(40):
            t = i * step
            k1 = f(t, y)
            k2 = f(t + step / 2, y + step / 2 * k1)
            k3 = f(t + step / 2, y + step / 2 * k2)
            k4 = f(t + step, y + step * k3)
            y = y + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return (y**2).sum()

    case = Case(body, (3, 5), (5, 3), (2, 3))
    case.check()
    assert [r for r, _ in loops(body(tapejax, *case.leaves(tapejax)))] == [40]


def test_written_in_place():
    def body(lib, A, h):
        out = lib.zeros(30, 4, dtype=lib.float64)
        for t in range(30):
            h = lib.tanh(h @ A)
            out[t] = h
        return (out * out).sum()

    Case(body, (4, 4), (4,)).check()


def test_random_numbers_are_the_unrolled_ones():
    def run():
        tapejax.manual_seed(3)
        h = tapejax.zeros(4, dtype=tapejax.float64)
        for _ in range(40):
            h = tapejax.tanh(h + tapejax.randn(4, dtype=tapejax.float64))
        return h

    looped = run()
    assert loops(looped) != []
    tapejax.manual_seed(3)
    expected = np.zeros(4)
    for _ in range(40):
        expected = np.tanh(expected + tapejax.randn(4, dtype=tapejax.float64).numpy())
    np.testing.assert_allclose(looped.numpy(), expected, atol=1e-12)


def test_higher_order():
    outcome = []
    for lib in (tapejax, torch):
        W, h = Case(None, (4, 4), (2, 4)).leaves(lib)
        y = h
        for _ in range(30):
            y = lib.tanh(y @ W)
        (g,) = lib.autograd.grad((y**2).sum(), W, create_graph=True)
        (gg,) = lib.autograd.grad((g**2).sum(), W, create_graph=True)
        (ggg,) = lib.autograd.grad(gg.sin().sum(), h)
        outcome.append([x.detach().numpy() for x in (g, gg, ggg)])
    for mine, theirs in zip(*outcome, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-10)


def test_gradient_inside_the_loop():
    """An optimizer unrolled for 20 steps, differentiated through."""
    outcome = []
    for lib in (tapejax, torch):
        W, x, rate = Case(None, (3, 3), (5, 3), ()).leaves(lib)
        w = W
        for _ in range(20):
            (g,) = lib.autograd.grad((lib.tanh(x @ w) ** 2).sum(), w, create_graph=True)
            w = w - rate * g
        w.sum().backward()
        outcome.append([t.grad.numpy() for t in (W, x, rate)])
    for mine, theirs in zip(*outcome, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-10)


def kalman(lib, A, H, q, z):
    """The negative log-likelihood of a filter, up to constants."""
    n, m = A.shape[0], H.shape[0]
    one = lib.eye(n, dtype=lib.float64)
    x, P, total = lib.zeros(n, dtype=lib.float64), one, 0.0
    for t in range(z.shape[0]):
        x, P = A @ x, A @ P @ A.T + q * q * one
        S = H @ P @ H.T + 0.2 * one[:m, :m]
        residual = z[t] - H @ x
        gain = lib.linalg.solve(S, H @ P).T
        x, P = x + gain @ residual, (one - gain @ H) @ P
        total = total + residual @ lib.linalg.solve(S, residual) + lib.log(lib.linalg.det(S))
    return total


def test_kalman_filter():
    case = Case(kalman, (4, 4), (2, 4), (), (40, 2), scale=0.5)
    case.check(tolerance=1e-7)
    ((rounds, _),) = loops(kalman(tapejax, *case.leaves(tapejax)))
    assert rounds >= 36


@pytest.mark.parametrize("body", [rnn, kalman])
def test_forward_mode(body):
    """One tangent through the loop, and a loop's gradient pushed forward."""
    shapes = RNN if body is rnn else ((3, 3), (2, 3), (), (30, 2))
    outcome = []
    for lib in (tapejax, torch):
        primals, tangents = (Case(None, *shapes, seed=s).leaves(lib) for s in (0, 1))
        loss = lambda *p: body(lib, *p).sum()  # noqa: B023, E731
        value, tangent = lib.func.jvp(loss, tuple(primals), tuple(t.detach() for t in tangents))
        _, (curved,) = lib.func.jvp(lambda W: (lib.func.grad(loss)(W, *primals[1:]),), (primals[0],), (tangents[0].detach(),))  # noqa: B023
        with lib.autograd.forward_ad.dual_level():
            dual = lib.autograd.forward_ad.make_dual(primals[0].detach(), tangents[0].detach())
            pushed = lib.autograd.forward_ad.unpack_dual(loss(dual, *primals[1:])).tangent
        outcome.append([x.detach().numpy() for x in (value, tangent, curved, pushed)])
    for mine, theirs in zip(*outcome, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("body", [rnn, kalman])
def test_batched_and_per_sample_gradients(body):
    outcome = []
    for lib in (tapejax, torch):
        leaves = Case(None, *(RNN if body is rnn else ((3, 3), (2, 3), (), (30, 2)))).leaves(lib)
        made = body(lib, *leaves).reshape(-1)
        seeds = lib.eye(made.numel(), dtype=lib.float64)
        batched = lib.autograd.grad(made, leaves, seeds, is_grads_batched=True)
        data = Case(None, (3, *leaves[3].shape), seed=2).leaves(lib)[0].detach()
        one = lambda W, x: body(lib, W, *leaves[1:3], x).sum()  # noqa: B023, E731
        each = lib.func.vmap(lib.func.grad(one), (None, 0))(leaves[0].detach(), data)
        outcome.append([x.detach().numpy() for x in (*batched, each)])
    for mine, theirs in zip(*outcome, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


def test_gradient_at_an_inner_value_and_with_retained_graph():
    outcome = []
    for lib in (tapejax, torch):
        W, h = Case(None, (4, 4), (2, 4)).leaves(lib)
        y, states = h, []
        for _ in range(40):
            y = lib.tanh(y @ W)
            states.append(y)
        loss = (y**2).sum()
        inner = lib.autograd.grad(loss, [states[20], states[3], W], retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        outcome.append([x.numpy() for x in (*inner, W.grad, h.grad)])
    for mine, theirs in zip(*outcome, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_forced_before_backward():
    Case(lambda lib, *p: (lambda loss: (loss.item(), loss)[1])(rnn(lib, *p).sum()), *RNN).check()


def test_retained_gradients_and_hooks_in_the_loop():
    outcome = []
    for lib in (tapejax, torch):
        W, h = Case(None, (4, 4), (2, 4)).leaves(lib)
        y = h
        for t in range(40):
            y = lib.tanh(y @ W)
            if t == 25:
                y.register_hook(lambda g: g * 2)
                y.retain_grad()
                kept = y
        (y**2).sum().backward()
        outcome.append([x.numpy() for x in (W.grad, h.grad, kept.grad)])
    for mine, theirs in zip(*outcome, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_an_optimizers_update_is_no_loop():
    leaves = [tapejax.tensor([1.0, 2.0]) for _ in range(60)]
    updated = [x * 0.9 - 0.1 * y for x, y in itertools.pairwise(leaves)]
    assert loops(*updated) == []


def test_what_does_not_repeat_is_no_loop():
    rng = np.random.default_rng(0)
    x = tapejax.ones(3)
    ops = [tapejax.sin, tapejax.cos, tapejax.tanh, tapejax.exp, lambda v: v * 0.1, lambda v: v + 1]
    for k in rng.integers(0, len(ops), 300):
        x = ops[k](x)
    found = loops(x)
    assert sum(r * p for r, p in found) < 30


def test_same_program_again_compiles_nothing():
    case = Case(lambda lib, *p: rnn(lib, *p).sum(), *RNN)
    leaves = case.leaves(tapejax)

    def step():
        case.body(tapejax, *leaves).backward()
        for x in leaves:
            x.grad = None

    step()
    before = CACHE.compiled
    step()
    assert CACHE.compiled == before


def test_a_tape_of_100000_nodes():
    """Neither recording, nor backward, nor freeing recurses, even on a small stack."""

    def run():
        x = tapejax.ones(2, dtype=tapejax.float64).requires_grad_()
        for finish in (lambda y: None, lambda y: y.sum().backward()):
            y = x
            for _ in range(50_000):
                y = tapejax.sin(y * 0.99)
            finish(y)
            del y
        found.append(x.grad.tolist())

    found: list[list[float]] = []
    before = threading.stack_size(1 << 20)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert len(found) == 1


def test_finding_loops_takes_no_recording_time():
    """The search runs once per compile, not once per step."""
    case = Case(lambda lib, *p: rnn(lib, *p).sum(), *RNN)
    leaves = case.leaves(tapejax)
    case.body(tapejax, *leaves).backward()
    case.body(tapejax, *leaves).backward()  # adds into .grad: a program of its own
    known = dict(_known)
    case.body(tapejax, *leaves).backward()
    assert dict(_known) == known


@pytest.mark.parametrize("seed", range(30))
def test_random_loops(seed):
    """Bodies made at random: reads from random places, random prologues, several rounds back, lists read later."""
    rng = np.random.default_rng(seed)
    n_leaves = int(rng.integers(2, 5))
    rounds = int(rng.integers(9, 30))
    length = int(rng.integers(3, 12))
    unary = ["tanh", "sin", "cos"]
    plan = []
    for _ in range(length):
        name = unary[rng.integers(3)] if rng.random() < 0.5 else ["add", "mul", "sub"][rng.integers(3)]
        plan.append((name, [(int(rng.integers(4)), int(rng.integers(1, 1 + length * int(rng.integers(1, 4)))), int(rng.integers(n_leaves))) for _ in range(2)]))
    prologue = int(rng.integers(1, 9))
    odd = int(rng.integers(0, rounds)) if rng.random() < 0.4 else None

    def body(lib, xs, *leaves):
        values = [leaves[i % n_leaves] * 0.5 for i in range(prologue)]
        kept = []

        def read(source, t):
            what, back, which = source
            if what == 0:
                return leaves[which]
            if what == 1:
                return xs[t]
            return values[-back] if back <= len(values) else values[0]

        for t in range(rounds):
            if t == odd:
                values.append(lib.cos(values[-1]) * 0.7)
            for name, (a, b) in plan:
                f = getattr(lib, name)
                values.append(f(read(a, t)) if name in unary else 0.5 * f(read(a, t), read(b, t)))
            if t % 2 == seed % 2 or seed % 3:
                kept.append(values[-1])
        total = lib.stack(kept).mean()
        for v in values[-length - 2 :]:
            total = total + v.sum()
        return total

    Case(body, (rounds, 3), *[(3,)] * n_leaves, seed=seed).check()


# ---------------------------------------------------------------- one loop for all lengths


def lengths(*rounds, keep=False):
    """Train on sequences of these lengths; per length, the rolls that exist after it."""
    W, U, b, _ = Case(None, *RNN).leaves(tapejax, fixed=(3,))
    held = []
    for n in rounds:
        x = Case(None, (n, 2, 3)).leaves(tapejax, fixed=(0,))[0]
        for p in (W, U, b):
            p.grad = None
        h = rnn(tapejax, W, U, b, x)
        (h**2).sum().backward()
        held.append({part for part in parts.PARTS.values() if part.call.__name__ == "roll"})
    return held


def test_another_length_compiles_no_loop_again(how):
    if how == "whole":
        pytest.skip("loops are part of their program")
    first, *others = lengths(41, 42, 48, 44)
    assert len(first) == 2, "forward and backward"
    assert all(found == first for found in others)
    assert len(lengths(41, 49)[1]) == 4, "beyond the capacity of 48"


def test_short_loops_are_shared_once_a_second_length_was_seen(how, monkeypatch):
    monkeypatch.setattr(parts, "FEW_ROUNDS", 16)
    monkeypatch.setattr(parts, "MANY_ROUNDS", 256)
    assert [len(found) for found in lengths(20, 20, 21, 22, 23)] == [0, 0, 2, 2, 2]


def test_a_roll_lives_as_long_as_a_program_that_has_it(how):
    lengths(40)
    CACHE.clear()
    gc.collect()
    assert len(parts.PARTS) == 0


def test_equal_bodies_meet_and_others_do_not(how):
    """Constants, literals, direction and what is read of a loop tell bodies apart."""

    def run(factor, keep):
        h, states = tapejax.ones(3, dtype=tapejax.float64), []
        for _ in range(40):
            h = tapejax.tanh(tapejax.clamp(h, max=factor) * 1.5)
            states.append(h)
        return tapejax.stack(states).sum().item() if keep else h.sum().item()

    expected = {}
    for factor in (0.25, 0.5):
        h = np.ones(3)
        total = 0.0
        for _ in range(40):
            h = np.tanh(np.minimum(h, factor) * 1.5)
            total += h.sum()
        expected[factor] = (h.sum(), total)
    for factor in (0.25, 0.5):
        for keep in (False, True):
            assert run(factor, keep) == pytest.approx(expected[factor][keep])


def test_a_staged_program_inside_a_jax_transform():
    """There it is one differentiable function."""
    import jax

    def loss(w):
        h = w
        for _ in range(40):
            h = tapejax.tanh(h * 0.9 + 0.1)
        return h.sum()

    pure = tapejax.interop.to_jax(loss)
    w = np.linspace(-1, 1, 3)
    with jax.enable_x64(True):
        outside = pure(w)
        np.testing.assert_allclose(jax.jit(pure)(w), outside)
        slope = jax.grad(lambda w: pure(w) * 2.0)(w)
    x = tapejax.tensor(w, requires_grad=True)
    (loss(x) * 2.0).backward()
    np.testing.assert_allclose(slope, x.grad.numpy())


def test_staged_programs_let_go_of_what_was_read(how):
    """Between its launches a program holds only what a later one reads."""
    lengths(40)
    for program in CACHE.entries.values():
        if isinstance(program.call, stages.Staged):
            dropped = [i for stage in program.call.stages for i in stage.last]
            assert len(dropped) == len(set(dropped)) and dropped
