"""The recurrences: one internal op per optimizer, from all old values of a group to the new ones.

Each body is the textbook formula of *one* parameter; `recurrence` declares the op that applies it to lists of them, so that a
step of a group is one node. A body returns `(param, *state)`, new values in the order in which the old ones came in. All numbers
that may change between steps are `Scalar` leaves and the step count is an operand, so that a schedule never changes the
program; a recurrence without use for the count takes it all the same, which has it computed along. A number left out
(`weight_decay`) is one that torch skips when 0.

Torch's conventions: `maximize` climbs; a complex parameter is a pair of reals, except in SGD, whose formula needs no
distinction since `.grad` already points uphill. Half precision is computed in float32 and rounded once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from tapejax.tape.op import Array, Arrays, Op, Scalar, op


def _work(x: Any) -> Any:
    """The values to compute with: complex numbers as real pairs, half precision widened."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.stack([x.real, x.imag], axis=-1)
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


def _store(x: Any, like: Any) -> Any:
    """Back from `_work` to the type of `like`."""
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        x = x[..., 0] + 1j * x[..., 1]
    return x.astype(like.dtype)


def _caster(x: Any) -> Callable[[Any], Any]:
    """Scalars in the precision of `x`, so that they never widen the result."""
    return lambda s: jnp.asarray(s, x.dtype)


def _uphill(param: Any, grad: Any, weight_decay: Any, maximize: bool) -> Any:
    """The gradient to follow down, weight decay in its coupled (L2) form included."""
    grad = -grad if maximize else grad
    return grad if _off(weight_decay) else grad + jnp.asarray(weight_decay, grad.dtype) * param


def _shrunk(param: Any, lr: Any, weight_decay: Any) -> Any:
    """Decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2)."""
    return param if _off(weight_decay) else param * jnp.asarray(1 - lr * weight_decay, param.dtype)


def _off(number: Any) -> bool:
    """True for a Scalar that was left out: it arrives as the Python default."""
    return isinstance(number, (int, float)) and number == 0


def _count(step: Any) -> Any:
    """The step count in double precision: `beta ** step` loses digits in single."""
    return step.astype(jnp.float64)


def recurrence(body: Callable[..., tuple[Any, ...]]) -> Op:
    """Declare the op that applies `body` to lists: its operands are lists of one length, empty where `body` takes None.

    The result lists all new parameters first, then all new values of each state in turn.
    """
    signature = inspect.signature(body)
    lists = [p.name for p in signature.parameters.values() if p.annotation in ("Array", "Array | None")]

    def impl(**arguments: Any) -> tuple[Any, ...]:
        n = len(arguments["param"])
        columns = [arguments.pop(name) or (None,) * n for name in lists]
        new = [body(**dict(zip(lists, row, strict=True)), **arguments) for row in zip(*columns, strict=True)]
        return tuple(value for column in zip(*new, strict=True) for value in column)

    parameters = [p.replace(annotation="Arrays") if p.name in lists else p for p in signature.parameters.values()]
    impl.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    impl.__name__, impl.__doc__ = body.__name__, body.__doc__
    return op("", oracle=None)(impl)


@op("", oracle=None)
def next_step(step: Array) -> Array:
    """Count one step."""
    return step + 1


@recurrence
def sgd_update(
    param: Array,
    grad: Array,
    lr: Scalar,
    momentum_buffer: Array | None = None,
    momentum: Scalar = 0.0,
    damping: Scalar = 1.0,
    weight_decay: Scalar = 0.0,
    *,
    nesterov: bool,
    maximize: bool,
) -> tuple[Array, ...]:
    """Descend along the gradient, or along its running sum `b = momentum b + damping g` (Sutskever et al. 2013)."""
    p, g = (x.astype(jnp.float32) if x.dtype.itemsize < 4 else x for x in (param, grad))
    s = _caster(p)
    g = _uphill(p, g, weight_decay, maximize)
    if momentum_buffer is None:
        return ((p - s(lr) * g).astype(param.dtype),)
    b = s(momentum) * momentum_buffer.astype(p.dtype) + s(damping) * g
    g = g + s(momentum) * b if nesterov else b
    return (p - s(lr) * g).astype(param.dtype), b.astype(momentum_buffer.dtype)


@recurrence
def adam_update(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    step: Array,
    lr: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    eps: Scalar,
    max_exp_avg_sq: Array | None = None,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool,
    decoupled: bool,
) -> tuple[Array, ...]:
    """Adam (Kingma and Ba 2015, algorithm 1), AdamW with `decoupled`, AMSGrad where a maximum is kept."""
    p, g, m, v = map(_work, (param, grad, exp_avg, exp_avg_sq))
    s, t = _caster(p), _count(step)
    if decoupled:
        p = _shrunk(p, lr, weight_decay)
        weight_decay = 0.0
    g = _uphill(p, g, weight_decay, maximize)
    m = m + s(1 - beta1) * (g - m)
    v = s(beta2) * v + s(1 - beta2) * g * g
    top = v if max_exp_avg_sq is None else jnp.maximum(_work(max_exp_avg_sq), v)
    size = jnp.sqrt(top) / s(jnp.sqrt(1 - beta2**t)) + s(eps)
    p = p - s(lr / (1 - beta1**t)) * m / size
    out = _store(p, param), _store(m, exp_avg), _store(v, exp_avg_sq)
    return out if max_exp_avg_sq is None else (*out, _store(top, max_exp_avg_sq))


