"""From what the user names (a file, a file's function, a module's function, ops) to calls that can be checked."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

import tapejax
from tapejax.ops.samples import Make
from tapejax.tape.op import TABLE, Op, Sample
from tapejax.tensor import Tensor

from .errors import Unusable, first_line
from .inputs import differentiable, random_input


@dataclass
class Target:
    """One call to check: `function(*inputs)`."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    kinks_pass: bool = False  # an op's sample may sit on a kink on purpose, to show the convention there


def targets_of(spec: str, inputs: Sequence[str], seed: int) -> list[Target]:
    """What `path.py:function`, `module:function` or `path.py` names, with `--input`s or the file's `example_inputs()`."""
    place, _, name = spec.rpartition(":") if ":" in spec else (spec, "", "")
    module = _load(place)
    given = tuple(random_input(i, np.random.default_rng([seed, n])) for n, i in enumerate(inputs))
    if name:
        return [_target(f"{os.path.basename(place)}:{name}", _function(module, place, name), given or _examples(module, place, name))]
    return list(_checks(module, place, given))


def _load(place: str) -> ModuleType:
    if not place.endswith(".py") and os.sep not in place:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as e:
            if e.name is not None and not place.startswith(e.name):
                raise Unusable(f"{place}: needs the module {e.name!r}, which is not installed") from None
            raise Unusable(f"{place}: no such module → path/to/file.py:function, or a module that can be imported from here") from None
        except Exception as e:
            raise Unusable(f"importing {place} raised {first_line(e)}") from None
    if not os.path.isfile(place):
        folder = os.path.dirname(place) or "."
        near = difflib.get_close_matches(os.path.basename(place), os.listdir(folder), 1) if os.path.isdir(folder) else []
        raise Unusable(f"{place}: no such file" + (f" → did you mean {os.path.join(os.path.dirname(place), near[0])}?" if near else ""))
    folder = os.path.dirname(os.path.abspath(place))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = os.path.splitext(os.path.basename(place))[0]
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise Unusable(f"running {place} raised {first_line(e)}{_at(e, place)}") from None
    return module


