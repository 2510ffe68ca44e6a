"""tapejax.func: transforms of functions, in every order, with backward() outside."""

from __future__ import annotations

import pytest

import tapejax
from oracle import compiled, near, numbers

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]


def matrix(tl, rows=3, cols=2):
    return tl.tensor([[(3 * i + 5 * j) % 7 * 0.25 - 0.4 for j in range(cols)] for i in range(rows)], dtype=tl.float64)


def f(x):
    return (x.sin() * x.exp() * x.sum()).sum()


def loop(tl, function, *stacked):
    """What vmap must give: the function on every example."""
    return tl.stack([function(*xs) for xs in zip(*stacked, strict=True)])


def reference_grad(tl, function, x):
    leaf = x.detach().clone().requires_grad_()
    return tl.autograd.grad(function(leaf), leaf)[0]


# ---------------------------------------------------------------- grad and vjp


def test_grad_is_the_gradient_and_requires_none_itself(tl):
    x = matrix(tl)
    g = tl.func.grad(f)(x)
    assert near(g, reference_grad(tl, f, x)) and not g.requires_grad and not x.requires_grad


def test_grad_nests_to_any_order(tl):
    x = tl.tensor(1.3, dtype=tl.float64)
    third = tl.func.grad(tl.func.grad(tl.func.grad(lambda x: x**5)))(x)
    assert near(third, 60 * 1.3**2) and not third.requires_grad


def test_levels_are_not_confused(tl):
    one, three = tl.tensor(1.0), tl.tensor(3.0)
    assert numbers(tl.func.grad(lambda x: x * tl.func.grad(lambda y: x * y)(one))(three)) == 6.0
    inner = lambda x: tl.func.jvp(lambda y: x * y, (one,), (one,))[1]  # noqa: E731
    assert numbers(tl.func.jvp(lambda x: x * inner(x), (three,), (one,))[1]) == 6.0


def test_argnums_choose_the_arguments(tl):
    x, y = matrix(tl), matrix(tl) + 1
    product = lambda x, y: (x * y * y).sum()  # noqa: E731
    assert near(tl.func.grad(product, argnums=1)(x, y), 2 * x * y)
    assert near(tl.func.grad(product, argnums=-2)(x, y), y * y)
    both = tl.func.grad(product, argnums=(1, 0))(x, y)
    assert isinstance(both, tuple) and near(both, [2 * x * y, y * y])
    for argnums, words in (
        ((0, 0), "must be unique"),
        ((), "must be non-empty"),
        (2, "only 2 positional inputs"),
        (0.5, "must be int or Tuple"),
    ):
        with pytest.raises(RuntimeError, match=words):
            tl.func.grad(product, argnums=argnums)(x, y)


def test_trees_keep_their_order_and_structure(tl):
    x, y = matrix(tl), matrix(tl) + 1
    got = tl.func.grad(lambda d: (d["b"] * d["a"][0]).sum())({"b": x, "a": [y]})
    assert list(got) == ["b", "a"] and isinstance(got["a"], list)
    assert near(got["b"], y) and near(got["a"][0], x)


def test_has_aux_passes_the_second_result_through(tl):
    x = matrix(tl)
    g, aux = tl.func.grad(lambda x: (f(x), {"twice": x * 2}), has_aux=True)(x)
    assert near(g, reference_grad(tl, f, x)) and near(aux["twice"], x * 2) and not aux["twice"].requires_grad
    g, (value, aux) = tl.func.grad_and_value(lambda x: (f(x), x * 2), has_aux=True)(x)
    assert near(value, f(x)) and near(aux, x * 2) and not value.requires_grad


def test_unused_arguments_have_zero_gradients(tl):
    x = matrix(tl)
    assert numbers(tl.func.grad(lambda x, y: x.sum(), argnums=1)(x, x)) == [[0.0, 0.0]] * 3
    assert numbers(tl.func.grad(lambda x: tl.ones(()))(x)) == [[0.0, 0.0]] * 3


def test_grad_refuses_what_is_no_scalar_tensor(tl):
    x = matrix(tl)
    for function, words in (
        (lambda x: x, "return a scalar Tensor, got tensor with 2 dims"),
        (lambda x: 2.0, "Expected f\\(\\*args\\) to return a Tensor, got"),
        (lambda x: (x.sum(), x), "Expected f\\(\\*args\\) to return a Tensor, got"),
    ):
        with pytest.raises(RuntimeError, match=words):
            tl.func.grad(function)(x)
    with pytest.raises(RuntimeError, match="output of function f should be a tuple: \\(output, aux\\)"):
        tl.func.grad(f, has_aux=True)(x)
    with pytest.raises(RuntimeError, match="only Tensors of floating point"):
        tl.func.grad(lambda x: x.sum())(tl.arange(3))
    with pytest.raises(ValueError, match="must be Tensor"):
        tl.func.grad(lambda x: x)(2.0)


