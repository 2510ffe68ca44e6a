"""Linear systems, inverses, Cholesky factors and functions of matrices.

Programs run later than they are recorded, so a singular or indefinite matrix gives inf or NaN, as in JAX, where
torch raises. Shapes and element types are refused at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.determinant import lu_factors
from tapejax.ops.matrix import adjoint, hermitian, matrices
from tapejax.tape.op import Array, composite, error_sample, op, rough, sample


def _agree(name: str, a: Any, b: Any, side: int = -2) -> None:
    if a.dtype != b.dtype:
        kinds = f"{dtypes.of(a.dtype).tensor_name} and B of {dtypes.of(b.dtype).tensor_name}"
        message = f"Expected A and B to have the same dtype, but found A of type {kinds}"
        raise refuse(RuntimeError, name, f"{message} → convert one of them with .to()")
    if a.shape[-1] != b.shape[side]:
        message = f"Incompatible shapes of A and B for the equation AX = B: {tuple(a.shape)} and {tuple(b.shape)}"
        raise refuse(RuntimeError, name, message)
    _batch(name, a, b)


def _batch(name: str, a: Any, b: Any) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        message = f"the batch dimensions of {tuple(a.shape)} and {tuple(b.shape)} do not broadcast"
        raise refuse(RuntimeError, name, f"The size of tensor a must match the size of tensor b: {message}") from None


def _spread(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    batch = _batch(name, a, b)
    return jnp.broadcast_to(a, batch + a.shape[-2:]), jnp.broadcast_to(b, batch + b.shape[-2:])


def _not_square(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "must be batches of square matrices, but they are 2 by 3 matrices", make(2, 3))
    yield error_sample(RuntimeError, "must have at least 2 dimensions", make(2))


# --- inverses and systems ---------------------------------------------------------------------------------------------


@op("linalg", saves="result", oracle="linalg.inv", grad_name="LinalgInvEx")
def inv(A: Array) -> Array:
    """Return the inverses of square matrices `(..., N, N)`. A singular one gives inf or NaN (torch raises)."""
    matrices("linalg.inv", A)
    return jnp.linalg.inv(A)


@inv.samples
def _(make: Any) -> Iterator[Any]:
    yield make.spd(3)
    yield make.spd(2, 2) + make(2, 2)
    yield make.spd(2) + 1j * make(2, 2)
    yield make(0, 0)


inv.error_samples(_not_square)


@composite("torch Tensor")
def inverse(input: Any) -> Any:
    """Return the inverses of square matrices; see `linalg.inv`."""
    return inv(input)


@op("linalg", saves="A LU pivots result", computes="LU pivots", oracle="linalg.solve", grad_name="LinalgSolveEx")
def solve(A: Array, B: Array, *, left: bool = True) -> Array:
    """Return X with `A X = B` (`X A = B` unless `left`): `(..., N, N)`, `(..., N, K) -> (..., N, K)`.

    B may be a vector `(N,)`, or a batch of vectors whose shape is that of A without its last axis. A singular A
    gives inf or NaN (torch raises).

    >>> import tapejax as tj
    >>> tj.linalg.solve(tj.tensor([[2., 0.], [0., 4.]]), tj.tensor([2., 2.]))
    tensor([1.0000, 0.5000])
    """
    matrices("linalg.solve", A)
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    b = B[..., None] if vector else B
    if vector and not left:
        raise refuse(RuntimeError, "linalg.solve", "the right hand side must be a matrix where left=False, but it is a vector")
    _agree("linalg.solve", A, b, -2 if left else -1)
    a, b = _spread("linalg.solve", A, b)
    if not left:
        return jnp.swapaxes(jnp.linalg.solve(jnp.swapaxes(a, -1, -2), jnp.swapaxes(b, -1, -2)), -1, -2)
    x = jnp.linalg.solve(a, b)
    return x[..., 0] if vector else x


@solve.computed
def _(A: Any, B: Any, left: bool) -> Any:
    return lu_factors(A)


@solve.samples
def _(make: Any) -> Iterator[Any]:
    yield make.spd(3), make(3)
    yield make.spd(3), make(3, 2)
    yield make.spd(2, 3), make(2, 3)
    yield make.spd(2, 3), make(3, 1)
    yield sample(make.spd(3), make(2, 3), left=False)
    yield make.spd(2) + 1j * make(2, 2), make.complex(2, 1)


@solve.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "must be batches of square matrices", make(2, 3), make(2))
    yield error_sample(RuntimeError, "Incompatible shapes of A and B", make(2, 2), make(3, 1))


@op("linalg", saves="A result", oracle="linalg.solve_triangular")
def solve_triangular(A: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Array:
    """Return X with `A X = B` (`X A = B` unless `left`), where A is triangular; its other half is not read.

    `unitriangular` takes the diagonal as ones. The gradient for A lies in the same triangle.
    """
    matrices("linalg.solve_triangular", A)
    if B.ndim < 2:
        message = f"The input tensor B must have at least 2 dimensions, but it has shape {tuple(B.shape)}"
        raise refuse(RuntimeError, "linalg.solve_triangular", message)
    _agree("linalg.solve_triangular", A, B, -2 if left else -1)
    a, b = _spread("linalg.solve_triangular", A, B)
    return jax.lax.linalg.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@solve_triangular.samples
def _(make: Any) -> Iterator[Any]:
    yield sample(make.spd(3), make(3, 2), upper=False)
    yield sample(make.spd(2, 3), make(3, 2), upper=True)
    yield sample(make.spd(3), make(2, 3), upper=True, left=False, unitriangular=True)


@solve_triangular.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "must have at least 2 dimensions", make(2, 2), make(2), upper=True)


def pseudo_inverse(a: Any, atol: float | None, rtol: float | None) -> Any:
    if rtol is None:
        rtol = 0.0 if atol else max(a.shape[-2:]) * float(jnp.finfo(a.dtype).eps)
    return _pinv(a, 0.0 if atol is None else atol, rtol)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _pinv(a: Any, atol: float, rtol: float) -> Any:
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    floor = jnp.maximum(atol, rtol * jnp.max(s, -1, keepdims=True, initial=0))
    kept = s > floor
    inverse = jnp.where(kept, 1 / jnp.where(kept, s, 1), 0).astype(a.dtype)
    return (adjoint(vh) * inverse[..., None, :]) @ adjoint(u)


@_pinv.defjvp
def _(atol: float, rtol: float, primals: Any, tangents: Any) -> Any:  # Golub and Pereyra (1973), constant rank
    (a,), (da,) = primals, tangents
    p = _pinv(a, atol, rtol)
    ph, dh = adjoint(p), adjoint(da)
    right = p @ ph @ dh
    left = dh @ ph @ p
    return p, -p @ da @ p + (right - right @ a @ p) + (left - p @ a @ left)


@op("torch Tensor", saves="input result", oracle="pinverse")
def pinverse(input: Array, rcond: float = 1e-15) -> Array:
    """Return the pseudo-inverse `(..., M, N) -> (..., N, M)`; singular values below `rcond` times the largest count as 0."""
    matrices("linalg.pinv", input, square=False)
    return pseudo_inverse(input, None, rcond)


@pinverse.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 2)


@op("linalg", saves="A result", oracle="linalg.pinv")
def pinv(A: Array, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False) -> Array:
    """Return the pseudo-inverse `(..., M, N) -> (..., N, M)`.

    Singular values up to `max(atol, rtol * largest)` count as 0; `rtol` is `max(M, N) * eps` unless a tolerance is
    given. The gradient holds while the rank does not change.
    """
    matrices("linalg.pinv", A, square=hermitian)
    return pseudo_inverse(A, atol, rtol)


@pinv.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 2)
    yield make(2, 2, 3)
    yield rough("a step changes the rank", np.outer([1.0, 2.0, 3.0], [1.0, -1.0]))
    yield sample(make.spd(2), rtol=1e-3)


@op("", saves="A B solution", returns="solution residuals rank singular_values", oracle=None, grad_name="LinalgLstsq")
def lstsq_op(A: Array, B: Array, rcond: float | None = None) -> tuple[Array, Array, Array, Array]:
    """Return (solution, residuals, rank, singular_values) of `min |A X - B|`; see `linalg.lstsq`."""
    matrices("linalg.lstsq", A, square=False)
    vector = B.ndim == A.ndim - 1
    b = B[..., None] if vector else B
    if A.shape[-2] != b.shape[-2]:
        message = f"input.size(-2) should match other.size(-2), got {tuple(A.shape)} and {tuple(B.shape)}"
        raise refuse(RuntimeError, "linalg.lstsq", message)
    a, b = _spread("linalg.lstsq", A, b)
    x = pseudo_inverse(a, None, rcond) @ b
    left = jnp.sum(jnp.square(jnp.abs(a @ x - b)), -2) if a.shape[-2] > a.shape[-1] else jnp.zeros((0,), A.real.dtype)
    s = jnp.linalg.svd(a, full_matrices=False, compute_uv=False)
    tolerance = max(a.shape[-2:]) * float(jnp.finfo(a.dtype).eps) if rcond is None else rcond
    rank = jnp.sum(s > tolerance * jnp.max(s, -1, keepdims=True, initial=0), -1, dtype=np.int64)
    return x[..., 0] if vector else x, left, rank, s


@lstsq_op.samples
def _(make: Any) -> Iterator[Any]:
    why = "lstsq() detaches the singular values"
    yield rough(why, make(4, 2), make(4, 2))
    yield rough(why, make(2, 3, 3), make(2, 3, 1))


@composite("linalg")
def lstsq(A: Any, B: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Return (solution, residuals, rank, singular_values) of `min |A X - B|`: `(..., M, N)`, `(..., M, K) -> (..., N, K)`.

    `driver` is accepted for compatibility: the least-norm solution comes from the pseudo-inverse. The residuals are
    those of a full-rank A with M > N, and empty otherwise. The singular values have no gradient.
    """
    found = lstsq_op(A, B, rcond)
    return found._replace(singular_values=found.singular_values.detach())


