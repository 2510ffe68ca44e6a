"""Eigenvalues, singular values, QR and LU factors.

Gradients of eigenvectors and singular vectors exist where the values are distinct (and, for singular vectors, not 0);
those of the values alone always do. Vectors are determined up to sign or phase.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import refuse
from tapejax.ops.matrix import adjoint, hermitian, matrices
from tapejax.ops.norm import matrix_norm
from tapejax.tape.op import Array, composite, error_sample, op, sample


def _not_square(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "must be batches of square matrices, but they are 2 by 3 matrices", make(2, 3))


# --- eigenvalues ------------------------------------------------------------------------------------------------------


def _eigh(name: str, a: Any, triangle: str) -> tuple[Any, Any]:
    matrices(name, a)
    if triangle.upper() not in ("L", "U"):
        raise refuse(RuntimeError, name, f"Expected UPLO argument to be 'L' or 'U', but got {triangle}")
    lower = triangle.upper() == "L"
    vectors, values = jax.lax.linalg.eigh(hermitian(a, lower), lower=lower, symmetrize_input=False)
    return values, vectors


@op("linalg", returns="eigenvalues eigenvectors", saves="result", triangle=True, oracle=None, grad_name="LinalgEigh")
def eigh(A: Array, UPLO: str = "L") -> tuple[Array, Array]:
    """Return (eigenvalues, eigenvectors) of Hermitian matrices: `(..., N)` real and rising, `(..., N, N)` in columns.

    Only the triangle `UPLO` ("L" or "U") is read.

    >>> import tapejax as tj
    >>> tj.linalg.eigh(tj.tensor([[2., 0.], [0., 1.]])).eigenvalues
    tensor([1., 2.])
    """
    return _eigh("linalg.eigh", A, UPLO)


@op("linalg", saves="result eigenvectors", computes="eigenvectors", triangle=True, oracle="linalg.eigvalsh", grad_name="LinalgEigh")
def eigvalsh(A: Array, UPLO: str = "L") -> Array:
    """Return the rising eigenvalues of Hermitian matrices, `(..., N, N) -> (..., N)`; differentiable also where equal."""
    return _eigh("linalg.eigvalsh", A, UPLO)[0]


@eigvalsh.computed
def _(A: Any, UPLO: str) -> Any:
    return _eigh("linalg.eigvalsh", A, UPLO)[1:]


for _op in (eigh, eigvalsh):
    _op.error_samples(_not_square)

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make.spd(3)
        yield make.spd(2, 2), "U"


@op("linalg", returns="eigenvalues eigenvectors", saves="result", oracle=None, grad_name="LinalgEig")
def eig(A: Array) -> tuple[Array, Array]:
    """Return (eigenvalues, eigenvectors) of square matrices, complex: `(..., N)`, `(..., N, N)` in columns, unordered."""
    matrices("linalg.eig", A)
    values, vectors = jax.lax.linalg.eig(A, compute_left_eigenvectors=False, enable_eigvec_derivs=True)
    return values, vectors


@op("linalg", saves="result eigenvectors", computes="eigenvectors", oracle="linalg.eigvals", grad_name="LinalgEig")
def eigvals(A: Array) -> Array:
    """Return the eigenvalues of square matrices, complex and unordered: `(..., N, N) -> (..., N)`."""
    matrices("linalg.eigvals", A)
    return jnp.linalg.eigvals(A)


@eigvals.computed
def _(A: Any) -> Any:
    return (eig.impl(A)[1],)


for _op in (eig, eigvals):
    _op.error_samples(_not_square)

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield np.array([[1.0, 2.0], [0.5, -1.0]])


# --- singular values --------------------------------------------------------------------------------------------------


@op("", returns="U S Vh", saves="result", oracle=None, grad_name="LinalgSvd")
def svd_op(A: Array, full_matrices: bool = True) -> tuple[Array, Array, Array]:
    """Return (U, S, Vh) with `A = U diag(S) Vh`; see `linalg.svd`."""
    matrices("linalg.svd", A, square=False)
    u, s, vh = jnp.linalg.svd(A, full_matrices=False)
    if full_matrices and A.shape[-1] != A.shape[-2]:  # the vectors that complete a basis carry no gradient, as in torch
        k = min(A.shape[-2:])
        whole = jnp.linalg.svd(jax.lax.stop_gradient(A), full_matrices=True)
        u = jnp.concatenate([u, whole[0][..., k:]], -1)
        vh = jnp.concatenate([vh, whole[2][..., k:, :]], -2)
    return u, s, vh


@svd_op.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 3)
    yield sample(make(2, 4, 3), False)
    yield sample(make(2, 4), full_matrices=False)


@op("linalg", saves="result U Vh", computes="U Vh", oracle="linalg.svdvals", grad_name="LinalgSvd")
def svdvals(A: Array) -> Array:
    """Return the falling singular values, `(..., M, N) -> (..., min(M, N))`; differentiable also where equal."""
    matrices("linalg.svdvals", A, square=False)
    return jnp.linalg.svd(A, full_matrices=False, compute_uv=False)


@svdvals.computed
def _(A: Any) -> Any:
    return jnp.linalg.svd(A, full_matrices=False)[::2]


@svdvals.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 2)
    yield make(2, 2, 3)


@composite("linalg", name="svd")
def _linalg_svd(A: Any, full_matrices: bool = True, *, driver: str | None = None) -> Any:
    """Return (U, S, Vh) with `A = U diag(S) Vh`: `(..., M, M)`, `(..., K)` falling, `(..., N, N)`, K = min(M, N).

    Without `full_matrices` U has K columns and Vh K rows; the others carry no gradient. `driver` is ignored.
    """
    return svd_op(A, full_matrices)


@composite("torch Tensor")
def svd(input: Any, some: bool = True, compute_uv: bool = True) -> Any:
    """Return (U, S, V) with `A = U diag(S) V^H`; torch's older spelling of `linalg.svd` (`some`: the reduced form)."""
    if not compute_uv:
        raise refuse(NotImplementedError, "svd", "compute_uv=False is not supported → use linalg.svdvals")
    u, s, vh = svd_op(input, not some)
    return u, s, vh.mH


