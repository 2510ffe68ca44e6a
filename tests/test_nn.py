"""Modules and functionals against torch: outputs, gradients, state, texts; the rules of `Module`; utilities of `nn`."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejax as tj
from oracle import compiled, near, numbers

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)


def r(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape)


def p(*shape: int) -> np.ndarray:
    """Positive, below one."""
    return np.abs(r(*shape)) * 0.8 + 0.1


def ints(values: Any) -> np.ndarray:
    return np.array(values)


SIGNS = ints([1, -1, 1])

#: The module as both libraries spell it, and its inputs.
MODULES: list[tuple[Any, ...]] = [
    ("Linear(3, 2)", r(4, 3)),
    ("Linear(3, 2, bias=False)", r(3)),
    ("Bilinear(3, 2, 4)", r(5, 3), r(5, 2)),
    ("Identity()", r(3)),
    ("Embedding(5, 3)", ints([[1, 2], [4, 0]])),
    ("Embedding(5, 3, padding_idx=1)", ints([1, 2, 2, 1])),
    ("Embedding(5, 3, scale_grad_by_freq=True)", ints([1, 2, 2])),
    ("EmbeddingBag(5, 3, mode='sum')", ints([[1, 2], [4, 0]])),
    ("EmbeddingBag(5, 3, padding_idx=2)", ints([[1, 2], [4, 0]])),
    ("Conv1d(2, 4, 3, padding=1)", r(2, 2, 5)),
    ("Conv1d(2, 4, 3, stride=2, dilation=2, groups=2)", r(2, 9)),
    ("Conv2d(2, 4, 3, stride=2, padding=(1, 2), groups=2)", r(2, 2, 6, 5)),
    ("Conv2d(4, 4, (2, 3), dilation=(2, 1), groups=4, bias=False)", r(1, 4, 6, 5)),
    ("Conv2d(2, 3, 3, padding='same', padding_mode='reflect')", r(1, 2, 5, 5)),
    ("Conv2d(2, 3, 3, padding=(1, 2), padding_mode='circular', bias=False)", r(1, 2, 5, 6)),
    ("Conv2d(2, 3, 3, padding=1, padding_mode='replicate')", r(1, 2, 5, 6)),
    ("Conv3d(1, 2, 2)", r(1, 1, 3, 3, 3)),
    ("ConvTranspose1d(2, 3, 3, stride=2, output_padding=1)", r(2, 2, 4)),
    ("ConvTranspose2d(2, 4, 3, stride=2, padding=1, groups=2)", r(1, 2, 4, 3)),
    ("LayerNorm(3)", r(4, 3)),
    ("LayerNorm((2, 3), bias=False)", r(4, 2, 3)),
    ("LayerNorm(3, elementwise_affine=False)", r(4, 3)),
    ("RMSNorm(3)", r(4, 3)),
    ("GroupNorm(2, 4)", r(3, 4, 2)),
    ("InstanceNorm1d(3, affine=True, track_running_stats=True)", r(2, 3, 4)),
    ("InstanceNorm2d(3)", r(2, 3, 4, 2)),
    ("LocalResponseNorm(2)", r(2, 4, 3)),
    ("MaxPool1d(3, 2, 1, ceil_mode=True)", r(2, 2, 5)),
    ("MaxPool2d(2, return_indices=True)", r(1, 1, 4, 4)),
    ("AvgPool2d(3, stride=2, padding=1, count_include_pad=False)", r(2, 2, 5, 5)),
    ("AdaptiveAvgPool2d((3, None))", r(1, 2, 5, 5)),
    ("AdaptiveMaxPool1d(2)", r(1, 2, 5)),
    ("LPPool1d(2, 2)", p(1, 2, 4)),
    ("ReflectionPad2d(2)", r(1, 1, 3, 4)),
    ("CircularPad1d(1)", r(1, 2, 3)),
    ("Upsample(size=(5, 4), mode='bilinear', align_corners=True)", r(1, 1, 3, 3)),
    ("PixelShuffle(2)", r(1, 4, 2, 2)),
    ("Unflatten(1, (2, 3))", r(2, 6)),
    ("Fold((3, 3), 2)", r(1, 4, 4)),
    ("PairwiseDistance()", r(3, 4), r(3, 4)),
    ("CosineSimilarity()", r(3, 4), r(3, 4)),
    ("MultiheadAttention(4, 2)", r(3, 2, 4), r(5, 2, 4), r(5, 2, 4)),
    ("MultiheadAttention(4, 2, kdim=3, vdim=2, batch_first=True, add_bias_kv=True, add_zero_attn=True)", r(2, 3, 4), r(2, 5, 3), r(2, 5, 2)),
    ("TransformerEncoderLayer(4, 2, 8, dropout=0.0)", r(3, 2, 4)),
    ("TransformerEncoderLayer(4, 2, 8, dropout=0.0, norm_first=True, batch_first=True, activation='gelu')", r(3, 2, 4)),
    ("TransformerDecoderLayer(4, 2, 8, dropout=0.0)", r(3, 2, 4), r(5, 2, 4)),
    ("Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2), nn.Tanh()))", r(2, 3)),
]  # fmt: skip
for size, shape in ((1, (4, 3)), (2, (2, 3, 2, 2)), (3, (2, 3, 2, 2, 2))):
    for options in ("3", "3, momentum=None", "3, momentum=0.3, affine=False", "3, track_running_stats=False"):
        MODULES.append((f"BatchNorm{size}d({options})", r(*shape)))
    MODULES.append((f"BatchNorm{size}d(3).eval()", r(*shape)))
ACTIVATIONS = """
    ReLU() ReLU6() Hardtanh(-2,.5) Sigmoid() Tanh() SiLU() Mish() Hardsigmoid() Hardswish() ELU(1.5) CELU(0.7) SELU() GELU() GELU('tanh') Hardshrink()
    LeakyReLU(0.2) LogSigmoid() Softplus(2,1) Softshrink() Softsign() Tanhshrink() Threshold(0.1,2) GLU() PReLU() PReLU(4) Softmax(1) LogSoftmax(-1)
    Softmin(0) RReLU().eval() Dropout(0.3).eval() AlphaDropout(0.3).eval()