# --- Cholesky ---------------------------------------------------------------------------------------------------------


def factor(a: Any, upper: bool) -> Any:
    whole = hermitian(a, not upper)
    found = jax.lax.linalg.cholesky(whole, symmetrize_input=False)
    return adjoint(found) if upper else found


@op("torch Tensor linalg", saves="result", triangle=True, grad_name="LinalgCholeskyEx")
def cholesky(input: Array, upper: bool = False) -> Array:
    """Return the lower triangular L with `L L^H = A` (`upper`: U with `U^H U = A`), `(..., N, N)`.

    Only that triangle of A is read; the gradient is symmetric. Where A is not positive definite the factor is NaN
    (torch raises).

    >>> import tapejax as tj
    >>> tj.linalg.cholesky(tj.tensor([[4., 0.], [0., 9.]]))
    tensor([[2., 0.],
            [0., 3.]])
    """
    matrices("linalg.cholesky", input)
    return factor(input, upper)


@cholesky.samples
def _(make: Any) -> Iterator[Any]:
    yield make.spd(3)
    yield make.spd(2, 3), True


cholesky.error_samples(_not_square)


@op("linalg", saves="L", returns="L info", triangle=True, grad_name="LinalgCholeskyEx", oracle=None)
def cholesky_ex(A: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    """Return (the Cholesky factor, int32 info: 0 where A is positive definite, else 1)."""
    matrices("linalg.cholesky_ex", A)
    found = factor(A, upper)
    return found, jnp.any(jnp.isnan(found), (-2, -1)).astype(np.int32)


@cholesky_ex.samples
def _(make: Any) -> Iterator[Any]:
    yield make.spd(3)
    yield rough("no factor exists", -np.eye(2))


def _solve_factored(f: Any, b: Any, upper: bool) -> Any:
    first = {"left_side": True, "lower": not upper, "conjugate_a": True}
    inner = jax.lax.linalg.triangular_solve(f, b, **(first | {"transpose_a": upper, "conjugate_a": upper}))
    return jax.lax.linalg.triangular_solve(f, inner, **(first | {"transpose_a": not upper, "conjugate_a": not upper}))


@op("torch Tensor", saves="input result", oracle=None)  # torch's gradient spills into the half not read
def cholesky_inverse(input: Array, upper: bool = False) -> Array:
    """Return the inverse of A from its Cholesky factor, of which the other half is not read."""
    matrices("cholesky_inverse", input)
    eye = jnp.broadcast_to(jnp.eye(input.shape[-1], dtype=input.dtype), input.shape)
    return _solve_factored(input, eye, upper)


@cholesky_inverse.samples
def _(make: Any) -> Iterator[Any]:
    yield np.tril(make.spd(3))
    yield np.triu(make.spd(2, 3)), True


cholesky_inverse.error_samples(_not_square)


@op("torch Tensor", saves="input input2 result", oracle=None)  # torch's gradient spills into the half not read
def cholesky_solve(input: Array, input2: Array, upper: bool = False) -> Array:
    """Return X with `A X = input` from the Cholesky factor `input2` of A: `(..., N, K)`, `(..., N, N) -> (..., N, K)`."""
    matrices("cholesky_solve", input2)
    if input.ndim < 2:
        raise refuse(RuntimeError, "cholesky_solve", f"b should have at least 2 dimensions, but has {input.ndim} dimensions")
    _agree("cholesky_solve", input2, input)
    f, b = _spread("cholesky_solve", input2, input)
    return _solve_factored(f, b, upper)


@cholesky_solve.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 2), np.tril(make.spd(3))
    yield make(3, 2), np.triu(make.spd(2, 3)), True