@recurrence
def nadam_update(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    mu_product: Array,
    step: Array,
    lr: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    eps: Scalar,
    momentum_decay: Scalar,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool,
    decoupled: bool,
) -> tuple[Array, ...]:
    """Adam with Nesterov's look-ahead (Dozat 2016), its momentum warming up as `beta1 (1 - 0.96^(t decay) / 2)`."""
    p, g, m, v = map(_work, (param, grad, exp_avg, exp_avg_sq))
    s, t = _caster(p), _count(step)
    if decoupled:
        p = _shrunk(p, lr, weight_decay)
        weight_decay = 0.0
    g = _uphill(p, g, weight_decay, maximize)
    mu = beta1 * (1 - 0.5 * 0.96 ** (t * momentum_decay))
    mu_next = beta1 * (1 - 0.5 * 0.96 ** ((t + 1) * momentum_decay))
    product = mu_product * mu.astype(mu_product.dtype)
    m = m + s(1 - beta1) * (g - m)
    v = s(beta2) * v + s(1 - beta2) * g * g
    size = jnp.sqrt(v / s(1 - beta2**t)) + s(eps)
    so_far = product.astype(jnp.float64)
    p = p - s(lr * (1 - mu) / (1 - so_far)) * g / size
    p = p - s(lr * mu_next / (1 - so_far * mu_next)) * m / size
    return _store(p, param), _store(m, exp_avg), _store(v, exp_avg_sq), product


@recurrence
def radam_update(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    step: Array,
    lr: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    eps: Scalar,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool,
    decoupled: bool,
) -> tuple[Array, ...]:
    """Adam whose adaptive size waits until its variance is tractable, `rho_t > 5` (Liu et al. 2020, algorithm 2)."""
    p, g, m, v = map(_work, (param, grad, exp_avg, exp_avg_sq))
    s, t = _caster(p), _count(step)
    if decoupled:
        p = _shrunk(p, lr, weight_decay)
        weight_decay = 0.0
    g = _uphill(p, g, weight_decay, maximize)
    m = m + s(1 - beta1) * (g - m)
    v = s(beta2) * v + s(1 - beta2) * g * g
    left1, left2 = 1 - beta1**t, 1 - beta2**t
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * t * beta2**t / left2
    tractable = rho > 5
    safe = jnp.where(tractable, rho, 6.0)
    rectified = jnp.sqrt((safe - 4) * (safe - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * safe))
    adaptive = s(jnp.sqrt(left2) * rectified) / (jnp.sqrt(v) + s(eps))
    p = p - s(lr) * (m / s(left1)) * jnp.where(tractable, adaptive, s(1.0))
    return _store(p, param), _store(m, exp_avg), _store(v, exp_avg_sq)


@recurrence
def adamax_update(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_inf: Array,
    step: Array,
    lr: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    eps: Scalar,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool,
) -> tuple[Array, ...]:
    """Adam under the infinity norm (Kingma and Ba 2015, algorithm 2)."""
    p, g, m, u = map(_work, (param, grad, exp_avg, exp_inf))
    s, t = _caster(p), _count(step)
    g = _uphill(p, g, weight_decay, maximize)
    m = m + s(1 - beta1) * (g - m)
    u = jnp.maximum(s(beta2) * u, jnp.abs(g) + s(eps))
    p = p - s(lr / (1 - beta1**t)) * m / u
    return _store(p, param), _store(m, exp_avg), _store(u, exp_inf)


@recurrence
def adagrad_update(
    param: Array,
    grad: Array,
    sum: Array,
    step: Array,
    lr: Scalar,
    lr_decay: Scalar,
    eps: Scalar,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool,
) -> tuple[Array, ...]:
    """Divide by the root of the summed squares (Duchi et al. 2011), with a rate falling as `lr / (1 + (t - 1) decay)`."""
    p, g, total = map(_work, (param, grad, sum))
    s, t = _caster(p), _count(step)
    g = _uphill(p, g, weight_decay, maximize)
    total = total + g * g
    p = p - s(lr / (1 + (t - 1) * lr_decay)) * g / (jnp.sqrt(total) + s(eps))
    return _store(p, param), _store(total, sum)


