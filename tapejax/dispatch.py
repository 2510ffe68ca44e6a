"""From a user's call to a node: operands, promotion, modes; then the Tensor that names it.

Every op gets a caller generated with torch's signature. The everyday arities are inlined: one read of the mode, one dict
lookup, two allocations. Whatever they do not cover goes through `call`.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tapejax import dtypes, rng
from tapejax.errors import refuse
from tapejax.storage.cell import NO_GRAD, Alias
from tapejax.storage.view import Lens, alias_of, check_writable, lens_of, made_view, refresh, write
from tapejax.tape.aval import WEAK_INT
from tapejax.tape.infer import infer
from tapejax.tape.modes import MODE
from tapejax.tape.node import NEVER, SCALAR, Kind, Node, leaf, scalar
from tapejax.tape.note import note_of
from tapejax.tape.op import COMPOSITES, TABLE, Op, Param
from tapejax.tape.record import pick, record, record_kind
from tapejax.tape.waiting import HORIZON, WAITING
from tapejax.tensor import Tensor, leaf_node, wrap

_new = object.__new__
_empty = inspect.Parameter.empty
_NUMBERS = frozenset((float, int, bool, complex))


def operand(x: Any, op: Op, name: str) -> Node:
    """The node of an operand: a Tensor's current value, a Python number as a leaf, an array as a leaf."""
    if isinstance(x, Tensor):
        return x.node
    if type(x) in _NUMBERS:
        return scalar(x)
    if isinstance(x, np.generic):
        return scalar(x.item())
    if isinstance(x, (np.ndarray, jax.Array)):
        if isinstance(x, jax.Array):
            return leaf_node(x, dtypes.of(x.dtype), None)
        raise refuse(TypeError, op.name, f"argument '{name}' must be Tensor, not numpy.ndarray → tapejax.from_numpy(x)")
    if isinstance(x, (int, float, complex)):
        kind: Any = next(k for k in (bool, int, float, complex) if isinstance(x, k))
        return scalar(kind(x))
    raise refuse(TypeError, op.name, f"argument '{name}' (position {op.operands.index(name) + 1}) must be Tensor, not {type(x).__name__}")


def static(x: Any) -> Any:
    """A static argument in hashable form: lists become tuples, NumPy and 0-d tensor integers become ints."""
    if isinstance(x, (list, tuple)):
        return tuple(static(v) for v in x)
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, Tensor):
        return x.item()
    if isinstance(x, (type, np.dtype)) or type(x).__name__ == "dtype":
        return dtypes.of(x)
    return x


def call(op: Op, operands: tuple[Any, ...], statics: tuple[Any, ...]) -> Any:
    """Record `op`; `operands` in the order of its operand parameters, `statics` in the order of its statics."""
    if op.only_arrays:
        short: list[Node] = []
        avals_list: list[Any] = []
        for x in operands:
            if x is None:
                avals_list.append(None)
                continue
            if x.__class__ in _NUMBERS:
                node = scalar(x)
            else:
                try:
                    a = x._alias
                    node = x._node if a is None or a.seen == a.storage.epoch else refresh(x)
                except AttributeError:
                    return _record(op, operands, statics, None)
            short.append(node)
            avals_list.append(node.aval)
        key = (tuple(avals_list), statics)
        try:
            kind = op.kinds.get(key)
        except TypeError:
            return _record(op, operands, statics, None)
        if kind is None:
            return _record(op, operands, statics, key)
        node = record_kind(kind, tuple(short))
        return _result(op, kind, node, operands)
    return _record(op, operands, statics, None)


def _record(op: Op, operands: tuple[Any, ...], statics: tuple[Any, ...], remember: Any) -> Any:
    """The general way; the kind is remembered under the short key as well."""
    inputs: list[Node] = []
    form: list[Any] = []
    given = iter(operands)
    for p in op.params:
        if p.role == "static":
            continue
        x = next(given)
        if p.role == "seed":
            seed, counter = (x or rng.default_generator).draw()
            inputs += [scalar(seed), scalar(counter)]
            form.append(1)
        elif p.role == "arrays":
            if isinstance(x, Tensor):
                raise refuse(TypeError, op.name, f"argument '{p.name}' must be a tuple of Tensors, not Tensor → pass [x]")
            members = [operand(v, op, p.name) for v in x]
            inputs += members
            form.append((len(members),))
        elif x is p.default and (x is None or p.role == "scalar"):
            form.append(None)
        elif x is None:
            raise refuse(TypeError, op.name, f"argument '{p.name}' must be Tensor, not None")
        else:
            inputs.append(operand(x, op, p.name))
            form.append(1)
    shape = tuple(form)
    nodes = tuple(inputs)
    avals = tuple([n.aval for n in nodes])
    key = (shape, statics, avals)
    try:
        kind = op.kinds.get(key)
    except TypeError:
        kind = None
    if kind is None:
        statics = static(statics)
        key = (shape, statics, avals)
        kind = op.kinds.get(key) or infer(op, key, shape, statics, avals)
    if remember is not None:
        op.kinds[remember] = kind
    return _result(op, kind, record_kind(kind, nodes), operands)