@op("linalg", differentiable=False, oracle="linalg.matrix_rank")
def matrix_rank(A: Array, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False) -> Array:
    """Return how many singular values exceed `max(atol, rtol * largest)`, int64; `rtol` is `max(M, N) * eps` by default."""
    matrices("linalg.matrix_rank", A, square=hermitian)
    s = jnp.linalg.svd(A, full_matrices=False, compute_uv=False)
    if rtol is None:
        rtol = 0.0 if atol else max(A.shape[-2:]) * float(jnp.finfo(A.dtype).eps)
    floor = jnp.maximum(0.0 if atol is None else atol, rtol * jnp.max(s, -1, keepdims=True, initial=0))
    return jnp.sum(s > floor, -1, dtype=np.int64)


@matrix_rank.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3, 2)
    yield np.outer([1.0, 2.0, 3.0], [1.0, -1.0])
    yield sample(np.diag([1.0, 1e-3]), atol=1e-2)


@op("linalg", saves="A result", oracle=None)  # torch's own backward of p=1 raises
def cond(A: Array, p: Any = None) -> Array:
    """Return the condition number `|A| |A^-1|` in the matrix norm `p`; None and 2: largest over smallest singular value."""
    if p in (None, 2, -2):
        matrices("linalg.cond", A, square=False)
        s = jnp.linalg.svd(A, full_matrices=False, compute_uv=False)
        return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    matrices("linalg.cond", A)
    return matrix_norm.impl(A, p) * matrix_norm.impl(jnp.linalg.inv(A), p)


@cond.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3, 2)
    yield make.spd(3), -2
    yield make.spd(3), 1
    yield make.spd(3), "fro"
    yield make.spd(3), math.inf


# --- QR and LU --------------------------------------------------------------------------------------------------------


@op("", returns="Q R", saves="result", oracle="linalg.qr", grad_name="LinalgQr")
def qr_op(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    """Return (Q, R) with `A = Q R`; see `linalg.qr`."""
    matrices("linalg.qr", A, square=False)
    if mode not in ("reduced", "complete", "r"):
        message = f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'"
        raise refuse(RuntimeError, "linalg.qr", message)
    m, n = A.shape[-2:]
    if mode == "r":
        return jnp.zeros((0,), A.dtype), jnp.linalg.qr(jax.lax.stop_gradient(A), mode="r")
    if mode == "complete" and m > n:
        q, r = jnp.linalg.qr(jax.lax.stop_gradient(A), mode="complete")
        return q, r
    q, r = jnp.linalg.qr(A[..., :m] if n > m else A, mode="reduced")
    return q, r if n <= m else jnp.concatenate([r, adjoint(q) @ A[..., m:]], -1)


@qr_op.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 3)
    yield make(2, 4, 3)
    yield make(2, 4)


@qr_op.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "unrecognized mode", make(2, 2), "full")


def _qr(A: Any, mode: str) -> Any:
    found = qr_op(A, mode)
    if found.Q.requires_grad and (mode == "r" or (mode == "complete" and A.shape[-2] > A.shape[-1])):
        when = "mode='r'" if mode == "r" else "mode='complete' and nrows > ncols"
        for factor in found:
            factor.register_hook(partial(_refuse_gradient, when))
    return found


def _refuse_gradient(when: str, gradient: Any) -> None:
    raise refuse(RuntimeError, "linalg.qr", f"The QR decomposition is not differentiable when {when} → use mode='reduced'")


