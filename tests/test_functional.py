"""autograd.functional: products with Jacobians and Hessians, the matrices themselves, strictness and structure."""

from __future__ import annotations

import pytest

from oracle import near, numbers, square_of

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def one(x):
    return x.sin() * x.sum()


def two(x, y):
    return x.sin() * y.sum(), x.sum() * y


def scalar(x):
    return (x.sin() * x.sum()).sum()


def scalar_of_two(x, y):
    return (x.sin() * y.sum()).sum() + (x.sum() * y * y).sum()


def vectors(tl):
    return tl.tensor([0.1, 0.5, 0.9], dtype=tl.float64), tl.tensor([1.5, -0.5], dtype=tl.float64)


def functional(tl):
    return tl.autograd.functional


def columns(tl, f, x):
    """The Jacobian of a vector function by central differences, as a list of rows."""
    step = 1e-6
    unit = tl.eye(x.numel(), dtype=x.dtype)
    found = [((f(x + step * u) - f(x - step * u)) / (2 * step)).tolist() for u in unit]
    return [list(row) for row in zip(*found, strict=True)]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    "options", [{}, {"create_graph": True}, {"vectorize": True}, {"vectorize": True, "strategy": "forward-mode"}]
)
def test_jacobian_against_differences(tl, options):
    x, _ = vectors(tl)
    got = functional(tl).jacobian(one, x, **options)
    assert near(got, columns(tl, one, x), 1e-6, 1e-8)
    assert got.requires_grad is options.get("create_graph", False)


def test_jacobian_of_several_outputs_by_several_inputs_is_a_tuple_of_tuples(tl):
    x, y = vectors(tl)
    got = functional(tl).jacobian(two, (x, y))
    assert [[tuple(b.shape) for b in row] for row in got] == [[(3, 3), (3, 2)], [(2, 3), (2, 2)]]
    assert isinstance(got, tuple) and isinstance(got[0], tuple)
    assert near(got[1][1], [[1.5, 0.0], [0.0, 1.5]])


@pytest.mark.parametrize(
    "options",
    [{}, {"create_graph": True}, {"vectorize": True}, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}],
)
def test_hessian_against_differences_of_the_gradient(tl, options):
    x, _ = vectors(tl)

    def gradient(z):
        return functional(tl).jacobian(scalar, z)

    assert near(functional(tl).hessian(scalar, x, **options), columns(tl, gradient, x), 1e-6, 1e-8)


def test_hessian_of_two_inputs_is_a_tuple_of_tuples(tl):
    x, y = vectors(tl)
    got = functional(tl).hessian(scalar_of_two, (x, y))
    assert [[tuple(b.shape) for b in row] for row in got] == [[(3, 3), (3, 2)], [(2, 3), (2, 2)]]
    assert near(got[0][1], numbers(got[1][0].t()))


def test_products_agree_with_the_matrices(tl):
    x, y = vectors(tl)
    jac = functional(tl).jacobian(two, (x, y))
    hess = functional(tl).hessian(scalar_of_two, (x, y))
    v = (tl.tensor([1.0, -2.0, 0.5], dtype=tl.float64), tl.tensor([0.3, 0.7], dtype=tl.float64))
    _, pulled = functional(tl).vjp(two, (x, y), v)
    _, pushed = functional(tl).jvp(two, (x, y), v)
    for j in range(2):
        assert near(pulled[j], sum(v[i] @ jac[i][j] for i in range(2)))
        assert near(pushed[j], sum(jac[j][i] @ v[i] for i in range(2)))
    for product in (functional(tl).vhp, functional(tl).hvp):
        value, got = product(scalar_of_two, (x, y), v)
        assert near(value, scalar_of_two(x, y))
        for j in range(2):
            assert near(got[j], sum(hess[j][i] @ v[i] for i in range(2)))


def test_v_may_be_left_out_for_one_element(tl):
    x, _ = vectors(tl)
    value, got = functional(tl).vjp(scalar, x)
    assert near(value, scalar(x)) and near(got, functional(tl).jacobian(scalar, x))
    assert not value.requires_grad and not got.requires_grad
    single = tl.tensor([0.3], dtype=tl.float64)
    assert near(functional(tl).jvp(one, single)[1], functional(tl).jacobian(one, single).reshape(-1))
    assert near(functional(tl).hvp(scalar, single)[1], functional(tl).hessian(scalar, single).reshape(-1))


@pytest.mark.parametrize("name", ["vjp", "jvp", "vhp", "hvp"])
def test_create_graph_makes_products_differentiable(tl, name):
    x, _ = vectors(tl)
    v = tl.ones(3, dtype=tl.float64)
    f = scalar if name in ("vhp", "hvp") else one
    product = getattr(functional(tl), name)
    leaf = x.clone().requires_grad_()
    value, got = product(f, leaf, v, create_graph=True)
    assert value.requires_grad and got.requires_grad
    (found,) = tl.autograd.grad(got.sum(), leaf)

    def total(z):
        return product(f, z, v)[1].sum().reshape(1)

    assert near(found, columns(tl, total, x)[0], 1e-6, 1e-8)


