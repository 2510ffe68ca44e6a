"""`gradcheck` and `gradgradcheck`: is the derivative that the tape gives the derivative of the function?

Verdicts over what `gradient_measure` measured, in torch's order and with torch's key phrases, explained by `suspect`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejax.autograd.entry import grad
from tapejax.autograd.finite_difference import Evaluator, as_tuple, coordinates, host, tensor_of, tensors_of
from tapejax.autograd.function import Function
from tapejax.autograd.gradient_measure import Pair, Report, forward_ad, measure, pull, push
from tapejax.autograd.suspect import diagnose
from tapejax.errors import refuse
from tapejax.tensor import Tensor, leaf_tensor

_PRINTED = 36  # a Jacobian with at most this many entries is shown whole


class GradcheckError(RuntimeError):
    """Raised by `gradcheck` and `gradgradcheck` when a derivative does not agree."""


def gradcheck(
    func: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Tensor | Sequence[Tensor],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Compare the tape's gradients of `func(*inputs)` with central finite differences.

    `|analytic - numeric| <= atol + rtol * |numeric|` must hold for every element of the Jacobian of every output that
    requires grad, with respect to every input that does. A complex input is moved along the real and the imaginary axis.
    `eps` is the step; use float64 inputs, since float32 is too coarse for it. `nondet_tol` bounds how far two backwards
    may differ. `fast_mode` compares one random projection per pair. `masked` is accepted (it concerns sparse tensors).
    Returns True, or raises GradcheckError (False with `raise_exception=False`): the message names the input and output,
    the worst element with both values, the likely cause and the operation to blame. ValueError if no input requires grad.

    >>> import tapejax as tj
    >>> x = tj.tensor([0.3, -0.7], dtype=tj.float64, requires_grad=True)
    >>> tj.autograd.gradcheck(tj.sin, x)
    True
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError("gradcheck(): Expected at least one of check_forward_ad or check_backward_ad to be True")
    if check_batched_grad and not check_backward_ad:
        raise AssertionError("gradcheck(): Setting check_batched_grad=True requires check_backward_ad to be True")
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError("gradcheck(): Setting check_batched_forward_grad=True requires check_forward_ad to be True")
    given = as_tuple(inputs)
    _check_inputs(given)
    try:
        report = measure(
            func, given, eps=eps, atol=atol, rtol=rtol, backward=check_backward_ad, forward=check_forward_ad, fast=fast_mode
        )
        _judge(func, given, report, eps, nondet_tol, check_grad_dtypes)
        if not report.differentiable:
            return True
        if check_forward_ad and check_undefined_grad:
            _check_undefined_forward(func, given)
        if check_batched_forward_grad:
            _check_batched_forward(func, given)
        if check_backward_ad:
            if check_batched_grad:
                _check_batched(func, given)
            _check_seed_used(func, given)
            if check_undefined_grad:
                _check_undefined(func, given)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Check gradients of gradients: `gradcheck` of the map from inputs and seeds to gradients.

    `grad_outputs` are the seeds (random if None); those that require grad are checked as inputs too. The other arguments
    are `gradcheck`'s; `gen_non_contig_grad_outputs` is accepted (arrays here have no strides).

    >>> import tapejax as tj
    >>> x = tj.tensor([0.3, -0.7], dtype=tj.float64, requires_grad=True)
    >>> tj.autograd.gradgradcheck(lambda t: t**3, x)
    True
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError("gradgradcheck(): Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True")
    if check_batched_grad and not check_rev_over_rev:
        raise AssertionError("gradgradcheck(): Setting check_batched_grad=True requires check_rev_over_rev to be True")
    given = as_tuple(inputs)
    gradients, both = gradient_map(func, given, grad_outputs)
    try:
        return gradcheck(
            gradients,
            both,
            eps=eps,
            atol=atol,
            rtol=rtol,
            raise_exception=raise_exception,
            nondet_tol=nondet_tol,
            check_undefined_grad=check_undefined_grad,
            check_grad_dtypes=check_grad_dtypes,
            check_batched_grad=check_batched_grad,
            check_forward_ad=check_fwd_over_rev,
            check_backward_ad=check_rev_over_rev,
            fast_mode=fast_mode,
            masked=masked,
        )
    except GradcheckError as e:
        raise GradcheckError(f"While checking gradients of gradients (the outputs are the gradients, the last inputs the seeds): {e}") from None


def gradient_map(
    func: Callable[..., Any], inputs: tuple[Any, ...], grad_outputs: Any = None, seed: int = 0
) -> tuple[Callable[..., tuple[Tensor, ...]], tuple[Any, ...]]:
    """The function from (inputs, seeds) to the gradients of `func`, and the tuple of both to call it with."""
    if grad_outputs is None:
        rng = np.random.default_rng(seed)
        seeds: tuple[Any, ...] = tuple(_noise(t, rng, True) for t in tensors_of(func(*inputs)) if t.requires_grad)
    else:
        seeds = as_tuple(grad_outputs)
    n = len(seeds)

    def gradients(*arguments: Any) -> tuple[Tensor, ...]:
        originals, given = arguments[: len(arguments) - n], arguments[len(arguments) - n :]
        outputs = [t for t in tensors_of(func(*originals)) if t.requires_grad]
        wanted = [x for x in originals if isinstance(x, Tensor) and x.requires_grad]
        found = grad(outputs, wanted, given, create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    return gradients, (*inputs, *seeds)


def _noise(like: Tensor, rng: np.random.Generator, requires_grad: bool = False) -> Tensor:
    count = like.numel() * (2 if like.is_complex() else 1)
    made = tensor_of(rng.standard_normal(count), like)
    return made.requires_grad_() if requires_grad else made


def _check_inputs(inputs: tuple[Any, ...]) -> None:
    any_required = False
    for i, x in enumerate(inputs):
        if isinstance(x, Tensor) and x.requires_grad:
            any_required = True
            if x.dtype.name not in ("float64", "complex128"):
                warnings.warn(
                    f"Input #{i} requires gradient and is not a double precision floating point or complex (it is {x.dtype.name}). This check will"
                    " likely fail if all the inputs are not of double precision floating point or complex.",
                    UserWarning,
                    stacklevel=3,
                )
    if not any_required:
        raise refuse(
            ValueError,
            "gradcheck",
            "gradcheck expects at least one input tensor to require gradient, but none of the them have requires_grad=True."
            " → tensor(..., dtype=float64, requires_grad=True)",
        )


# -- verdicts ----------------------------------------------------------------------------------------------------------


def _judge(func: Callable[..., Any], inputs: tuple[Any, ...], report: Report, eps: float, nondet_tol: float, check_types: bool) -> None:
    """Raise the first thing that is wrong in `report`."""
    if check_types:
        for t in report.wrong_types:
            raise GradcheckError(
                f"gradcheck(): Gradient has dtype mismatch: output {t.output} gives input {t.input} a gradient of {t.found}, the input is {t.expected}"
            )
    for r in report.reruns:
        if r.difference > nondet_tol:
            agrees = all(p.ok for p in report.pairs if p.output == r.output)
            raise GradcheckError(
                "gradcheck(): Backward is not reentrant, i.e., running backward with same input and grad_output multiple times gives different values"
                f"{', although analytical gradient matches numerical gradient' if agrees else ''}. Output {r.output}: two backwards differ by"
                f" {r.difference:.3g}. The tolerance for nondeterminism was {nondet_tol}."
            )
    for p in report.pairs:
        if not p.ok:
            raise GradcheckError(f"gradcheck(): {mismatch_text(func, inputs, p, eps)}")


def mismatch_text(func: Callable[..., Any], inputs: tuple[Any, ...], pair: Pair, eps: float) -> str:
    """What a failure says: which pair, the worst element, the cause, the suspect, and small Jacobians whole."""
    if pair.mode == "constant":
        return (
            f"Numerical gradient for function expected to be zero: output {pair.output} does not require grad, yet it moves with input {pair.input}"
            f" (slope {pair.numeric:.6g} at output{list(pair.output_index)}, input{list(pair.input_index)})"
        )
    detailed = pair
    lines = []
    part = {"imaginary": "While considering the imaginary part of complex outputs only, ", "real": "While considering the real part of complex outputs only, "}
    mode = "computed with forward mode " if pair.mode == "forward" else ""
    lines.append(f"{part.get(pair.part, '')}Jacobian {mode}mismatch for output {pair.output} with respect to input {pair.input},")
    if pair.projected:
        lines.append(f"  projected  numerical {_number(pair.numeric)}, analytical {_number(pair.analytic)} (fast mode)")
        whole = measure(
            func, inputs, eps=eps, atol=pair.atol, rtol=pair.rtol, backward=pair.mode == "backward", forward=pair.mode == "forward"
        )
        same = [p for p in whole.pairs if (p.output, p.input, p.mode) == (pair.output, pair.input, pair.mode)]
        detailed = max(same, key=lambda p: p.max_abs if np.isfinite(p.max_abs) else np.inf)
        if detailed.max_abs <= pair.atol:
            lines.append("  element by element the differences are small: this might pass in slow mode")
    where = f"d output{pair.output}{list(detailed.output_index)} / d input{pair.input}{list(detailed.input_index)}"
    lines.append(f"  worst      {where}: numerical {_number(detailed.numeric)}, analytical {_number(detailed.analytic)}")
    lines.append(f"  errors     max absolute {detailed.max_abs:.3g}, max relative {detailed.max_rel:.3g} (atol {pair.atol:g}, rtol {pair.rtol:g})")
    found = diagnose(func, inputs, detailed, eps)
    lines.append(f"  looks like {found.cause}: {found.because}")
    if found.suspect:
        lines.append(f"  suspect    {found.suspect}")
    if detailed.analytical.size <= _PRINTED:
        for name, matrix in (("numerical", detailed.numerical), ("analytical", detailed.analytical)):
            lines.append(f"{name}:\n{np.array2string(matrix, precision=4, max_line_width=110, suppress_small=True)}")
    return "\n".join(lines)


def _number(x: Any) -> str:
    return f"{x:.7g}"


# -- the other checks --------------------------------------------------------------------------------------------------


def _differentiable(func: Callable[..., Any], inputs: tuple[Any, ...]) -> list[Tensor]:
    return [t for t in tensors_of(func(*inputs)) if t.requires_grad]


def _wanted(inputs: tuple[Any, ...]) -> list[Tensor]:
    return [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]


def _zeros(like: Tensor) -> Tensor:
    return tensor_of(np.zeros(like.numel() * (2 if like.is_complex() else 1)), like)


def _check_seed_used(func: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    outputs = _differentiable(func, inputs)
    for i, (g, x) in enumerate(zip(grad(outputs, _wanted(inputs), [_zeros(t) for t in outputs], allow_unused=True), _wanted(inputs), strict=True)):
        if g is None:
            continue
        if coordinates(host(g)).any():
            raise GradcheckError(f"gradcheck(): backward not multiplied by grad_output: seeds of zeros give checked input {i} a gradient that is not zero")
        if g.shape != x.shape:
            raise GradcheckError(f"gradcheck(): grad is incorrect size: {tuple(g.shape)} for checked input {i} of shape {tuple(x.shape)}")


class _Undefined(Function):
    """Pass a value on; its gradient is undefined, which is not the same as zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> None:
        return None