def test_no_grad_outside_does_not_reach_in_and_no_grad_inside_counts(tl):
    x = matrix(tl)

    def half(z):
        with tl.no_grad():
            held = z**2
        return (held * z).sum()

    expected = reference_grad(tl, f, x)
    with tl.no_grad():
        assert near(tl.func.grad(f)(x), expected)
        assert not tl.func.grad(f)(x.clone().requires_grad_()).requires_grad
    assert near(tl.func.grad(half)(x), x**2)
    assert near(tl.func.grad(lambda z: (z.detach() * z).sum())(x), x)


def test_an_input_is_not_written_in_place(tl):
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad is being used in an in-place operation"):
        tl.func.grad(lambda x: x.mul_(2).sum())(matrix(tl))


def test_vjp_pulls_back_as_often_as_asked(tl):
    x = matrix(tl)
    out, pull = tl.func.vjp(lambda x: (x.sin(), {"k": x * 2}), x)
    assert near(out[0], x.sin()) and not out[0].requires_grad
    for scale in (1.0, 3.0):
        (g,) = pull((scale * tl.ones_like(x), {"k": tl.zeros_like(x)}))
        assert near(g, scale * x.cos())
    with pytest.raises(RuntimeError, match="Expected pytree structure of cotangents"):
        pull(x)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        pull((x[0], {"k": x}))
    with pytest.raises(RuntimeError, match="expected f\\(\\*primals\\) to return only tensors"):
        tl.func.vjp(lambda x: 3.0, x)


# ---------------------------------------------------------------- jvp and linearize


def test_jvp_gives_value_and_tangent(tl):
    x, t = matrix(tl), matrix(tl) + 1
    out, push = tl.func.jvp(lambda x, y: {"p": x.sin() * y, "y": y}, (x, x), (t, tl.zeros_like(t)))
    assert near(out["p"], x.sin() * x) and near(push["p"], x.cos() * x * t) and near(push["y"], 0 * x)
    _, push, aux = tl.func.jvp(lambda x: (x * 2, x * 3), (x,), (t,), has_aux=True)
    assert near(push, 2 * t) and near(aux, 3 * x)


def test_jvp_refusals(tl):
    x = matrix(tl)
    for call, words in (
        (lambda: tl.func.jvp(f, x, x), "Expected primals to be a tuple"),
        (lambda: tl.func.jvp(lambda: x, (), ()), "to contain at least one Tensor"),
        (lambda: tl.func.jvp(lambda x, y: x, (x, x), (x,)), "to have the same python structure"),
        (lambda: tl.func.jvp(f, (3.0,), (x,)), "to only contain Tensors"),
        (lambda: tl.func.jvp(lambda x: 3.0, (x,), (x,)), "to return only tensors"),
        (lambda: tl.func.jvp(f, (x,), (x[0],)), "different size"),
        (lambda: tl.func.jvp(lambda z: x * 1, (x,), (x,), strict=True), "independent of the inputs"),
    ):
        with pytest.raises(RuntimeError, match=words):
            call()
    assert numbers(tl.func.jvp(lambda z: x * 1, (x,), (x,))[1]) == [[0.0, 0.0]] * 3


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's tracer has some
def test_a_linear_function_is_called_without_running_the_original_again(tl):
    x, calls = matrix(tl), []

    def function(z):
        calls.append(1)
        return z.sin() * z.sum()

    out, push = tl.func.linearize(function, x)
    before = len(calls)
    numbers(out)  # reading the value must not lose the way back to the inputs
    for t in (tl.ones_like(x), matrix(tl) + 1):
        assert near(push(t), tl.func.jvp(lambda z: z.sin() * z.sum(), (x,), (t,))[1])
    assert len(calls) == before
    with pytest.raises(RuntimeError, match="doesn't match the shape"):
        push(x[0])
    with pytest.raises(RuntimeError, match="same argspec as the primals"):
        push(x, x)


# ---------------------------------------------------------------- vmap


def test_vmap_is_the_function_on_every_example(tl):
    x, y = matrix(tl), matrix(tl) + 1
    assert near(tl.func.vmap(lambda a, b: a.sin() @ b)(x, y), loop(tl, lambda a, b: a.sin() @ b, x, y))
    assert tl.vmap(lambda a: a)(tl.ones(0, 3)).shape == (0, 3)