def _result(op: Op, kind: Kind, node: Node, operands: tuple[Any, ...]) -> Any:
    if kind.avals is not None:
        return _several(op, node)
    made = wrap(node)
    if op.put is not None:
        made_view(operands[0], made, lens_of(kind, node.inputs[1:]))
    return made


_return_types: dict[Op, Any] = {}


def _several(op: Op, node: Node) -> Any:
    outputs = tuple(wrap(pick(node, i)) for i in range(len(node.kind.avals)))
    if node.requires_grad:
        note_of(node).outputs = [weakref.ref(o._node) for o in outputs]
    if not op.returns:
        return outputs
    made = _return_types.get(op)
    if made is None:
        made = _return_types[op] = _return_type(op)
    return made(*outputs)


def _return_type(op: Op) -> Any:
    from collections import namedtuple

    return namedtuple(op.name.strip("_"), op.returns)  # noqa: PYI024 (fields come from the table)


def _unary(op: Op, absent: int) -> Callable[[Any], Any]:
    """The caller of a one-operand op without statics; `absent` scalars keep their defaults."""
    kinds = op.kinds
    new = _new
    rest = tuple(p.default for p in op.params[1 : 1 + absent])

    def record_unary(input: Any) -> Any:
        try:
            a = input._alias
            x = input._node if a is None or a.seen == a.storage.epoch else refresh(input)
        except AttributeError:
            return call(op, (input, *rest), ())
        mode = MODE.get()
        kind = kinds.get(x.aval)
        if kind is None or mode > 1:
            made = call(op, (input, *rest), ())
            if made.__class__ is Tensor:  # several-output ops never take the short way
                kinds[x.aval] = made._node.kind
            return made
        oldest = x.oldest
        node = Node(kind, (x,), kind.aval, x.requires_grad and mode == 1 and kind.differentiable and True, oldest)
        if oldest < HORIZON[0]:
            WAITING.stale.append(weakref.ref(node))
        made = new(Tensor)
        made._node = node
        made._alias = None
        made._meta = None
        return made

    return record_unary


def _unary_static(op: Op) -> Callable[[Any, tuple[Any, ...]], Any]:
    """Record a one-operand op with statics: reductions, softmax, most views."""
    kinds = op.kinds
    new = _new
    is_view = op.is_view

    def record_unary_static(input: Any, statics: tuple[Any, ...]) -> Any:
        try:
            a = input._alias
            x = input._node if a is None or a.seen == a.storage.epoch else refresh(input)
            kind = kinds.get((x.aval, statics))
        except (AttributeError, TypeError):  # not a Tensor, or a list among the statics
            return call(op, (input,), statics)
        mode = MODE.get()
        if kind is None or mode > 1:
            made = call(op, (input,), statics)
            if made.__class__ is Tensor:
                kinds[(x.aval, statics)] = made._node.kind
            return made
        oldest = x.oldest
        node = Node(kind, (x,), kind.aval, x.requires_grad and mode == 1 and kind.differentiable and True, oldest)
        if oldest < HORIZON[0]:
            WAITING.stale.append(weakref.ref(node))
        made = new(Tensor)
        made._node = node
        made._alias = None
        made._meta = None
        if is_view:
            made_view(input, made, kind.lens or lens_of(kind, ()))
        return made

    return record_unary_static


def _positioned(op: Op) -> Callable[[Any, Any, tuple[Any, ...]], Any]:
    """Record a view at an index: `x[i]`, `x[a:b]`."""
    kinds = op.kinds
    new = _new

    def record_positioned(input: Any, index: Any, statics: tuple[Any, ...]) -> Any:
        mode = MODE.get()
        if index.__class__ is not int or mode > 1:
            return call(op, (input, index), statics)
        try:
            a = input._alias
            x = input._node if a is None or a.seen == a.storage.epoch else refresh(input)
        except AttributeError:
            return call(op, (input, index), statics)
        kind = kinds.get(((x.aval, WEAK_INT), statics))
        if kind is None:
            return call(op, (input, index), statics)
        at = Node(SCALAR, (), WEAK_INT, False, NEVER, index)
        oldest = x.oldest
        node = Node(kind, (x, at), kind.aval, x.requires_grad and mode == 1 and kind.differentiable and True, oldest)
        if oldest < HORIZON[0]:
            WAITING.stale.append(weakref.ref(node))
        made = new(Tensor)
        made._node = node
        made._meta = None
        under = a or alias_of(input)  # as in made_view
        storage, counter = under.storage, under.storage.counter
        made._alias = Alias(storage, (*under.lenses, Lens(kind, (at,))), under.flags if mode else under.flags | NO_GRAD, under.multi)
        node.home = (counter, counter.version)
        return made

    return record_positioned