"""
for activation in ACTIVATIONS.split():
    MODULES.append((activation, r(3, 4)))
for name in ("RNN", "LSTM", "GRU"):
    MODULES.append((f"{name}(2, 3)", r(4, 2, 2)))
    MODULES.append((f"{name}(2, 3, num_layers=2, bidirectional=True, batch_first=True)", r(2, 4, 2)))
    MODULES.append((f"{name}(2, 3, bias=False)", r(4, 2)))
    MODULES.append((f"{name}Cell(2, 3)", r(2, 2)))
    state = r(2, 2, 3)
    MODULES.append((f"{name}(2, 3, num_layers=2)", r(4, 2, 2), (state, r(2, 2, 3)) if name == "LSTM" else state))
MODULES += [("RNN(2, 3, nonlinearity='relu')", r(4, 2, 2), r(1, 2, 3)), ("LSTM(2, 4, proj_size=3)", r(4, 2, 2))]
for reduction in ("mean", "sum", "none"):
    MODULES += [
        (f"L1Loss(reduction={reduction!r})", r(3, 2), r(3, 2)),
        (f"MSELoss(reduction={reduction!r})", r(3, 2), r(3, 2)),
        (f"SmoothL1Loss(beta=.5, reduction={reduction!r})", r(3, 2), r(3, 2)),
        (f"HuberLoss(delta=.5, reduction={reduction!r})", r(3, 2), r(3, 2)),
        (f"CrossEntropyLoss(label_smoothing=.1, reduction={reduction!r})", r(3, 4), ints([0, 3, -100])),
        (f"CrossEntropyLoss(ignore_index=3, reduction={reduction!r})", r(3, 4, 2), ints([[0, 3], [1, 1], [3, 2]])),
        (f"CrossEntropyLoss(label_smoothing=.2, reduction={reduction!r})", r(3, 4), p(3, 4)),
        (f"NLLLoss(reduction={reduction!r})", r(3, 4), ints([0, 3, 1])),
        (f"BCELoss(reduction={reduction!r})", p(3), p(3)),
        (f"BCEWithLogitsLoss(reduction={reduction!r})", r(3), p(3)),
        (f"KLDivLoss(reduction={reduction!r})", r(3, 2), p(3, 2)),
        (f"PoissonNLLLoss(reduction={reduction!r})", r(3), p(3)),
        (f"GaussianNLLLoss(reduction={reduction!r})", r(3), r(3), p(3)),
        (f"TripletMarginLoss(reduction={reduction!r})", r(3, 4), r(3, 4), r(3, 4)),
        (f"CosineEmbeddingLoss(reduction={reduction!r})", r(3, 4), r(3, 4), SIGNS),
        (f"MarginRankingLoss(.2, reduction={reduction!r})", r(3), r(3), SIGNS),
        (f"HingeEmbeddingLoss(reduction={reduction!r})", r(3), SIGNS),
        (f"MultiMarginLoss(reduction={reduction!r})", r(3, 4), ints([1, 0, 1])),
        (f"MultiLabelMarginLoss(reduction={reduction!r})", r(2, 4), ints([[1, 0, -1, 2], [3, -1, 0, 0]])),
    ]


def made(lib: Any, spelled: str) -> Any:
    return eval(f"nn.{spelled}", {"nn": lib.nn}).double()


def tensors(lib: Any, x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(tensors(lib, v) for v in x)
    return lib.tensor(x, requires_grad=x.dtype.kind == "f")


def flat(x: Any) -> list[Any]:
    if isinstance(x, (tuple, list)):
        return [v for u in x for v in flat(u)]
    return [] if x is None else [x]


@pytest.mark.filterwarnings("ignore:reduction:UserWarning")  # KLDivLoss(reduction="mean") warns in both
@pytest.mark.parametrize("case", MODULES, ids=[c[0].replace(" ", "") + f"-{len(c) - 1}" for c in MODULES])
def test_a_module_as_torchs(case: tuple[Any, ...]) -> None:
    """The same text, names, state, outputs, gradients and state afterwards, with the weights of torch's, twice in a row."""
    spelled, *arrays = case
    theirs, ours = made(torch, spelled), made(tj, spelled)
    assert repr(ours) == repr(theirs)
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    state = theirs.state_dict()
    assert [(n, tuple(v.shape), v.dtype.name) for n, v in ours.state_dict().items()] == [
        (n, tuple(v.shape), str(v.dtype).removeprefix("torch.")) for n, v in state.items()
    ]
    ours.load_state_dict({n: tj.tensor(v.numpy()) for n, v in state.items()})
    for _ in range(2):
        found = []
        for lib, module in ((torch, theirs), (tj, ours)):
            inputs = [tensors(lib, a) for a in arrays]
            outputs = flat(module(*inputs))
            weighted = [(o * lib.arange(1.0, o.numel() + 1, dtype=lib.float64).reshape(tuple(o.shape))).sum() for o in outputs if o.requires_grad]
            if weighted:
                sum(weighted[1:], weighted[0]).backward()
            leaves = [*flat(inputs), *module.parameters()]
            found.append((outputs, [None if x.grad is None else x.grad for x in leaves], list(module.state_dict().values())))
        (a, g, s), (b, h, t) = found
        assert [(tuple(x.shape), str(x.dtype).split(".")[1], x.requires_grad) for x in a] == [
            (tuple(x.shape), x.dtype.name, x.requires_grad) for x in b
        ]
        assert [x is None for x in g] == [x is None for x in h]
        for x, y in zip([*a, *g, *s], [*b, *h, *t], strict=True):
            if x is not None:
                np.testing.assert_allclose(y.detach().numpy(), x.detach().numpy(), rtol=1e-7, atol=1e-9)