def _at(error: BaseException, place: str) -> str:
    """` (file.py:12)`: the innermost line of the user's file."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if os.path.abspath(path) == os.path.abspath(place):
            found = f" ({os.path.basename(path)}:{trace.tb_lineno})"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.lineno:
        found = f" ({os.path.basename(place)}:{error.lineno})"
    return found


def _function(module: ModuleType, place: str, name: str) -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found
    callables = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_") and getattr(v, "__module__", "") == module.__name__]
    near = difflib.get_close_matches(name, callables, 1)
    hint = f" → did you mean {near[0]}?" if near else f" → it has {', '.join(callables[:8])}" if callables else ""
    raise Unusable(f"{place} has no function {name!r}{hint}")


def _examples(module: ModuleType, place: str, name: str) -> tuple[Any, ...]:
    make = getattr(module, "example_inputs", None)
    if make is None:
        return ()
    try:
        found = make()
    except Exception as e:
        raise Unusable(f"example_inputs() of {place} raised {first_line(e)}{_at(e, place)}") from None
    if isinstance(found, dict):
        found = found.get(name, ())
    return differentiable(found if isinstance(found, (tuple, list)) else (found,))


def _checks(module: ModuleType, place: str, given: tuple[Any, ...]) -> Iterator[Target]:
    names = [n for n, v in vars(module).items() if n.startswith("check_") and inspect.isfunction(v)]
    if not names:
        raise Unusable(f"{place}: no function is named and it has no check_* functions → {place}:function, or define check_something(x)")
    for name in names:
        function = getattr(module, name)
        title = f"{os.path.basename(place)}:{name}"
        if inspect.signature(function).parameters:
            yield _target(title, function, given or _examples(module, place, name))
            continue
        try:
            found = function()
        except Exception as e:
            raise Unusable(f"{title}() raised {first_line(e)}{_at(e, place)}") from None
        if not (isinstance(found, tuple) and len(found) == 2 and callable(found[0])):
            raise Unusable(f"{title}() takes no arguments, so it must return (function, inputs), not {type(found).__name__}")
        inputs = found[1] if isinstance(found[1], (tuple, list)) else (found[1],)
        yield _target(title, found[0], differentiable(inputs))


def _target(title: str, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Target:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        names: list[str] = []
    else:
        takes = ", ".join(signature.parameters)
        if not inputs and signature.parameters:
            raise Unusable(f"{title}({takes}) needs inputs → --input 'float64[3,4]' for each, or define example_inputs() in the file")
        try:
            bound = signature.bind(*inputs)
        except TypeError:
            raise Unusable(f"{title}({takes}) does not take {len(inputs)} inputs → give one --input for each of its parameters") from None
        names = []
        for name, value in bound.arguments.items():
            spread = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            names += [f"{name}[{i}]" for i in range(len(value))] if spread else [name]
    if not any(isinstance(t, Tensor) and t.requires_grad for t in inputs):
        raise Unusable(f"{title}: no input can be differentiated, its inputs are {_kinds(inputs)} → give a floating or complex --input")
    return Target(title, function, inputs, tuple(names) or tuple(f"input {i}" for i in range(len(inputs))))


def _kinds(inputs: tuple[Any, ...]) -> str:
    return ", ".join(t.dtype.name if isinstance(t, Tensor) else type(t).__name__ for t in inputs) or "none"


# -- the op table ------------------------------------------------------------------------------------------------------


def ops_named(names: Sequence[str]) -> list[Op]:
    """The ops that `--op NAME` (or an alias of it) names; every op with samples for `all`."""
    if "all" in names:
        return [op for _, op in sorted(TABLE.items())]
    aliases = {alias: op for op in TABLE.values() for alias in (op.name, *op.aliases)}
    found = []
    for name in names:
        op = aliases.get(name)
        if op is None:
            near = difflib.get_close_matches(name, aliases, 3, 0.5)
            raise Unusable(f"there is no op {name!r}" + (f" → did you mean {' or '.join(near)}?" if near else " → --ops all checks every one"))
        found.append(op)
    return found


def op_targets(op: Op, seed: int) -> tuple[list[Target], int]:
    """The op's own samples that can be differentiated, each as a call on the tensors among its arguments.

    And how many more have no slope to compare with: they show a convention (see `rough`), infinity or NaN.
    """
    if not op.differentiable:
        return [], 0
    found = [(s, _sample_target(op, i, s, seed)) for i, s in enumerate(op.sample_inputs(Make(seed)))]
    compared = [t for s, t in found if t is not None and s.smooth]
    return compared, sum(t is not None for _, t in found) - len(compared)


def _sample_target(op: Op, number: int, sample: Sample, seed: int) -> Target | None:
    inputs: list[Tensor] = []
    names: list[str] = []
    parameters = [p.name for p in op.params if p.role != "seed"]

    def place(value: Any, name: str) -> Any:
        if isinstance(value, np.ndarray):
            tensor = tapejax.from_numpy(value)  # type: ignore[attr-defined]
            inputs.append(tensor.requires_grad_() if tensor.dtype.is_differentiable else tensor)
            names.append(name)
            return _Slot(len(inputs) - 1)
        if isinstance(value, (list, tuple)) and any(isinstance(v, np.ndarray) for v in value):
            return type(value)(place(v, f"{name}[{i}]") for i, v in enumerate(value))
        return value

    args = [place(a, parameters[i] if i < len(parameters) else f"argument {i}") for i, a in enumerate(sample.args)]
    kwargs = {k: place(v, k) for k, v in sample.kwargs.items()}
    if not any(t.requires_grad for t in inputs):
        return None
    random = any(p.role == "seed" for p in op.params)

    def run(*tensors: Any) -> Any:
        if random:
            tapejax.manual_seed(seed)
        if op.triangle:  # one triangle is read, and its gradient stands for both: move both alike
            tensors = ((tensors[0] + tensors[0].mH) / 2, *tensors[1:])
        return op(*[_fill(a, tensors) for a in args], **{k: _fill(v, tensors) for k, v in kwargs.items()})

    return Target(f"{op.name} #{number}", run, tuple(inputs), tuple(names), kinks_pass=True)


@dataclass(frozen=True)
class _Slot:
    index: int


def _fill(value: Any, tensors: tuple[Any, ...]) -> Any:
    if isinstance(value, _Slot):
        return tensors[value.index]
    if isinstance(value, (list, tuple)) and any(isinstance(v, _Slot) for v in value):
        return type(value)(_fill(v, tensors) for v in value)
    return value
