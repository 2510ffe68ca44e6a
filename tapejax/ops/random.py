"""Random numbers. Every draw takes its key from a generator when it is recorded, so replays see the same numbers.

The bodies are functions of a key; the user-facing functions settle element type, device and `requires_grad`. The
streams are JAX's (threefry), not torch's: the same seed gives the same numbers here, on every device, but not torch's
numbers. Bounds, means and rates are leaves: changing them recompiles nothing.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.create import finish, float_type, like, number, shape_of
from tapejax.tape.op import Array, Scalar, Seed, composite, error_sample, op, sample
from tapejax.tensor import Tensor

# ---------------------------------------------------------------- the draws


@op("", oracle=None, differentiable=False)
def uniform_draw(key: Seed, low: Scalar, high: Scalar, size: tuple[int, ...], dtype: dtypes.dtype) -> Array:
    """Return values evenly distributed in [low, high)."""
    if dtype.is_complex:
        parts = jax.random.uniform(key, (2, *size), dtype.to_real().np)
        return (low + (high - low) * jax.lax.complex(parts[0], parts[1])).astype(dtype.np)
    low, high = (jnp.asarray(v).astype(dtype.np) for v in (low, high))
    return low + (high - low) * jax.random.uniform(key, size, dtype.np)


@op("", oracle=None, differentiable=False)
def normal_draw(key: Seed, mean: Scalar, std: Scalar, size: tuple[int, ...], dtype: dtypes.dtype) -> Array:
    """Return values of the normal distribution; complex ones have independent parts of half the variance."""
    mean, std = (jnp.asarray(v).astype(dtype.np) for v in (mean, std))
    return mean + std * jax.random.normal(key, size, dtype.np)


@op("", oracle=None, differentiable=False)
def unit_draw(key: Seed, size: tuple[int, ...], dtype: dtypes.dtype, kind: str) -> Array:
    """Return values of a distribution without parameters: "uniform" in [0, 1), "normal", "exponential" or "cauchy"."""
    if kind == "uniform" and dtype.is_complex:
        parts = jax.random.uniform(key, (2, *size), dtype.to_real().np)
        return jax.lax.complex(parts[0], parts[1])
    return getattr(jax.random, kind)(key, size, dtype.np)


@op("", oracle=None, differentiable=False)
def integer_draw(key: Seed, low: Scalar, high: Scalar, size: tuple[int, ...], dtype: dtypes.dtype) -> Array:
    """Return integers in [low, high)."""
    low, high = (jnp.asarray(v).astype(jnp.int64) for v in (low, high))
    return jax.random.randint(key, size, low, high, jnp.int64).astype(dtype.np)


@op("", oracle=None, differentiable=False)
def permutation_draw(key: Seed, n: int, dtype: dtypes.dtype) -> Array:
    """Return 0 … n - 1 in random order."""
    return jax.random.permutation(key, jnp.arange(n, dtype=jnp.int64)).astype(dtype.np)


@op("", grad_name="Bernoulli", oracle=None)
def bernoulli_draw(key: Seed, input: Array, p: Array | None = None, dtype: dtypes.dtype | None = None) -> Array:
    """Return 1 with probability `input` (or `p`, in the shape of `input`), else 0; the gradient is 0."""
    chance = input if p is None else p
    if not jnp.issubdtype(chance.dtype, jnp.floating):
        raise refuse(
            RuntimeError, "bernoulli", f"probabilities must be floating-point, got {chance.dtype} → use .float()"
        )
    kind = input.dtype if jnp.issubdtype(input.dtype, jnp.floating) else chance.dtype
    hit = jax.random.uniform(key, input.shape, jnp.promote_types(kind, jnp.float32)) < chance
    return hit.astype(input.dtype if dtype is None else dtype.np)


@op("", grad_name="Normal", oracle=None)
def normal_around(key: Seed, mean: Array, std: Array) -> Array:
    """Return normal values with these means and standard deviations (broadcast); the gradient is 0."""
    kind = mean.dtype if mean.ndim or not std.ndim else std.dtype
    mean, std = (jax.lax.stop_gradient(v).astype(kind) for v in (mean, std))
    return mean + std * jax.random.normal(key, jnp.broadcast_shapes(mean.shape, std.shape), kind)


@op("torch", oracle=None)
def poisson(input: Array, key: Seed) -> Array:
    """Return Poisson counts with the rates `input`, in its type; the gradient is 0."""
    if not jnp.issubdtype(input.dtype, jnp.floating):
        raise refuse(RuntimeError, "poisson", f"rates must be floating-point, got {input.dtype} → use .float()")
    return jax.random.poisson(key, jax.lax.stop_gradient(input), dtype=jnp.int64).astype(input.dtype)


@op("torch Tensor", oracle=None, differentiable=False)
def multinomial(input: Array, num_samples: int, replacement: bool = False, *, key: Seed) -> Array:
    """Return `num_samples` category numbers (int64) for each row of weights `input`, (C,) or (N, C).

    Weights need not sum to 1. Without replacement the numbers of a row are distinct, drawn by the largest perturbed log
    weights (Gumbel top-k). Raises RuntimeError if more are asked for than there are categories.
    """
    if input.ndim not in (1, 2):
        raise refuse(RuntimeError, "multinomial", f"prob_dist must be 1 or 2 dim, got {input.ndim}")
    if not jnp.issubdtype(input.dtype, jnp.floating):
        raise refuse(RuntimeError, "multinomial", f"only supports floating-point dtypes for input, got: {input.dtype}")
    if num_samples <= 0:
        raise refuse(RuntimeError, "multinomial", f"cannot sample n_sample <= 0 samples, got {num_samples}")
    n = input.shape[-1]
    logits = jnp.log(input.astype(jnp.promote_types(input.dtype, jnp.float32)))
    if replacement:
        drawn = jax.random.categorical(key, logits[..., None, :], axis=-1, shape=(*input.shape[:-1], num_samples))
        return drawn.astype(jnp.int64)
    if num_samples > n:
        raise refuse(
            RuntimeError,
            "multinomial",
            f"cannot sample n_sample > prob_dist.size(-1) samples without replacement: {num_samples} > {n}",
        )
    _, drawn = jax.lax.top_k(logits + jax.random.gumbel(key, logits.shape, logits.dtype), num_samples)
    return drawn.astype(jnp.int64)


@multinomial.error_samples
def _(make):
    yield error_sample(RuntimeError, "without replacement", make(3, low=0.1), 4)
    yield error_sample(RuntimeError, "1 or 2 dim", make(1, 1, 1, low=0.1), 1)


@uniform_draw.samples
def _(make):
    yield sample(low=-1.0, high=2.0, size=(2, 3), dtype=dtypes.float32)


@normal_draw.samples
def _(make):
    yield sample(mean=1.0, std=2.0, size=(2, 3), dtype=dtypes.float64)


@unit_draw.samples
def _(make):
    for kind in ("uniform", "normal", "exponential", "cauchy"):
        yield sample(size=(3,), dtype=dtypes.float32, kind=kind)
    yield sample(size=(3,), dtype=dtypes.complex64, kind="uniform")


@integer_draw.samples
def _(make):
    yield sample(low=-2, high=3, size=(4,), dtype=dtypes.int64)


@permutation_draw.samples
def _(make):
    yield sample(n=5, dtype=dtypes.int64)
    yield sample(n=0, dtype=dtypes.int32)


@bernoulli_draw.samples
def _(make):
    yield sample(make(4, low=0.0, high=1.0))
    yield sample(make(4), 0.25)


@normal_around.samples
def _(make):
    yield sample(make(2, 1), make(3, low=0.1), smooth=False)  # torch gives no gradient through this draw


@poisson.samples
def _(make):
    yield sample(make(4, low=0.5, high=9.0))


@multinomial.samples
def _(make):
    yield sample(make(5, low=0.1), 3)
    yield sample(make(2, 3, low=0.1), 4, True)


# ---------------------------------------------------------------- what users call


@composite("torch")
def rand(*size: Any, generator: Any = None, out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
         requires_grad: bool = False, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return values evenly distributed in [0, 1), of shape `size` (ints or one tuple)."""
    made = unit_draw(shape_of("rand", size), float_type(dtype), "uniform", generator=generator)
    return finish("rand", made, device, requires_grad, out)


