"""Derivatives of functions given as Python callables: vjp, jvp, vhp, hvp, jacobian, hessian.

Written on `autograd.grad` alone. A Jacobian is one batched backward, whatever `vectorize` says, unless Python in the backward
(a hook, a custom Function without a rule for batches) wants one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tapejax.autograd import forward_ad
from tapejax.autograd.batch import map_flat, units
from tapejax.autograd.entry import grad
from tapejax.autograd.function import function_alias
from tapejax.autograd.grad_mode import enable_grad
from tapejax.autograd.gradients import zeros_like_aval
from tapejax.errors import refuse
from tapejax.tape import modes
from tapejax.tape.record import record
from tapejax.tensor import Tensor, wrap

# -- what goes in and comes out ------------------------------------------------------------------------------------------


def _tuple(given: Any, argument: str, name: str) -> tuple[bool, tuple[Any, ...]]:
    """(whether it was a tuple already, the tuple)."""
    single = not isinstance(given, tuple)
    found = (given,) if single else given
    for i, x in enumerate(found):
        if not isinstance(x, Tensor):
            raise refuse(
                TypeError,
                name,
                f"The {argument} given to {name} must be either a Tensor or a tuple of Tensors but the"
                f" {f'given {argument}' if single else f'value at index {i}'} has type {type(x)}.",
            )
    return not single, found


def _untuple(values: Sequence[Any], was_tuple: bool) -> Any:
    return tuple(values) if was_tuple else values[0]


def _fresh(inputs: Sequence[Tensor], create: bool) -> tuple[Tensor, ...]:
    """Inputs to differentiate by: of the same graph with `create`, of a new one otherwise."""
    found = []
    for x in inputs:
        if create:
            made = wrap(record(function_alias, (1,), (), (x.node,)))
            found.append(made if made.requires_grad else made.requires_grad_())
        else:
            found.append(x.detach().requires_grad_())
    return tuple(found)


def _done(values: Any, create: bool) -> Any:
    """What the caller gets: with `create` as it is, otherwise without history."""
    if isinstance(values, tuple):
        return tuple(_done(v, create) for v in values)
    return values if create or not values.requires_grad else values.detach()


def _check_v(v: Any, others: Sequence[Tensor], is_v_tuple: bool) -> None:
    if len(others) != len(v):
        if len(others) == 1:
            raise refuse(RuntimeError, "v", "The given v should contain a single Tensor.")
        raise refuse(RuntimeError, "v", f"v is a tuple of invalid length: should be {len(others)} but got {len(v)}.")
    for i, (a, b) in enumerate(zip(v, others, strict=True)):
        if a.shape != b.shape:
            prefix = f"Entry {i} in " if is_v_tuple else ""
            raise refuse(RuntimeError, "v", f"{prefix}v has invalid size: should be {b.shape} but got {a.shape}.")


def _default_v(v: Any, values: Sequence[Tensor], what: str, name: str) -> tuple[Tensor, ...]:
    if v is not None:
        was_tuple, given = _tuple(v, "v", name)
        _check_v(given, values, was_tuple)
        return tuple(x.detach() if not x.requires_grad else x for x in given)
    if len(values) != 1 or values[0].numel() != 1:
        raise refuse(RuntimeError, name, f"The vector v can only be None if {what}.")
    return (values[0].detach().new_ones(values[0].shape),)


def _strict_outputs(outputs: Sequence[Tensor]) -> None:
    for i, o in enumerate(outputs):
        if not o.requires_grad:
            raise refuse(
                RuntimeError,
                "functional",
                f"Output {i} of the user-provided function does not require gradients. The outputs must be computed in a differentiable manner"
                " from the input when running in strict mode.",
            )


_STRICT = {
    "gradient": "The output of the user-provided function is independent of input {i}. This is not allowed in strict mode.",
    "back": "Output {i} of the user-provided function is independent of input {j}. This is not allowed in strict mode.",
    "back_trick": "The gradient with respect to the input is independent of entry {i} in the grad_outputs when using the double backward trick"
    " to compute forward mode gradients. This is not allowed in strict mode.",
    "double_back": "While computing the hessian, found that the jacobian of the user-provided function with respect to input {i} is independent of"
    " the input. This is not allowed in strict mode.",
    "double_back_trick": "The hessian of the user-provided function is independent of entry {i} in the grad_jacobian. This is not allowed in"
    " strict mode as it prevents from using the double backward trick to replace forward mode AD.",
    "jacobian_create": "The jacobian of the user-provided function is independent of input {i}. This is not allowed in strict mode when"
    " create_graph=True.",
}


def _refuse_strict(stage: str, i: int, j: int = 0) -> Exception:
    return refuse(RuntimeError, "functional", _STRICT[stage].format(i=i, j=j))


def _filled(grads: Sequence[Tensor | None], like: Sequence[Tensor], strict: bool, stage: str) -> tuple[Tensor, ...]:
    found = []
    for i, (g, x) in enumerate(zip(grads, like, strict=True)):
        if g is None:
            if strict:
                raise refuse(
                    RuntimeError,
                    "functional",
                    _STRICT[stage].format(i=i, j=i) if stage != "back" else _STRICT["back"].format(i=0, j=i),
                )
            g = wrap(zeros_like_aval(x.node.aval))
        found.append(g)
    return tuple(found)


def _grads(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], seeds: Any, create: bool, keep: bool = False
) -> tuple[Tensor | None, ...]:
    """`autograd.grad` that gives None for whatever is unreached."""
    pairs = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad and s is not None]
    if not pairs:
        return (None,) * len(inputs)
    return grad(
        [o for o, _ in pairs],
        list(inputs),
        [s for _, s in pairs],
        create_graph=create,
        retain_graph=create or keep or None,
        allow_unused=True,
    )


# -- vector products -----------------------------------------------------------------------------------------------------


def vjp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return `func(*inputs)` and the product of `v` (like the output) with the Jacobian (like `inputs`).

    `v` may be left out for a one-element output. With `strict`, an output or input without dependence raises RuntimeError
    instead of giving zeros. With `create_graph`, both results are differentiable.
    """
    with enable_grad():
        was_tuple, given = _tuple(inputs, "inputs", "vjp")
        fresh = _fresh(given, create_graph)
        outputs = func(*fresh)
        out_tuple, outs = _tuple(outputs, "outputs of the user-provided function", "vjp")
        if strict:
            _strict_outputs(outs)
        seeds = _default_v(v, outs, "the user-provided function returns a single Tensor with a single element", "vjp")
        found = _filled(_grads(outs, fresh, seeds, create_graph or strict), fresh, strict, "back")
    return _untuple(_done(outs, create_graph), out_tuple), _untuple(_done(found, create_graph), was_tuple)


def jvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return `func(*inputs)` and the product of the Jacobian with `v` (like `inputs`); otherwise as `vjp`."""
    with enable_grad():
        _, given = _tuple(inputs, "inputs", "jvp")
        fresh = _fresh(given, create_graph)
        if v is not None:
            v_tuple, direction = _tuple(v, "v", "jvp")
            _check_v(direction, fresh, v_tuple)
        else:
            if len(fresh) != 1 or fresh[0].numel() != 1:
                raise refuse(
                    RuntimeError,
                    "jvp",
                    "The vector v can only be None if the input to the user-provided function is a single Tensor with a single element.",
                )
            direction = (fresh[0].detach().new_ones(fresh[0].shape),)
        outputs = func(*fresh)
        out_tuple, outs = _tuple(outputs, "outputs of the user-provided function", "jvp")
        if strict:
            _strict_outputs(outs)
        found = _filled(_push(outs, fresh, direction, strict), outs, strict, "back_trick")
    return _untuple(_done(outs, create_graph), out_tuple), _untuple(_done(found, create_graph), out_tuple)


def _push(
    outs: Sequence[Tensor], inputs: Sequence[Tensor], direction: Sequence[Tensor], strict: bool
) -> tuple[Tensor | None, ...]:
    """The Jacobian of `outs` times `direction`, by two reverse passes: the second one differentiates a linear function."""
    weights = tuple(o.detach().new_zeros(o.shape).requires_grad_() for o in outs)
    pulled = _filled(_grads(outs, inputs, weights, True), inputs, strict, "gradient")
    return _grads(pulled, weights, direction, True)


def vhp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the scalar `func(*inputs)` and the product of `v` (like `inputs`) with the Hessian."""
    with enable_grad():
        was_tuple, fresh, direction, out, gradient = _scalar_gradient(func, inputs, v, create_graph, strict, "vhp")
        found = _filled(_grads(gradient, fresh, direction, create_graph), fresh, strict, "double_back")
    return _done(out, create_graph), _untuple(_done(found, create_graph), was_tuple)


def hvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the scalar `func(*inputs)` and the product of the Hessian with `v` (like `inputs`)."""
    with enable_grad():
        was_tuple, fresh, direction, out, gradient = _scalar_gradient(func, inputs, v, create_graph, strict, "hvp")
        found = _filled(_push(gradient, fresh, direction, strict), fresh, strict, "double_back_trick")
    return _done(out, create_graph), _untuple(_done(found, create_graph), was_tuple)


def _scalar_gradient(func: Callable[..., Any], inputs: Any, v: Any, create: bool, strict: bool, name: str) -> Any:
    was_tuple, given = _tuple(inputs, "inputs", name)
    fresh = _fresh(given, create)
    if v is not None:
        v_tuple, direction = _tuple(v, "v", name)
        _check_v(direction, fresh, v_tuple)
    else:
        if len(fresh) != 1 or fresh[0].numel() != 1:
            raise refuse(
                RuntimeError,
                name,
                "The vector v can only be None if the input to the user-provided function is a single Tensor with a single element.",
            )
        direction = (fresh[0].detach().new_ones(fresh[0].shape),)
    output = func(*fresh)
    out_tuple, outs = _tuple(output, "outputs of the user-provided function", name)
    if strict:
        _strict_outputs(outs)
    if out_tuple or not isinstance(outs[0], Tensor):
        raise refuse(RuntimeError, name, "The function given to " + name + " should return a single Tensor")
    if outs[0].numel() != 1:
        raise refuse(
            RuntimeError, name, f"The Tensor returned by the function given to {name} should contain a single element"
        )
    gradient = _filled(_grads(outs, fresh, (outs[0].new_ones(outs[0].shape),), True), fresh, strict, "gradient")
    if strict:
        for i, g in enumerate(gradient):
            if not g.requires_grad:
                raise _refuse_strict("double_back", i)
    return was_tuple, fresh, direction, outs[0], gradient


# -- matrices ------------------------------------------------------------------------------------------------------------


def jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return the Jacobian of `func` at `inputs`: `(*out, *in)` for one output and one input, nested tuples (outputs outside) otherwise.

    `strict` raises RuntimeError where an output does not depend on an input. `strategy="forward-mode"` (with `vectorize`)
    is better for few inputs and many outputs.
    """
    if strategy not in ("forward-mode", "reverse-mode"):
        raise refuse(
            AssertionError,
            "jacobian",
            'Expected strategy to be either "forward-mode" or "reverse-mode". Hint: If your function has more outputs than inputs, "forward-mode" tends'
            ' to be more performant. Otherwise, prefer to use "reverse-mode".',
        )
    if strategy == "forward-mode":
        if create_graph:
            raise _not_together(
                NotImplementedError, "`create_graph=True`", '`strategy="forward-mode"`', "`create_graph=False`"
            )
        if strict:
            raise _not_together(RuntimeError, "`strict=True`", '`strategy="forward-mode"`', "`strict=False`")
        if not vectorize:
            raise refuse(
                NotImplementedError,
                "jacobian",
                "Computing Jacobian using forward-AD or forward-over-reverse Hessian is only implemented for `vectorize=True`.",
            )
        return _forward_jacobian(func, inputs)
    if vectorize and strict:
        raise _not_together(RuntimeError, "`strict=True`", "`vectorized=True`", "`strict=False` or `vectorize=False`")
    return _reverse_jacobian(func, inputs, create_graph, strict, "jacobian_create", vectorize)


def _not_together(kind: type[Exception], first: str, second: str, instead: str) -> Exception:
    return refuse(
        kind,
        "jacobian",
        f"{first} and {second} are not supported together (yet). Please either set {instead} or leave out the other.",
    )


def _reverse_jacobian(
    func: Callable[..., Any], inputs: Any, create_graph: bool, strict: bool, stage: str, vectorize: bool = False
) -> Any:
    with enable_grad():
        was_tuple, given = _tuple(inputs, "inputs", "jacobian")
        fresh = _fresh(given, create_graph)
        out_tuple, outs = _tuple(func(*fresh), "outputs of the user-provided function", "jacobian")
        if strict:
            _strict_outputs(outs)
        rows = []
        for i, o in enumerate(outs):
            blocks = _rows(o, fresh, create_graph or strict, vectorize)
            row = []
            for j, (g, x) in enumerate(zip(blocks, fresh, strict=True)):
                if g is None:
                    if strict:
                        raise _refuse_strict("back", i, j)
                    g = x.detach().new_zeros((o.numel(), *x.shape))
                elif strict and create_graph and not g.requires_grad:
                    raise _refuse_strict(stage, j)
                row.append(g.reshape((*o.shape, *x.shape)))
            rows.append(tuple(row))
        found = _done(tuple(rows), create_graph)
    inner = tuple(_untuple(r, was_tuple) for r in found)
    return _untuple(inner, out_tuple)


