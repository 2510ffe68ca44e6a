"""Optimizers and schedules against torch's own: trajectories, state, refusals, warnings, and no recompiles."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import tapejax as tj
import tapejax.optim
from tapejax.engine.cache import CACHE

torch = pytest.importorskip("torch")

LRS = [0.05, 0.02, 1e-8, 0.05]  # one equals eps: a rate captured by value would be merged with it

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.5, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "maximize": True}),
    ("Adam", {"amsgrad": True, "betas": (0.5, 0.6)}),
    ("AdamW", {"weight_decay": 0.3, "amsgrad": True, "eps": 1e-3}),
    ("AdamW", {}),
    ("NAdam", {"weight_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"weight_decay": 0.1}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "betas": (0.8, 0.9)}),
    ("Adamax", {"weight_decay": 0.01}),
    ("Adagrad", {"lr_decay": 0.01, "weight_decay": 0.01, "initial_accumulator_value": 0.1}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "momentum": 0.5, "weight_decay": 0.1}),
    ("Adadelta", {"weight_decay": 0.1}),
    ("Rprop", {}),
    ("ASGD", {"t0": 10, "weight_decay": 0.01, "lambd": 0.01}),
]
IDS = [name + "".join(f"-{k}" for k in options) for name, options in OPTIMIZERS]


def problem(lib: Any, kind: str, params: Any = None) -> tuple[list[Any], Any]:
    """Two parameters (or the given ones) and a loss of the step number; the second one has no gradient at step 5."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        x = rng.normal(size=shape)
        if kind == "complex128":
            x = x + 1j * rng.normal(size=shape)
        return lib.tensor(x.tolist(), dtype=getattr(lib, kind))

    a, y, w, b = draw(4, 3), draw(4, 2), draw(3, 2).requires_grad_(), draw(2).requires_grad_()
    if params is not None:
        w, b = params

    def loss(i: int) -> Any:
        value = ((a @ w + b - y).abs() ** 2).mean()
        return value if i != 5 else ((a @ w - y).abs() ** 2).mean()

    return [w, b], loss


def trajectory(lib: Any, name: str, options: dict[str, Any], kind: str = "float64", steps: int = 50) -> tuple[Any, Any]:
    params, loss = problem(lib, kind)
    opt = getattr(lib.optim, name)(params, lr=LRS[0], **options)
    path = []
    for i in range(steps):
        opt.param_groups[0]["lr"] = LRS[i % 4]
        opt.zero_grad()
        loss(i).backward()
        opt.step()
        path.append(np.concatenate([p.detach().numpy().ravel() for p in params]))
    states = [{k: v.detach().numpy() for k, v in opt.state[p].items()} for p in params]
    return np.array(path), states


@pytest.mark.parametrize("kind", ["float64", "complex128"])
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=IDS)
def test_fifty_steps_as_torch(name: str, options: dict[str, Any], kind: str) -> None:
    ours, our_states = trajectory(tj, name, options, kind)
    theirs, their_states = trajectory(torch, name, options, kind)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    for mine, other in zip(our_states, their_states, strict=True):
        assert mine.keys() == other.keys()
        for key in mine:
            assert mine[key].dtype == other[key].dtype
            np.testing.assert_allclose(
                mine[key], other[key], rtol=1e-6 if mine[key].dtype == np.float32 else 1e-10, atol=1e-10
            )


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_single_and_half_precision_stay_near(name: str) -> None:
    for kind, tolerance in (("float32", 1e-4), ("bfloat16", 0.1)):
        params, loss = problem(tj, kind)
        opt = getattr(tj.optim, name)(params, lr=0.01)
        for i in range(10):
            opt.zero_grad()
            loss(i).backward()
            opt.step()
        assert all(p.dtype is getattr(tj, kind) for p in params)
        exact, wide = problem(tj, "float64")
        opt = getattr(tj.optim, name)(exact, lr=0.01)
        for i in range(10):
            opt.zero_grad()
            wide(i).backward()
            opt.step()
        for p, q in zip(params, exact, strict=True):
            np.testing.assert_allclose(p.detach().numpy().astype(np.float64), q.detach().numpy(), atol=tolerance)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"line_search_fn": "strong_wolfe"}, 6),
        ({"line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 7}, 6),
        ({"lr": 0.1, "history_size": 3}, 3),
    ],
)
def test_lbfgs_as_torch(options: dict[str, Any], steps: int) -> None:
    found = []
    for lib in (torch, tj):
        params, loss = problem(lib, "float64")
        opt = lib.optim.LBFGS(params, **options)

        def closure(opt: Any = opt, loss: Any = loss, params: Any = params) -> Any:
            opt.zero_grad()
            value = loss(0) + (params[0] ** 4).sum() + (params[1] ** 4).sum()
            value.backward()
            return value

        losses = [opt.step(closure).item() for _ in range(steps)]
        state = opt.state[params[0]]
        found.append(
            (losses, [p.detach().numpy() for p in params], state["func_evals"], state["n_iter"], set(state) - {"al"})
        )
    (a, p, *counts), (b, q, *other) = found
    assert counts == other
    np.testing.assert_allclose(b, a, rtol=1e-8)
    for x, y in zip(p, q, strict=True):
        np.testing.assert_allclose(y, x, atol=1e-6)