def test_inputs_keep_their_grad_and_their_flags(tl):
    x, _ = vectors(tl)
    functional(tl).jacobian(one, x)
    functional(tl).hessian(scalar, x)
    assert not x.requires_grad and x.grad is None


def test_it_records_under_no_grad_too(tl):
    x, _ = vectors(tl)
    with tl.no_grad():
        assert near(functional(tl).jacobian(one, x), columns(tl, one, x), 1e-6, 1e-8)


def test_independent_parts_are_zeros(tl):
    x, y = vectors(tl)
    got = functional(tl).jacobian(lambda x, y: x * 2, (x, y))
    assert numbers(got[1]) == [[0.0, 0.0]] * 3
    assert numbers(functional(tl).vjp(lambda x: y.sum(), x, tl.ones((), dtype=tl.float64))[1]) == [0.0] * 3


# ---------------------------------------------------------------- refusals


def test_strict_refuses_independence(tl):
    x, y = vectors(tl)
    f = functional(tl)
    with pytest.raises(RuntimeError, match="Output 0 of the user-provided function is independent of input 1"):
        f.jacobian(lambda x, y: x * 2, (x, y), strict=True)
    with pytest.raises(RuntimeError, match="does not require gradients"):
        f.jacobian(lambda x: y * 2, x, strict=True)
    with pytest.raises(RuntimeError, match=r"independent of input 0.*create_graph=True"):
        f.jacobian(lambda x: x * 2, x, strict=True, create_graph=True)
    with pytest.raises(RuntimeError, match="independent of input 1"):
        f.vhp(lambda x, y: (x * x).sum(), (x, y), (x, y), strict=True)
    for product in (f.vhp, f.hvp):
        with pytest.raises(
            RuntimeError, match="jacobian of the user-provided function with respect to input 0 is independent"
        ):
            product(lambda x: x.sum(), x, x, strict=True)
    with pytest.raises(
        RuntimeError, match="jacobian of the user-provided function with respect to input 0 is independent"
    ):
        f.hessian(lambda x: x.sum(), x, strict=True)


def test_strategies_that_do_not_go_together_are_refused(tl):
    x, _ = vectors(tl)
    jacobian = functional(tl).jacobian
    with pytest.raises(RuntimeError, match="not supported together"):
        jacobian(one, x, strict=True, vectorize=True)
    with pytest.raises(NotImplementedError, match=r"implemented for `vectorize=True`"):
        jacobian(one, x, strategy="forward-mode")
    with pytest.raises(NotImplementedError, match="create_graph=True"):
        jacobian(one, x, strategy="forward-mode", vectorize=True, create_graph=True)
    with pytest.raises(AssertionError, match="Expected strategy to be either"):
        jacobian(one, x, strategy="sideways")


@pytest.mark.parametrize("name", ["vjp", "jvp", "vhp", "hvp"])
def test_wrong_arguments_are_refused(tl, name):
    x, y = vectors(tl)
    product = getattr(functional(tl), name)
    with pytest.raises(TypeError, match=f"The inputs given to {name} must be either a Tensor or a tuple of Tensors"):
        product(scalar, 3.0, x)
    with pytest.raises(TypeError, match="outputs of the user-provided function"):
        product(lambda x: 3.0, x, x)
    with pytest.raises(RuntimeError, match="v has invalid size"):
        product(scalar, x, y)
    with pytest.raises(RuntimeError, match="The given v should contain a single Tensor"):
        product(scalar, x, (x, x))
    if name in ("vhp", "hvp"):
        with pytest.raises(RuntimeError, match="should contain a single element"):
            product(one, x, x)
        with pytest.raises(RuntimeError, match="should return a single Tensor"):
            product(lambda x: (x.sum(), x.sum()), x, x)
    else:
        with pytest.raises(RuntimeError, match="The vector v can only be None"):
            product(one, x)


def test_hessian_needs_one_scalar(tl):
    x, _ = vectors(tl)
    with pytest.raises(RuntimeError, match="should contain a single element"):
        functional(tl).hessian(one, x)
    with pytest.raises(RuntimeError, match="should return a single Tensor"):
        functional(tl).hessian(lambda x: (x.sum(), x.sum()), x)


# ---------------------------------------------------------------- Python in the backward


def test_a_custom_function_and_a_hook_in_the_way(tl):
    x, _ = vectors(tl)
    assert near(
        functional(tl).jacobian(lambda x: square_of(tl).apply(x.sin()), x), columns(tl, lambda x: x.sin() ** 2, x), 1e-6, 1e-8
    )

    def hooked(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        return y

    assert near(
        functional(tl).jacobian(hooked, x),
        [[2 * v if i == j else 0.0 for j, v in enumerate(numbers(x.cos()))] for i in range(3)],
    )