def test_in_dims_and_out_dims_say_where_the_batch_is(tl):
    x, w = matrix(tl), matrix(tl, 2, 4)
    got, same = tl.vmap(lambda a, b: (a @ b, b.sum()), in_dims=(1, None), out_dims=(-1, None))(x.t(), w)
    assert near(got, (x @ w).t()) and near(same, w.sum())
    nested = tl.vmap(lambda d, t: d["a"] * t[0] + t[1], in_dims=({"a": 1, "b": None}, (0, None)))
    assert near(nested({"a": x.t(), "b": 3}, (x, x[0])), x * x + x[0])
    assert near(tl.vmap(lambda a: w[0])(x), tl.stack([w[0]] * 3))


def test_keyword_arguments_are_not_mapped(tl):
    x = matrix(tl)
    assert tl.vmap(lambda a, w=None: a * w)(x, w=matrix(tl)).shape == (3, 3, 2)


def test_vmap_refuses_wrong_axes(tl):
    x = matrix(tl)
    for call, words in (
        (lambda: tl.vmap(lambda x: x, in_dims="a")(x), "expected `in_dims` to be int or a"),
        (lambda: tl.vmap(lambda x: x, in_dims=(0, 0))(x), "in_dims is not compatible with the structure"),
        (lambda: tl.vmap(lambda x: x, in_dims=(0.5,))(x), "must be either an integer dimension or None"),
        (lambda: tl.vmap(lambda x: x, in_dims=3)(x), "expected in_dim to satisfy -2 <= in_dim < 2"),
        (lambda: tl.vmap(lambda x, k: x * k)(x, 2), "We cannot vmap over non-Tensor arguments"),
        (lambda: tl.vmap(lambda x, y: x)(x, x[:2]), "same size in the mapped dimension"),
        (lambda: tl.vmap(lambda: x)(), "got no inputs"),
        (lambda: tl.vmap(lambda x: 3)(x), "must only return Tensors"),
        (lambda: tl.vmap(lambda x: x, out_dims=None)(x), "can not return a BatchedTensor when out_dim is None"),
        (lambda: tl.vmap(lambda x: (x, x), out_dims=(0,))(x), "out_dims is not compatible with the structure"),
        (lambda: tl.vmap(lambda x: x, out_dims="a")(x), "`out_dims` must be an int, None or"),
        (lambda: tl.vmap(lambda x: x, chunk_size=0)(x), "chunk_size should be None or greater than 0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(IndexError, match="Dimension out of range"):
        tl.vmap(lambda x: x, out_dims=3)(x)


@pytest.mark.parametrize("read", ["item", "float", "index"])
def test_a_stand_in_has_no_number(tl, read):
    readers = {"item": lambda x: x.item(), "float": float, "index": lambda x: [1, 2, 3][x.long()]}
    with pytest.raises(RuntimeError, match=r"vmap: It looks like you're calling .item\(\) on a Tensor"):
        tl.vmap(lambda x: x * readers[read](x))(tl.ones(3))


def test_control_flow_on_a_stand_in_is_refused(tl):
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        tl.vmap(lambda x: x if x > 0 else -x)(tl.ones(3))


def test_vmaps_nest(tl):
    x, y = matrix(tl)[:, 0], matrix(tl)[:, 1]
    outer = tl.vmap(tl.vmap(lambda a, b: a * b.sin(), in_dims=(None, 0)), in_dims=(0, None))
    assert near(outer(x, y), tl.outer(x, y.sin()))
    assert near(tl.vmap(lambda a: tl.vmap(lambda b: a * b + a)(y))(x), tl.outer(x, y) + x[:, None])


@pytest.mark.parametrize("chunk", [1, 2, 5, 7])
def test_chunks_change_nothing(tl, chunk):
    x = matrix(tl, 5, 2)
    assert near(tl.vmap(f, chunk_size=chunk)(x), loop(tl, f, x))
    assert near(
        tl.func.jacrev(lambda a: a.sin() * a.sum(), chunk_size=chunk)(x[0]),
        tl.func.jacrev(lambda a: a.sin() * a.sum())(x[0]),
    )


def test_several_outputs_indices_and_sorting(tl):
    x = matrix(tl)
    values, indices = tl.vmap(lambda a: a.max(0))(x)
    assert near(values, x.max(1).values) and numbers(indices) == numbers(x.max(1).indices)
    picked = tl.vmap(lambda a, i: a[i])(x, tl.tensor([0, 1, 0]))
    assert near(picked, [x[0, 0], x[1, 1], x[2, 0]])


# ---------------------------------------------------------------- writes inside vmap


def test_writes_inside_stay_inside(tl):
    def function(a):
        a = a.clone()
        a[0] = a[1] * 2
        a.mul_(a.sum())
        return a

    x = matrix(tl)
    assert near(tl.vmap(function)(x), loop(tl, function, x))


def test_writing_an_argument_writes_the_batch(tl):
    x = matrix(tl)
    z = x.clone()
    assert near(tl.vmap(lambda a: a.add_(1).sum(), in_dims=1)(z), (x + 1).sum(0))
    assert near(z, x + 1)


def test_a_mapped_value_is_not_written_into_an_unmapped_tensor(tl):
    def diag(vec):
        result = tl.zeros(2, 2, dtype=tl.float64)
        result.diagonal().copy_(vec)
        return result

    def good(vec):
        result = vec.new_zeros(2, 2)
        result.diagonal().copy_(vec)
        return result

    x = matrix(tl)
    held = tl.ones(2, dtype=tl.float64)
    with pytest.raises(RuntimeError, match=r"vmap: inplace arithmetic\(self, \*extra_args\) is not possible"):
        tl.vmap(diag)(x)
    with pytest.raises(RuntimeError, match=r"vmap: inplace arithmetic\(self, \*extra_args\) is not possible"):
        tl.vmap(lambda a: held.copy_(a))(x)
    assert numbers(held) == [1.0, 1.0]
    assert near(tl.vmap(good)(x), loop(tl, tl.diag, x))
    assert near(tl.vmap(lambda a: tl.zeros_like(a).add_(a))(x), x)


# ---------------------------------------------------------------- randomness


def test_randomness_must_be_chosen(tl):
    with pytest.raises(RuntimeError, match="called random operation while in randomness error mode"):
        tl.vmap(lambda x: x + tl.rand(2))(tl.ones(3))
    with pytest.raises(RuntimeError, match="Only allowed values for randomness"):
        tl.vmap(lambda x: x, randomness="maybe")(tl.ones(3))


def test_different_draws_for_every_example_and_same_draws_once(tl):
    def draw(x):
        return tl.rand(4), tl.rand(4), tl.nn.functional.dropout(tl.ones(64), 0.5) * x

    tl.manual_seed(0)
    first, second, kept = tl.vmap(draw, randomness="different")(tl.ones(3))
    rows = numbers(first) + numbers(second)
    assert all(a != b for i, a in enumerate(rows) for b in rows[:i])
    assert numbers(kept[0]) != numbers(kept[1])
    first, second, kept = tl.vmap(draw, randomness="same")(tl.ones(3))
    assert numbers(first[0]) == numbers(first[1]) == numbers(first[2]) != numbers(second[0])
    assert numbers(kept[0]) == numbers(kept[1])


def test_a_gradient_sees_the_draws_of_its_example():
    x = tapejax.ones(5, 8)
    masks, grads = tapejax.vmap(
        lambda a: (lambda g, v: (v[1], g))(
            *tapejax.func.grad_and_value(
                lambda z: (lambda d: (d.sum(), d))(tapejax.nn.functional.dropout(z)), has_aux=True
            )(a)
        ),
        randomness="different",
    )(x)
    assert numbers(masks) == numbers(grads) and numbers(masks[0]) != numbers(masks[1])


def test_nested_maps_draw_for_every_pair():
    got = tapejax.vmap(
        lambda a: tapejax.vmap(lambda b: tapejax.rand(3) * 1, randomness="different")(a), randomness="different"
    )(tapejax.ones(3, 4))
    rows = [r for block in numbers(got) for r in block]
    assert len({tuple(r) for r in rows}) == 12


# ---------------------------------------------------------------- compositions


def test_maps_of_derivatives_are_the_derivatives_of_every_example(tl):
    x = matrix(tl)
    assert near(tl.vmap(tl.func.grad(f))(x), loop(tl, lambda a: reference_grad(tl, f, a), x))
    assert near(tl.vmap(tl.func.hessian(f))(x), loop(tl, tl.func.hessian(f), x))
    assert near(
        tl.vmap(lambda a: tl.func.jvp(f, (a,), (a,))[1])(x), loop(tl, lambda a: (reference_grad(tl, f, a) * a).sum(), x)
    )


def test_derivatives_of_maps(tl):
    x, w = matrix(tl), matrix(tl)[1]
    total = lambda w: tl.vmap(lambda a: (a * w * 2).sin().sum())(x).prod()  # noqa: E731
    plain = lambda w: (x * w * 2).sin().sum(1).prod()  # noqa: E731
    assert near(tl.func.grad(total)(w), reference_grad(tl, plain, w))
    assert near(tl.func.jvp(total, (w,), (w,))[1], (reference_grad(tl, plain, w) * w).sum())
    assert near(tl.func.hessian(total)(w), tl.func.hessian(plain)(w))


def test_tangents_pass_what_stops_gradients_inside_a_map(tl):
    def half(z):
        with tl.no_grad():
            held = z * z
        return held * z

    x = matrix(tl)
    assert near(tl.func.jvp(lambda x: tl.vmap(half)(x), (x,), (x,))[1], 3 * x**3)
    assert near(tl.func.grad(lambda x: tl.vmap(half)(x).sum())(x), x**2)
    assert near(tl.func.jvp(lambda x: tl.vmap(lambda z: z.detach() * z)(x), (x,), (x,))[1], x**2)


def test_all_hessians_agree(tl):
    x = matrix(tl)[1]
    func = tl.func
    expected = func.hessian(f)(x)
    for way in (
        func.jacrev(func.jacrev(f)),
        func.jacfwd(func.jacfwd(f)),
        func.jacrev(func.jacfwd(f)),
        func.jacfwd(func.grad(f)),
    ):
        got = way(x)
        assert near(got, expected) and not got.requires_grad
    assert near(expected, expected.t())


def test_jacobians_nest_outputs_outside_inputs(tl):
    x = matrix(tl)[0]
    function = lambda x, y: (x * y, {"a": x.sum()})  # noqa: E731
    for jac in (tl.func.jacrev, tl.func.jacfwd):
        first, second = jac(function, argnums=(0, 1))(x, x)
        assert near(first, [tl.diag(x), tl.diag(x)]) and near(second["a"], [tl.ones(2), tl.zeros(2)])
        value, aux = jac(lambda x: (x * x, x), has_aux=True)(x)
        assert near(value, tl.diag(2 * x)) and near(aux, x)
        by_name = jac(lambda d: d["a"] * d["b"].sum())({"a": x, "b": matrix(tl)})
        assert list(by_name) == ["a", "b"] and by_name["b"].shape == (2, 3, 2)


def test_a_pullback_may_be_mapped(tl):
    x, seeds = matrix(tl), tl.stack([matrix(tl), matrix(tl) + 1])
    _, pull = tl.func.vjp(lambda z: z.sin(), x)
    assert near(tl.vmap(pull)(seeds)[0], seeds * x.cos())


def test_autograd_grad_inside_a_map_over_seeds(tl):
    x = matrix(tl).requires_grad_()
    seeds = tl.stack([matrix(tl), matrix(tl) + 1])
    y = x**2
    assert near(tl.vmap(lambda v: tl.autograd.grad(y, x, v, retain_graph=True)[0])(seeds), seeds * 2 * x.detach())


# ---------------------------------------------------------------- backward() outside


@pytest.mark.parametrize(
    "name",
    ["grad", "vmap", "vmap of grad", "jacrev", "jacfwd", "jvp", "vjp", "no_grad inside", "detach inside", "hessian"],
)
def test_backward_through_a_transform_reaches_arguments_and_closures(tl, name):
    def inner(z, w):
        return (z * w).sin()

    def stopped(z, w):
        with tl.no_grad():
            held = z * w
        return held * z * w

    func, vmap = tl.func, tl.vmap
    ways = {
        "grad": (lambda x, w: func.grad(lambda z: inner(z, w).sum())(x), lambda x, w: (x * w).cos() * w),
        "vmap": (lambda x, w: vmap(lambda z: inner(z, w))(x), inner),
        "vmap of grad": (lambda x, w: vmap(func.grad(lambda z: inner(z, w).sum()))(x), lambda x, w: (x * w).cos() * w),
        "jacrev": (
            lambda x, w: func.jacrev(lambda z: inner(z, w).sum(0))(x),
            lambda x, w: ((x * w).cos() * w)[None] * tl.eye(2, dtype=x.dtype)[:, None],
        ),
        "jacfwd": (
            lambda x, w: func.jacfwd(lambda z: inner(z, w).sum(0))(x),
            lambda x, w: ((x * w).cos() * w)[None] * tl.eye(2, dtype=x.dtype)[:, None],
        ),
        "jvp": (lambda x, w: func.jvp(lambda z: inner(z, w), (x,), (x,))[1], lambda x, w: (x * w).cos() * w * x),
        "vjp": (lambda x, w: func.vjp(lambda z: inner(z, w), x)[1](x)[0], lambda x, w: (x * w).cos() * w * x),
        "no_grad inside": (lambda x, w: vmap(lambda z: stopped(z, w))(x), stopped),
        "detach inside": (lambda x, w: vmap(lambda z: z.detach() * z * w)(x), lambda x, w: x.detach() * x * w),
        "hessian": (
            lambda x, w: func.hessian(lambda z: inner(z, w).sum())(x[0]),
            lambda x, w: tl.diag(-(x[0] * w).sin() * w * w),
        ),
    }
    got, expected = [], []
    for way, found in zip(ways[name], (got, expected), strict=True):
        x, w = matrix(tl).requires_grad_(), (matrix(tl)[1] + 0.3).requires_grad_()
        result = way(x, w)
        assert result.requires_grad
        result.pow(2).sum().backward()
        found += [x.grad, w.grad]
    assert near(got, expected, 1e-8, 1e-10)


# ---------------------------------------------------------------- modules


def net(tl):
    made = tl.nn.Sequential(tl.nn.Linear(2, 3), tl.nn.Tanh(), tl.nn.Linear(3, 1)).double()
    with tl.no_grad():
        for p in made.parameters():
            p.copy_(tl.linspace(-1, 1, p.numel(), dtype=tl.float64).reshape(p.shape))
    return made


def test_functional_call_replaces_parameters_for_one_call(tl):
    m = tl.nn.Linear(2, 1)
    before = m.weight
    got = tl.func.functional_call(m, {"weight": tl.ones(1, 2), "bias": tl.zeros(1)}, (tl.ones(2),))
    assert numbers(got) == [2.0] and m.weight is before
    assert numbers(
        tl.func.functional_call(m, ({"weight": tl.ones(1, 2)}, {"bias": tl.ones(1)}), kwargs={"input": tl.ones(2)})
    ) == [3.0]


def test_functional_call_refusals(tl):
    m, x = tl.nn.Linear(2, 1), tl.ones(2)
    call = tl.func.functional_call
    with pytest.raises(RuntimeError, match=r"(?s)Error\(s\) in reparametrizing for Linear.*Missing key\(s\): 'bias'"):
        call(m, {"weight": tl.ones(1, 2)}, (x,), strict=True)
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\): 'foo'"):
        call(m, {"foo": x}, (x,), strict=True)
    with pytest.raises(ValueError, match="appeared in multiple dictionaries"):
        call(m, ({"bias": x}, {"bias": x}), (x,))
    with pytest.raises(ValueError, match="Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts"):
        call(m, 3, (x,))
    with pytest.raises(ValueError, match="Expected all elements of parameter_and_buffer_dicts to be dictionaries"):
        call(m, [3], (x,))


def test_functional_call_writes_into_the_buffers_it_was_given(tl):
    m = tl.nn.BatchNorm1d(2).double()
    buffers = {k: v.clone() for k, v in m.named_buffers()}
    tl.func.functional_call(m, buffers, (matrix(tl),))
    assert numbers(m.running_mean) == [0.0, 0.0] and near(buffers["running_mean"], 0.1 * matrix(tl).mean(0))


def test_per_sample_gradients_are_those_of_single_samples(tl):
    m, x, y = net(tl), matrix(tl), matrix(tl)[:, :1]
    params = {k: v.detach() for k, v in m.named_parameters()}

    def loss(p, a, b):
        return ((tl.func.functional_call(m, p, (a,)) - b) ** 2).mean()

    got = tl.vmap(tl.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)
    for i in range(3):
        m.zero_grad()
        ((m(x[i]) - y[i]) ** 2).mean().backward()
        assert near({k: v[i] for k, v in got.items()}, {k: v.grad for k, v in m.named_parameters()}, 1e-8, 1e-10)


def test_an_ensemble_is_a_map_over_stacked_state(tl):
    models = [net(tl) for _ in range(3)]
    params, buffers = tl.func.stack_module_state(models)
    assert all(p.requires_grad and p.is_leaf and p.shape[0] == 3 for p in params.values())
    out = tl.vmap(lambda p, b, a: tl.func.functional_call(models[0], (p, b), (a,)), in_dims=(0, 0, None))(
        params, buffers, matrix(tl)
    )
    assert near(out, tl.stack([m(matrix(tl)) for m in models]))
    out.sum().backward()
    models[0](matrix(tl)).sum().backward()
    assert near(params["0.weight"].grad[1], models[0][0].weight.grad)


def test_stack_module_state_refusals(tl):
    linear = tl.nn.Linear(2, 2)
    asleep = tl.nn.Linear(2, 2).eval()
    for models, words in (
        ([], "Expected at least one model"),
        ([linear, tl.nn.ReLU()], "same class"),
        ([linear, asleep], "training/eval mode"),
    ):
        with pytest.raises(RuntimeError, match=words):
            tl.func.stack_module_state(models)


def test_functionalize_changes_nothing(tl):
    x = matrix(tl)
    assert near(tl.func.functionalize(lambda x: x.clone().mul_(2).sum())(x), 2 * x.sum())
    with pytest.raises(RuntimeError, match="Valid options are"):
        tl.func.functionalize(f, remove="all")(x)


# ---------------------------------------------------------------- custom Functions


def generated(tl):
    class Generated(tl.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return x.sin() * y, x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, g, h):  # 100 too much, so that it cannot be mistaken for the derivative of forward
            x, y = ctx.saved_tensors
            return g * x.cos() * y + 2 * h + 100, g * x.sin()

        @staticmethod
        def jvp(ctx, tx, ty):
            x, y = ctx.saved_tensors
            return tx * x.cos() * y + ty * x.sin() + 1000, 2 * tx

    return Generated


def test_a_generated_rule_uses_the_functions_own_backward_everywhere(tl):
    func, vmap, fn = tl.func, tl.vmap, generated(tl)
    x, z = matrix(tl), matrix(tl) + 1
    expected = x.cos() * z + 100
    assert near(vmap(fn.apply)(x, z)[0], x.sin() * z)
    assert near(vmap(func.grad(lambda x, z: fn.apply(x, z)[0].sum()))(x, z), expected)
    assert near(func.grad(lambda x: vmap(fn.apply)(x, z)[0].sum())(x), expected)
    assert near(func.grad(lambda x: vmap(vmap(fn.apply))(x, z)[0].sum())(x), expected)
    assert near(func.grad(lambda x: vmap(fn.apply, in_dims=(1, 1), out_dims=1)(x, z)[0].sum())(x), expected)
    assert near(func.grad(lambda w: vmap(fn.apply, in_dims=(0, None))(x, w)[0].sum())(z[0]), x.sin().sum(0))
    leaf, w = x.clone().requires_grad_(), z[0].clone().requires_grad_()
    vmap(lambda a: fn.apply(a, w * 2)[0] * a)(leaf).sum().backward()
    assert near(leaf.grad, x.sin() * z[0] * 2 + (x * x.cos() * z[0] * 2 + 100)) and near(
        w.grad, (2 * x.sin() * x).sum(0)
    )


def test_a_generated_rule_uses_the_functions_own_jvp_everywhere(tl):
    func, vmap, fn = tl.func, tl.vmap, generated(tl)
    x, z = matrix(tl), matrix(tl) + 1
    expected = x * x.cos() * z + z * x.sin() + 1000
    assert near(func.jvp(fn.apply, (x, z), (x, z))[1][0], expected)
    assert near(func.jvp(vmap(fn.apply), (x, z), (x, z))[1][0], expected)
    assert near(vmap(lambda x, z: func.jvp(fn.apply, (x, z), (x, z))[1][0])(x, z), expected)


def test_a_vmap_static_method_gets_batched_arguments_and_their_axes(tl):
    seen = []

    class Ruled(tl.autograd.Function):
        @staticmethod
        def forward(x, k):
            return x * x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.k = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0] * ctx.k + 100, None

        @staticmethod
        def vmap(info, in_dims, x, k):
            seen.append((info.batch_size, info.randomness, in_dims, tuple(x.shape)))
            return Ruled.apply(x, k), in_dims[0]

    x = matrix(tl)
    assert near(tl.vmap(lambda x: Ruled.apply(x, 3), in_dims=1)(x), 3 * x.t() ** 2)
    assert seen == [(2, "error", (1, None), (3, 2))]
    expected = (6 * x.sin() + 100) * x.cos()
    assert near(tl.func.grad(lambda x: tl.vmap(lambda x: Ruled.apply(x.sin(), 3))(x).sum())(x), expected)
    assert near(tl.vmap(tl.func.grad(lambda x: Ruled.apply(x.sin(), 3).sum()))(x), expected)
    leaf = x.clone().requires_grad_()
    tl.vmap(lambda x: Ruled.apply(x.sin(), 3))(leaf).sum().backward()
    assert near(leaf.grad, expected)
    assert near(tl.vmap(tl.vmap(lambda x: Ruled.apply(x, 3)))(x), 3 * x**2)