def _binary(op: Op, absent: int) -> Callable[[Any, Any], Any]:
    """The caller of a two-operand op without statics; `absent` scalars keep their defaults."""
    kinds = op.kinds
    new = _new
    numbers = _NUMBERS
    rest = tuple(p.default for p in op.params[2 : 2 + absent])

    def record_binary(input: Any, other: Any) -> Any:
        try:
            if input.__class__ in numbers:
                x = scalar(input)
            else:
                a = input._alias
                x = input._node if a is None or a.seen == a.storage.epoch else refresh(input)
            if other.__class__ in numbers:
                y = scalar(other)
            else:
                a = other._alias
                y = other._node if a is None or a.seen == a.storage.epoch else refresh(other)
        except AttributeError:
            return call(op, (input, other, *rest), ())
        mode = MODE.get()
        kind = kinds.get((x.aval, y.aval))
        if kind is None or mode > 1:
            made = call(op, (input, other, *rest), ())
            if made.__class__ is Tensor:
                kinds[(x.aval, y.aval)] = made._node.kind
            return made
        oldest = x.oldest
        if y.oldest < oldest:
            oldest = y.oldest
        node = Node(kind, (x, y), kind.aval, mode == 1 and (x.requires_grad or y.requires_grad) and kind.differentiable and True, oldest)
        if oldest < HORIZON[0]:
            WAITING.stale.append(weakref.ref(node))
        made = new(Tensor)
        made._node = node
        made._alias = None
        made._meta = None
        return made

    return record_binary


def caller(op: Op) -> Callable[..., Any]:
    """The Python function with torch's signature that records `op`."""
    found: Any = None
    if op.put is None and not op.statics and not op.returns:
        required = [p for p in op.params if p.role == "array" and p.default is _empty]
        optional = [p for p in op.params if p.role == "scalar" and p.default is not _empty]
        if len(required) + len(optional) == len(op.params) and list(op.params) == required + optional:
            short = {1: _unary, 2: _binary}.get(len(required))
            if short is not None:
                found = short(op, len(optional))
                if optional:
                    quick = found
                    found = _or_general(quick, _generated(op), len(required))
                    found.short = quick  # for Python's operators
    if found is None:
        found = _generated(op)
    found.__name__ = found.__qualname__ = op.name
    found.__doc__ = op.__doc__
    found.__wrapped_op__ = op
    return found


def _or_general(short: Callable[..., Any], general: Callable[..., Any], operands: int) -> Callable[..., Any]:
    """The short way when only the operands are given, the general one otherwise."""
    if operands == 2:

        def two(input: Any, other: Any, *rest: Any, **named: Any) -> Any:
            return general(input, other, *rest, **named) if rest or named else short(input, other)

        return two

    def one(input: Any, *rest: Any, **named: Any) -> Any:
        return general(input, *rest, **named) if rest or named else short(input)

    return one


def _generated(op: Op) -> Callable[..., Any]:
    """Generate `def f(<torch's signature>): return call(op, operands, statics)`."""
    space: dict[str, Any] = {"_call": call, "_op": op, "_spread": _spread}
    seeds = [p for p in op.params if p.role == "seed"]
    visible = [p for p in op.params if p.role != "seed"]
    positional = [p for p in visible if not p.keyword_only]
    keyword = [p for p in visible if p.keyword_only]
    signature: list[str] = []
    prologue = ""
    spread = next((p for p in positional if p.spread), None)
    if spread is not None and positional[-1] is not spread:
        spread = None

    def parameter(p: Param) -> str:
        if p.default is _empty:
            return p.name
        space[f"_default_{p.name}"] = p.default
        return f"{p.name}=_default_{p.name}"

    for p in positional:
        if p is spread:
            signature.append(f"*{p.name}")
            space["_missing"] = _empty
            space[f"_default_{p.name}"] = p.default
            prologue = f"    {p.name} = _spread({p.name}, _named, _op, '{p.name}', _default_{p.name})\n"
        else:
            signature.append(parameter(p))
    if spread is None and (keyword or seeds):
        signature.append("*")
    signature += [parameter(p) for p in keyword]
    if seeds:
        signature.append("generator=None")
    if spread is not None:
        signature.append("**_named")
    name = op.name if op.name.isidentifier() else "f"
    roles = [p.role for p in op.params if p.role != "static"]
    if roles == ["array", "array"] and op.is_view and not op.returns:
        space.update(_short=_positioned(op))
        view, index = (p.name for p in op.params if p.role != "static")
        statics = "".join(f"{p.name}, " for p in op.params if p.role == "static")
        exec(f"def {name}({', '.join(signature)}):\n{prologue}    return _short({view}, {index}, ({statics}))\n", space)
        return space[name]
    if roles == ["array"] and op.params[0].role == "array" and not op.returns:
        space.update(_short=_unary_static(op), _kinds=op.kinds)
        statics = "".join(f"{p.name}, " for p in op.params[1:])
        exec(f"def {name}({', '.join(signature)}):\n{prologue}    return _short({op.params[0].name}, ({statics}))\n", space)
        return space[name]
    operands = "".join(f"{'generator' if p.role == 'seed' else p.name}, " for p in op.params if p.role != "static")
    statics = "".join(f"{p.name}, " for p in op.params if p.role == "static")
    exec(f"def {name}({', '.join(signature)}):\n{prologue}    return _call(_op, ({operands}), ({statics}))\n", space)
    return space[name]