def test_a_parameter_that_joins_late_has_its_own_age() -> None:
    def run(lib: Any) -> Any:
        a, b = (lib.tensor(1.0, dtype=lib.float64, requires_grad=True) for _ in range(2))
        opt = lib.optim.Adam([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1)
        for i in range(4):
            opt.zero_grad()
            (a**2 + (b**2 if i >= 2 else 0)).backward()
            opt.step()
        return [int(opt.state[p]["step"]) for p in (a, b)], [a.item(), b.item()]

    (ages, values), (their_ages, theirs) = run(tj), run(torch)
    assert ages == their_ages == [4, 2]
    np.testing.assert_allclose(values, theirs, rtol=1e-12)


@pytest.mark.parametrize(("name", "options"), [OPTIMIZERS[k] for k in (1, 6, 9, 14, 16, 19)])
def test_a_resumed_run_goes_on_as_if_never_stopped(name: str, options: dict[str, Any]) -> None:
    straight, _ = trajectory(tj, name, options, steps=8)
    params, loss = problem(tj, "float64")
    opt = getattr(tj.optim, name)(params, lr=LRS[0], **options)
    for i in range(8):
        if i == 4:
            saved = copy.deepcopy(opt.state_dict())
            params, loss = problem(tj, "float64", [p.detach().clone().requires_grad_() for p in params])
            opt = getattr(tj.optim, name)(params, lr=1.0, **options)
            opt.load_state_dict(saved)
        opt.param_groups[0]["lr"] = LRS[i % 4]
        opt.zero_grad()
        loss(i).backward()
        opt.step()
    np.testing.assert_allclose(np.concatenate([p.detach().numpy().ravel() for p in params]), straight[-1], atol=1e-13)


def test_state_dicts_have_torchs_format() -> None:
    found = []
    for lib in (torch, tj):
        params, loss = problem(lib, "float64")
        opt = lib.optim.AdamW([{"params": params[:1]}, {"params": params[1:], "lr": 0.3}], lr=0.1, amsgrad=True)
        loss(0).backward()
        opt.step()
        found.append(opt.state_dict())
    theirs, ours = found
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys() == {0, 1}
    assert list(ours["state"][0]) == list(theirs["state"][0])


def test_pickle_and_repr() -> None:
    params, loss = problem(tj, "float64")
    opt = tj.optim.SGD(params, lr=0.1, momentum=0.9)
    loss(0).backward()
    opt.step()
    again = pickle.loads(pickle.dumps(opt))
    assert again.param_groups[0]["lr"] == 0.1
    assert len(again.state) == 2
    theirs = repr(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9))
    assert repr(opt) == theirs


def test_a_schedule_recompiles_nothing() -> None:
    params, loss = problem(tj, "float64")
    opt = tj.optim.AdamW(params, lr=1)  # an int first: rates of any kind are one kind of leaf
    schedule = tj.optim.lr_scheduler.CosineAnnealingLR(opt, 10)

    def step() -> None:
        opt.zero_grad()
        loss(0).backward()
        opt.step()
        schedule.step()

    step(), step(), step()
    before = CACHE.compiled
    for _ in range(5):
        step()
    assert CACHE.compiled == before