def test_weights_of_classes() -> None:
    found = []
    for lib in (torch, tj):
        w = lib.tensor([0.2, 1.0, 3.0], dtype=lib.float64)
        x = lib.tensor([[0.1, 0.5, -1.0], [1.0, 0.0, 0.3]], dtype=lib.float64, requires_grad=True)
        y = lib.tensor([2, 0])
        losses = [lib.nn.CrossEntropyLoss(w, label_smoothing=s)(x, y) for s in (0.0, 0.2)]
        losses += [lib.nn.NLLLoss(w)(x, y), lib.nn.BCEWithLogitsLoss(pos_weight=w)(x, lib.sigmoid(x).detach()), lib.nn.MultiMarginLoss(weight=w)(x, y)]
        sum(losses).backward()
        found.append(numbers([*losses, x.grad]))
    assert near(found[1], found[0], 1e-9)


def network(lib: Any) -> Any:
    nn = lib.nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 3)
            self.b = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
            self.w = nn.Parameter(lib.ones(2))
            self.register_buffer("buf", lib.zeros(1))
            self.register_buffer("tmp", lib.zeros(1), persistent=False)
            self.c = self.a
            self.n = None

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x))

    return Net()


def told(program: Callable[[], Any]) -> str:
    try:
        program()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "nothing"


