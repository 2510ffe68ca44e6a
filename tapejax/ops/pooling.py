"""Pooling: one number per sliding window, or per cell of a grid of given size (adaptive)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.samples import Make
from tapejax.ops.window import batched, per_axis, pooled_size, shifted, wide
from tapejax.tape.op import Array, composite, error_sample, op, sample

# Windows up to this many cells are compared cell by cell (XLA fuses the strided slices); larger ones are reduced.
_FEW_CELLS = 32


def _geometry(name: str, x: jax.Array, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    k = per_axis(name, "kernel_size", kernel, n)
    s = k if stride is None or stride == () else per_axis(name, "stride", stride, n)
    p, d = per_axis(name, "padding", padding, n), per_axis(name, "dilation", dilation, n)
    for kk, pp in zip(k, p, strict=True):
        if pp < 0 or pp > kk // 2:
            raise refuse(
                RuntimeError,
                name,
                f"pad should be at most half of effective kernel size, but got padding={p} and kernel_size={k}",
            )
    sizes = x.shape[2:]
    out = tuple(pooled_size(name, *a, ceil_mode) for a in zip(sizes, k, s, p, d, strict=True))
    # what the last window hangs over on the right
    right = tuple(
        max((o - 1) * ss + dd * (kk - 1) + 1 - size - pp, 0)
        for o, ss, dd, kk, size, pp in zip(out, s, d, k, sizes, p, strict=True)
    )
    return k, s, p, d, out, right


def _max_pool(name: str, n: int, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    """The first maximum of each window and its flat index in the plane."""
    x, unbatched = batched(name, x, n)
    k, s, p, d, out, right = _geometry(name, x, n, kernel, stride, padding, dilation, ceil_mode)
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    pads = [(a, b) for a, b in zip(p, right, strict=True)]
    plane = jnp.arange(math.prod(x.shape[2:]), dtype=jnp.int64).reshape((1, 1, *x.shape[2:]))
    if math.prod(k) <= _FEW_CELLS:
        wide_x = jnp.pad(x, [(0, 0), (0, 0), *pads], constant_values=lowest)
        where = jnp.pad(plane, [(0, 0), (0, 0), *pads])
        best: Any = None
        index: Any = None
        for cell in itertools.product(*(range(c) for c in k)):
            offset = [c * dd for c, dd in zip(cell, d, strict=True)]
            value, at = shifted(wide_x, offset, out, s), shifted(where, offset, out, s)
            if best is None:
                best, index = value, jnp.broadcast_to(at, value.shape)
                inside = _inside(offset, out, s, p, x.shape[2:])
                continue
            real = _inside(offset, out, s, p, x.shape[2:])
            # a cell of the padding may only stand until the first real one is seen, even if that is -inf
            take = (real & ~inside) | (real & ((value > best) | ((value != value) & (best == best))))
            best, index = jnp.where(take, value, best), jnp.where(take, at, index)
            inside = inside | real
    else:
        still = lax.stop_gradient(x)

        def first(a: Any, b: Any) -> Any:
            (v, i), (w, j) = a, b
            swap = (w > v) | ((w != w) & (v == v)) | (((w == v) | ((w != w) & (v != v))) & (j < i))
            return jnp.where(swap, w, v), jnp.where(swap, j, i)

        flat = jnp.broadcast_to(plane, x.shape)
        start = (jnp.asarray(lowest, x.dtype), jnp.asarray(plane.size, jnp.int64))
        window = ((1, 1, *k), (1, 1, *s), [(0, 0), (0, 0), *pads])
        _, index = lax.reduce_window((still, flat), start, first, *window, window_dilation=(1, 1, *d))
        index = jnp.minimum(index, plane.size - 1)
        rows = x.reshape(*x.shape[:2], -1)
        best = jnp.take_along_axis(rows, index.reshape(*rows.shape[:2], -1), axis=2).reshape(index.shape)
    return (best[0], index[0]) if unbatched else (best, index)


def _inside(offset: Any, out: Any, stride: Any, pad: Any, size: Any) -> np.ndarray:
    """Which windows have the cell at `offset` inside the input (a constant)."""
    found = np.ones(tuple(out), bool)
    for axis, (o, n, s, p, z) in enumerate(zip(offset, out, stride, pad, size, strict=True)):
        at = np.arange(n) * s + o - p
        found &= ((at >= 0) & (at < z)).reshape([-1 if a == axis else 1 for a in range(len(out))])
    return found


@op("", saves="input result1", computes="result1", grad_name="MaxPool2DWithIndices", oracle="nn.functional.max_pool1d")
def max_pool1d(
    input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Array:
    """Take the maximum of each window along the last axis: (N, C, L) or (C, L) to (N, C, L').

    The gradient goes to one element a window, the first maximum. `stride` defaults to `kernel_size`. Padding never wins.
    """
    return _max_pool("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode)[0]


@max_pool1d.samples
def _(make: Make) -> Iterator[Any]:
    yield make.distinct(2, 2, 7), 2
    yield sample(make.distinct(2, 7), 3, stride=2, padding=1, dilation=2, ceil_mode=True)
    yield sample(np.ones((1, 1, 6)), 3, stride=1)
    yield sample(make.distinct(1, 1, 80), 40, stride=13, padding=5)


@op("", saves="input result1", computes="result1", grad_name="MaxPool2DWithIndices", oracle="nn.functional.max_pool2d")
def max_pool2d(
    input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Array:
    """Take the maximum of each window of an image: (N, C, H, W) or (C, H, W). See `max_pool1d`.

    >>> import tapejax as tj
    >>> tj.nn.functional.max_pool2d(tj.tensor([[[1.0, 2.0], [4.0, 3.0]]]), 2).tolist()
    [[[4.0]]]
    """
    return _max_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode)[0]


@max_pool2d.samples
def _(make: Make) -> Iterator[Any]:
    yield make.distinct(2, 2, 4, 6), 2
    yield sample(make.distinct(1, 5, 6), (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
    yield sample(make.distinct(1, 1, 5, 5), 2, ceil_mode=True)
    yield sample(make.distinct(1, 1, 9, 8), 6, stride=2, padding=2)


@max_pool2d.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(RuntimeError, "at most half", make(1, 1, 4, 4), 2, padding=2)
    yield error_sample(RuntimeError, "too small", make(1, 1, 2, 2), 5)


@op("", saves="input result1", computes="result1", grad_name="MaxPool3DWithIndices", oracle="nn.functional.max_pool3d")
def max_pool3d(
    input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Array:
    """Take the maximum of each window of a volume: (N, C, D, H, W) or (C, D, H, W). See `max_pool1d`."""
    return _max_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode)[0]


@max_pool3d.samples
def _(make: Make) -> Iterator[Any]:
    yield sample(make.distinct(1, 2, 4, 3, 4), 2, stride=1, padding=1)


def _computed_indices(spatial: int) -> Any:
    def computed(
        input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        return _max_pool(f"max_pool{spatial}d", spatial, input, kernel_size, stride, padding, dilation, ceil_mode)[1:]

    return computed


for _spatial, _op in enumerate((max_pool1d, max_pool2d, max_pool3d), 1):
    _op.computed(_computed_indices(_spatial))


@op("", saves="input indices", returns="values indices", grad_name="MaxPool2DWithIndices", oracle=None)
def max_pool_with_indices(
    input: Array,
    spatial: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Array:
    """Take the maximum of each window over `spatial` trailing axes, with its flat int64 index in the plane."""
    return _max_pool(f"max_pool{spatial}d", spatial, input, kernel_size, stride, padding, dilation, ceil_mode)


@max_pool_with_indices.samples
def _(make: Make) -> Iterator[Any]:
    yield make.distinct(2, 2, 4, 6), 2, 2
    yield sample(make.distinct(1, 2, 7), 1, 3, padding=1)


def _max_pool_function(spatial: int, plain: Any) -> Any:
    def max_pool(
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if return_indices:
            return tuple(max_pool_with_indices(input, spatial, kernel_size, stride, padding, dilation, ceil_mode))
        return plain(input, kernel_size, stride, padding, dilation, ceil_mode)

    max_pool.__name__ = max_pool.__qualname__ = plain.name
    max_pool.__doc__ = f"{plain.__doc__}\n    With `return_indices` also the flat int64 index of each maximum in its plane.\n    "
    composite("torch nn.functional", name=plain.name)(max_pool)

    def with_indices(
        input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = True
    ) -> Any:
        return max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, True)

    with_indices.__name__ = with_indices.__qualname__ = f"{plain.name}_with_indices"
    with_indices.__doc__ = f"Return `{plain.name}` and the flat int64 index of each maximum in its plane."
    composite("nn.functional torch", name=f"{plain.name}_with_indices")(with_indices)
    return max_pool


max_pool1d_function = _max_pool_function(1, max_pool1d)
max_pool2d_function = _max_pool_function(2, max_pool2d)
max_pool3d_function = _max_pool_function(3, max_pool3d)


def _avg_pool(
    name: str, n: int, x: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, include: bool, divisor: int | None
) -> Any:
    x, unbatched = batched(name, x, n)
    if divisor == 0:
        raise refuse(RuntimeError, name, "divisor must be not zero")
    k, s, p, _, out, right = _geometry(name, x, n, kernel, stride, padding, 1, ceil_mode)
    zero = np.zeros((), x.dtype)
    pads = [(0, 0), (0, 0), *zip(p, right, strict=True)]
    total = lax.reduce_window(x, zero, lax.add, (1, 1, *k), (1, 1, *s), pads)
    count: Any = divisor
    if divisor is None:
        count = np.ones((), np.int64)
        for kk, ss, pp, oo, size in zip(k, s, p, out, x.shape[2:], strict=True):
            start = np.arange(oo) * ss - pp
            stop = np.minimum(start + kk, size + pp)
            cells = stop - start if include else np.minimum(stop, size) - np.maximum(start, 0)
            count = count[..., None] * cells
    total = total / jnp.asarray(count, x.dtype)
    return total[0] if unbatched else total


@op("torch nn.functional", saves="input", grad_name="AvgPool2D", oracle="nn.functional.avg_pool1d")
def avg_pool1d(
    input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True
) -> Array:
    """Average each window along the last axis: (N, C, L) or (C, L) to (N, C, L').

    `stride` defaults to `kernel_size`. With `count_include_pad=False` the zeros of the padding are not counted.
    """
    return _avg_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


@avg_pool1d.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 2, 7), 2
    yield sample(make(2, 7), 3, stride=2, padding=1, ceil_mode=True)
    yield sample(make(1, 2, 6), 3, padding=1, count_include_pad=False)


@op("nn.functional", saves="input", grad_name="AvgPool2D", oracle="nn.functional.avg_pool2d")
def avg_pool2d(
    input: Array,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """Average each window of an image: (N, C, H, W) or (C, H, W). `divisor_override` replaces the window's size. See `avg_pool1d`."""
    return _avg_pool("avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@avg_pool2d.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 2, 4, 6), 2
    yield sample(make(1, 5, 6), (3, 2), stride=(2, 1), padding=(1, 0), divisor_override=5)
    yield sample(make(1, 1, 5, 5), 2, ceil_mode=True, count_include_pad=False)


@avg_pool2d.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(RuntimeError, "divisor must be not zero", make(1, 1, 4, 4), 2, divisor_override=0)


@op("nn.functional", saves="input", grad_name="AvgPool3D", oracle="nn.functional.avg_pool3d")
def avg_pool3d(
    input: Array,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """Average each window of a volume: (N, C, D, H, W) or (C, D, H, W). See `avg_pool2d`."""
    return _avg_pool("avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@avg_pool3d.samples
def _(make: Make) -> Iterator[Any]:
    yield sample(make(1, 2, 4, 3, 4), 2, stride=1, padding=1, ceil_mode=True)


def _grid(name: str, output_size: Any, shape: tuple[int, ...], n: int) -> tuple[int, ...]:
    sizes = tuple(output_size) if isinstance(output_size, tuple | list) else (output_size,) * n
    if len(sizes) != n:
        raise refuse(RuntimeError, name, f"output_size must be {n} elements, but got {output_size}")
    return tuple(s if o is None else int(o) for o, s in zip(sizes, shape[2:], strict=True))


def adaptive_average(x: jax.Array, grid: tuple[int, ...]) -> jax.Array:
    """Average the trailing axes of (N, C, *spatial) down to `grid`; cell i covers [floor(i·n/m), ceil((i+1)·n/m))."""
    for axis, (m, n) in enumerate(zip(grid, x.shape[2:], strict=True), start=2):
        if m and n % m == 0:
            x = jnp.mean(x.reshape(*x.shape[:axis], m, n // m, *x.shape[axis + 1 :]), axis=axis + 1)
            continue
        weights = np.zeros((m, n))
        for i in range(m):
            a, b = i * n // m, -(-(i + 1) * n // m)
            weights[i, a:b] = 1 / (b - a)
        x = jnp.moveaxis(jnp.tensordot(x, jnp.asarray(weights, x.dtype), axes=(axis, 1)), -1, axis)
    return x


def _adaptive_avg(name: str, n: int, x: Any, output_size: Any) -> Any:
    x, unbatched = batched(name, x, n)
    out = adaptive_average(wide(x), _grid(name, output_size, x.shape, n)).astype(x.dtype)
    return out[0] if unbatched else out


@op("torch nn.functional", saves="input", grad_name="AdaptiveAvgPool2D", oracle="nn.functional.adaptive_avg_pool1d")
def adaptive_avg_pool1d(input: Array, output_size: Any) -> Array:
    """Average an axis down to `output_size` cells of nearly equal width: (N, C, L) or (C, L) to (N, C, output_size).

    Cell i of m covers elements floor(i·L/m) up to ceil((i + 1)·L/m); neighbours may share an element.
    """
    return _adaptive_avg("adaptive_avg_pool1d", 1, input, output_size)


@adaptive_avg_pool1d.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 2, 6), 3
    yield make(2, 7), 3


@op("nn.functional", saves="input", grad_name="AdaptiveAvgPool2D", oracle="nn.functional.adaptive_avg_pool2d")
def adaptive_avg_pool2d(input: Array, output_size: Any) -> Array:
    """Average an image down to `output_size` (an int, or (height, width) with None to keep). See `adaptive_avg_pool1d`."""
    return _adaptive_avg("adaptive_avg_pool2d", 2, input, output_size)


@adaptive_avg_pool2d.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 2, 6, 5), 1
    yield make(2, 2, 7, 5), (3, None)


@op("nn.functional", saves="input", grad_name="AdaptiveAvgPool3D", oracle="nn.functional.adaptive_avg_pool3d")
def adaptive_avg_pool3d(input: Array, output_size: Any) -> Array:
    """Average a volume down to `output_size`. See `adaptive_avg_pool1d`."""
    return _adaptive_avg("adaptive_avg_pool3d", 3, input, output_size)


@adaptive_avg_pool3d.samples
def _(make: Make) -> Iterator[Any]:
    yield make(1, 2, 4, 3, 5), (2, 3, 2)


def _adaptive_max(name: str, n: int, x: Any, output_size: Any) -> Any:
    x, unbatched = batched(name, x, n)
    grid = _grid(name, output_size, x.shape, n)
    sizes = x.shape[2:]
    flat, valid = np.zeros((1,) * 2 * n, np.int64), np.ones((1,) * 2 * n, bool)
    for axis, (m, size) in enumerate(zip(grid, sizes, strict=True)):
        start = np.arange(m) * size // m
        stop = -(-(np.arange(m) + 1) * size // m)
        at = start[:, None] + np.arange(int((stop - start).max()))
        shape = [1] * 2 * n
        shape[axis], shape[n + axis] = at.shape
        flat = flat * size + np.minimum(at, size - 1).reshape(shape)
        valid = valid & (at < stop[:, None]).reshape(shape)
    cells = math.prod(flat.shape[n:])
    flat, valid = flat.reshape(*grid, cells), valid.reshape(*grid, cells)
    found = x.reshape(*x.shape[:2], -1)[..., flat]
    best = jnp.argmax(jnp.where(valid, lax.stop_gradient(found), -jnp.inf), axis=-1)[..., None]
    value = jnp.take_along_axis(found, best, axis=-1)[..., 0]
    index = jnp.take_along_axis(jnp.broadcast_to(flat, best.shape[:2] + flat.shape), best, axis=-1)[..., 0]
    return (value[0], index[0]) if unbatched else (value, index)


@op("", saves="input indices", grad_name="AdaptiveMaxPool2D", oracle=None, returns="values indices")
def adaptive_max_pool(input: Array, spatial: int, output_size: Any) -> Array:
    """Take the maximum of each cell of a grid over `spatial` trailing axes, with its flat int64 index in the plane.

    Cells are those of `adaptive_avg_pool1d`; the gradient goes to the first maximum of each.
    """
    return _adaptive_max(f"adaptive_max_pool{spatial}d", spatial, input, output_size)


@adaptive_max_pool.samples
def _(make: Make) -> Iterator[Any]:
    yield make.distinct(2, 2, 7), 1, 3
    yield make.distinct(2, 6, 5), 2, (4, None)
    yield make.distinct(1, 1, 4, 4, 4), 3, 2


@composite("torch nn.functional")
def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Take the maximum of each of `output_size` cells of the last axis; with `return_indices` also where it stood."""
    found = adaptive_max_pool(input, 1, output_size)
    return tuple(found) if return_indices else found[0]


@composite("nn.functional")
def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Take the maximum of each cell of an image divided into `output_size`; with `return_indices` also where it stood."""
    found = adaptive_max_pool(input, 2, output_size)
    return tuple(found) if return_indices else found[0]


@composite("nn.functional")
def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Take the maximum of each cell of a volume divided into `output_size`; with `return_indices` also where it stood."""
    found = adaptive_max_pool(input, 3, output_size)
    return tuple(found) if return_indices else found[0]


def _lp_pool(average: Any, n: int, input: Any, p: float, kernel_size: Any, stride: Any, ceil_mode: bool) -> Any:
    cells = math.prod(per_axis("lp_pool", "kernel_size", kernel_size, n))
    mean = average(input.pow(p), kernel_size, stride, 0, ceil_mode)
    return (mean.sign() * mean.abs() * cells).pow(1.0 / p)


@composite("nn.functional")
def lp_pool1d(input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Any:
    """Take the power mean `(Σ xᵖ)^(1/p)` of each window along the last axis."""
    return _lp_pool(avg_pool1d, 1, input, norm_type, kernel_size, stride, ceil_mode)


@composite("nn.functional")
def lp_pool2d(input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Any:
    """Take the power mean `(Σ xᵖ)^(1/p)` of each window of an image."""
    return _lp_pool(avg_pool2d, 2, input, norm_type, kernel_size, stride, ceil_mode)
