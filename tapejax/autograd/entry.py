"""`Tensor.backward`, `autograd.backward` and `autograd.grad`: check what the user gave, then run the tape backward."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tapejax.autograd.backward import run_backward
from tapejax.autograd.gradients import warn_create_graph
from tapejax.autograd.graph import GradientEdge, node_of_edge
from tapejax.autograd.walk import Target
from tapejax.dispatch import CAST
from tapejax.errors import refuse
from tapejax.storage.view import history_of
from tapejax.tape.node import VAR, Node
from tapejax.tape.note import Meta
from tapejax.tape.op import composite
from tapejax.tape.record import record
from tapejax.tensor import Tensor, wrap


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """Accumulate into `.grad` the gradients of the sum of `tensors`, each seeded with its entry of `grad_tensors`.

    `tensors`: a tensor or a sequence; `grad_tensors`: the same, None entries for scalars. `inputs` (a tensor, a sequence
    or a dict of name to tensor) limits where gradients go, non-leaves among them included.
    RuntimeError for a non-scalar root without a seed, a seed of wrong shape, a root that does not require grad, an empty `inputs`.
    """
    if grad_variables is not None:
        warnings.warn("`grad_variables` is deprecated. Use `grad_tensors` instead.", FutureWarning, stacklevel=2)
        if grad_tensors is not None:
            raise refuse(RuntimeError, "backward", "`grad_tensors` and `grad_variables` (deprecated) arguments both passed → use `grad_tensors`")
        grad_tensors = grad_variables
    roots = _sequence(tensors)
    seeds = _sequence(grad_tensors) if grad_tensors is not None else (None,) * len(roots)
    keep = create_graph if retain_graph is None else retain_graph
    targets = None
    if inputs is not None:
        chosen = _inputs(inputs, "backward")
        if not chosen:
            raise refuse(RuntimeError, "backward", "`inputs` argument to `backward()` cannot be empty. → leave it out to reach every leaf")
        targets = [_target(t, "backward") for t in chosen]
    nodes, seed_nodes = _roots(roots, seeds, "backward", False)
    if create_graph:
        warn_create_graph()
    run_backward(nodes, seed_nodes, targets, accumulate=True, retain=keep, create=create_graph)


@composite("Tensor", name="backward")
def _tensor_backward(
    self: Tensor, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """Accumulate the gradient of this tensor into the leaves it was computed from.

    `gradient`: the seed, of this tensor's shape and dtype; may be left out for a scalar. The graph is freed unless
    `retain_graph` (default: `create_graph`). See `autograd.backward`.
    """
    backward(self, gradient, retain_graph, create_graph, inputs=inputs)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """Return the gradients of the sum of `outputs` with respect to `inputs`; `.grad` fields are not touched.

    A tuple in the order of `inputs` (a dict for a dict). An input that does not reach the outputs raises, gives None with
    `allow_unused`, or zeros with `materialize_grads`. With `is_grads_batched` every entry of `grad_outputs` has a leading
    batch axis and one vectorised program gives all gradients.
    """
    if not only_inputs:
        warnings.warn("only_inputs argument is deprecated and is ignored now (defaults to True).", FutureWarning, stacklevel=2)
    if materialize_grads and allow_unused is False:
        raise refuse(ValueError, "grad", "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False.")
    if allow_unused is None:
        allow_unused = materialize_grads
    named = inputs if type(inputs) is dict else None
    wanted = _inputs(inputs, "grad")
    roots = _sequence(outputs)
    if not wanted:
        raise refuse(RuntimeError, "grad", "`inputs` argument to `grad()` cannot be empty.")
    seeds = _sequence(grad_outputs) if grad_outputs is not None else (None,) * len(roots)
    keep = create_graph if retain_graph is None else retain_graph
    targets = [_target(t, "grad") for t in wanted]
    nodes, seed_nodes = _roots(roots, seeds, "grad", is_grads_batched)
    how = {"retain": keep, "create": create_graph, "batched": is_grads_batched, "required": not allow_unused}
    found = run_backward(nodes, seed_nodes, targets, accumulate=False, **how)
    for i, g in enumerate(found):
        if g is None and materialize_grads and isinstance(wanted[i], GradientEdge):
            raise refuse(RuntimeError, "grad", "materialize_grads cannot be used when the given input is a GradientEdge → give the tensor itself")
        if g is None and materialize_grads:
            found[i] = wanted[i].detach().new_zeros(wanted[i].shape)
    return dict(zip(named, found, strict=True)) if named is not None else tuple(found)


def _sequence(x: Any) -> tuple[Any, ...]:
    single = isinstance(x, (Tensor, GradientEdge)) or x is None or not hasattr(x, "__iter__")
    return (x,) if single else tuple(x)


def _inputs(inputs: Any, name: str) -> Sequence[Any]:
    if type(inputs) is dict:
        return list(inputs.values())
    if isinstance(inputs, Mapping):
        raise refuse(
            TypeError, name, f"`inputs` argument to `{name}()` must be a dict, not {type(inputs).__name__}. Other Mapping types are not supported."
        )
    return _sequence(inputs)


def _target(t: Any, name: str) -> Target:
    if isinstance(t, GradientEdge):
        node = node_of_edge(t)
        return Target(node.note, node.note) if node.kind is VAR else Target(node, Meta())  # a value has no `.grad` to put it into
    if not isinstance(t, Tensor):
        raise refuse(RuntimeError, name, f"all inputs have to be Tensors or GradientEdges, but got {type(t).__name__}")
    node = history_of(t.node)
    if not node.requires_grad:
        if name == "backward":
            raise refuse(RuntimeError, name, "can't retain_grad on Tensor that has requires_grad=False: every one of `inputs` must require grad")
        raise refuse(
            RuntimeError,
            name,
            f"One of the differentiated Tensors does not require grad (shape {tuple(t.shape)}) → call requires_grad_() before using it",
        )
    if node.kind is VAR:
        return Target(node.note, node.note)
    if name == "backward":
        t.retain_grad()  # torch's way to store it, which lasts
    return Target(node, t._autograd_meta())


def _roots(roots: Sequence[Any], seeds: Sequence[Any], name: str, batched: bool) -> tuple[list[Node], list[Node | None]]:
    if len(roots) != len(seeds):
        raise refuse(
            RuntimeError, name, f"got {len(roots)} tensors and {len(seeds)} gradients → give one gradient (or None) for every output"
        )
    nodes, seed_nodes = [], []
    for i, (root, seed) in enumerate(zip(roots, seeds, strict=True)):
        if not isinstance(root, (Tensor, GradientEdge)):
            raise refuse(TypeError, name, f"outputs must be Tensors or GradientEdges, not {type(root).__name__}")
        node = node_of_edge(root) if isinstance(root, GradientEdge) else root.node
        if not node.requires_grad:
            raise refuse(
                RuntimeError,
                name,
                f"element {i} of tensors does not require grad and does not have a grad_fn (shape {node.aval.shape}) → nothing it was"
                " computed from has requires_grad=True, or it was computed under no_grad() or from .detach()",
            )
        nodes.append(node)
        seed_nodes.append(_seed(node, seed, name, batched))
    return nodes, seed_nodes


def _seed(node: Node, seed: Any, name: str, batched: bool) -> Node | None:
    aval = node.aval
    if seed is None:
        if aval.size != 1:
            raise refuse(
                RuntimeError,
                name,
                f"grad can be implicitly created only for scalar outputs, but this tensor has shape {aval.shape}. Reduce it (.mean() or"
                f" .sum()) or pass {'gradient' if name == 'backward' else 'grad_outputs'}= of shape {aval.shape}.",
            )
        if aval.dtype.is_complex:
            raise refuse(
                RuntimeError, name, "grad can be implicitly created only for real scalar outputs but got complex → differentiate .real, or pass a seed"
            )
        return None
    if not isinstance(seed, Tensor):
        raise refuse(TypeError, name, f"gradients can be either Tensors or None, but got {type(seed).__name__}")
    given = seed.node
    if batched and not given.aval.shape:
        raise refuse(ValueError, name, "is_grads_batched=True needs a batch axis first, but a gradient is a tensor of dimensionality 0")
    shape = given.aval.shape[1:] if batched else given.aval.shape
    if shape != aval.shape:
        shapes = f"grad_output has a shape of {given.aval.shape} and output has a shape of {aval.shape}."
        if batched:
            raise refuse(
                RuntimeError,
                name,
                "If `is_grads_batched=True`, we interpret the first dimension of each grad_output as the batch dimension. The sizes of the"
                f" remaining dimensions are expected to match the shape of corresponding output, but a mismatch was detected: {shapes}",
            )
        raise refuse(RuntimeError, name, f"Mismatch in shape: {shapes}")
    if given.aval.dtype is not aval.dtype:
        if given.aval.dtype.is_complex != aval.dtype.is_complex:
            raise refuse(
                RuntimeError,
                name,
                f"For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in dtype: grad_output has a dtype"
                f" of {given.aval.dtype} and output has a dtype of {aval.dtype}.",
            )
        return record(CAST, (1,), (aval.dtype,), (given,))
    return given


__all__ = ["backward", "grad", "wrap"]