def both(program: Callable[[Any], Any]) -> None:
    expected, got = program(torch), program(tj)
    assert near(got, expected), f"{numbers(got)}\ntorch: {numbers(expected)}"


def test_registration_and_names() -> None:
    def names(lib: Any) -> Any:
        m = network(lib)
        found = {
            "parameters": [n for n, _ in m.named_parameters()],
            "with duplicates": [n for n, _ in m.named_parameters(remove_duplicate=False)],
            "buffers": [n for n, _ in m.named_buffers()],
            "modules": [n for n, _ in m.named_modules()],
            "children": [n for n, _ in m.named_children()],
            "state": list(m.state_dict()),
            "prefixed": list(m.state_dict(prefix="x.")),
            "text": repr(m),
            "found": [m.get_parameter("b.0.weight") is m.b[0].weight, m.get_submodule("b.1") is m.b[1], m.get_buffer("buf") is m.buf],
            "refused": [
                told(f).partition(":")[0]
                for f in (
                    lambda: m.get_submodule("b.7"), lambda: m.get_parameter("b.0"), lambda: m.get_buffer("w"),
                    lambda: setattr(m, "w", lib.ones(2)), lambda: setattr(m, "a", 3), lambda: setattr(m, "buf", 3),
                    lambda: m.register_parameter("a.b", None), lambda: m.register_buffer("w", None), lambda: m.zzz,
                    lambda: m.add_module("forward", None), lambda: m.register_parameter("q", lib.ones(1) * 2),
                )
            ],
        }  # fmt: skip
        del m.w
        m.n = lib.nn.Linear(1, 1)
        m.late = lib.nn.Parameter(lib.ones(1))
        m.b[1] = lib.nn.ReLU()
        m.buf = None
        return found | {"after": [[n for n, _ in m.named_parameters()], [n for n, _ in m.named_modules()], list(m.state_dict())]}

    both(names)


def test_modes_types_and_flags() -> None:
    def flags(lib: Any) -> Any:
        m = network(lib)
        kinds = lambda: [str(t.dtype).rpartition(".")[2] for t in (*m.parameters(), *m.buffers())]  # noqa: E731
        before = [id(x) for x in m.parameters()]
        found = [[q.training for q in m.eval().modules()], [q.training for q in m.train().modules()]]
        found += [m.double() is m, kinds(), m.to(lib.float32) is m, kinds(), m.half() is m and kinds()]
        m.to(dtype=lib.float32)
        found.append([id(x) for x in m.parameters()] == before)
        found.append([x.requires_grad for x in m.requires_grad_(False).parameters()])
        m.requires_grad_(True)(lib.ones(4, 2)).sum().backward()
        found.append([x.grad is None for x in m.parameters()])
        m.zero_grad()
        found.append([x.grad is None for x in m.parameters()])
        m(lib.ones(4, 2)).sum().backward()
        m.zero_grad(set_to_none=False)
        found.append([None if x.grad is None else x.grad.abs().sum().item() for x in m.parameters()])
        seen: list[str] = []
        found.append(m.apply(lambda q: seen.append(type(q).__name__)) is m)
        return [*found, seen, told(lambda: m.to(lib.int64)).partition(":")[0]]

    both(flags)


def test_state_dicts() -> None:
    def states(lib: Any) -> Any:
        m = network(lib)
        given = m.state_dict()
        del given["w"]
        given |= {"zz": lib.ones(1), "a.weight": lib.ones(5, 5)}
        found: list[Any] = [told(lambda: m.load_state_dict(given)).replace("torch.", "").replace("tapejax.", "")]
        given["a.weight"] = given["c.weight"] = lib.full((3, 2), 7.0)
        result = m.load_state_dict(given, strict=False)
        found += [list(result.missing_keys), list(result.unexpected_keys), repr(m.load_state_dict(m.state_dict())), m.a.weight]
        alias = m.state_dict()["w"]
        with lib.no_grad():
            m.w.fill_(3.0)
        found += [alias, alias.requires_grad, m.state_dict(keep_vars=True)["w"] is m.w]
        old = m.w
        m.load_state_dict({**m.state_dict(), "w": lib.tensor([5.0, 6.0])})
        found += [m.w is old, m.w]
        m.load_state_dict({**m.state_dict(), "w": lib.tensor([8.0, 9.0])}, assign=True)
        return [*found, m.w is old, m.w, m.w.requires_grad]

    both(states)


