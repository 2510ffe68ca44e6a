"""Reverse mode as function transforms: vjp, grad, grad_and_value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tapejax.autograd.gradients import zeros_like_aval
from tapejax.dispatch import CAST
from tapejax.errors import refuse
from tapejax.func.level import GradLevel
from tapejax.func.tree import flatten, tree_map, unflatten
from tapejax.tape.node import Node
from tapejax.tape.record import record
from tapejax.tensor import Tensor, wrap


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return `func(*primals)` and the function from output-side to input-side gradients; with `has_aux` also func's second result.

    `vjp_fn(cotangents)` takes a tree like the output and returns a tuple like `primals` (one gradient for one primal).
    RuntimeError if func returns anything but tensors.

    >>> import tapejax as tj
    >>> y, pull = tj.func.vjp(tj.sin, tj.zeros(2))
    >>> pull(tj.ones(2))
    (tensor([1., 1.]),)
    """
    return vjp_at(func, primals, None, has_aux, "vjp")


def vjp_at(
    func: Callable[..., Any], args: tuple[Any, ...], argnums: int | tuple[int, ...] | None, has_aux: bool, where: str
) -> Any:
    """`vjp` by some of the arguments."""
    level = GradLevel()
    chosen: Any = args if argnums is None else select(args, argnums)
    leaves, spec = flatten(chosen)
    lifted = [level.lift(x, where) for x in leaves]
    nodes = list(level.inputs)
    arguments = unflatten(spec, lifted)
    call = arguments if argnums is None else replaced(args, argnums, arguments)
    output = level.run(func, call, {})
    aux = None
    if has_aux:
        if not (isinstance(output, tuple) and len(output) == 2):
            raise RuntimeError(
                "vjp(f, *primals): output of function f should be a tuple: (output, aux) if has_aux is True",
            )
        output, aux = output
    outs, out_spec = flatten(output)
    for o in outs:
        if not isinstance(o, Tensor):
            raise RuntimeError(
                f"vjp(f, *primals): expected f(*primals) to return only tensors, got unsupported type {type(o)}",
            )
    roots = [o.node for o in outs]
    lower = _lowering(level)
    result = unflatten(out_spec, [level.lower_tensor(o) for o in outs])

    def vjp_fn(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        seeds, seed_spec = flatten(cotangents)
        if seed_spec != out_spec:
            raise refuse(
                RuntimeError,
                "vjp",
                "Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function. cotangents:"
                f" {seed_spec}, primal output: {out_spec}",
            )
        found = level.gradients(
            roots, [_seed(s, r, i) for i, (s, r) in enumerate(zip(seeds, roots, strict=True))], nodes
        )
        grads = [wrap(zeros_like_aval(n.aval) if g is None else g) for g, n in zip(found, nodes, strict=True)]
        return unflatten(spec, grads)

    return (result, vjp_fn, tree_map(lower, aux)) if has_aux else (result, vjp_fn)


def _seed(seed: Any, root: Node, i: int) -> Node:
    if not isinstance(seed, Tensor):
        raise refuse(TypeError, "vjp", f"cotangents must be Tensors, not {type(seed).__name__}")
    node = seed.node
    if node.aval.shape != root.aval.shape:
        raise refuse(
            RuntimeError,
            "vjp",
            f"Mismatch in shape: grad_output[{i}] has a shape of {seed.shape} and output[{i}] has a shape of torch.Size({list(root.aval.shape)}).",
        )
    return node if node.aval.dtype is root.aval.dtype else record(CAST, (1,), (root.aval.dtype,), (node,))


def _lowering(level: GradLevel) -> Callable[[Any], Any]:
    return lambda x: level.lower_tensor(x) if isinstance(x, Tensor) else x


def grad(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return the function that computes the gradient of the scalar-valued `func` by its arguments `argnums`.

    With `has_aux`, func returns `(value, aux)` and the new function `(gradient, aux)`. Nests to any order, and with `vmap`.
    RuntimeError if func's value is no scalar tensor.

    >>> import tapejax as tj
    >>> tj.func.grad(lambda x: x**3)(tj.tensor(2.0))
    tensor(12.)
    """

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        grads, value = _grad_and_value(func, argnums, has_aux, args, kwargs)
        return (grads, value[1]) if has_aux else grads

    return run


def grad_and_value(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Like `grad`, returning `(gradient, value)`, or `(gradient, (value, aux))`."""

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        return _grad_and_value(func, argnums, has_aux, args, kwargs)

    return run


def _grad_and_value(
    func: Callable[..., Any], argnums: Any, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    level = GradLevel()
    leaves, spec = flatten(select(args, argnums))
    lifted = [level.lift(x, "grad") for x in leaves]
    nodes = list(level.inputs)
    output = level.run(func, replaced(args, argnums, unflatten(spec, lifted)), kwargs)
    aux = None
    if has_aux:
        if not (isinstance(output, tuple) and len(output) == 2):
            raise RuntimeError(
                "grad_and_value(f)(*args): output of function f should be a tuple: (output, aux) if has_aux is True",
            )
        output, aux = output
    if not isinstance(output, Tensor):
        raise RuntimeError(f"grad_and_value(f)(*args): Expected f(*args) to return a Tensor, got {type(output)}")
    root = output.node
    if root.aval.ndim:
        raise RuntimeError(
            f"grad_and_value(f)(*args): Expected f(*args) to return a scalar Tensor, got tensor with {root.aval.ndim} dims. Maybe you wanted to"
            " use the vjp or jacrev APIs instead?",
        )
    found = level.gradients([root], [None], nodes)
    grads = unflatten(
        spec, [wrap(zeros_like_aval(n.aval) if g is None else g) for g, n in zip(found, nodes, strict=True)]
    )
    value = level.lower_tensor(output)
    return grads, ((value, tree_map(_lowering(level), aux)) if has_aux else value)


# -- argnums -----------------------------------------------------------------------------------------------------------


def _number(argnum: Any, n: int) -> int:
    if not isinstance(argnum, int):
        raise refuse(RuntimeError, "grad", f"argnum must be int, got: {type(argnum)}")
    if not -n <= argnum < n:
        raise refuse(RuntimeError, "grad", f"Got argnum={argnum}, but only {n} positional inputs")
    return argnum % n


def select(args: tuple[Any, ...], argnums: Any) -> Any:
    """The arguments that are differentiated by: one value for an int, a tuple for a tuple."""
    if isinstance(argnums, int):
        return args[_number(argnums, len(args))]
    if isinstance(argnums, tuple):
        if not argnums:
            raise refuse(RuntimeError, "grad", "argnums must be non-empty")
        if len(set(argnums)) != len(argnums):
            raise refuse(RuntimeError, "grad", f"argnums elements must be unique, got {argnums}")
        return tuple(args[_number(i, len(args))] for i in argnums)
    raise refuse(RuntimeError, "grad", f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")


def replaced(args: tuple[Any, ...], argnums: Any, new: Any) -> tuple[Any, ...]:
    found = list(args)
    for i, x in [(argnums, new)] if isinstance(argnums, int) else zip(argnums, new, strict=True):
        found[i] = x
    return tuple(found)
