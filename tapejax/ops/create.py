"""Factories: tensors from sizes, from Python data and from NumPy.

Sizes and element types are part of the program; a fill value is a leaf, so a changing one recompiles nothing. The
factories that need no data are recorded like any op and cost nothing until somebody reads them. Each user-facing
factory is a thin function over an op: it settles the element type (the default type may change between two calls), the
device and `requires_grad`.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.shape import spread
from tapejax.tape import modes
from tapejax.tape.op import Array, Scalar, composite, op, sample
from tapejax.tensor import Tensor, leaf_tensor


def finish(name: str, made: Any, device: Any, requires_grad: bool, out: Any = None) -> Any:
    """Give a freshly made tensor its device and its `requires_grad`."""
    if out is not None:
        raise refuse(NotImplementedError, name, f"out= is not supported → use out.copy_(tapejax.{name}(...))")
    if device is not None:
        made = made.to(device=device)
    return made.requires_grad_() if requires_grad else made


def resembling(made: Any, input: Any) -> Any:
    """Inside `vmap` a tensor made after one example's is one example's: it may be written into."""
    return of_example(made, input) if modes.tracing() else made


@op("", oracle=None, differentiable=False)
def of_example(input: Array, other: Array) -> Any:
    """Return `input`, a constant, as a value that belongs to the example `other` belongs to."""
    return input


def shape_of(name: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    """Return a size given as `(2, 3)`, `((2, 3),)` or `(2, tensor(3))` as ints; negative ones are refused."""
    try:
        full = tuple(s.__index__() for s in spread(size))
    except (AttributeError, TypeError):
        raise refuse(TypeError, name, f"argument 'size' must be tuple of ints, got {size!r}") from None
    if any(s < 0 for s in full):
        raise refuse(RuntimeError, name, f"Trying to create tensor with negative dimension {min(full)}: {list(full)}")
    return full


def float_type(dtype: Any) -> dtypes.dtype:
    """Return the asked element type, or the default floating one."""
    return dtypes.get_default_dtype() if dtype is None else dtypes.of(dtype)


# ---------------------------------------------------------------- the ops


@op("", oracle=None, differentiable=False)
def zeros_(size: tuple[int, ...], dtype: dtypes.dtype) -> Array:
    """Return zeros of shape `size`."""
    return jnp.zeros(size, dtype.np)


@op("", oracle=None, differentiable=False)
def ones_(size: tuple[int, ...], dtype: dtypes.dtype) -> Array:
    """Return ones of shape `size`."""
    return jnp.ones(size, dtype.np)


@op("", oracle=None, differentiable=False)
def full_(fill_value: Scalar, size: tuple[int, ...], dtype: dtypes.dtype) -> Array:
    """Return a tensor of shape `size` filled with `fill_value`."""
    return jnp.full(size, jnp.asarray(fill_value).astype(dtype.np))


@op("", oracle=None, differentiable=False)
def arange_(start: Any, step: Any, length: int, dtype: dtypes.dtype) -> Array:
    """Return start + step * i for i in 0 … length - 1."""
    if dtype.category < 2 and isinstance(start, int) and isinstance(step, int):
        return (start + step * lax.iota(jnp.int64, length)).astype(dtype.np)
    return (start + step * lax.iota(jnp.float64, length)).astype(dtype.np)  # rounded once, as torch does on the CPU


@op("", oracle=None, differentiable=False)
def linspace_(start: Scalar, end: Scalar, steps: int, dtype: dtypes.dtype) -> Array:
    """Return `steps` values from `start` to `end`, both included."""
    return _evenly(start, end, steps, dtype).astype(dtype.np)


def _evenly(start: Any, end: Any, steps: int, dtype: dtypes.dtype) -> Any:
    wide = jnp.complex128 if dtype.is_complex else jnp.float64
    first, last = jnp.asarray(start).astype(wide), jnp.asarray(end).astype(wide)
    i = lax.iota(jnp.float64, steps)
    by = (last - first) / max(steps - 1, 1)
    # From both ends, so that the ends are exact and the values symmetric.
    return jnp.where(i < steps / 2, first + by * i, last - by * (steps - 1 - i))


@op("", oracle=None, differentiable=False)
def logspace_(start: Scalar, end: Scalar, base: Scalar, steps: int, dtype: dtypes.dtype) -> Array:
    """Return base ** x for `steps` even x from `start` to `end`."""
    return (jnp.asarray(base).astype(jnp.float64) ** _evenly(start, end, steps, dtype)).astype(dtype.np)


@op("", oracle=None, differentiable=False)
def eye_(n: int, m: int, dtype: dtypes.dtype) -> Array:
    """Return the n × m matrix with ones on its diagonal."""
    return jnp.eye(n, m, dtype=dtype.np)


@zeros_.samples
def _(make):
    yield sample((2, 3), dtypes.float32)


@ones_.samples
def _(make):
    yield sample((), dtypes.int64)


@full_.samples
def _(make):
    yield sample(fill_value=2.5, size=(2, 1), dtype=dtypes.float64)
    yield sample(fill_value=True, size=(0,), dtype=dtypes.bool_)


@arange_.samples
def _(make):
    yield sample(0, 2, 4, dtypes.int64)
    yield sample(0.5, -0.25, 3, dtypes.float32)


@linspace_.samples
def _(make):
    yield sample(start=-1.0, end=2.0, steps=5, dtype=dtypes.float64)
    yield sample(start=3, end=9, steps=1, dtype=dtypes.float32)


@logspace_.samples
def _(make):
    yield sample(start=-1.0, end=2.0, base=10.0, steps=4, dtype=dtypes.float64)


@eye_.samples
def _(make):
    yield sample(3, 2, dtypes.float32)


# ---------------------------------------------------------------- from a size


@composite("torch")
def zeros(*size: Any, out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
          requires_grad: bool = False, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return zeros of shape `size` (ints or one tuple), of the default floating type unless `dtype` is given.

    >>> import tapejax as tj
    >>> tj.zeros(2).tolist()
    [0.0, 0.0]
    """
    return finish("zeros", zeros_(shape_of("zeros", size), float_type(dtype)), device, requires_grad, out)