def _check_undefined(func: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    """Gradients that are undefined for all outputs, or for one at a time, must be taken for zeros."""
    count = len(_differentiable(func, inputs))
    choices: list[set[int]] = [set(range(count))]
    if count > 1:
        choices += [{i} for i in range(count)]
    for undefined in choices:
        outputs = [_Undefined.apply(t) if i in undefined else t for i, t in enumerate(_differentiable(func, inputs))]
        try:
            grads = grad(outputs, _wanted(inputs), [_zeros(t) for t in outputs], allow_unused=True)
            wrong = [i for i, g in enumerate(grads) if g is not None and coordinates(host(g)).any()]
        except RuntimeError as e:  # as in torch; anything else is the user's own error, with its traceback
            raise GradcheckError(
                f"gradcheck(): Expected backward function to handle undefined output grads, but it raised {type(e).__name__}: {e} → treat a None"
                " gradient as zeros, or pass check_undefined_grad=False"
            ) from e
        if wrong:
            raise GradcheckError(
                "gradcheck(): Expected all input grads to be undefined or zero when all output grads are undefined or zero, but checked input"
                f" {wrong[0]} gets another value"
            )


def _check_undefined_forward(func: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    """An input without tangent must give what one with a zero tangent gives."""
    at = Evaluator(func, inputs)
    rng = np.random.default_rng(0)
    tangents = {k: rng.standard_normal(len(c)) for k, c in at.at.items()}
    for k in at.at if len(at.at) > 1 else ():
        without = push(at, {i: t for i, t in tangents.items() if i != k})
        zero = push(at, {**tangents, k: np.zeros_like(tangents[k])})
        if any(not np.allclose(a, b, equal_nan=True) for a, b in zip(without, zero, strict=True)):
            raise GradcheckError(f"gradcheck(): forward mode treats an undefined tangent of input {k} differently from a tangent of zeros")


def batched_gap(func: Callable[..., Any], inputs: Sequence[Any], seed: int = 0) -> list[tuple[int, int, float]]:
    """`is_grads_batched=True` against a loop over two random seeds: (output, input, excess over tolerance) per pair."""
    at = Evaluator(func, inputs)
    outputs = tensors_of(func(*inputs))
    rng = np.random.default_rng(seed)
    found = []
    for j, output in enumerate(outputs):
        if not output.requires_grad:
            continue
        n = output.numel() * (2 if output.is_complex() else 1)
        seeds = rng.standard_normal((2, n))
        one_by_one = [pull(output, at, s)[0] for s in seeds]
        stacked = np.stack([host(tensor_of(s, output)) for s in seeds])
        batch = leaf_tensor(stacked, output.dtype)
        together = grad(output, [at.inputs[k] for k in at.at], batch, retain_graph=True, allow_unused=True, is_grads_batched=True)
        for k, g in zip(at.at, together, strict=True):
            expected = np.stack([r[k] for r in one_by_one])
            actual = np.zeros_like(expected) if g is None else coordinates(host(g)).reshape(expected.shape)
            gap = np.abs(actual - expected) / (1e-8 + 1e-5 * np.abs(expected))
            found.append((j, k, float(gap.max(initial=0.0))))
    return found


def _check_batched(func: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    try:
        gaps = batched_gap(func, inputs)
    except RuntimeError as e:  # NotImplementedError is one
        raise GradcheckError(f"gradcheck(): gradcheck or gradgradcheck failed while testing batched gradient computation: {e}") from e
    for j, k, gap in gaps:
        if not gap <= 1.0:
            raise GradcheckError(
                f"gradcheck(): For output {j} and input {k}: gradcheck or gradgradcheck failed while testing batched gradient computation:"
                " is_grads_batched=True gives another value than a loop over the seeds"
            )


def _check_batched_forward(func: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    """`func.vmap` over two tangents of each input against one after the other."""
    try:
        vmap = importlib.import_module("tapejax.func").vmap
    except AttributeError:
        raise NotImplementedError("gradcheck(): check_batched_forward_grad needs tapejax.func.vmap, which is not there yet → leave it off") from None
    ad = forward_ad()
    at = Evaluator(func, inputs)
    rng = np.random.default_rng(0)
    for k, coords in at.at.items():
        tangents = rng.standard_normal((2, len(coords)))
        one_by_one = [push(at, {k: t}) for t in tangents]
        like = at.inputs[k]

        def along(tangent: Tensor, k: int = k) -> tuple[Tensor, ...]:
            with ad.dual_level():
                duals = [x.detach().clone() if i in at.at else x for i, x in enumerate(at.inputs)]
                duals[k] = ad.make_dual(duals[k], tangent)
                pairs = [ad.unpack_dual(t) for t in tensors_of(at.func(*duals))]
                return tuple(p if t is None else t for p, t in ((p.detach() * 0, t) for p, t in pairs))

        try:
            together = vmap(along)(leaf_tensor(np.stack([host(tensor_of(t, like)) for t in tangents]), like.dtype))
        except RuntimeError as e:
            raise GradcheckError(
                f"gradcheck(): gradcheck or gradgradcheck failed while testing batched computation of forward mode AD: {e}"
            ) from e
        for j, t in enumerate(together):
            expected = np.stack([r[j] for r in one_by_one])
            if not np.allclose(coordinates(host(t)).reshape(expected.shape), expected, equal_nan=True):
                raise GradcheckError(
                    f"gradcheck(): For output {j} and input {k}: gradcheck or gradgradcheck failed while testing batched computation of forward mode AD"
                )


__all__ = ["GradcheckError", "batched_gap", "gradcheck", "gradgradcheck", "gradient_map", "mismatch_text"]