@recurrence
def rmsprop_update(
    param: Array,
    grad: Array,
    square_avg: Array,
    step: Array,
    lr: Scalar,
    alpha: Scalar,
    eps: Scalar,
    momentum_buffer: Array | None = None,
    grad_avg: Array | None = None,
    momentum: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool,
) -> tuple[Array, ...]:
    """Divide by a running root mean square (Hinton's lecture 6e), centred where a mean is kept (Graves 2013, eq. 38-40).

    As torch, and unlike TensorFlow, `eps` is added outside the root.
    """
    p, g, v = map(_work, (param, grad, square_avg))
    s = _caster(p)
    g = _uphill(p, g, weight_decay, maximize)
    v = s(alpha) * v + s(1 - alpha) * g * g
    out = [_store(v, square_avg)]
    spread = v
    mean = None
    if grad_avg is not None:
        mean = _work(grad_avg)
        mean = mean + s(1 - alpha) * (g - mean)
        spread = v - mean * mean
    move = g / (jnp.sqrt(spread) + s(eps))
    if momentum_buffer is not None:
        move = s(momentum) * _work(momentum_buffer) + move
        out.append(_store(move, momentum_buffer))
    if mean is not None:
        out.append(_store(mean, grad_avg))
    return _store(p - s(lr) * move, param), *out


@recurrence
def adadelta_update(
    param: Array,
    grad: Array,
    square_avg: Array,
    acc_delta: Array,
    step: Array,
    lr: Scalar,
    rho: Scalar,
    eps: Scalar,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool,
) -> tuple[Array, ...]:
    """Scale by the ratio of two running root mean squares, of past moves and of gradients (Zeiler 2012, algorithm 1)."""
    p, g, v, d = map(_work, (param, grad, square_avg, acc_delta))
    s = _caster(p)
    g = _uphill(p, g, weight_decay, maximize)
    v = s(rho) * v + s(1 - rho) * g * g
    move = jnp.sqrt(d + s(eps)) / jnp.sqrt(v + s(eps)) * g
    d = s(rho) * d + s(1 - rho) * move * move
    return _store(p - s(lr) * move, param), _store(v, square_avg), _store(d, acc_delta)


@recurrence
def rprop_update(
    param: Array,
    grad: Array,
    prev: Array,
    step_size: Array,
    step: Array,
    eta_minus: Scalar,
    eta_plus: Scalar,
    smallest: Scalar,
    largest: Scalar,
    *,
    maximize: bool,
) -> tuple[Array, ...]:
    """Follow the gradient's sign with a size per element that grows while the sign holds (Riedmiller and Braun 1993)."""
    p, g, last, size = map(_work, (param, grad, prev, step_size))
    s = _caster(p)
    g = -g if maximize else g
    agreement = jnp.sign(g * last)
    factor = jnp.where(agreement > 0, s(eta_plus), jnp.where(agreement < 0, s(eta_minus), s(1.0)))
    size = jnp.clip(size * factor, s(smallest), s(largest))
    g = jnp.where(agreement < 0, s(0.0), g)  # after overshooting: stay here once, and forget the direction
    return _store(p - jnp.sign(g) * size, param), _store(g, prev), _store(size, step_size)


@recurrence
def asgd_update(
    param: Array,
    grad: Array,
    ax: Array,
    eta: Array,
    mu: Array,
    step: Array,
    lr: Scalar,
    lambd: Scalar,
    alpha: Scalar,
    t0: Scalar,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool,
) -> tuple[Array, ...]:
    """Average the iterates of a decaying gradient descent (Polyak and Juditsky 1992)."""
    p, g, mean = map(_work, (param, grad, ax))
    s, t = _caster(p), _count(step)
    g = _uphill(p, g, weight_decay, maximize)
    p = p * s(1 - lambd * eta) - s(eta) * g
    mean = jnp.where(mu == 1, p, mean + s(mu) * (p - mean))
    eta = (lr / (1 + lambd * lr * t) ** alpha).astype(eta.dtype)
    mu = (1 / jnp.maximum(1.0, t - t0)).astype(mu.dtype)
    return _store(p, param), _store(mean, ax), eta, mu


@op("", oracle=None)
def lbfgs_direction(grad: Array, changes: Arrays, moves: Arrays, inverses: Arrays, scale: Array) -> Array:
    """Return `-H grad`, H the inverse Hessian that the pairs (change of gradient, move) imply (Nocedal 1980, two loops).

    Oldest pair first; a pair of zeros changes nothing, so that a history can be padded to a round length.
    """
    y, s, rho = jnp.stack(changes), jnp.stack(moves), jnp.stack(inverses)  # type: ignore[arg-type]

    def back(q: Any, pair: Any) -> Any:
        y, s, rho = pair
        alpha = rho * jnp.dot(s, q)
        return q - alpha * y, alpha

    def forth(r: Any, pair: Any) -> Any:
        y, s, rho, alpha = pair
        return r + (alpha - rho * jnp.dot(y, r)) * s, None

    q, alphas = lax.scan(back, -grad, (y, s, rho), reverse=True)
    return lax.scan(forth, q * scale, (y, s, rho, alphas))[0]