@composite("torch")
def randn(*size: Any, generator: Any = None, out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
          requires_grad: bool = False, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return values of the standard normal distribution, of shape `size` (ints or one tuple)."""
    made = unit_draw(shape_of("randn", size), float_type(dtype), "normal", generator=generator)
    return finish("randn", made, device, requires_grad, out)


@composite("torch")
def randint(*bounds_and_size: Any, low: Any = None, high: Any = None, size: Any = None, generator: Any = None,
            out: Any = None, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
            pin_memory: bool = False) -> Any:  # fmt: skip
    """Return integers in [low, high): `randint(high, size)` or `randint(low, high, size)`; int64 unless `dtype` is
    given.

    >>> import tapejax as tj
    >>> tj.randint(3, 4, (2,)).tolist()
    [3, 3]
    """
    given = list(bounds_and_size)
    if size is None:
        if not given:
            raise refuse(TypeError, "randint", "missing size → randint(low, high, size)")
        size = given.pop()
    if len(given) == 2:
        low, high = given
    elif len(given) == 1:
        low, high = (0 if low is None else low, given[0]) if high is None else (given[0], high)
    first, last = _integers("randint", 0 if low is None else low, high)
    target = dtypes.int64 if dtype is None else dtypes.of(dtype)
    made = integer_draw(first, last, shape_of("randint", (size,)), target, generator=generator)
    return finish("randint", made, device, requires_grad, out)


def _integers(name: str, low: Any, high: Any) -> tuple[int, int]:
    if high is None:
        raise refuse(TypeError, name, "missing high → give the bound that is not reached")
    first, last = int(number(name, low)), int(number(name, high))
    if first >= last:
        raise refuse(
            RuntimeError, name, f"random_ expects 'from' to be less than 'to', but got from={first} >= to={last}"
        )
    return first, last


@composite("torch")
def randperm(n: int, *, generator: Any = None, out: Any = None, dtype: Any = None, layout: Any = None,
             device: Any = None, requires_grad: bool = False, pin_memory: bool = False) -> Any:  # fmt: skip
    """Return the numbers 0 … n - 1 in random order; int64 unless `dtype` is given."""
    n = n.__index__()
    if n < 0:
        raise refuse(RuntimeError, "randperm", f"n must be non-negative, got {n}")
    made = permutation_draw(n, dtypes.int64 if dtype is None else dtypes.of(dtype), generator=generator)
    return finish("randperm", made, device, requires_grad, out)


@composite("torch")
def rand_like(input: Any, *, generator: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
              requires_grad: bool = False, memory_format: Any = None) -> Any:  # fmt: skip
    """Return values evenly distributed in [0, 1) with the shape, type and device of `input`."""
    size, target, where = like("rand_like", input, dtype, device)
    return finish(
        "rand_like",
        unit_draw(size, _floating("rand_like", target), "uniform", generator=generator),
        where,
        requires_grad,
    )


@composite("torch")
def randn_like(input: Any, *, generator: Any = None, dtype: Any = None, layout: Any = None, device: Any = None,
               requires_grad: bool = False, memory_format: Any = None) -> Any:  # fmt: skip
    """Return standard normal values with the shape, type and device of `input`."""
    size, target, where = like("randn_like", input, dtype, device)
    return finish(
        "randn_like",
        unit_draw(size, _floating("randn_like", target), "normal", generator=generator),
        where,
        requires_grad,
    )


def _floating(name: str, target: dtypes.dtype) -> dtypes.dtype:
    if target.category < 2:
        raise refuse(NotImplementedError, name, f"not implemented for '{target.tensor_name}' → pass a floating dtype=")
    return target


@composite("torch")
def randint_like(input: Any, low: Any = None, high: Any = None, *, generator: Any = None, dtype: Any = None,
                 layout: Any = None, device: Any = None, requires_grad: bool = False,
                 memory_format: Any = None) -> Any:  # fmt: skip
    """Return integers in [low, high) with the shape, type and device of `input`; `randint_like(x, high)` starts at
    0.
    """
    size, target, where = like("randint_like", input, dtype, device)
    first, last = _integers("randint_like", *((0, low) if high is None else (0 if low is None else low, high)))
    return finish("randint_like", integer_draw(first, last, size, target, generator=generator), where, requires_grad)


@composite("torch Tensor")
def bernoulli(input: Any, p: float | None = None, *, generator: Any = None, out: Any = None) -> Any:
    """Return 1 with probability `input` (or the number `p`), else 0, in the shape and type of `input`. The gradient
    is 0.
    """
    if p is not None:
        _probability("bernoulli", p)
    return finish("bernoulli", bernoulli_draw(input, p, None, generator=generator), None, False, out)


def _probability(name: str, p: Any) -> None:
    if not isinstance(p, Tensor) and not 0 <= p <= 1:
        raise refuse(RuntimeError, name, f"{name} expects p to be in [0, 1], but got p={p}")


@composite("torch")
def normal(mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, out: Any = None, dtype: Any = None,
           layout: Any = None, device: Any = None, requires_grad: bool = False,
           pin_memory: bool = False) -> Any:  # fmt: skip
    """Return normal values: `mean` and `std` are tensors (broadcast, either may be a number), or numbers with a `size`.

    No gradient flows to `mean` and `std`. Raises RuntimeError for a negative `std` that is a number.
    """
    if not isinstance(std, Tensor) and not std >= 0:
        raise refuse(RuntimeError, "normal", f"normal expects std >= 0.0, but found std {std}")
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        return finish("normal", normal_around(mean, std, generator=generator), device, requires_grad, out)
    if size is None:
        raise refuse(TypeError, "normal", "mean and std are numbers, so the size is required → normal(mean, std, size)")
    made = normal_draw(mean, std, shape_of("normal", (size,)), float_type(dtype), generator=generator)
    return finish("normal", made, device, requires_grad, out)


# ---------------------------------------------------------------- filling a tensor


@composite("Tensor", name="uniform_")
def uniform_(input: Any, from_: float = 0.0, to: float = 1.0, *, generator: Any = None, **named: Any) -> Any:
    """Fill this tensor with values evenly distributed in [from, to)."""
    low = named.pop("from", from_)
    if low > to:
        raise refuse(
            RuntimeError, "uniform_", f"uniform_ expects to return a [from, to) range, but found from={low} > to={to}"
        )
    drawn = uniform_draw(low, to, tuple(input.shape), _floating("uniform_", input.dtype), generator=generator)
    return input.copy_(drawn)


@composite("Tensor", name="normal_")
def normal_(input: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    """Fill this tensor with values of the normal distribution."""
    if not std >= 0:
        raise refuse(RuntimeError, "normal_", f"normal expects std >= 0.0, but found std {std}")
    drawn = normal_draw(mean, std, tuple(input.shape), _floating("normal_", input.dtype), generator=generator)
    return input.copy_(drawn)


@composite("Tensor", name="exponential_")
def exponential_(input: Any, lambd: float = 1.0, *, generator: Any = None) -> Any:
    """Fill this tensor with values of the exponential distribution of rate `lambd`."""
    if not lambd > 0:
        raise refuse(RuntimeError, "exponential_", f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    target = _floating("exponential_", input.dtype)
    return input.copy_(unit_draw(tuple(input.shape), target, "exponential", generator=generator) / lambd)


@composite("Tensor", name="cauchy_")
def cauchy_(input: Any, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Any:
    """Fill this tensor with values of the Cauchy distribution."""
    if not sigma > 0:
        raise refuse(RuntimeError, "cauchy_", f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    target = _floating("cauchy_", input.dtype)
    return input.copy_(unit_draw(tuple(input.shape), target, "cauchy", generator=generator) * sigma + median)


@composite("Tensor", name="log_normal_")
def log_normal_(input: Any, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Any:
    """Fill this tensor with e to the power of normal values."""
    if not std > 0:
        raise refuse(RuntimeError, "log_normal_", f"log_normal_ expects std > 0.0, but found std={std}")
    drawn = normal_draw(mean, std, tuple(input.shape), _floating("log_normal_", input.dtype), generator=generator)
    return input.copy_(drawn.exp())


@composite("Tensor", name="bernoulli_")
def bernoulli_(input: Any, p: Any = 0.5, *, generator: Any = None) -> Any:
    """Fill this tensor with 1 with probability `p` (a number, or a tensor that is broadcast), else 0."""
    _probability("bernoulli_", p)
    return input.copy_(
        bernoulli_draw(input.detach(), p.detach() if isinstance(p, Tensor) else float(p), None, generator=generator)
    )


_MANTISSA = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


@composite("Tensor", name="random_")
def random_(input: Any, from_: Any = None, to: Any = None, *, generator: Any = None, **named: Any) -> Any:
    """Fill this tensor with integers: in [from, to), in [0, to), or in all that the type holds exactly from 0 on."""
    low, high = named.pop("from", from_), to
    if high is None and low is not None:
        low, high = 0, low
    if high is None:
        kind = input.dtype
        high = (
            2 ** _MANTISSA[kind.name] + 1
            if kind.is_floating_point
            else 2
            if kind is dtypes.bool_
            else np.iinfo(kind.np).max
        )
    first, last = _integers("random_", 0 if low is None else low, high)
    return input.copy_(integer_draw(first, last, tuple(input.shape), input.dtype, generator=generator))