# --- functions of matrices --------------------------------------------------------------------------------------------


@op("torch Tensor linalg", saves="input", grad_name="Mm")
def matrix_power(input: Array, n: int) -> Array:
    """Return the n-th power of square matrices; a negative one is that of the inverse, the 0-th the identity."""
    if input.ndim < 2 or input.shape[-1] != input.shape[-2]:
        matrices("linalg.matrix_power", input)
    if n < 0:
        matrices("linalg.matrix_power", input)
        return jnp.linalg.matrix_power(jnp.linalg.inv(input), -n)
    return jnp.linalg.matrix_power(input, n)


@matrix_power.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 3), 3
    yield make.spd(2, 2), -2
    yield make(2, 2), 0


@matrix_power.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "must be batches of square matrices", make(2, 3), 2)


@op("torch Tensor linalg", saves="input", grad_name="LinalgMatrixExp")
def matrix_exp(input: Array) -> Array:
    """Return the matrix exponential `Σ A^k / k!` of square matrices `(..., N, N)`.

    Scaling and squaring around the Padé approximant of degree 13 (Higham 2005, without the lower degrees: one branch
    compiles several times faster than five). Half precision is computed in float32.
    """
    matrices("linalg.matrix_exp", input, half=True)
    if input.size == 0:
        return input
    if input.dtype.itemsize == 2:
        return _exponential(input.astype(jnp.float32)).astype(input.dtype)
    return _exponential(input)