def _rows(output: Tensor, inputs: Sequence[Tensor], create: bool, vectorize: bool) -> tuple[Tensor | None, ...]:
    """Per input the gradients of every element of `output`: `(elements, *in)`."""
    if not output.requires_grad or not output.numel():
        return (None,) * len(inputs)
    (each_element,) = units([output.node.aval])
    try:
        return grad(
            output,
            list(inputs),
            each_element,
            retain_graph=True,
            create_graph=create,
            allow_unused=True,
            is_grads_batched=True,
        )
    except (NotImplementedError, RuntimeError):  # Python in the backward that wants one gradient at a time
        if vectorize:
            raise
        each = [
            grad(output, list(inputs), u, retain_graph=True, create_graph=create, allow_unused=True)
            for u in each_element.unbind(0)
        ]  # type: ignore[attr-defined]
        found: list[Tensor | None] = []
        for of_input in zip(*each, strict=True):
            if of_input[0] is None:
                found.append(None)
            else:
                stacked = [g.unsqueeze(0) for g in of_input]
                found.append(_joined(stacked))
        return tuple(found)


def _joined(parts: list[Tensor]) -> Tensor:
    import tapejax

    return tapejax.cat(parts)  # type: ignore[attr-defined]


def _forward_jacobian(func: Callable[..., Any], inputs: Any) -> Any:
    was_tuple, given = _tuple(inputs, "inputs", "jacobian")
    seeds = units([x.node.aval for x in given])
    out_tuple = False

    def push(*directions: Tensor) -> list[Tensor]:
        nonlocal out_tuple
        with forward_ad.nested_level() as level:
            duals = [forward_ad.dual(x.detach(), t.node, level) for x, t in zip(given, directions, strict=True)]
            out_tuple, outs = _tuple(func(*duals), "outputs of the user-provided function", "jacobian")
            moving = [level.tangent(o.node) for o in outs]
            return [wrap(zeros_like_aval(o.node.aval) if t is None else t) for o, t in zip(outs, moving, strict=True)]

    columns = map_flat(push, seeds, [0] * len(seeds), seeds[0].shape[0])
    found = []
    for c in columns:
        out_shape = tuple(c.shape[1:])
        blocks = []
        offset = 0
        for x in given:
            n = x.numel()
            block = c[offset : offset + n].movedim(0, -1)
            blocks.append(_done(block.reshape((*out_shape, *x.shape)), False))
            offset += n
        found.append(_untuple(blocks, was_tuple))
    return _untuple(found, out_tuple)


def hessian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the Hessian of the scalar-valued `func` at `inputs`: `(*in, *in)`, a tuple of tuples for a tuple of inputs."""
    was_tuple, given = _tuple(inputs, "inputs", "hessian")
    if outer_jacobian_strategy not in ("forward-mode", "reverse-mode"):
        raise refuse(AssertionError, "hessian", 'Expected strategy to be either "forward-mode" or "reverse-mode".')

    def scalar(*xs: Tensor) -> Tensor:
        out = func(*xs)
        out_tuple, outs = _tuple(out, "outputs of the user-provided function", "hessian")
        if out_tuple:
            raise refuse(RuntimeError, "hessian", "The function given to hessian should return a single Tensor")
        if outs[0].numel() != 1:
            raise refuse(
                RuntimeError,
                "hessian",
                "The Tensor returned by the function given to hessian should contain a single element",
            )
        return outs[0].reshape(()) if outs[0].dim() else outs[0]

    def gradient(*xs: Tensor) -> Any:
        if outer_jacobian_strategy == "forward-mode":
            xs = tuple(x if x.requires_grad else _tracked(x) for x in xs)
        found = _reverse_jacobian(scalar, xs, True, strict, "double_back")
        return tuple(found)

    found = jacobian(
        gradient, given, create_graph=create_graph, strict=strict, vectorize=vectorize, strategy=outer_jacobian_strategy
    )
    return tuple(found) if was_tuple else found[0][0]


def _tracked(x: Tensor) -> Tensor:
    """`x` requiring grad, its tangent kept."""
    before = modes.switch(modes.GRAD, True)
    try:
        node = record(function_alias, (1,), (), (x.node,))
        node.requires_grad = True
        return wrap(node)
    finally:
        modes.MODE.set(before)


__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
