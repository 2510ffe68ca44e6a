"""Indexing: `x[...]`, `x[...] = v`, and the gather and scatter families.

What is basic in an index (ints, slices, None, Ellipsis) makes a view: one op for the common forms, so that a loop over
`x[i]` or `x[a:b]` records one node a round and compiles once (ints and starts are operands, not part of the program).
Integer arrays gather, and their gradient sums over repeats. As in torch the basic parts act first, so an int beside an
array does not move the array's dimension to the front as it does in NumPy. Boolean masks are read, for the result's
shape depends on them, except where a value is assigned that fits any number of hits.

Indices given as Python data are checked; those inside tensors are not read: one out of range means the nearest entry.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.create import full_, read_data
from tapejax.ops.part import checked_index, narrow_dynamic, select_, slice_
from tapejax.ops.shape import unsqueeze, view
from tapejax.tape.op import Array, Arrays, composite, error_sample, op, sample
from tapejax.tensor import Tensor, leaf_tensor

# ---------------------------------------------------------------- what an index means


def host(tensor: Any) -> np.ndarray:
    """Read a tensor's values."""
    return tensor.numpy(force=True)


def index_leaf(values: np.ndarray, device: Any = None) -> Any:
    """Return integers found by Python as a tensor."""
    return leaf_tensor(np.asarray(values, np.int64), dtype=dtypes.int64, device=device, requires_grad=False)


def _item(part: Any) -> Any:
    """Return one part of an index as int, slice, None, Ellipsis, bool, tensor, or an array of ints or bools."""
    if part is None or part is Ellipsis or isinstance(part, (int, slice)):
        return part
    if isinstance(part, Tensor):
        if part.dtype.category > 1:
            raise refuse(
                IndexError,
                "getitem",
                f"tensors used as indices must be long, int, byte or bool tensors, got {part.dtype}",
            )
        if part.dtype is dtypes.uint8:
            return part.bool()
        return bool(part) if part.ndim == 0 and part.dtype is dtypes.bool_ else part
    if isinstance(part, (list, tuple, range)):
        part = read_data(part, None)[0] if len(part) else np.zeros(0, np.int64)
    if isinstance(part, (np.ndarray, np.generic)):
        if part.dtype.kind not in "biu":
            raise refuse(
                IndexError,
                "getitem",
                f"tensors used as indices must be long, int, byte or bool tensors, got {part.dtype}",
            )
        return np.asarray(part) if part.ndim else part.item()
    if hasattr(part, "__index__"):
        return part.__index__()
    if hasattr(part, "__array__"):
        return _item(np.asarray(part))
    raise refuse(
        TypeError if isinstance(part, str) else IndexError,
        "getitem",
        "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices "
        f"(got {type(part).__name__})",
    )


def _number(bound: Any) -> int | None:
    if bound is None or isinstance(bound, int):
        return bound
    try:
        return bound.__index__()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise refuse(
            TypeError,
            "getitem",
            f"only integer tensors of a single element can be converted to an index, got {bound!r}",
        ) from None


_ALL = ("all",)
_NEW = ("new",)
_INT = ("int",)


