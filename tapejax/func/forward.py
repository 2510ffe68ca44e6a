"""Forward mode as function transforms: jvp and linearize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapejax.autograd import forward_ad
from tapejax.autograd.function import function_alias
from tapejax.autograd.gradients import zeros_like_aval
from tapejax.autograd.lifted import lower
from tapejax.errors import refuse
from tapejax.func.tree import flatten, unflatten
from tapejax.tape.node import VAR, Node, next_seq
from tapejax.tape.record import record
from tapejax.tensor import Tensor, wrap


def jvp(func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """Return `func(*primals)` and its derivative in the direction `tangents`; with `has_aux` also func's second result.

    `primals` is a tuple of tensors (or trees of them), `tangents` a tuple of the same structure. With `strict`, an output
    that does not depend on the inputs raises; otherwise its tangent is zeros.

    >>> import tapejax as tj
    >>> tj.func.jvp(tj.sin, (tj.zeros(2),), (tj.ones(2),))
    (tensor([0., 0.]), tensor([1., 1.]))
    """
    if not isinstance(primals, tuple):
        raise RuntimeError(
            "jvp(f, primals, tangents): Expected primals to be a tuple. E.g. it should be valid to call f(*primals).",
        )
    return jvp_at(func, primals, primals, tangents, lambda chosen: chosen, strict, has_aux)


def jvp_at(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    primals: Any,
    tangents: Any,
    place: Callable[[Any], Any],
    strict: bool,
    has_aux: bool,
) -> Any:
    """`jvp` by `primals`, which `place` puts among the arguments."""
    leaves, spec = flatten(primals)
    directions, direction_spec = flatten(tangents)
    if spec != direction_spec:
        raise RuntimeError(
            "jvp(f, primals, tangents): Expected primals and tangents to have the same python structure. For example, if primals is a tuple of 3"
            f" tensors, tangents also must be. Got primals with structure {spec} and tangents with structure {direction_spec}",
        )
    for name, group in (("primals", leaves), ("tangents", directions)):
        if not group:
            raise RuntimeError(f"jvp(f, primals, tangents): Expected {name} to contain at least one Tensor.")
        for x in group:
            if not isinstance(x, Tensor):
                raise RuntimeError(
                    f"jvp(f, primals, tangents): Expected {name} to only contain Tensors, got {type(x)}",
                )
    for p, t in zip(leaves, directions, strict=True):
        forward_ad.check_tangent(p, t)
    with forward_ad.nested_level() as level:
        first = next_seq()
        duals = [forward_ad.dual(p, t.node, level) for p, t in zip(leaves, directions, strict=True)]
        output = func(*place(unflatten(spec, duals)))
        aux = None
        if has_aux:
            if not (isinstance(output, tuple) and len(output) == 2):
                raise RuntimeError(
                    "jvp(f, primals, tangents): output of function f should be a tuple: (output, aux) if has_aux is True",
                )
            output, aux = output
        outs, out_spec = flatten(output)
        moving = []
        for o in outs:
            if not isinstance(o, Tensor):
                raise RuntimeError(
                    f"jvp(f, primals, tangents): expected f(*primals) to return only tensors, got unsupported type {type(o)}",
                )
            t = level.tangent(o.node)
            if t is None and strict:
                raise RuntimeError(
                    "jvp(f, primals, tangents, strict=True): The output of f is independent of the inputs. This is not allowed"
                    " with strict=True.",
                )
            moving.append(wrap(zeros_like_aval(o.node.aval) if t is None else lower(t, first)))
    found = (output, unflatten(out_spec, moving))
    return (*found, aux) if has_aux else found


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return `func(*primals)` and the linear function `jvp_fn(*tangents)` at that point; func runs once, however often jvp_fn is called."""
    leaves, spec = flatten(primals)
    for x in leaves:
        if not isinstance(x, Tensor):
            raise refuse(RuntimeError, "linearize", f"Expected primals to only contain Tensors, got {type(x)}")
    first = next_seq()
    starts = [record(function_alias, (1,), (), (x.node,)) for x in leaves]
    output = func(*unflatten(spec, [wrap(n) for n in starts]))
    outs, out_spec = flatten(output)
    ends = [o.node for o in outs]
    between = _between(starts, ends)

    def jvp_fn(*tangents: Any) -> Any:
        given, given_spec = flatten(tangents)
        if given_spec != spec:
            raise refuse(
                RuntimeError,
                "linearize",
                f"Expected the tangents {given_spec} to have the same argspec as the primals {spec}",
            )
        level = forward_ad.Level()
        for i, (n, t) in enumerate(zip(starts, given, strict=True)):
            for what, got, expected in (("shape", t.shape, n.aval.shape), ("dtype", t.dtype, n.aval.dtype)):
                if got != expected:
                    raise refuse(
                        RuntimeError,
                        "linearize",
                        f"tangent:{i} with {what} {got} in flattened pytree doesn't match the {what} {expected} of the corresponding primal.",
                    )
            level.tangents[n] = t.node
        for n, inputs in between:
            if n.kind is VAR and (t := level.tangent(inputs[0])) is not None:
                level.tangents[n] = t
            forward_ad.push(n, level, inputs)
        moving = [level.tangent(n) for n in ends]
        return unflatten(
            out_spec,
            [
                wrap(zeros_like_aval(n.aval) if t is None else lower(t, first))
                for n, t in zip(ends, moving, strict=True)
            ],
        )

    return output, jvp_fn


def _between(starts: list[Node], ends: list[Node]) -> list[tuple[Node, tuple[Node, ...]]]:
    """What was recorded since `starts` on the way to `ends`, in order, with its inputs (a node forgets them once it has a value)."""
    first = min((n.seq for n in starts), default=0)
    found: dict[Node, bool] = {}
    stack = list(ends) if starts else []
    while stack:
        n = stack.pop()
        if n.seq > first and n not in found and n not in starts:
            found[n] = True
            stack += n.inputs or ()
    return [(n, n.inputs) for n in sorted(found, key=lambda n: n.seq) if n.inputs]