def test_a_step_reads_nothing_back() -> None:
    params, loss = problem(tj, "float64")
    opt = tj.optim.Adam(params)
    loss(0).backward()
    opt.step()
    assert all(p.node.value is None for p in params)  # recorded, not computed
    assert opt.state[params[0]]["step"].node.value is None
    assert int(opt.state[params[0]]["step"]) == 1


def test_differentiable_steps() -> None:
    lr = tj.tensor(0.1, dtype=tj.float64, requires_grad=True)
    start = tj.tensor([1.0, 2.0], dtype=tj.float64, requires_grad=True)
    w = start.clone()
    opt = tj.optim.SGD([w], lr=lr, differentiable=True)
    w.grad = 2 * start
    opt.step()
    (w**2).sum().backward()
    np.testing.assert_allclose(start.grad.numpy(), 2 * (1 - 0.2) ** 2 * start.detach().numpy())
    np.testing.assert_allclose(lr.grad.item(), (2 * 0.8 * np.array([1, 2]) * -2 * np.array([1, 2])).sum())


def test_closures_hooks_and_zero_grad() -> None:
    w = tj.tensor([1.0], requires_grad=True)
    opt = tj.optim.SGD([w], lr=0.1)
    seen = []
    before = opt.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
    opt.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))

    def closure() -> Any:
        assert tj.is_grad_enabled()
        opt.zero_grad()
        loss = (w**2).sum()
        loss.backward()
        return loss

    assert opt.step(closure).item() == 1.0
    assert seen == ["before", "after"]
    before.remove()
    opt.step(closure)
    assert seen == ["before", "after", "after"]
    opt.zero_grad(set_to_none=False)
    assert w.grad.item() == 0.0
    opt.zero_grad()
    assert w.grad is None