def test_functions_that_transforms_cannot_use_are_refused(tl):
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def make(**space):
        return type(
            "Bare", (tl.autograd.Function,), {k: staticmethod(v) if callable(v) else v for k, v in space.items()}
        )

    forward = lambda x: x * x  # noqa: E731
    backward = lambda ctx, g: g * 2 * ctx.saved_tensors[0]  # noqa: E731
    x = matrix(tl)
    old = make(forward=lambda ctx, x: x * x, backward=backward)
    bare = make(forward=forward, setup_context=setup_context, backward=backward)
    both = make(
        forward=forward,
        setup_context=setup_context,
        backward=backward,
        generate_vmap_rule=True,
        vmap=lambda info, dims, x: (x, 0),
    )
    short = make(forward=forward, setup_context=setup_context, backward=backward, vmap=lambda info, dims, x: x)
    uneven = make(
        forward=forward, setup_context=setup_context, backward=backward, vmap=lambda info, dims, x: (x, (0, 0))
    )
    assert near(tl.func.grad(lambda x: bare.apply(x).sum())(x), 2 * x)
    for call, words in (
        (lambda: tl.func.grad(lambda x: old.apply(x).sum())(x), "must override the setup_context staticmethod"),
        (lambda: tl.vmap(old.apply)(x), "must override the setup_context staticmethod"),
        (lambda: tl.vmap(bare.apply)(x), "does not have vmap support"),
        (lambda: tl.vmap(both.apply)(x), "both generate_vmap_rule=True and an overridden vmap staticmethod"),
        (lambda: tl.vmap(short.apply)(x), "to have two returns"),
        (lambda: tl.vmap(uneven.apply)(x), "incompatible \\(output, out_dims\\)"),
    ):
        with pytest.raises(RuntimeError, match=words):
            call()


