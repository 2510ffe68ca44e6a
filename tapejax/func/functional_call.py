"""Modules as functions of their parameters: functional_call and stack_module_state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tapejax.errors import refuse
from tapejax.tensor import Tensor


def functional_call(
    module: Any,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call `module` with other parameters and buffers, given by name; its own are untouched.

    Names left out keep the module's tensors, unless `strict`. `args` is a tuple (or one value). Writes into a given buffer
    (running statistics) are seen in it. With `tie_weights`, a tensor that the module has under several names is replaced
    under all of them when one is given.
    """
    if isinstance(parameter_and_buffer_dicts, Mapping):
        given = dict(parameter_and_buffer_dicts)
    elif isinstance(parameter_and_buffer_dicts, Sequence):
        if not all(isinstance(d, Mapping) for d in parameter_and_buffer_dicts):
            raise refuse(
                ValueError, "functional_call", "Expected all elements of parameter_and_buffer_dicts to be dictionaries"
            )
        names = [n for d in parameter_and_buffer_dicts for n in d]
        repeated = sorted({n for n in names if names.count(n) > 1})
        if repeated:
            raise refuse(
                ValueError,
                "functional_call",
                f"{repeated} appeared in multiple dictionaries; behavior of functional call is ambiguous",
            )
        given = {n: t for d in parameter_and_buffer_dicts for n, t in d.items()}
    else:
        raise refuse(
            ValueError,
            "functional_call",
            f"Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got {type(parameter_and_buffer_dicts)}",
        )
    arguments = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, given, tie_weights, strict):
        return module(*arguments, **(kwargs or {}))


def _places(module: Any) -> dict[str, tuple[dict[str, Any], str]]:
    """Full name -> (the dict that holds it, its name there), shared tensors under every name."""
    found = {}
    for prefix, sub in module.named_modules(remove_duplicate=False):
        for table in (sub._parameters, sub._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    found[f"{prefix}.{name}" if prefix else name] = (table, name)
    return found


@contextmanager
def _replaced(module: Any, given: dict[str, Any], tie: bool, strict: bool) -> Iterator[None]:
    places = _places(module)
    tied: dict[int, list[str]] = {}
    for name, (table, key) in places.items():
        tied.setdefault(id(table[key]), []).append(name)
    new = dict(given)
    if tie:
        for names in tied.values():
            values = {id(given[n]): given[n] for n in names if n in given}
            if len(values) > 1:
                raise refuse(
                    ValueError,
                    "functional_call",
                    f"functional_call got multiple values for keys {sorted(names)}, which are tied. Consider using tie_weights=False",
                )
            if values:
                new.update(dict.fromkeys(names, next(iter(values.values()))))
    if strict:
        unexpected = sorted(n for n in new if n not in places)
        missing = sorted(n for n in places if n not in new)
        if unexpected or missing:
            lines = [f"Error(s) in reparametrizing for {type(module).__name__}:"]
            for what, names in (("Unexpected", unexpected), ("Missing", missing)):
                if names:
                    lines.append(f"{what} key(s): " + ", ".join(f"{n!r}" for n in names) + ".")
            raise refuse(RuntimeError, "functional_call", "\n\t".join(lines))
    chosen = [(*places[n], t) for n, t in new.items() if n in places]
    before = [table[key] for table, key, _ in chosen]
    try:
        for table, key, tensor in chosen:
            table[key] = tensor
        yield
    finally:
        for (table, key, _), tensor in zip(chosen, before, strict=True):
            table[key] = tensor


def stack_module_state(models: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and the buffers of equal modules, stacked along a new first axis: an ensemble for `vmap`.

    Stacked parameters are leaves that require grad as the originals do.
    """
    import tapejax

    models = list(models)
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if not (all(m.training for m in models) or all(not m.training for m in models)):
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode.",
        )
    if any(type(m) is not type(models[0]) for m in models):
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    stack: Any = tapejax.stack  # type: ignore[attr-defined]

    def stacked(tables: list[dict[str, Any]]) -> dict[str, Any]:
        found = {}
        for name in tables[0]:
            tensors = [t[name] for t in tables]
            if any(t.requires_grad != tensors[0].requires_grad for t in tensors):
                raise refuse(
                    RuntimeError,
                    "stack_module_state",
                    f"Expected {name} from each model to have the same .requires_grad",
                )
            made = stack([t.detach() for t in tensors])
            found[name] = made.requires_grad_() if tensors[0].requires_grad else made
        return found

    return stacked([dict(m.named_parameters()) for m in models]), stacked([dict(m.named_buffers()) for m in models])