def test_copies_share_nothing_but_what_was_shared() -> None:
    def copies(lib: Any) -> Any:
        m = lib.nn.Sequential(lib.nn.Linear(2, 2), lib.nn.BatchNorm1d(2))
        m.append(m[0])
        m(lib.tensor([[1.0, 2.0], [0.5, 0.0]])).sum().backward()
        found = []
        file = io.BytesIO()
        lib.save(m.state_dict(), file)
        file.seek(0)
        loaded = copy.deepcopy(m)
        loaded.load_state_dict(lib.load(file))
        for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m)), loaded):
            same = [bool((a == b).all()) and a is not b for a, b in zip(m.parameters(), other.parameters(), strict=True)]
            found += [same, other[0] is other[2], [type(x).__name__ for x in other.parameters()], [x.requires_grad for x in other.parameters()], list(other.state_dict())]
            with lib.no_grad():
                other[0].weight.zero_()
            found.append(bool((m[0].weight == 0).any()))
        return found

    both(copies)


def test_hooks_of_modules() -> None:
    def hooks(lib: Any) -> Any:
        nn, out = lib.nn, []
        m = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        with lib.no_grad():
            m[0].weight.copy_(lib.tensor([[1.0, 2], [3, 4]]))
            m[0].bias.zero_()
        x = lib.tensor([[1.0, 1.0]], requires_grad=True)
        handles = [
            m[0].register_forward_hook(lambda mod, a, o: out.append(("after", len(a), numbers(o)))),
            m.register_forward_pre_hook(lambda mod, a: (a[0] * 2,)),
            m.register_forward_hook(lambda mod, a, kw, o: o + 1, with_kwargs=True),
            m[0].register_forward_pre_hook(lambda mod, a, kw: out.append(("before", kw)), with_kwargs=True, prepend=True),
        ]
        out.append(numbers(m(x)))
        for h in handles:
            h.remove()
        out.append(numbers(m(x)))
        handles = [
            m[0].register_full_backward_hook(lambda mod, gi, go: out.append(("backward", numbers(gi), numbers(go)))),
            m.register_full_backward_pre_hook(lambda mod, go: (go[0] * 3,)),
        ]
        m(x).sum().backward()
        out += [numbers(x.grad), numbers(m[0].weight.grad)]
        for h in handles:
            h.remove()
        x.grad = None
        handle = m.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 10,))
        m(x).sum().backward()
        handle.remove()
        out.append(numbers(x.grad))
        everywhere = nn.modules.module.register_module_forward_hook(lambda mod, a, o: out.append(type(mod).__name__))
        m(x)
        everywhere.remove()

        class Refuses(nn.Module):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                raise ValueError("no")

        e = Refuses()
        e.register_forward_hook(lambda mod, a, o: out.append("always"), always_call=True)
        return [*out, told(lambda: e(x)), told(lambda: nn.Module()(1)).partition(":")[0]]

    both(hooks)


def test_containers() -> None:
    def containers(lib: Any) -> Any:
        nn = lib.nn
        out: list[Any] = []
        s = nn.Sequential(OrderedDict([("a", nn.Linear(1, 2)), ("b", nn.ReLU())]))
        out += [repr(s), len(s), repr(s[1:]), repr(s[-1])]
        s = nn.Sequential(nn.Linear(1, 2), nn.ReLU())
        s.append(nn.Tanh())
        s.insert(1, nn.Sigmoid())
        out.append(repr(s))
        del s[0]
        s[0] = nn.ReLU6()
        out += [repr(s), repr(s + nn.Sequential(nn.Tanh())), told(lambda: s[9]).partition(":")[0]]
        many = nn.ModuleList([nn.Linear(1, 1) for _ in range(3)] + [nn.ReLU()])
        many.insert(0, nn.Tanh())
        out += [repr(many), len(many), repr(many[1:3]), repr(many.pop(0)), list(many.state_dict()), repr(nn.ModuleList()), repr(many + nn.ModuleList([nn.Tanh()]))]
        d = nn.ModuleDict({"x": nn.ReLU(), "y": nn.Tanh()})
        d["z"] = nn.ReLU()
        out += [repr(d), list(d), "x" in d, len(d), repr(d.pop("x")), list(d)]
        params = nn.ParameterList([lib.ones(2), nn.Parameter(lib.ones(1, 2))])
        named = nn.ParameterDict({"a": lib.ones(2)})
        named["b"] = nn.Parameter(lib.zeros(1))
        out += [repr(params), [n for n, _ in params.named_parameters()], repr(named), list(named.keys()), [n for n, _ in named.named_parameters()]]
        return [o.replace("torch.", "").replace("tapejax.", "") if isinstance(o, str) else o for o in out]

    both(containers)