def test_batched_seeds_go_through_a_custom_function(tl):
    class Square(tl.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    x = matrix(tl)[0].requires_grad_()
    (got,) = tl.autograd.grad(Square.apply(x), x, tl.eye(2, dtype=tl.float64), is_grads_batched=True)
    assert near(got, tl.diag(2 * x.detach()))


# ---------------------------------------------------------------- what it costs


def test_per_sample_gradients_are_one_program_compiled_once():
    m, x, y = net(tapejax), matrix(tapejax), matrix(tapejax)[:, :1]
    params = {k: v.detach() for k, v in m.named_parameters()}
    numbers([*params.values(), x, y])
    step = tapejax.vmap(
        tapejax.func.grad(lambda p, a, b: ((tapejax.func.functional_call(m, p, (a,)) - b) ** 2).mean()),
        in_dims=(None, 0, 0),
    )

    def norm():
        return sum((g * g).sum() for g in step(params, x, y).values()).item()

    before = compiled()
    norm()
    assert compiled() - before == 1
    norm()
    assert compiled() - before == 1


def test_a_jacobian_is_one_program():
    x = matrix(tapejax)[0]
    numbers(x)
    jac = tapejax.func.jacrev(lambda z: z.sin() * z.sum())
    before = compiled()
    numbers(jac(x))
    numbers(jac(x))
    assert compiled() - before == 1


def test_nothing_runs_before_a_value_is_read():
    from tapejax.engine.cache import CACHE

    before = CACHE.launches
    tapejax.vmap(tapejax.func.grad(f))(matrix(tapejax))
    tapejax.func.hessian(f)(matrix(tapejax)[0])
    assert CACHE.launches == before


def test_an_error_inside_leaves_no_transform_behind(tl):
    x = matrix(tl)
    for transform in (tl.func.grad, tl.vmap, lambda g: lambda z: tl.func.jvp(g, (z,), (z,))):

        def broken(z):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            transform(broken)(x)
    y = x.clone().requires_grad_()
    (y * y).sum().backward()
    assert near(y.grad, 2 * x)
    assert tl.rand(2).shape == (2,)


@pytest.mark.parametrize("name", ["hessian", "jvp", "vmap", "vmap of grad"])
def test_parts_written_in_place_under_an_outer_backward(tl, name):
    """What a number is multiplied with is saved by nobody, so it may be written, also inside a transform."""

    def inner(z):
        y = (z * w).clone()
        y[0] = y[0] * 2
        y[1:].mul_(3)
        return y.pow(3).sum()

    w, x = tl.ones(3, dtype=tl.float64, requires_grad=True), tl.tensor([1.0, 2.0, 3.0], dtype=tl.float64)
    by_name = {
        "hessian": (lambda: tl.func.hessian(inner)(x).sum(), [144.0, 972.0, 1458.0]),
        "jvp": (lambda: tl.func.jvp(inner, (x,), (tl.ones_like(x),))[1], [72.0, 972.0, 2187.0]),
        "vmap": (lambda: tl.vmap(inner)(tl.stack([x, x])).sum(), [48.0, 1296.0, 4374.0]),
        "vmap of grad": (lambda: tl.vmap(tl.func.grad(inner))(tl.stack([x, x])).sum(), [144.0, 1944.0, 4374.0]),
    }
    program, expected = by_name[name]
    for _ in range(2):
        w.grad = None
        program().backward()
        assert near(w.grad, expected)