@composite("torch")
def ones(*size: Any, out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
         requires_grad: bool = False, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return ones of shape `size` (ints or one tuple), of the default floating type unless `dtype` is given."""
    return finish("ones", ones_(shape_of("ones", size), float_type(dtype)), device, requires_grad, out)


@composite("torch")
def empty(*size: Any, out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
          requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None) -> Any:  # fmt: skip
    """Return a tensor of shape `size` to be filled later; its values are zeros here, never old memory."""
    return finish("empty", zeros_(shape_of("empty", size), float_type(dtype)), device, requires_grad, out)


@composite("torch")
def full(size: Any, fill_value: Any, *, out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
         requires_grad: bool = False, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return a tensor of shape `size` filled with the number `fill_value`, whose kind decides the type unless `dtype`
    does.

    A changing fill value recompiles nothing.
    """
    value = number("full", fill_value)
    target = dtypes.of(type(value) if dtype is None else dtype)
    return finish("full", full_(value, shape_of("full", (size,)), target), device, requires_grad, out)


def number(name: str, value: Any) -> Any:
    """Return a Python number given as such, as a NumPy scalar or as a one-element tensor (which is read)."""
    if isinstance(value, (bool, int, float, complex)):
        return value
    if not hasattr(value, "item"):
        raise refuse(TypeError, name, f"expected a number, got {type(value).__name__}")
    return value.item()


@composite("torch")
def arange(start: Any, end: Any = None, step: Any = 1, *, out: Any = None, dtype: Any = None, layout: Any = None,
           device: Any = None, requires_grad: bool = False, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return the values start, start + step, … below `end` (above it for a negative step).

    `arange(end)` starts at 0. Integers give int64, a float anywhere the default floating type. Raises RuntimeError for
    a step of 0 or one that leads away from `end`.

    >>> import tapejax as tj
    >>> tj.arange(1, 7, 2).tolist()
    [1, 3, 5]
    """
    if end is None:
        start, end = 0, start
    start, end, step = (number("arange", v) for v in (start, end, step))
    if dtype is None:
        target = dtypes.int64 if all(isinstance(v, int) for v in (start, end, step)) else dtypes.get_default_dtype()
    else:
        target = dtypes.of(dtype)
    if step == 0:
        raise refuse(RuntimeError, "arange", "step must be nonzero")
    if (end - start) * step < 0:
        raise refuse(
            RuntimeError, "arange", f"upper bound and lower bound inconsistent with step sign: {start}, {end}, {step}"
        )
    if not (math.isfinite(start) and math.isfinite(end)):
        raise refuse(RuntimeError, "arange", f"unsupported range: {start} -> {end}")
    exact = all(isinstance(v, int) for v in (start, end, step))
    length = -((start - end) // step) if exact else math.ceil((end - start) / step)
    return finish("arange", arange_(start, step, int(length), target), device, requires_grad, out)


@composite("torch")
def linspace(start: Any, end: Any, steps: int, *, out: Any = None, dtype: Any = None, layout: Any = None,
             device: Any = None, requires_grad: bool = False, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return `steps` evenly spaced values from `start` to `end`, both included. Changing ends recompile nothing."""
    if steps < 0:
        raise refuse(RuntimeError, "linspace", f"number of steps must be non-negative, got {steps}")
    ends = number("linspace", start), number("linspace", end)
    return finish("linspace", linspace_(*ends, int(steps), _spaced_type(dtype, *ends)), device, requires_grad, out)


@composite("torch")
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, out: Any = None, dtype: Any = None,
             layout: Any = None, device: Any = None, requires_grad: bool = False,
             pin_memory: bool = False) -> Any:  # fmt: skip
    """Return base ** x for `steps` evenly spaced x from `start` to `end`, both included."""
    if steps < 0:
        raise refuse(RuntimeError, "logspace", f"number of steps must be non-negative, got {steps}")
    ends = number("logspace", start), number("logspace", end)
    made = logspace_(*ends, number("logspace", base), int(steps), _spaced_type(dtype, *ends))
    return finish("logspace", made, device, requires_grad, out)


def _spaced_type(dtype: Any, start: Any, end: Any) -> dtypes.dtype:
    if dtype is None and (isinstance(start, complex) or isinstance(end, complex)):
        return dtypes.get_default_dtype().to_complex()
    return float_type(dtype)


@composite("torch")
def eye(n: int, m: int | None = None, *, out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
        requires_grad: bool = False, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return the n × m matrix (m = n unless given) with ones on its diagonal and zeros elsewhere."""
    n, m = n.__index__(), n.__index__() if m is None else m.__index__()
    if n < 0 or m < 0:
        raise refuse(RuntimeError, "eye", f"n must be greater or equal to 0, got {n} and m = {m}")
    return finish("eye", eye_(n, m, float_type(dtype)), device, requires_grad, out)


@composite("torch")
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, layout: Any = None
) -> Any:
    """Return the (2, N) row and column numbers of the lower triangle of a row × col matrix, row by row."""
    found = np.stack(np.tril_indices(row, offset, col))
    return leaf_tensor(
        found, dtype=dtypes.int64 if dtype is None else dtypes.of(dtype), device=device, requires_grad=False
    )


@composite("torch")
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None, layout: Any = None
) -> Any:
    """Return the (2, N) row and column numbers of the upper triangle of a row × col matrix, row by row."""
    found = np.stack(np.triu_indices(row, offset, col))
    return leaf_tensor(
        found, dtype=dtypes.int64 if dtype is None else dtypes.of(dtype), device=device, requires_grad=False
    )


# ---------------------------------------------------------------- like another tensor


def like(name: str, input: Any, dtype: Any, device: Any) -> tuple[tuple[int, ...], dtypes.dtype, Any]:
    """Return the shape, element type and device of a new tensor that resembles `input`."""
    if not isinstance(input, Tensor):
        raise refuse(TypeError, name, f"argument 'input' must be Tensor, not {type(input).__name__}")
    if device is None and input._node.aval.device is not None:  # where new values are made anyway otherwise
        device = input.device
    return tuple(input.shape), input.dtype if dtype is None else dtypes.of(dtype), device


@composite("torch")
def zeros_like(input: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
               memory_format: Any = None) -> Any:  # fmt: skip
    """Return zeros with the shape, type and device of `input`; no gradient flows to it."""
    size, target, where = like("zeros_like", input, dtype, device)
    return finish("zeros_like", resembling(zeros_(size, target), input), where, requires_grad)


@composite("torch")
def ones_like(input: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
              memory_format: Any = None) -> Any:  # fmt: skip
    """Return ones with the shape, type and device of `input`; no gradient flows to it."""
    size, target, where = like("ones_like", input, dtype, device)
    return finish("ones_like", resembling(ones_(size, target), input), where, requires_grad)


@composite("torch")
def empty_like(input: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
               memory_format: Any = None) -> Any:  # fmt: skip
    """Return a tensor to be filled later (zeros here) with the shape, type and device of `input`."""
    size, target, where = like("empty_like", input, dtype, device)
    return finish("empty_like", resembling(zeros_(size, target), input), where, requires_grad)


@composite("torch")
def full_like(input: Any, fill_value: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
              requires_grad: bool = False, memory_format: Any = None) -> Any:  # fmt: skip
    """Return a tensor filled with `fill_value`, with the shape, type and device of `input`."""
    size, target, where = like("full_like", input, dtype, device)
    return finish("full_like", resembling(full_(number("full_like", fill_value), size, target), input), where, requires_grad)


@composite("Tensor")
def new_zeros(input: Any, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False,
              layout: Any = None, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return zeros of shape `size`, with the type and device of this tensor unless given."""
    _, target, where = like("new_zeros", input, dtype, device)
    return finish("new_zeros", resembling(zeros_(shape_of("new_zeros", size), target), input), where, requires_grad)


@composite("Tensor")
def new_ones(input: Any, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False,
             layout: Any = None, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return ones of shape `size`, with the type and device of this tensor unless given."""
    _, target, where = like("new_ones", input, dtype, device)
    return finish("new_ones", resembling(ones_(shape_of("new_ones", size), target), input), where, requires_grad)


@composite("Tensor")
def new_empty(input: Any, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False,
              layout: Any = None, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return a tensor of shape `size` to be filled later (zeros here), with this one's type and device unless given."""
    _, target, where = like("new_empty", input, dtype, device)
    return finish("new_empty", resembling(zeros_(shape_of("new_empty", size), target), input), where, requires_grad)


@composite("Tensor")
def new_full(input: Any, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
             requires_grad: bool = False, layout: Any = None, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return a tensor of shape `size` filled with `fill_value`, with this one's type and device unless given."""
    _, target, where = like("new_full", input, dtype, device)
    made = full_(number("new_full", fill_value), shape_of("new_full", (size,)), target)
    return finish("new_full", resembling(made, input), where, requires_grad)


@composite("Tensor")
def new_tensor(input: Any, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False,
               layout: Any = None, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return a tensor of `data` with this one's type and device unless given; the data is copied."""
    _, target, where = like("new_tensor", input, dtype, device)
    return tensor(data, dtype=target, device=where, requires_grad=requires_grad)


# ---------------------------------------------------------------- from data


@composite("torch")
def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False,
           pin_memory: bool = False) -> Any:  # fmt: skip
    """Return a new leaf holding a copy of `data`: a number, nested sequences, a NumPy or JAX array, or a tensor.

    Python floats become the default floating type, ints int64, bools bool, complex numbers complex; arrays keep their
    type; tensors inside sequences are read and detached. Raises ValueError for ragged sequences, TypeError for other
    data.

    >>> import tapejax as tj
    >>> tj.tensor([[1, 2], [3, 4]]).dtype
    tapejax.int64
    """
    if isinstance(data, Tensor):
        warnings.warn(
            "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
            "sourceTensor.detach().clone().requires_grad_(True), rather than tapejax.tensor(sourceTensor).",
            UserWarning,
            stacklevel=2,
        )
        copied = data.detach().clone()
        if dtype is not None or device is not None:
            copied = copied.to(device=device, dtype=None if dtype is None else dtypes.of(dtype))
        return copied.requires_grad_() if requires_grad else copied
    values, target = read_data(data, None if dtype is None else dtypes.of(dtype))
    return leaf_tensor(values, dtype=target, device=device, requires_grad=requires_grad)


def read_data(data: Any, wanted: dtypes.dtype | None) -> tuple[Any, dtypes.dtype]:
    """Return a fresh array of `data` and its element type (`wanted`, or the one torch infers)."""
    if isinstance(data, jax.Array):
        target = wanted or dtypes.of(data.dtype)
        with jax.enable_x64(True):
            return data.astype(target.np), target
    if isinstance(data, (np.ndarray, np.generic)):
        target = wanted or _numpy_type(data)
        return np.array(data, dtype=target.np), target
    kind = type(data)
    if kind in (bool, int, float, complex):
        target = wanted or dtypes.of(kind)
        return _converted("tensor", data, target), target
    if not isinstance(data, (list, tuple, range)) and hasattr(data, "__array__"):
        return read_data(np.asarray(data), wanted)
    values, inferred = _read_sequence(data)
    target = wanted or inferred
    return values.astype(target.np), target


def _numpy_type(data: Any) -> dtypes.dtype:
    try:
        return dtypes.of(data.dtype)
    except TypeError:
        names = ", ".join(d.name for d in dtypes.ALL)
        raise refuse(
            TypeError,
            "tensor",
            f"can't convert np.ndarray of type numpy.{data.dtype}. The only supported types are: {names}",
        ) from None


def _converted(name: str, value: Any, target: dtypes.dtype) -> np.ndarray:
    try:
        return np.asarray(value).astype(target.np) if not isinstance(value, int) else np.asarray(value, target.np)
    except OverflowError:
        if target.category == 1:
            raise refuse(
                RuntimeError, name, f"Overflow: {value} cannot be converted to {target} without overflow"
            ) from None
        return np.asarray(float(value)).astype(target.np)


def _read_sequence(data: Any) -> tuple[np.ndarray, dtypes.dtype]:
    first = data
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(data, range) or (type(first) in (bool, int, float, complex) and isinstance(data, (list, tuple))):
        # NumPy reads a plain nested list quickly; what it calls ragged or odd goes the slow way, for torch's message.
        try:
            values = np.array(data)
        except (ValueError, TypeError):
            values = None
        if values is not None and values.dtype.kind in "bifc" and all(type(v) in _PLAIN for v in _firsts(data)):
            return values, dtypes.of({"b": bool, "i": int, "f": float, "c": complex}[values.dtype.kind])
    shape = _sequence_shape(data)
    flat: list[Any] = []
    _flatten(data, shape, 0, flat)
    if not flat:
        return np.zeros(shape), dtypes.get_default_dtype()
    target = _element_type(flat[0])
    for value in flat[1:]:
        target = dtypes.promote_types(target, _element_type(value))
    values = np.asarray([v.item() if hasattr(v, "item") else v for v in flat])
    if values.dtype.kind not in "biufc" or (values.dtype.kind == "u" and target is dtypes.int64):
        raise refuse(ValueError, "tensor", "Overflow when unpacking long long: an int lies outside int64")
    return values.astype(target.np).reshape(shape), target


_PLAIN = (bool, int, float, complex)


def _firsts(data: Any) -> list[Any]:
    """Return the leaves of `data` down its last axis's first row: enough to see NumPy scalars and tensors among
    them.
    """
    while isinstance(data, (list, tuple)) and data and isinstance(data[0], (list, tuple)):
        data = data[0]
    return list(data)


def _sequence_shape(data: Any) -> tuple[int, ...]:
    shape: list[int] = []
    while _is_sequence(data):
        shape.append(len(data))
        if not shape[-1]:
            break
        data = data[0]
    return tuple(shape)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim > 0
    return (
        hasattr(value, "__len__")
        and hasattr(value, "__getitem__")
        and not isinstance(value, (str, bytes, dict, np.generic))
    )


def _flatten(data: Any, shape: tuple[int, ...], depth: int, flat: list[Any]) -> None:
    if depth == len(shape):
        if _is_sequence(data):
            raise refuse(TypeError, "tensor", f"'{type(data).__name__}' object cannot be interpreted as a number")
        flat.append(data)
        return
    if not _is_sequence(data):
        raise refuse(TypeError, "tensor", f"not a sequence at dim {depth}: got {type(data).__name__}")
    if len(data) != shape[depth]:
        raise refuse(
            ValueError, "tensor", f"expected sequence of length {shape[depth]} at dim {depth} (got {len(data)})"
        )
    if isinstance(data, Tensor):
        data = data.detach().numpy()
    for part in data:
        _flatten(part, shape, depth + 1, flat)


def _element_type(value: Any) -> dtypes.dtype:
    if isinstance(value, Tensor):
        return value.dtype
    if isinstance(value, (np.generic, np.ndarray)):  # before float: np.float64 is one, and stays float64
        return _numpy_type(value)
    if isinstance(value, bool):
        return dtypes.bool_
    if isinstance(value, int):
        return dtypes.int64
    if isinstance(value, float):
        return dtypes.get_default_dtype()
    if isinstance(value, complex):
        return dtypes.get_default_dtype().to_complex()
    if isinstance(value, (str, bytes)):
        raise refuse(TypeError, "tensor", f"new(): invalid data type '{type(value).__name__}'")
    raise refuse(RuntimeError, "tensor", f"Could not infer dtype of {type(value).__name__}")


@composite("torch")
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
    """Return `data` as a tensor: a tensor of the wanted type and device is returned itself, with its history."""
    if not isinstance(data, Tensor):
        return tensor(data, dtype=dtype, device=device)
    if dtype is None and device is None:
        return data
    return data.to(device=device, dtype=None if dtype is None else dtypes.of(dtype))


@composite("torch")
def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Any:
    """Return `obj` as a tensor; `copy=True` always copies, a tensor that does not require grad is detached."""
    if not isinstance(obj, Tensor):
        return tensor(obj, dtype=dtype, device=device, requires_grad=requires_grad)
    made = as_tensor(obj, dtype, device)
    if copy and made is obj:
        made = made.clone()
    if not requires_grad:
        return made.detach() if made.requires_grad else made
    return made if made.requires_grad else made.detach().requires_grad_()


@composite("torch")
def from_numpy(ndarray: Any) -> Any:
    """Return a tensor with the values and type of a NumPy array. The memory is not shared: values are immutable
    here.
    """
    if not isinstance(ndarray, np.ndarray):
        raise refuse(TypeError, "from_numpy", f"expected np.ndarray (got {type(ndarray).__name__})")
    return leaf_tensor(np.array(ndarray), dtype=_numpy_type(ndarray), device=None, requires_grad=False)


@composite("torch")
def scalar_tensor(s: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
                  pin_memory: bool = False) -> Any:  # fmt: skip
    """Return the number `s` as a 0-d tensor of the default floating type unless `dtype` is given."""
    return tensor(number("scalar_tensor", s), dtype=float_type(dtype), device=device, requires_grad=requires_grad)