def test_named_parameters_and_a_step_of_ones_own() -> None:
    class Twice(tj.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return super().step(closure)

    w = tj.tensor([1.0], requires_grad=True)
    opt = Twice([("w", w)], lr=0.1)
    assert opt.state_dict()["param_groups"][0]["param_names"] == ["w"]
    seen: list[int] = []
    opt.register_step_post_hook(lambda *_: seen.append(1))
    w.grad = tj.tensor([1.0])
    opt.step()
    assert seen == [1]
    assert round(w.item(), 6) == 0.8


def weight() -> Any:
    return tj.zeros(2, requires_grad=True)


@pytest.mark.parametrize(
    ("make", "error", "phrase"),
    [
        (lambda O: O.SGD([], lr=0.1), ValueError, "optimizer got an empty parameter list"),
        (lambda O: O.SGD(weight(), lr=0.1), TypeError, "params argument given to the optimizer should be an iterable"),
        (lambda O: O.SGD([1.0], lr=0.1), TypeError, "optimizer can only optimize Tensors"),
        (lambda O: O.SGD([{"params": {weight()}}], lr=0.1), TypeError, "need to be organized in ordered collections"),
        (lambda O: O.SGD([weight() * 2], lr=0.1), ValueError, "can't optimize a non-leaf Tensor"),
        (lambda O: O.SGD([{"params": [w := weight()]}, {"params": [w]}]), ValueError, "more than one parameter group"),
        (lambda O: O.SGD([weight()], lr=-1), ValueError, "Invalid learning rate: -1"),
        (lambda O: O.Adam([weight()], lr=tj.zeros(2)), ValueError, "Tensor lr must be 1-element"),
        (lambda O: O.SGD([weight()], momentum=-0.5), ValueError, "Invalid momentum value: -0.5"),
        (lambda O: O.SGD([weight()], weight_decay=-0.5), ValueError, "Invalid weight_decay value: -0.5"),
        (
            lambda O: O.SGD([weight()], nesterov=True),
            ValueError,
            "Nesterov momentum requires a momentum and zero dampening",
        ),
        (lambda O: O.Adam([weight()], betas=(1.0, 0.9)), ValueError, "Invalid beta parameter at index 0: 1.0"),
        (lambda O: O.AdamW([weight()], betas=(0.9, 2.0)), ValueError, "Invalid beta parameter at index 1: 2.0"),
        (lambda O: O.NAdam([weight()], momentum_decay=-1), ValueError, "Invalid momentum_decay value: -1"),
        (lambda O: O.RAdam([weight()], eps=-1), ValueError, "Invalid epsilon value: -1"),
        (lambda O: O.Adagrad([weight()], lr_decay=-1), ValueError, "Invalid lr_decay value: -1"),
        (lambda O: O.Adadelta([weight()], rho=2), ValueError, "Invalid rho value: 2"),
        (lambda O: O.RMSprop([weight()], alpha=-1), ValueError, "Invalid alpha value: -1"),
        (lambda O: O.Rprop([weight()], etas=(2, 3)), ValueError, "Invalid eta values: 2, 3"),
        (
            lambda O: O.LBFGS([{"params": [weight()]}, {"params": [weight()]}]),
            ValueError,
            "doesn't support per-parameter options",
        ),
    ],
)
def test_refusals_keep_torchs_phrases(make: Any, error: type[Exception], phrase: str) -> None:
    with pytest.raises(error, match=phrase):
        make(tj.optim)


def test_loading_the_wrong_state_is_refused() -> None:
    one, two = tj.optim.SGD([weight()]), tj.optim.SGD([{"params": [weight()]}, {"params": [weight()]}])
    with pytest.raises(ValueError, match="different number of parameter groups"):
        one.load_state_dict(two.state_dict())
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        one.load_state_dict(tj.optim.SGD([weight(), weight()]).state_dict())
    with pytest.warns(UserWarning, match="duplicate parameters"):
        tj.optim.SGD([w := weight(), w])


# Schedules

STEPS = 40
SCHEDULES: dict[str, Any] = {
    "LambdaLR": lambda S, o: S.LambdaLR(o, [lambda e: 1 / (1 + e), lambda e: 0.9**e]),
    "MultiplicativeLR": lambda S, o: S.MultiplicativeLR(o, lambda e: 0.95),
    "StepLR": lambda S, o: S.StepLR(o, 7, 0.5),
    "MultiStepLR": lambda S, o: S.MultiStepLR(o, [3, 3, 10, 20], 0.5),
    "ConstantLR": lambda S, o: S.ConstantLR(o, 0.25, 6),
    "LinearLR": lambda S, o: S.LinearLR(o, 0.2, 0.9, 11),
    "ExponentialLR": lambda S, o: S.ExponentialLR(o, 0.93),
    "CosineAnnealingLR": lambda S, o: S.CosineAnnealingLR(o, 10, 1e-3),
    "PolynomialLR": lambda S, o: S.PolynomialLR(o, 25, 2.0),
    "CosineAnnealingWarmRestarts": lambda S, o: S.CosineAnnealingWarmRestarts(o, 4, 2, 1e-3),
    "CyclicLR": lambda S, o: S.CyclicLR(o, 0.01, [0.2, 0.5], 5, 8),
    "CyclicLR-2": lambda S, o: S.CyclicLR(o, 0.01, 0.2, 5, mode="triangular2"),
    "CyclicLR-exp": lambda S, o: S.CyclicLR(o, 0.01, 0.2, 5, mode="exp_range", gamma=0.98),
    "CyclicLR-fn": lambda S, o: S.CyclicLR(o, 0.01, 0.2, 5, scale_fn=lambda x: 0.5**x, scale_mode="iterations"),
    "OneCycleLR": lambda S, o: S.OneCycleLR(o, [0.5, 0.7], total_steps=STEPS),
    "OneCycleLR-3": lambda S, o: S.OneCycleLR(
        o, 0.5, epochs=8, steps_per_epoch=5, three_phase=True, anneal_strategy="linear", pct_start=0.25
    ),
    "SequentialLR": lambda S, o: S.SequentialLR(
        o, [S.LinearLR(o, 0.1, total_iters=5), S.CosineAnnealingLR(o, 10), S.ExponentialLR(o, 0.9)], [5, 20]
    ),
    "ChainedScheduler": lambda S, o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 20), S.ExponentialLR(o, 0.9)], o),
}


def two_groups(lib: Any, name: str) -> Any:
    options = {"momentum": 0.9} if name == "SGD" else {}
    groups = [{"params": [lib.zeros(1, requires_grad=True)]}, {"params": [lib.zeros(2, requires_grad=True)], "lr": 0.3}]
    return getattr(lib.optim, name)(groups, lr=0.1, **options)