class _Plan:
    """An index taken apart: `spec` and `starts` of its basic part, then arrays at axes of what that gives."""

    def __init__(self, shape: tuple[int, ...], index: Any) -> None:
        parts = [_item(p) for p in index] if isinstance(index, tuple) or _means_tuple(index) else [_item(index)]
        used = sum(_consumes(p) for p in parts)
        if used > len(shape):
            if not shape:
                raise refuse(
                    IndexError,
                    "getitem",
                    "invalid index of a 0-dim tensor: too many indices for tensor of dimension 0 → use `tensor.item()`",
                )
            raise refuse(IndexError, "getitem", f"too many indices for tensor of dimension {len(shape)}, got {used}")
        dots = [i for i, p in enumerate(parts) if p is Ellipsis]
        if len(dots) > 1:
            raise refuse(IndexError, "getitem", "an index can only have a single ellipsis ('...')")
        at = dots[0] if dots else len(parts)
        parts[at : at + 1] = [slice(None)] * (len(shape) - used)

        self.spec: list[tuple[Any, ...]] = []
        self.starts: list[Any] = []
        self.arrays: list[tuple[int, Any]] = []  # (axis after the basic part, ints or tensor or mask)
        self.source = 0  # the axis of `shape` that the next part consumes
        self.target = 0  # the axis of the basic part's result that it makes
        for part in parts:
            self._add(shape, part)

    def _add(self, shape: tuple[int, ...], part: Any) -> None:
        if part is None:
            self._keep(_NEW, 0)
        elif isinstance(part, bool):
            self.arrays.append((self.target, np.zeros(int(part), np.int64)))
            self._keep(_NEW, 0)
        elif isinstance(part, slice):
            self._keep(self._sliced(shape[self.source], part), 1)
        elif isinstance(part, int) or (isinstance(part, Tensor) and part.ndim == 0):
            self.starts.append(checked_index("getitem", part, self.source, shape[self.source]))
            self.spec.append(_INT)
            self.source += 1
        elif _is_mask(part):
            for k, n in enumerate(part.shape):
                if n != shape[self.source + k]:
                    raise refuse(
                        IndexError,
                        "getitem",
                        f"The shape of the mask {list(part.shape)} at index {k} does not match the shape of the "
                        "indexed "
                        f"tensor {list(shape)} at index {self.source + k}",
                    )
            self.arrays.append((self.target, part))
            for _ in part.shape:
                self._keep(_ALL, 1)
        else:
            if not isinstance(part, Tensor):
                _check_range(part, self.source, shape[self.source])
            self.arrays.append((self.target, part))
            self._keep(_ALL, 1)

    def _keep(self, entry: tuple[Any, ...], consumed: int) -> None:
        self.spec.append(entry)
        self.source += consumed
        self.target += 1

    def _sliced(self, n: int, part: slice) -> tuple[Any, ...]:
        start, stop, step = _number(part.start), _number(part.stop), _number(part.step)
        if step is not None and step <= 0:
            raise refuse(ValueError, "getitem", f"step must be greater than zero, got {step} → use .flip()")
        first, last, by = slice(start, stop, step).indices(n)
        length = max(0, -((first - last) // by))
        if length == n:
            return _ALL
        if by == 1 and start is not None and stop is not None:
            self.starts.append(first)
            return ("narrow", length)
        return ("slice", first, max(first, last), by)

    @property
    def trivial(self) -> bool:
        return all(entry is _ALL for entry in self.spec)


def _means_tuple(index: Any) -> bool:
    """Return whether torch reads a list as a tuple of indices: a short one that holds more than numbers."""
    if not isinstance(index, list) or len(index) >= 32:
        return False
    return any(
        p is None or p is Ellipsis or isinstance(p, (slice, list, tuple, range, Tensor, np.ndarray)) for p in index
    )


def _consumes(part: Any) -> int:
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return part.ndim if _is_mask(part) else 1


def _is_mask(part: Any) -> bool:
    if isinstance(part, Tensor):
        return part.dtype is dtypes.bool_
    return isinstance(part, np.ndarray) and part.dtype.kind == "b"


def _check_range(indices: np.ndarray, dim: int, n: int) -> None:
    if indices.size and (indices.min() < -n or indices.max() >= n):
        wrong = indices[(indices < -n) | (indices >= n)].flat[0]
        raise refuse(IndexError, "getitem", f"index {wrong} is out of bounds for dimension {dim} with size {n}")


# ---------------------------------------------------------------- basic indices


def _block(spec: tuple[tuple[Any, ...], ...], shape: tuple[int, ...], starts: Any) -> tuple[Any, ...]:
    """Return starts and sizes of the box that a basic index covers, its strides inside it, and the result's shape."""
    begins: list[Any] = []
    sizes: list[int] = []
    inner: list[slice] = []
    result: list[int] = []
    given = iter(starts)
    dims = iter(shape)
    for entry in spec:
        kind = entry[0]
        if kind == "new":
            result.append(1)
            continue
        n = next(dims)
        begin, size, by = 0, n, 1
        if kind == "int":
            begin, size = next(given), 1
        elif kind == "narrow":
            begin, size = next(given), entry[1]
        elif kind == "slice":
            begin, size, by = entry[1], entry[2] - entry[1], entry[3]
        begins.append(begin)
        sizes.append(size)
        inner.append(slice(None, None, by))
        if kind != "int":
            result.append(-(-size // by))
    return begins, sizes, tuple(inner), tuple(result)


def _put_basic(base: Array, value: Array, starts: Arrays, *, spec: tuple[tuple[Any, ...], ...]) -> Array:
    begins, sizes, inner, _ = _block(spec, base.shape, starts)
    if any(s.step != 1 for s in inner):
        box = lax.dynamic_slice(base, begins, sizes)
        box = box.at[inner].set(value.reshape(box[inner].shape))
    else:
        box = value.reshape(sizes)
    return lax.dynamic_update_slice(base, box, begins)


@op("", put=_put_basic, grad_name="Slice", oracle=None)
def basic_index(input: Array, starts: Arrays, spec: tuple[tuple[Any, ...], ...]) -> Array:
    """Return what several ints, slices and Nones select, as one view.

    `spec` has an entry for each part: ("all",), ("new",), ("int",), ("narrow", length) or ("slice", first, last, step);
    ints and narrows take their start from `starts`, in order.
    """
    begins, sizes, inner, result = _block(spec, input.shape, starts)
    return lax.dynamic_slice(input, begins, sizes)[inner].reshape(result) if sizes else input.reshape(result)


@basic_index.samples
def _(make):
    x = make(4, 5, 3)
    yield sample(x, (np.asarray(1), np.asarray(2)), (_INT, _ALL, _INT))
    yield sample(x, (np.asarray(1),), (("narrow", 2), _NEW, ("slice", 1, 5, 2), _ALL))
    yield sample(x, (), (_ALL, ("slice", 2, 2, 1), _ALL))


def getitem(self: Any, index: Any) -> Any:
    """Return `self[index]`: a view for ints, slices, None and Ellipsis, a new tensor for arrays and masks."""
    shape = self._node.aval.shape
    quick = _common_form(self, shape, index) if shape else None
    if quick is not None:
        return quick
    plan = _Plan(shape, index)
    base = _basic(self, plan)
    return advanced(base, plan.arrays) if plan.arrays else base


def _common_form(self: Any, shape: tuple[int, ...], index: Any) -> Any:
    """Return what `x[i]`, `x[a:b]` and, after `:` or `...`, the same in the second or last dimension select without taking the index
    apart; None for others.
    """
    kind = type(index)
    at, part = 0, index
    if kind is tuple and len(index) == 2:
        lead, part = index
        kind = type(part)
        if lead is Ellipsis:
            at = len(shape) - 1
        elif len(shape) > 1 and type(lead) is slice and lead.start is lead.stop is lead.step is None:
            at = 1
        else:
            return None
    n = shape[at]
    if kind is int:
        return select_(self, part if 0 <= part < n else checked_index("getitem", part, at, n), at)
    if kind is slice and type(part.start) is int and type(part.stop) is int and part.step is None:
        first, last = part.start, part.stop
        if not 0 <= first < last <= n:
            first, last, _ = part.indices(n)
        if first < last and last - first < n:
            return narrow_dynamic(self, first, at, last - first)
    return None


def _basic(self: Any, plan: _Plan) -> Any:
    if plan.trivial:  # `x[:]` is a new view, but arrays index the tensor itself
        return self if plan.arrays else view(self, tuple(self.shape))
    marked = [i for i, entry in enumerate(plan.spec) if entry is not _ALL]
    if len(marked) == 1:
        at = marked[0]
        entry = plan.spec[at]
        if entry is _INT:
            return select_(self, plan.starts[0], at)
        if entry is _NEW:
            return unsqueeze(self, at)
        if entry[0] == "narrow":
            return narrow_dynamic(self, plan.starts[0], at, entry[1])
        return slice_(self, at, *entry[1:])
    return basic_index(self, tuple(plan.starts), tuple(plan.spec))


# ---------------------------------------------------------------- arrays of indices


def _tuple(ndim: int, indices: Any, axes: tuple[int, ...]) -> tuple[Any, ...]:
    full: list[Any] = [slice(None)] * ndim
    for a, i in zip(axes, indices, strict=True):
        full[a] = i
    return tuple(full)


def _broadcast_check(indices: Any) -> None:
    try:
        jnp.broadcast_shapes(*(i.shape for i in indices))
    except ValueError:
        shown = ", ".join(str(list(i.shape)) for i in indices)
        raise refuse(
            IndexError, "index", f"shape mismatch: indexing tensors could not be broadcast together with shapes {shown}"
        ) from None


@op("", grad_name="Index", saves={"input": "indices"}, oracle=None)
def advanced_index(input: Array, indices: Arrays, axes: tuple[int, ...]) -> Array:
    """Return the entries of `input` at integer arrays `indices`, which index the axes `axes` together (broadcast).

    The arrays' common shape replaces the indexed axes where these are neighbours, else it comes first. The gradient
    sums over repeats.
    """
    _broadcast_check(indices)
    return input.at[_tuple(input.ndim, indices, axes)].get(mode="clip")


@advanced_index.samples
def _(make):
    x = make(3, 4, 2)
    i, j = np.array([0, 2, 2, -1]), np.array([[1], [0]])
    yield sample(x, (i,), (0,))
    yield sample(x, (i, j), (0, 1))
    yield sample(x, (i, np.array([0, 1, 1, 0])), (0, 2))
    yield sample(x, (np.zeros(0, np.int64),), (1,))


@advanced_index.error_samples
def _(make):
    i, j = np.array([0, 1]), np.array([0, 1, 2])
    yield error_sample(IndexError, "could not be broadcast together", make(3, 3), (i, j), (0, 1))


def _settled(base: Any, arrays: list[tuple[int, Any]]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return the arrays as integer tensors with one axis each; masks are read."""
    tensors: list[Any] = []
    axes: list[int] = []
    for at, part in arrays:
        if _is_mask(part):
            found = np.nonzero(host(part) if isinstance(part, Tensor) else part)
            tensors += [index_leaf(i, base.device) for i in found]
            axes += range(at, at + len(found))
        else:
            tensors.append(part if isinstance(part, Tensor) else index_leaf(part, base.device))
            axes.append(at)
    return tuple(tensors), tuple(axes)


def advanced(base: Any, arrays: list[tuple[int, Any]]) -> Any:
    """Return `base` indexed by arrays and masks at their axes."""
    return advanced_index(base, *_settled(base, arrays))


@op("", grad_name="IndexPut", saves={"values": "indices", "input": "indices"}, oracle=None)
def put_at(input: Array, indices: Arrays, values: Array, axes: tuple[int, ...], accumulate: bool = False) -> Array:
    """Return `input` with `values` (broadcast) at `indices`; of repeats the last stays, or all are added."""
    _broadcast_check(indices)
    where = _tuple(input.ndim, indices, axes)
    if values.dtype != input.dtype:
        raise refuse(
            RuntimeError,
            "index_put",
            "Index put requires the source and destination dtypes match, got "
            f"{dtypes.of(input.dtype).tensor_name} for the destination and {dtypes.of(values.dtype).tensor_name} "
            "for the source.",
        )
    shape = input.at[where].get(mode="clip").shape
    lead = values.ndim - len(shape)
    if lead > 0 and all(n == 1 for n in values.shape[:lead]):
        values = values.reshape(values.shape[lead:])
    try:
        values = jnp.broadcast_to(values, shape)
    except ValueError:
        raise refuse(
            RuntimeError,
            "index_put",
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result "
            "of shape "
            f"{list(shape)}",
        ) from None
    return input.at[where].add(values) if accumulate else input.at[where].set(values)


@put_at.samples
def _(make):
    x = make(3, 4)
    yield sample(x, (np.array([0, 2]),), make(2, 4), (0,))
    yield sample(x, (np.array([0, 0]), np.array([1, -1])), make(), (0, 1))
    yield sample(x, (np.array([0, 2, 0]),), make(3), (1,), True)


@put_at.error_samples
def _(make):
    yield error_sample(RuntimeError, "shape mismatch: value tensor", make(3, 4), (np.array([0, 2]),), make(3), (0,))


@op("", oracle=None)
def masked_value(input: Array, mask: Array, value: Array) -> Array:
    """Return `value` where `mask` (over the leading axes of `input`) holds; `value` fits the axes behind the mask's."""
    spread = jnp.broadcast_to(value.astype(input.dtype), input.shape[mask.ndim :])
    return jnp.where(mask.reshape(mask.shape + (1,) * (input.ndim - mask.ndim)), spread, input)


@masked_value.samples
def _(make):
    yield sample(make(3, 2), make.bools(3), make(2))
    yield sample(make(3, 2), make.bools(3, 2), make())


def setitem(self: Any, index: Any, value: Any) -> None:
    """Do `self[index] = value`: the value is broadcast to what the index selects and written there.

    Of several values written to one element the last stays. A mask with a value that fits any number of hits is not
    read.
    """
    plan = _Plan(tuple(self.shape), index)
    target = self if plan.trivial else _basic(self, plan)
    if not isinstance(value, Tensor):
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
            value = value.item()
        if not isinstance(value, (bool, int, float, complex)):
            raise refuse(
                TypeError,
                "setitem",
                f"can't assign a {type(value).__name__} to a {self.dtype.tensor_name}Tensor → wrap it in "
                "tapejax.tensor()",
            )
        value = full_(value, (), self.dtype)
    if not plan.arrays:
        target.copy_(_without_ones(value, target.ndim))
        return
    if value.device != self.device and value.ndim == 0:
        value = value.to(device=self.device)
    at, first = plan.arrays[0]
    if len(plan.arrays) == 1 and at == 0 and _is_mask(first):
        rest = tuple(target.shape[first.ndim :])
        small = _without_ones(value, len(rest))
        if small.ndim <= len(rest) and all(
            a in (1, b) for a, b in zip(reversed(small.shape), reversed(rest), strict=False)
        ):
            mask = first if isinstance(first, Tensor) else _mask_leaf(first, self.device)
            target.copy_(masked_value(target, mask, small))
            return
    if value.ndim == 0 and value.dtype is not self.dtype:
        value = value.to(dtype=self.dtype)
    indices, axes = _settled(target, plan.arrays)
    target.copy_(put_at(target, indices, value, axes))


def _mask_leaf(mask: np.ndarray, device: Any) -> Any:
    return leaf_tensor(np.asarray(mask, np.bool_), dtype=dtypes.bool_, device=device, requires_grad=False)


def _without_ones(value: Any, ndim: int) -> Any:
    """Drop leading dimensions of size 1 that the target lacks, as torch's assignment does."""
    lead = max(value.ndim - ndim, 0)
    if lead and all(n == 1 for n in value.shape[:lead]):
        return view(value, tuple(value.shape[lead:]))
    return value


def _whole(input: Any, indices: Any) -> list[tuple[int, Any]]:
    """Return a tuple of tensors, masks and Nones as arrays at their axes."""
    if not isinstance(indices, (tuple, list)):
        raise refuse(
            TypeError, "index_put", f"argument 'indices' must be tuple of Tensors, not {type(indices).__name__}"
        )
    plan = _Plan(tuple(input.shape), tuple(slice(None) if i is None else _array(i) for i in indices))
    return plan.arrays


def _array(index: Any) -> Any:
    # A 0-d integer tensor is an array of indices here, not an int that makes a view.
    if isinstance(index, Tensor) and index.ndim == 0 and index.dtype is not dtypes.bool_:
        return unsqueeze(index, 0)
    return index


@composite("torch Tensor Tensor_")
def index_put(input: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """Return `input` with `values` written at `indices` (a tuple of integer or bool tensors, one for each leading
    axis).

    Values are broadcast. With `accumulate=True` they are added, repeats included; otherwise of repeats the last stays.
    Raises RuntimeError if the element types differ or the shapes do not fit.
    """
    settled, axes = _settled(input, _whole(input, indices))
    return put_at(input, settled, values, axes, bool(accumulate))


@composite("torch Tensor")
def nonzero(input: Any, *, as_tuple: bool = False) -> Any:
    """Return the indices of the elements that are not zero, row by row: (N, ndim), or `ndim` vectors with `as_tuple`.

    Reads the values.

    >>> import tapejax as tj
    >>> tj.nonzero(tj.tensor([0, 3, 4])).tolist()
    [[1], [2]]
    """
    values = host(input)
    found = np.nonzero(np.atleast_1d(values))
    if as_tuple:
        return tuple(index_leaf(i, input.device) for i in found)
    stacked = np.stack(found, 1) if values.ndim else np.zeros((len(found[0]), 0), np.int64)
    return index_leaf(stacked, input.device)


@composite("torch Tensor")
def argwhere(input: Any) -> Any:
    """Return the indices of the elements that are not zero as rows of an (N, ndim) tensor; reads the values."""
    return nonzero(input)


@composite("torch Tensor")
def masked_select(input: Any, mask: Any) -> Any:
    """Return the elements where `mask` holds as a vector; mask and input are broadcast. Reads the mask."""
    if mask.dtype is not dtypes.bool_:
        raise refuse(RuntimeError, "masked_select", f"expected BoolTensor for mask, got {mask.dtype}")
    shape = np.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    return getitem(input.expand(shape), mask.expand(shape)) if shape else getitem(input, mask)