def _exponential(input: Any) -> Any:
    norm = jnp.max(jnp.sum(jnp.abs(jax.lax.stop_gradient(input)), -2), -1, keepdims=True)[..., None]
    halvings = jnp.clip(jnp.ceil(jnp.log2(norm / _PADE_REACH[input.real.dtype.name])), 0, _SQUARINGS)
    scaled = input * jnp.exp2(-halvings).astype(input.dtype)

    def square(x: Any, i: Any) -> tuple[Any, None]:
        return jax.lax.cond(i < jnp.max(halvings), lambda x: jnp.where(i < halvings, x @ x, x), lambda x: x, x), None

    return jax.lax.scan(square, _pade(scaled), jnp.arange(_SQUARINGS, dtype=halvings.dtype))[0]


_PADE = [64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600,
         670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1]  # fmt: skip
_PADE_REACH = {"float64": 5.37, "float32": 3.92}  # norms within which it is exact
_SQUARINGS = 24  # norms up to 10⁷; beyond, the exponential has long overflowed


def _pade(a: Any) -> Any:
    """The [13/13] Padé approximant of exp at `a`, by six products and one solve."""
    b = [x / _PADE[0] for x in _PADE]
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a4 @ a2
    one = jnp.eye(a.shape[-1], dtype=a.dtype)
    u = a @ (a6 @ (b[13] * a6 + b[11] * a4 + b[9] * a2) + b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * one)
    v = a6 @ (b[12] * a6 + b[10] * a4 + b[8] * a2) + b[6] * a6 + b[4] * a4 + b[2] * a2 + one
    return jnp.linalg.solve(v - u, v + u)


@matrix_exp.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 3)
    yield 20 * make(2, 2, 2)
    yield make.complex(2, 2)


matrix_exp.error_samples(_not_square)
