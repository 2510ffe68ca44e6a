"""Modules against torch's own, with torch's weights: outputs, gradients, buffers, names and printed form; then Module's rules."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import tapejax as tj
from oracle import near, torch

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


def draw(*shape: int) -> np.ndarray:
    """Values that differ between any two places, within (-1, 1)."""
    return np.sin(np.arange(1, 1 + int(np.prod(shape)), dtype=float) * 1.7).reshape(shape)


def positive(*shape: int) -> np.ndarray:
    return np.abs(draw(*shape)) * 0.8 + 0.1


def ints(*values: Any) -> np.ndarray:
    return np.array(values)


SIGNS = np.array([1, -1, 1])

#: How a module is written, and what it is called with.
MODULES: list[tuple[Any, ...]] = [
    ("Linear(3, 2)", draw(4, 3)),
    ("Linear(3, 2, bias=False)", draw(3)),
    ("Bilinear(3, 2, 4)", draw(5, 3), draw(5, 2)),
    ("Identity()", draw(3)),
    ("Embedding(5, 3)", ints([1, 2], [4, 0])),
    ("Embedding(5, 3, padding_idx=1)", ints(1, 2)),
    ("EmbeddingBag(5, 3, mode='sum')", ints([1, 2], [4, 0])),
    ("Conv1d(2, 4, 3, padding=1)", draw(2, 2, 5)),
    ("Conv2d(2, 4, 3, stride=2, padding=(1, 2), groups=2)", draw(2, 2, 6, 5)),
    ("Conv2d(1, 2, 2, dilation=2)", draw(2, 1, 6, 5)),
    ("Conv2d(2, 3, 3, padding='same', padding_mode='reflect')", draw(1, 2, 5, 5)),
    ("Conv2d(2, 3, 3, padding=(1, 2), padding_mode='circular', bias=False)", draw(1, 2, 5, 6)),
    ("Conv3d(1, 2, 2)", draw(1, 1, 3, 3, 3)),
    ("ConvTranspose1d(2, 3, 3, stride=2, output_padding=1)", draw(2, 2, 4)),
    ("ConvTranspose2d(2, 4, 3, stride=2, padding=1, groups=2)", draw(1, 2, 4, 3)),
    ("LayerNorm(3)", draw(4, 3)),
    ("LayerNorm((2, 3), bias=False)", draw(4, 2, 3)),
    ("RMSNorm(3)", draw(4, 3)),
    ("GroupNorm(2, 4)", draw(3, 4, 2)),
    ("BatchNorm1d(3)", draw(4, 3)),
    ("BatchNorm1d(3).eval()", draw(4, 3)),
    ("BatchNorm1d(3, momentum=None, affine=False)", draw(4, 3)),
    ("BatchNorm2d(3)", draw(2, 3, 2, 2)),
    ("BatchNorm2d(3).eval()", draw(2, 3, 2, 2)),
    ("BatchNorm2d(3, track_running_stats=False)", draw(2, 3, 2, 2)),
    ("BatchNorm3d(2)", draw(2, 2, 2, 2, 2)),
    ("InstanceNorm1d(3, affine=True, track_running_stats=True)", draw(2, 3, 4)),
    ("InstanceNorm2d(3)", draw(2, 3, 4, 2)),
    ("LocalResponseNorm(2)", draw(2, 4, 3)),
    *((f"{a}", draw(3, 4)) for a in (
        "ReLU()", "ReLU6()", "Hardtanh(-2, 0.5)", "Sigmoid()", "Tanh()", "SiLU()", "Mish()", "Hardsigmoid()", "Hardswish()", "ELU(1.5)", "CELU(0.7)",
        "SELU()", "GELU()", "GELU('tanh')", "Hardshrink()", "LeakyReLU(0.2)", "LogSigmoid()", "Softplus(2, 1)", "Softshrink()", "Softsign()",
        "Tanhshrink()", "Threshold(0.1, 2)", "GLU()", "PReLU()", "PReLU(4)", "Softmax(1)", "LogSoftmax(-1)", "Softmin(0)", "RReLU(0.1, 0.3).eval()",
        "Dropout(0.3).eval()", "AlphaDropout(0.3).eval()",
    )),
    ("MaxPool1d(3, 2, 1, ceil_mode=True)", draw(2, 2, 5)),
    ("MaxPool2d(2)", draw(2, 2, 5, 5)),
    ("MaxPool2d(2, return_indices=True)", draw(1, 1, 4, 4)),
    ("AvgPool2d(3, stride=2, padding=1, count_include_pad=False)", draw(2, 2, 5, 5)),
    ("AdaptiveAvgPool2d(3)", draw(2, 2, 5, 5)),
    ("AdaptiveMaxPool1d(2)", draw(2, 2, 5)),
    ("LPPool2d(2, 2)", positive(1, 2, 5, 5)),
    ("ConstantPad2d(1, 2.5)", draw(1, 2, 3, 3)),
    ("ReflectionPad1d(2)", draw(1, 2, 4)),
    ("ReplicationPad2d(1)", draw(1, 2, 3, 3)),
    ("CircularPad1d(1)", draw(1, 2, 4)),
    ("Upsample(scale_factor=2)", draw(1, 1, 3, 3)),
    ("Upsample(size=(5, 4), mode='bilinear', align_corners=True)", draw(1, 1, 3, 3)),
    ("PixelShuffle(2)", draw(1, 4, 2, 2)),
    ("PixelUnshuffle(2)", draw(1, 1, 4, 4)),
    ("Flatten()", draw(2, 3, 4)),
    ("Unflatten(1, (2, 3))", draw(2, 6)),
    ("Unfold(2)", draw(1, 2, 3, 3)),
    ("Fold((3, 3), 2)", draw(1, 4, 4)),
    ("PairwiseDistance()", draw(3, 4), positive(3, 4)),
    ("CosineSimilarity()", draw(3, 4), positive(3, 4)),
    ("L1Loss()", draw(3, 2), positive(3, 2)),
    ("MSELoss(reduction='sum')", draw(3, 2), positive(3, 2)),
    ("SmoothL1Loss(beta=0.5)", draw(3, 2), positive(3, 2)),
    ("HuberLoss(delta=0.5)", draw(3, 2), positive(3, 2)),
    ("CrossEntropyLoss()", draw(3, 4), ints(0, 3, 1)),
    ("CrossEntropyLoss(label_smoothing=0.1, reduction='none')", draw(3, 4), ints(0, 3, -100)),
    ("CrossEntropyLoss(ignore_index=3)", draw(3, 4), ints(0, 3, 1)),
    ("CrossEntropyLoss()", draw(3, 4), positive(3, 4)),
    ("NLLLoss()", draw(3, 4), ints(0, 3, 1)),
    ("BCELoss()", positive(3), np.array([0.0, 1, 1])),
    ("BCEWithLogitsLoss()", draw(3), np.array([0.0, 1, 1])),
    ("KLDivLoss(reduction='batchmean')", draw(3, 2), positive(3, 2)),
    ("PoissonNLLLoss()", draw(3), positive(3)),
    ("GaussianNLLLoss()", draw(3), draw(3) + 1, positive(3)),
    ("SoftMarginLoss()", draw(3), SIGNS),
    ("HingeEmbeddingLoss()", draw(3), SIGNS),
    ("MarginRankingLoss(0.2)", draw(3), positive(3), SIGNS),
    ("CosineEmbeddingLoss()", draw(3, 4), positive(3, 4), SIGNS),
    ("TripletMarginLoss()", draw(3, 4), positive(3, 4), draw(3, 4) + 1),
    ("MultiMarginLoss()", draw(3, 4), ints(1, 0, 1)),
    ("MultiLabelSoftMarginLoss()", draw(2, 4), np.array([[1.0, 0, 1, 1], [0, 0, 1, 0]])),
    *((f"{k}(2, 3)", draw(4, 2, 2)) for k in ("RNN", "LSTM", "GRU")),
    *((f"{k}(2, 3, num_layers=2, bidirectional=True, batch_first=True)", draw(2, 4, 2)) for k in ("RNN", "LSTM", "GRU")),
    *((f"{k}(2, 3, bias=False)", draw(4, 2)) for k in ("RNN", "LSTM", "GRU")),
    *((f"{k}Cell(2, 3)", draw(2, 2)) for k in ("RNN", "LSTM", "GRU")),
    ("RNN(2, 3, nonlinearity='relu')", draw(4, 2, 2), draw(1, 2, 3)),
    ("LSTM(2, 4, proj_size=3)", draw(4, 2, 2)),
    ("MultiheadAttention(4, 2)", draw(3, 2, 4), draw(5, 2, 4), positive(5, 2, 4)),
    ("MultiheadAttention(4, 2, kdim=3, vdim=2, batch_first=True, add_bias_kv=True, add_zero_attn=True)", draw(2, 3, 4), draw(2, 5, 3), draw(2, 5, 2)),
    ("TransformerEncoderLayer(4, 2, 8, dropout=0.0)", draw(3, 2, 4)),
    ("TransformerEncoderLayer(4, 2, 8, dropout=0.0, norm_first=True, batch_first=True, activation='gelu')", draw(3, 2, 4)),
    ("TransformerDecoderLayer(4, 2, 8, dropout=0.0)", draw(3, 2, 4), draw(5, 2, 4)),
    ("TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), 2, enable_nested_tensor=False)", draw(3, 2, 4)),
    ("Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2), nn.Tanh()))", draw(2, 3)),
]  # fmt: skip


def flat(outputs: Any) -> list[Any]:
    if isinstance(outputs, (tuple, list)):
        return [v for o in outputs for v in flat(o)]
    return [] if outputs is None else [outputs]


@needs_torch
@pytest.mark.parametrize(("text", "inputs"), [(t, i) for t, *i in MODULES], ids=[f"{i}-{t.split('(')[0]}" for i, (t, *_) in enumerate(MODULES)])
def test_torchs_weights_give_torchs_results(text: str, inputs: list[np.ndarray]) -> None:
    """Two calls in double precision (a running statistic moves twice); the same names, shapes, types and printed form."""
    theirs, ours = (eval(f"nn.{text}", {"nn": lib.nn}).double() for lib in (torch, tj))
    assert repr(ours) == repr(theirs)
    state = theirs.state_dict()
    assert [(n, tuple(v.shape), str(v.dtype).split(".")[1]) for n, v in ours.state_dict().items()] == [
        (n, tuple(v.shape), str(v.dtype).split(".")[1]) for n, v in state.items()
    ]
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    ours.load_state_dict({n: tj.tensor(v.numpy()) for n, v in state.items()})
    found = []
    for lib, module in ((tj, ours), (torch, theirs)):
        given = [lib.tensor(x, requires_grad=x.dtype.kind == "f") for x in inputs]
        module(*given)
        outputs = flat(module(*given))
        loss = sum((o * lib.tensor(draw(*o.shape) + 2)).sum() for o in outputs if o.requires_grad)
        if not isinstance(loss, int):
            loss.backward()
        gradients = [None if x.grad is None else x.grad.tolist() for x in (*given, *module.parameters())]
        found.append((outputs, gradients, dict(module.state_dict())))
    assert [str(o.dtype).split(".")[1] for o in found[0][0]] == [str(o.dtype).split(".")[1] for o in found[1][0]]
    for got, expected in zip(*found, strict=True):
        assert near(got, expected, 1e-6, 1e-8)


# -- Module's rules, the same text on both libraries -----------------------------------------------------------------------


def build(tl: Any) -> Any:
    class Net(tl.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = tl.nn.Linear(2, 3)
            self.b = tl.nn.Sequential(tl.nn.Linear(3, 3), tl.nn.BatchNorm1d(3))
            self.w = tl.nn.Parameter(tl.ones(2))
            self.register_buffer("seen", tl.zeros(1))
            self.register_buffer("scratch", tl.zeros(1), persistent=False)
            self.again = self.a
            self.none = None

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x))

    return Net()


def test_registration_order_and_sharing(tl: Any) -> None:
    m = build(tl)
    shared = ["w", "a.weight", "a.bias", "b.0.weight", "b.0.bias", "b.1.weight", "b.1.bias"]
    assert [n for n, _ in m.named_parameters()] == shared
    assert [n for n, _ in m.named_parameters(remove_duplicate=False)] == [*shared, "again.weight", "again.bias"]
    assert [n for n, _ in m.named_buffers()] == ["seen", "scratch", "b.1.running_mean", "b.1.running_var", "b.1.num_batches_tracked"]
    assert [n for n, _ in m.named_modules()] == ["", "a", "b", "b.0", "b.1"]
    assert [n for n, _ in m.named_children()] == ["a", "b"]
    assert "scratch" not in m.state_dict() and "again.weight" in m.state_dict()
    assert m.get_parameter("b.0.weight") is m.b[0].weight and m.get_submodule("b.1") is m.b[1]
    del m.w
    assert "w" not in dict(m.named_parameters())
    with pytest.raises(AttributeError):
        m.w  # noqa: B018
    with pytest.raises(TypeError, match="cannot assign"):
        m.a = 3
    with pytest.raises(KeyError):
        m.register_buffer("a", None)


def test_modes_types_and_gradients_of_all_parts(tl: Any) -> None:
    m = build(tl)
    assert not any(part.training for part in m.eval().modules())
    before = [id(p) for p in m.parameters()]
    m.double()
    assert before == [id(p) for p in m.parameters()]
    assert {p.dtype for p in m.parameters()} == {tl.float64}
    assert m.b[1].num_batches_tracked.dtype == tl.int64
    m.requires_grad_(False)
    assert not any(p.requires_grad for p in m.parameters())
    m.requires_grad_().train()
    m(tl.ones(4, 2, dtype=tl.float64)).sum().backward()
    assert m.w.grad is None and m.a.weight.grad is not None
    m.zero_grad(set_to_none=False)
    assert m.a.weight.grad.abs().sum().item() == 0
    m.zero_grad()
    assert m.a.weight.grad is None
    seen: list[str] = []
    m.apply(lambda part: seen.append(type(part).__name__))
    assert seen == ["Linear", "Linear", "BatchNorm1d", "Sequential", "Net"]


def test_loading_names_what_does_not_fit(tl: Any) -> None:
    m = build(tl)
    state = m.state_dict()
    del state["w"]
    state["other"] = tl.ones(1)
    state["a.weight"] = tl.ones(5, 5)
    with pytest.raises(RuntimeError) as caught:
        m.load_state_dict(state)
    for phrase in ('Missing key(s) in state_dict: "w"', 'Unexpected key(s) in state_dict: "other"', "size mismatch for a.weight"):
        assert phrase in str(caught.value)
    state["a.weight"] = state["again.weight"] = tl.full((3, 2), 2.0)
    found = m.load_state_dict(state, strict=False)
    assert (list(found.missing_keys), list(found.unexpected_keys)) == (["w"], ["other"])
    assert near(m.a.weight, [[2.0, 2.0]] * 3)
    assert "All keys matched" in repr(m.load_state_dict(m.state_dict()))


def test_copies_share_among_themselves_only(tl: Any) -> None:
    m = tl.nn.ModuleList([tl.nn.Linear(2, 2)])
    m.append(m[0])
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert other[0] is other[1] and other[0].weight is not m[0].weight
        assert near(other[0].weight, m[0].weight) and other[0].weight.requires_grad
        with tl.no_grad():
            other[0].weight.zero_()
        assert m[0].weight.abs().sum().item() > 0


def test_forward_and_backward_hooks(tl: Any) -> None:
    m = tl.nn.Sequential(tl.nn.Linear(2, 2), tl.nn.ReLU())
    with tl.no_grad():
        m[0].weight.copy_(tl.tensor([[1.0, 2.0], [3.0, 4.0]]))
        m[0].bias.zero_()
    x = tl.tensor([[1.0, 1.0]], requires_grad=True)
    seen: list[Any] = []
    handles = [
        m[0].register_forward_hook(lambda part, given, out: seen.append(out.tolist())),
        m.register_forward_pre_hook(lambda part, given: (given[0] * 2,)),
        m.register_forward_hook(lambda part, given, named, out: out + 1, with_kwargs=True),
    ]
    assert near(m(x), [[7.0, 15.0]]) and near(seen, [[[6.0, 14.0]]])
    for h in handles:
        h.remove()
    assert near(m(x), [[3.0, 7.0]])
    seen.clear()
    with m[0].register_full_backward_hook(lambda part, inner, outer: seen.append((inner[0].tolist(), outer[0].tolist()))):
        with m.register_full_backward_pre_hook(lambda part, outer: (outer[0] * 3,)):
            m(x).sum().backward()
    assert near(seen, [([[12.0, 18.0]], [[3.0, 3.0]])]) and near(x.grad, [[12.0, 18.0]])
    with m.register_full_backward_hook(lambda part, inner, outer: (inner[0] * 10,)):
        x.grad = None
        m(x).sum().backward()
    assert near(x.grad, [[40.0, 60.0]])


def test_containers(tl: Any) -> None:
    nn = tl.nn
    s = nn.Sequential(nn.Linear(1, 2), nn.ReLU())
    s.append(nn.Tanh())
    s.insert(1, nn.Sigmoid())
    del s[0]
    assert [type(part).__name__ for part in s] == ["Sigmoid", "ReLU", "Tanh"] and list(s._modules) == ["0", "1", "2"]
    assert isinstance(s[1:], nn.Sequential) and len(s[1:]) == 2
    with pytest.raises(IndexError):
        s[9]
    parts = nn.ModuleList([nn.Linear(1, 1)])
    parts.extend([nn.ReLU(), nn.Linear(1, 1)])
    parts.insert(0, nn.Tanh())
    assert list(parts.state_dict()) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    named = nn.ModuleDict({"x": nn.ReLU()})
    named["y"] = nn.Tanh()
    assert list(named) == ["x", "y"] and "x" in named and len(named) == 2
    assert [n for n, _ in nn.ParameterList([nn.Parameter(tl.ones(2)), nn.Parameter(tl.ones(1))]).named_parameters()] == ["0", "1"]
    assert [n for n, _ in nn.ParameterDict({"a": nn.Parameter(tl.ones(2))}).named_parameters()] == ["a"]


def test_in_place_activations_write_into_their_input(tl: Any) -> None:
    for module, expected in ((tl.nn.ReLU(inplace=True), [0.0, 2.0]), (tl.nn.Hardtanh(inplace=True), [-1.0, 1.0]), (tl.nn.LeakyReLU(0.5, True), [-1.0, 2.0])):
        leaf = tl.tensor([-2.0, 2.0], requires_grad=True)
        x = leaf * 1
        assert module(x) is x and x._version == 1 and near(x, expected)
        x.sum().backward()
        assert leaf.grad is not None
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        tl.nn.ReLU(inplace=True)(tl.ones(2, requires_grad=True))


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
    if dropout.startswith("Dropout2d") or dropout.startswith("Feature"):
        assert bool((kept == kept[:, :, :1, :1]).all())
    assert module.eval()(x) is not None and near(module(x), x)


def test_gradient_norms_are_clipped_in_place(tl: Any) -> None:
    m = tl.nn.Linear(2, 2)
    for p in m.parameters():
        p.grad = tl.full(tuple(p.shape), 3.0)
    held = m.bias.grad
    norm = tl.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    assert near(norm, 54**0.5) and held is m.bias.grad and near(held, [3 / 54**0.5] * 2, 1e-4)
    tl.nn.utils.clip_grad_value_(m.parameters(), 0.2)
    assert near(held, [0.2] * 2)
    m.bias.grad = tl.tensor([float("nan"), 1.0])
    with pytest.raises(RuntimeError, match="non-finite"):
        tl.nn.utils.clip_grad_norm_(m.parameters(), 1.0, error_if_nonfinite=True)


@needs_torch
def test_a_training_run_ends_where_torchs_does() -> None:
    """Fifty steps of a small net with normalisation, Adam, a schedule and clipping, from torch's weights."""
    ends = []
    start = None
    for lib in (torch, tj):
        net = lib.nn.Sequential(lib.nn.Linear(3, 8), lib.nn.BatchNorm1d(8), lib.nn.Tanh(), lib.nn.Linear(8, 2)).double()
        if start is None:
            start = {n: v.numpy().copy() for n, v in net.state_dict().items()}
        net.load_state_dict({n: lib.tensor(v) for n, v in start.items()})
        optimizer = lib.optim.AdamW(net.parameters(), lr=0.02)
        schedule = lib.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        x, y = lib.tensor(draw(16, 3)), lib.tensor(np.arange(16) % 2)
        for _ in range(50):
            optimizer.zero_grad()
            loss = lib.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            lib.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            schedule.step()
        ends.append([loss.tolist(), dict(net.state_dict())])
    assert near(ends[1], ends[0], 1e-6, 1e-8)


def test_no_warning_without_cause() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tj.nn.Transformer(4, 2, 1, 1, 8, dropout=0.0)(tj.ones(3, 2, 4), tj.ones(2, 2, 4)).sum().backward()