@composite("linalg", name="qr")
def _linalg_qr(A: Any, mode: str = "reduced") -> Any:
    """Return (Q, R) with `A = Q R`, Q orthonormal in K = min(M, N) columns, R upper triangular.

    `mode` "complete" gives M columns, "r" an empty Q. RuntimeError when a gradient arrives at the result of "r", or of
    "complete" where M > N: these have none.
    """
    return _qr(A, mode)


@composite("torch Tensor")
def qr(input: Any, some: bool = True) -> Any:
    """Return (Q, R); torch's older spelling of `linalg.qr` (`some`: the reduced form)."""
    return _qr(input, "reduced" if some else "complete")


def _permutation(order: Any, dtype: Any) -> Any:
    """Return P with `P[order[i], i] = 1`."""
    return jnp.swapaxes(jax.nn.one_hot(order, order.shape[-1], dtype=dtype), -1, -2)


@op("", returns="P L U", saves="result", oracle=None, grad_name="LinalgLu")
def lu_op(A: Array, *, pivot: bool = True) -> tuple[Array, Array, Array]:
    """Return (P, L, U) with `A = P L U`; see `linalg.lu`."""
    matrices("linalg.lu", A, square=False)
    if not pivot:
        raise refuse(NotImplementedError, "linalg.lu", "pivot=False is not supported → use pivot=True")
    m, n = A.shape[-2:]
    k = min(m, n)
    packed, _, order = jax.lax.linalg.lu(A)
    unit = jnp.eye(m, k, dtype=A.dtype)
    return _permutation(order, A.dtype), jnp.tril(packed[..., :, :k], -1) + unit, jnp.triu(packed[..., :k, :])


@lu_op.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 3)
    yield make(2, 4, 3)
    yield make(2, 4)


@composite("linalg")
def lu(A: Any, *, pivot: bool = True) -> Any:
    """Return (P, L, U) with `A = P L U`: a permutation, unit lower and upper triangular, K = min(M, N).

    The permutation has no gradient.
    """
    found = lu_op(A, pivot=pivot)
    return found._replace(P=found.P.detach())


@op("linalg", returns="LU pivots", saves="result", oracle="linalg.lu_factor", grad_name="LinalgLuFactorEx")
def lu_factor(A: Array, *, pivot: bool = True) -> tuple[Array, Array]:
    """Return (LU, pivots): both factors in one matrix and the row exchanges, int32 counted from 1."""
    matrices("linalg.lu_factor", A, square=False)
    if not pivot:
        raise refuse(NotImplementedError, "linalg.lu_factor", "pivot=False is not supported → use pivot=True")
    packed, pivots, _ = jax.lax.linalg.lu(A)
    return packed, pivots + 1


@lu_factor.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 3)
    yield make(2, 4, 3)


@op("linalg", saves="LU pivots result", oracle="linalg.lu_solve")
def lu_solve(LU: Array, pivots: Array, B: Array, *, left: bool = True, adjoint: bool = False) -> Array:
    """Return X with `A X = B` (`X A = B` unless `left`; A^H with `adjoint`) from the result of `lu_factor`."""
    matrices("linalg.lu_solve", LU)
    if not left:
        turned = lu_solve.impl(LU, pivots, jnp.conj(jnp.swapaxes(B, -1, -2)), adjoint=not adjoint)
        return jnp.conj(jnp.swapaxes(turned, -1, -2))
    if B.ndim < 2 or B.shape[-2] != LU.shape[-1]:
        message = f"Incompatible shapes of A and B for the equation AX = B: {tuple(LU.shape)} and {tuple(B.shape)}"
        raise refuse(RuntimeError, "linalg.lu_solve", message)
    batch = np.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    a, b = (jnp.broadcast_to(v, batch + v.shape[-2:]) for v in (LU, B))
    order = jax.lax.linalg.lu_pivots_to_permutation(pivots - 1, LU.shape[-1])
    p = jnp.broadcast_to(_permutation(order, LU.dtype), a.shape)
    triangular = jax.lax.linalg.triangular_solve
    if adjoint:
        inner = triangular(a, b, left_side=True, lower=False, transpose_a=True, conjugate_a=True)
        kept = {"lower": True, "transpose_a": True, "conjugate_a": True, "unit_diagonal": True}
        return p @ triangular(a, inner, left_side=True, **kept)
    inner = triangular(a, jnp.swapaxes(p, -1, -2) @ b, left_side=True, lower=True, unit_diagonal=True)
    return triangular(a, inner, left_side=True, lower=False)


@lu_solve.samples
def _(make: Any) -> Iterator[Any]:
    a = make.spd(2, 3)
    yield a, np.array([[1, 2, 3], [3, 2, 3]], np.int32), make(2, 3, 2)
    yield sample(a[0], np.array([2, 2, 3], np.int32), make(3, 2), adjoint=True)
    yield sample(a[0], np.array([2, 2, 3], np.int32), make(2, 3), left=False)