def _spread(values: tuple[Any, ...], named: dict[str, Any], op: Op, name: str, default: Any) -> Any:
    """`f(x, 2, 3)`, `f(x, (2, 3))` and `f(x, size=(2, 3))` mean the same."""
    if named:
        if set(named) != {name} or values:
            raise refuse(TypeError, op.name, f"got an unexpected keyword argument {next(iter(set(named) - {name}), name)!r}")
        values = (named[name],)
    if not values:
        if default is _empty:
            raise refuse(TypeError, op.name, f"missing required argument {name!r}")
        return default
    if len(values) == 1 and not isinstance(values[0], (int, np.integer)):
        first = values[0]
        return tuple(first) if isinstance(first, (list, tuple)) else (first.item(),) if isinstance(first, Tensor) else first
    return values


def in_place(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The in-place twin of an op's or composite's function: compute, check torch's rules, write."""

    def twin(self: Any, *args: Any, **kwargs: Any) -> Any:
        others = any(isinstance(a, Tensor) and a.requires_grad for a in (*args, *kwargs.values()))
        check_writable(self, f"{name}_", others)
        result = function(self, *args, **kwargs)
        assign(self, result._node, f"{name}_")
        return self

    twin.__name__ = twin.__qualname__ = f"{name}_"
    twin.__doc__ = f"In-place version of `{name}`."
    return twin


def assign(tensor: Tensor, value: Node, name: str) -> None:
    """Write `value` into `tensor`: same shape, the tensor's type (by torch's casting rule)."""
    aval = tensor._node.aval
    if value.aval is not aval:
        if value.aval.shape != aval.shape:
            raise refuse(
                RuntimeError,
                name,
                f"output with shape {list(aval.shape)} doesn't match the broadcast shape {list(value.aval.shape)} → only the other operand is"
                " broadcast when writing in place",
            )
        if value.aval.dtype is not aval.dtype:
            if value.aval.dtype.category > aval.dtype.category:
                raise refuse(
                    RuntimeError,
                    name,
                    f"result type {value.aval.dtype.tensor_name} can't be cast to the desired output type {aval.dtype.tensor_name} → use the"
                    " out-of-place operation",
                )
            value = record(CAST, (1,), (aval.dtype,), (value,))
    write(tensor, value)


def _cast_body(input: Any, dtype: dtypes.dtype) -> Any:
    if np.issubdtype(input.dtype, np.complexfloating) and not dtype.is_complex and dtype is not dtypes.bool_:
        input = input.real
    return input.astype(dtype.np)


CAST = Op(
    _cast_body,
    "",
    {"name": "to_dtype", "grad_name": "ToCopy", "oracle": None},
    [Param("input", "array", False, _empty, False), Param("dtype", "static", False, _empty, False)],
)


def bind_all() -> None:
    """Give every declared op its caller. Runs once, after the op modules are imported."""
    for op in TABLE.values():
        if "call" not in op.__dict__:
            op.call = caller(op)


def exposures() -> dict[str, dict[str, Any]]:
    """Namespace -> name -> function, from the declarations: what `tapejax/__init__.py` installs."""
    spaces: dict[str, dict[str, Any]] = {}

    def expose(where: str, name: str, function: Any) -> None:
        spaces.setdefault(where, {})[name] = function

    for op in TABLE.values():
        for where in op.expose:
            for name in (op.name, *op.aliases):
                if where.endswith("_"):
                    expose(where[:-1], f"{name}_", in_place(op.call, name))
                else:
                    expose(where, name, op.call)
    for function, places, names in COMPOSITES:
        for where in places:
            for name in names:
                if where.endswith("_"):
                    expose(where[:-1], f"{name}_", in_place(function, name))
                else:
                    expose(where, name, function)
    return spaces


__all__ = ["CAST", "NEVER", "assign", "bind_all", "call", "caller", "exposures", "in_place", "leaf"]