@pytest.mark.parametrize("stop", [None, 8])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_rates_and_momenta_as_torch(schedule: str, name: str, stop: int | None) -> None:
    paths = []
    for lib in (torch, tj):
        opt = two_groups(lib, name)
        s = SCHEDULES[schedule](lib.optim.lr_scheduler, opt)
        path = []
        for i in range(STEPS):
            path.append([(g["lr"], g.get("momentum", 0), g.get("betas", (0,))[0]) for g in opt.param_groups])
            opt.step()
            s.step()
            assert s.get_last_lr() == [g["lr"] for g in opt.param_groups]
            if i == stop:  # save both, make both anew, load
                saved = copy.deepcopy((opt.state_dict(), s.state_dict()))
                opt = two_groups(lib, name)
                s = SCHEDULES[schedule](lib.optim.lr_scheduler, opt)
                opt.load_state_dict(saved[0])
                s.load_state_dict(saved[1])
            if i == 12:
                opt.param_groups[0]["lr"] *= 1.5  # a rate set by hand is taken up from there
        paths.append(path)
    np.testing.assert_allclose(np.array(paths[1]), np.array(paths[0]), rtol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "max", "factor": 0.5, "patience": 2},
        {"patience": 1, "cooldown": 3, "threshold_mode": "abs", "threshold": 0.1},
        {"mode": "max", "threshold_mode": "abs", "patience": 3, "min_lr": [0.01, 0.05]},
    ],
    ids=str,
)
def test_plateaus_as_torch(options: dict[str, Any]) -> None:
    paths = []
    for lib in (torch, tj):
        opt = two_groups(lib, "SGD")
        s = lib.optim.lr_scheduler.ReduceLROnPlateau(opt, **options)
        rng = np.random.default_rng(0)
        path = []
        for i in range(60):
            opt.step()
            s.step(lib.tensor(float(rng.normal() / (1 + i))))
            path.append((*s.get_last_lr(), s.num_bad_epochs, s.cooldown_counter))
        paths.append(path)
    np.testing.assert_allclose(np.array(paths[1]), np.array(paths[0]), rtol=1e-12)


@pytest.mark.parametrize(
    "schedule", ["StepLR", "ExponentialLR", "CosineAnnealingLR", "LinearLR", "MultiStepLR", "PolynomialLR"]
)
def test_starting_late_and_jumping(schedule: str) -> None:
    options = {
        "StepLR": {"step_size": 7},
        "ExponentialLR": {"gamma": 0.9},
        "CosineAnnealingLR": {"T_max": 10},
        "MultiStepLR": {"milestones": [3, 10]},
    }.get(schedule, {"total_iters": 20})
    paths = []
    for lib in (torch, tj):
        opt = two_groups(lib, "SGD")
        with pytest.raises(KeyError, match="param 'initial_lr' is not specified in param_groups"):
            getattr(lib.optim.lr_scheduler, schedule)(opt, last_epoch=6, **options)
        for g in opt.param_groups:
            g["initial_lr"], g["lr"] = g["lr"], g["lr"] * 0.7
        s = getattr(lib.optim.lr_scheduler, schedule)(opt, last_epoch=6, **options)
        path = []
        for _ in range(6):
            opt.step()
            s.step()
            path.append(s.get_last_lr())
        for epoch in (3, 9, 30, 2):
            with pytest.warns(UserWarning, match="The epoch parameter"):
                s.step(epoch)
            path.append(s.get_last_lr())
        paths.append(path)
    np.testing.assert_allclose(np.array(paths[1]), np.array(paths[0]), rtol=1e-12)


def test_a_chain_may_start_at_a_milestone() -> None:
    opt = two_groups(tj, "SGD")
    S = tj.optim.lr_scheduler
    s = S.SequentialLR(
        opt, [S.ConstantLR(opt, 0.5, 9), S.ChainedScheduler([S.ExponentialLR(opt, 0.9), S.StepLR(opt, 2, 0.5)])], [2]
    )
    rates = []
    for _ in range(5):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        s.step()
    np.testing.assert_allclose(rates, [0.05, 0.05, 0.1, 0.09, 0.0405])


def test_a_rate_that_is_a_tensor_is_written_in_place() -> None:
    rate = tj.tensor(0.1, dtype=tj.float64)
    opt = tj.optim.Adam([weight()], lr=rate)
    s = tj.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    opt.step()
    s.step()
    assert opt.param_groups[0]["lr"] is rate
    assert rate.item() == 0.05