def test_clipping_and_vectors() -> None:
    def utilities(lib: Any) -> Any:
        U, m = lib.nn.utils, lib.nn.Linear(2, 2)

        def given(value: float) -> list[Any]:
            for x in m.parameters():
                x.grad = lib.full_like(x, value)
            return list(m.parameters())

        out: list[Any] = []
        for bound, kind in ((1.0, 2.0), (100.0, 2.0), (1.0, float("inf")), (2.0, 1.0)):
            out += [U.clip_grad_norm_(given(-3.0), bound, norm_type=kind), m.weight.grad, m.bias.grad]
        U.clip_grad_value_(given(-3.0), 0.2)
        out += [m.weight.grad, tuple(U.parameters_to_vector(m.parameters()).shape), U.clip_grad_norm_([], 1.0)]
        U.vector_to_parameters(lib.arange(6.0), m.parameters())
        out += [m.weight, m.bias, m.weight.requires_grad]
        nan = given(float("nan"))
        return [*out, told(lambda: U.clip_grad_norm_(nan, 1.0, error_if_nonfinite=True)).partition(":")[0], U.clip_grad_norm_(nan, 1.0)]

    both(utilities)


def test_clipping_is_part_of_a_settled_step() -> None:
    """Forward, backward, clipping and update with a schedule: two steps compile, the others nothing."""
    m = tj.nn.Sequential(tj.nn.Linear(3, 4), tj.nn.ReLU(), tj.nn.Linear(4, 1))
    opt = tj.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    schedule = tj.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
    x = tj.tensor(r(5, 3).astype(np.float32))

    def step() -> None:
        opt.zero_grad()
        m(x).square().mean().backward()
        tj.nn.utils.clip_grad_norm_(m.parameters(), 0.1)
        opt.step()
        schedule.step()

    for _ in range(3):
        step()
    before = compiled()
    for _ in range(5):
        step()
    m[0].weight.detach().numpy()
    assert compiled() - before <= 1  # the read alone


def test_initial_values_have_torchs_spread() -> None:
    def spreads(lib: Any) -> Any:
        lib.manual_seed(0)
        i, empty = lib.nn.init, lib.empty
        drawn = [
            i.uniform_(empty(100, 100), 0, 2), i.normal_(empty(100, 100), 1, 0.5), i.xavier_uniform_(empty(150, 160)),
            i.xavier_normal_(empty(150, 160), 2.0), i.kaiming_uniform_(empty(150, 160)),
            i.kaiming_normal_(empty(150, 160), mode="fan_out", nonlinearity="relu"), i.trunc_normal_(empty(100, 100), 0, 1, -1, 1),
            lib.nn.Linear(200, 50).weight, lib.nn.Conv2d(8, 50, 5).weight, lib.nn.Embedding(100, 50).weight,
            lib.nn.LSTM(50, 40).weight_ih_l0, lib.nn.MultiheadAttention(40, 2).in_proj_weight,
        ]  # fmt: skip
        return [[t.detach().mean(), t.detach().std(), t.detach().abs().max()] for t in drawn]

    for got, expected in zip(numbers(spreads(tj)), numbers(spreads(torch)), strict=True):
        mean, spread, largest = expected
        assert abs(got[0] - mean) < 0.05 * spread and abs(got[1] - spread) < 0.05 * spread and abs(got[2] - largest) < 0.3 * largest


