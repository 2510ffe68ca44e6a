"""Determinants.

The gradient of det(A) is its matrix of cofactors, which exists for every A: torch's and JAX's `det(A) A^-T` does not,
at a singular A. Up to 3 by 3 the determinant is written out, so derivatives of every order are exact everywhere;
above, the first two orders come from singular values without a division and hold for every A as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.ops.matrix import adjoint, matrices
from tapejax.tape.op import Array, error_sample, op


def _written_out(a: Any) -> Any:
    n = a.shape[-1]
    if n == 0:
        return jnp.ones(a.shape[:-2], a.dtype)
    if n == 1:
        return a[..., 0, 0]
    if n == 2:
        return a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]
    p, q, r = (a[..., 0, j] for j in range(3))
    u, v, w = (a[..., 1, j] for j in range(3))
    x, y, z = (a[..., 2, j] for j in range(3))
    return p * (v * z - w * y) - q * (u * z - w * x) + r * (u * y - v * x)


def _others(s: Any) -> Any:
    """Return, for each element along the last axis, the product of the other ones."""
    one = jnp.ones_like(s[..., :1])
    before = jnp.cumprod(jnp.concatenate([one, s[..., :-1]], -1), -1)
    after = jnp.cumprod(jnp.concatenate([one, s[..., :0:-1]], -1), -1)[..., ::-1]
    return before * after


def _factors(a: Any) -> tuple[Any, Any, Any, Any]:
    """Return (U, s, V, det(U V^H)) of the singular value decomposition."""
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    return u, s, adjoint(vh), jnp.linalg.det(jax.lax.stop_gradient(u @ vh))


@jax.custom_jvp
def _determinant(a: Any) -> Any:
    return jnp.linalg.det(a)


@_determinant.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    return _determinant(a), jnp.sum(_cofactors(a) * da, (-2, -1))


@jax.custom_jvp
def _cofactors(a: Any) -> Any:
    u, s, v, phase = _factors(a)
    return phase[..., None, None] * ((jnp.conj(u) * _others(s)[..., None, :]) @ jnp.swapaxes(v, -1, -2))


@_cofactors.defjvp
def _(primals: Any, tangents: Any) -> Any:
    # In the singular bases det(S + Y) = ... + Σ_{i<j} p_ij (Y_ii Y_jj - Y_ij Y_ji), p_ij the product of the other s.
    (a,), (da,) = primals, tangents
    u, s, v, phase = _factors(a)
    y = adjoint(u) @ da @ v
    eye = np.eye(a.shape[-1], dtype=bool)
    pairs = jnp.where(eye, 0, _others(jnp.where(eye, 1, s[..., None, :])))
    diagonal = jnp.einsum("...ij,...jj->...i", pairs.astype(y.dtype), y)
    inner = jnp.where(eye, diagonal[..., None, :], -pairs * jnp.swapaxes(y, -1, -2))
    return _cofactors(a), phase[..., None, None] * (jnp.conj(u) @ inner @ jnp.swapaxes(v, -1, -2))


def lu_factors(a: Any) -> tuple[Any, Any]:
    """(LU, pivots) as torch keeps them for a later solve: of the transpose where `a` is real."""
    packed, pivots, _ = jax.lax.linalg.lu(a if jnp.iscomplexobj(a) else jnp.swapaxes(a, -1, -2))
    return packed, pivots + 1


@op("torch Tensor linalg", saves="input LU pivots result", computes="LU pivots", grad_name="LinalgDet")
def det(input: Array) -> Array:
    """Return the determinants of square matrices, `(..., N, N) -> (...)`.

    The gradient is the matrix of cofactors, also where the matrix is singular. For N > 3 derivatives of third and
    higher order need distinct singular values. Raises RuntimeError unless the matrices are square and floating.

    >>> import tapejax as tj
    >>> tj.det(tj.tensor([[2., 0.], [0., 3.]]))
    tensor(6.)
    """
    matrices("linalg.det", input)
    return _written_out(input) if input.shape[-1] <= 3 else _determinant(input)


@det.computed
def _(input: Any) -> Any:
    return lu_factors(input)


@det.samples
def _(make: Any) -> Iterator[Any]:
    for n in (0, 1, 2, 3, 4):
        yield make(n, n)
    yield make(2, 5, 5)
    yield make.complex(4, 4)


def _not_square(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "must be batches of square matrices, but they are 2 by 3 matrices", make(2, 3))
    yield error_sample(RuntimeError, "must have at least 2 dimensions", make(2))


det.error_samples(_not_square)


@op("torch Tensor linalg", saves="input LU pivots sign", computes="LU pivots", returns="sign logabsdet", grad_name="LinalgSlogdet")
def slogdet(input: Array) -> tuple[Array, Array]:
    """Return (sign, log|det|) of square matrices, without overflow: `(..., N, N) -> (...)` both.

    The gradient of log|det A| is A^-T; a real sign carries none. A singular matrix gives (0, -inf).
    """
    matrices("linalg.slogdet", input)
    sign, size = jnp.linalg.slogdet(input)
    return sign, size


@slogdet.computed
def _(input: Any) -> Any:
    return lu_factors(input)


@op("torch Tensor", saves="input LU pivots sign negative", computes="LU pivots sign negative", grad_name="LinalgSlogdet")
def logdet(input: Array) -> Array:
    """Return log(det A) of square matrices: NaN where the determinant is negative, -inf where it is 0."""
    matrices("logdet", input)
    sign, size = jnp.linalg.slogdet(input)
    if jnp.iscomplexobj(input):
        return size + jnp.log(sign)
    return jnp.where(sign == -1, jnp.nan, size)


@logdet.computed
def _(input: Any) -> Any:
    sign, _ = jnp.linalg.slogdet(input)
    return *lu_factors(input), sign, sign == -1


for _op in (slogdet, logdet):
    _op.error_samples(_not_square)

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make.spd(3)
        yield make.spd(2, 4)
        yield -make.spd(2)