def test_schedules_warn_as_torch() -> None:
    opt = two_groups(tj, "SGD")
    s = tj.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    with pytest.warns(UserWarning, match=r"Detected call of `lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        s.step()
    with pytest.warns(UserWarning, match=r"please use `get_last_lr\(\)`"):
        s.get_lr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.step()
        s.step()


@pytest.mark.parametrize(
    ("make", "error", "phrase"),
    [
        (lambda S, o: S.ExponentialLR([], 0.9), TypeError, "is not an Optimizer"),
        (lambda S, o: S.LambdaLR(o, [lambda e: 1.0]), ValueError, "Expected 2 lr_lambdas, but got 1"),
        (lambda S, o: S.ConstantLR(o, 2.0), ValueError, "expected to be between 0 and 1"),
        (lambda S, o: S.LinearLR(o, 0.0), ValueError, "expected to be greater than 0 and less or equal to 1"),
        (lambda S, o: S.LinearLR(o, 0.5, 2.0), ValueError, "Ending multiplicative factor"),
        (lambda S, o: S.CosineAnnealingWarmRestarts(o, 0), ValueError, "Expected positive integer T_0, but got 0"),
        (lambda S, o: S.CyclicLR(o, 0.1, 0.2, mode="square"), ValueError, "mode is invalid and scale_fn is None"),
        (lambda S, o: S.OneCycleLR(o, 0.1), ValueError, "You must define either total_steps OR"),
        (
            lambda S, o: S.OneCycleLR(o, 0.1, total_steps=9, pct_start=2.0),
            ValueError,
            "Expected float between 0 and 1 pct_start",
        ),
        (lambda S, o: S.ReduceLROnPlateau(o, factor=1.0), ValueError, "Factor should be < 1.0"),
        (lambda S, o: S.ReduceLROnPlateau(o, mode="up"), ValueError, "mode up is unknown!"),
        (
            lambda S, o: S.SequentialLR(o, [S.ExponentialLR(o, 0.9)], [3]),
            ValueError,
            "one more than the number of milestone",
        ),
        (lambda S, o: S.ChainedScheduler([]), ValueError, "expects at least one scheduler to be chained"),
    ],
)
def test_schedules_refuse_with_torchs_phrases(make: Any, error: type[Exception], phrase: str) -> None:
    with pytest.raises(error, match=phrase):
        make(tj.optim.lr_scheduler, two_groups(tj, "SGD"))


# Averages of weights


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("ema", [False, True])
def test_averaged_models_as_torch(ema: bool, several: bool) -> None:
    found = []
    for lib in (torch, tj):
        rng = np.random.default_rng(0)
        model = lib.nn.Linear(2, 1)
        swa = lib.optim.swa_utils
        if several:
            averaged = swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.7) if ema else swa.get_swa_multi_avg_fn())
        else:
            averaged = swa.AveragedModel(model, avg_fn=swa.get_ema_avg_fn(0.7) if ema else None)
        for _ in range(4):
            with lib.no_grad():
                for p in model.parameters():
                    p.copy_(lib.tensor(rng.normal(size=tuple(p.shape)).tolist()))
            averaged.update_parameters(model)
        assert int(averaged.n_averaged) == 4
        found.append([p.detach().numpy() for p in averaged.parameters()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"anneal_epochs": 0}, {"anneal_strategy": "linear", "anneal_epochs": 5}], ids=str
)
def test_swalr_as_torch(options: dict[str, Any]) -> None:
    paths = []
    for lib in (torch, tj):
        opt = two_groups(lib, "SGD")
        s = lib.optim.swa_utils.SWALR(opt, [0.01, 0.02], **options)
        path = []
        for _ in range(14):
            opt.step()
            s.step()
            path.append(s.get_last_lr())
        paths.append(path)
    np.testing.assert_allclose(np.array(paths[1]), np.array(paths[0]), rtol=1e-12)


def test_update_bn_takes_the_mean_over_all_batches() -> None:
    model = tj.nn.Sequential(tj.nn.BatchNorm1d(2))
    batches = [tj.tensor([[1.0, 2.0], [3.0, 4.0]]), tj.tensor([[5.0, 6.0], [7.0, 8.0]])]
    model.eval()
    tj.optim.swa_utils.update_bn(batches, model)
    np.testing.assert_allclose(model[0].running_mean.numpy(), [4.0, 5.0])
    assert model[0].momentum == 0.1
    assert not model.training