def test_fixed_initial_values() -> None:
    def values(lib: Any) -> Any:
        i, empty = lib.nn.init, lib.empty
        drawn = i.orthogonal_(empty(3, 5), gain=2.0)
        return [
            i.constant_(empty(2), 3.0), i.ones_(empty(2)), i.zeros_(empty(2)), i.eye_(empty(2, 3)), i.dirac_(empty(2, 2, 3)),
            (drawn @ drawn.t()).round(decimals=3).abs(), (i.sparse_(empty(10, 4), 0.3) == 0).sum(0),
            i.calculate_gain("leaky_relu", 0.2), i.calculate_gain("tanh"),
            told(lambda: i.kaiming_uniform_(empty(3))).partition(":")[0], told(lambda: i.calculate_gain("zz")).partition(":")[0],
        ]  # fmt: skip

    both(values)


def test_in_place_activations_write_into_their_input(tl: Any) -> None:
    for module, expected in ((tl.nn.ReLU(inplace=True), [0.0, 2.0]), (tl.nn.Hardtanh(inplace=True), [-1.0, 1.0]), (tl.nn.LeakyReLU(0.5, True), [-1.0, 2.0])):
        leaf = tl.tensor([-2.0, 2.0], requires_grad=True)
        x = leaf * 1
        assert module(x) is x and x._version == 1 and near(x, expected)
        x.sum().backward()
        assert leaf.grad is not None
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        tl.nn.ReLU(inplace=True)(tl.ones(2, requires_grad=True))


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "feature_alpha_dropout", "dropout2d", "rrelu"])
def test_random_functions_write_in_place_too(tl: Any, name: str) -> None:
    """The mask is the gradient's too; a sure outcome makes both libraries comparable."""
    function = getattr(tl.nn.functional, name)
    for training in (True, False):
        leaf = tl.ones(1, 2, 2, 2, requires_grad=True)
        x = leaf * -1
        sure = (0.5, 0.5) if name == "rrelu" else (1.0,)
        assert function(x, *sure, training, True) is x
        x.sum().backward()
        zero = name != "rrelu" and training
        slope = 0.5 if name == "rrelu" else 1.0
        assert near(leaf.grad, tl.full((1, 2, 2, 2), 0.0 if zero else -slope))
        if name.startswith(("dropout", "rrelu")):
            assert near(x, leaf.grad)
        assert x._version == (1 if name == "rrelu" or training else 0)


@pytest.mark.parametrize("dropout", ["Dropout", "Dropout2d", "AlphaDropout", "FeatureAlphaDropout"])
def test_dropout_keeps_its_rate_and_its_gradient_follows_the_mask(tl: Any, dropout: str) -> None:
    tl.manual_seed(0)
    x = tl.ones(40, 50, 2, 2, dtype=tl.float64, requires_grad=True)
    module = getattr(tl.nn, dropout)(0.25)
    y = module(x)
    y.sum().backward()
    kept = x.grad != 0
    assert abs(kept.double().mean().item() - 0.75) < 0.05
    if dropout.startswith("Dropout"):
        assert near(y, x.grad) and near(y[kept], [4 / 3] * int(kept.sum().item()))
    if dropout.startswith(("Dropout2d", "Feature")):
        assert bool((kept == kept[:, :, :1, :1]).all())
    assert module.eval()(x) is not None and near(module(x), x)


def test_a_training_run_ends_where_torchs_does() -> None:
    """Fifty steps of a small net with normalisation, Adam, a schedule and clipping, from torch's weights."""
    ends, start, inputs = [], None, r(16, 3)
    for lib in (torch, tj):
        net = lib.nn.Sequential(lib.nn.Linear(3, 8), lib.nn.BatchNorm1d(8), lib.nn.Tanh(), lib.nn.Linear(8, 2)).double()
        if start is None:
            start = {n: v.numpy().copy() for n, v in net.state_dict().items()}
        net.load_state_dict({n: lib.tensor(v) for n, v in start.items()})
        optimizer = lib.optim.AdamW(net.parameters(), lr=0.02)
        schedule = lib.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        x, y = lib.tensor(inputs), lib.tensor(np.arange(16) % 2)
        for _ in range(50):
            optimizer.zero_grad()
            loss = lib.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            lib.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            schedule.step()
        ends.append([loss.tolist(), dict(net.state_dict())])
    assert near(ends[1], ends[0], 1e-6, 1e-8)
