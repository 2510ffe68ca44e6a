"""Rules 8 to 11, 14: hooks, retain_grad and hooks, gradient edges."""

from __future__ import annotations

from typing import Any

import pytest

import tapejax
from oracle import grad_or_none, near, numbers
from tapejax.autograd.course import COURSES
from tapejax.engine.cache import CACHE


def leaf(tl: Any, data: Any) -> Any:
    return tl.tensor(data, requires_grad=True)


class Log(list[Any]):
    """A hook factory: `log("name")` records the gradient under that name; `log("name", 2)` scales it too."""

    def __call__(self, name: str, factor: float | None = None) -> Any:
        def hook(grad: Any) -> Any:
            self.append((name, numbers(grad)))
            return None if factor is None else grad * factor

        return hook

    def pre(self, name: str, factor: float | None = None) -> Any:
        def hook(grads: Any) -> Any:
            self.append((name, numbers(grads[0])))
            return None if factor is None else (grads[0] * factor,)

        return hook

    def post(self, name: str, factor: float | None = None) -> Any:
        def hook(grad_inputs: Any, grad_outputs: Any) -> Any:
            self.append((name, numbers(grad_outputs[0])))
            return None if factor is None else tuple(None if g is None else g * factor for g in grad_inputs)

        return hook

    @property
    def names(self) -> list[str]:
        return [n for n, _ in self]


# ---------------------------------------------------------------- tensor hooks


def test_a_hook_sees_the_gradient_and_may_replace_it(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 3
    y.register_hook(log("y", 10.0))
    (y * 5).backward()
    assert log == [("y", 5.0)] and numbers(x.grad) == 150.0


def test_hooks_run_in_order_each_on_the_result_of_the_last(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 1
    y.register_hook(log("a", 2.0))
    y.register_hook(log("b"))
    y.register_hook(log("c", 3.0))
    y.register_hook(log("d"))
    y.backward()
    assert log == [("a", 1.0), ("b", 2.0), ("c", 2.0), ("d", 6.0)] and numbers(x.grad) == 6.0


def test_a_hook_sees_the_summed_gradient_once(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 1
    y.register_hook(log("y"))
    (y * 2 + y * 3 + y).backward()
    assert log == [("y", 6.0)]


def test_a_leaf_hook_fires_before_accumulation_each_backward(tl):
    log = Log()
    x = leaf(tl, 2.0)
    x.register_hook(log("x", 10.0))
    (x * 3).backward()
    (x * x).backward()
    assert log == [("x", 3.0), ("x", 4.0)] and numbers(x.grad) == 70.0


def test_a_hook_on_the_root_sees_the_seed(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 3
    y.register_hook(log("y", 2.0))
    y.backward(tl.tensor(7.0))
    assert log == [("y", 7.0)] and numbers(x.grad) == 42.0


def test_removed_hooks_do_not_run(tl):
    log = Log()
    x = leaf(tl, 2.0)
    handle = x.register_hook(log("a"))
    with x.register_hook(log("b")):
        (x * 3).backward()
    handle.remove()
    handle.remove()
    x.register_hook(log("c"))
    (x * 3).backward()
    assert log.names == ["a", "b", "c"]


def test_a_hook_removed_during_backward(tl):
    seen = []
    x = leaf(tl, 2.0)
    y = x * 1

    def once(g):
        seen.append("once")
        handle.remove()

    handle = y.register_hook(once)
    y.register_hook(lambda g: seen.append("after"))
    y.backward(retain_graph=True)
    y.backward()
    assert seen == ["once", "after", "after"]


def test_hooks_run_on_every_backward_of_a_retained_graph(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * x
    y.register_hook(log("y"))
    for _ in range(3):
        y.backward(retain_graph=True)
    assert log.names == ["y"] * 3 and numbers(x.grad) == 12.0


def test_hooks_run_every_step_of_a_loop(tl):
    log = Log()
    x = leaf(tl, 2.0)
    for i in range(4):
        y = x * (i + 1)
        y.register_hook(log(str(i)))
        (y * y).backward()
        with tl.no_grad():
            x -= 0.1 * x.grad
        x.grad = None
    assert log.names == ["0", "1", "2", "3"]


def test_hooks_under_create_graph_are_differentiated(tl):
    x = leaf(tl, 2.0)
    y = x * x
    y.register_hook(lambda g: g * x)
    (g,) = tl.autograd.grad(y * 3, x, create_graph=True)
    assert numbers(g) == 24.0
    (h,) = tl.autograd.grad(g, x)
    assert numbers(h) == 24.0


def test_gradients_in_a_hook_require_grad_only_under_create_graph(tl):
    seen = []
    x = leaf(tl, 2.0)
    y = x * x
    y.register_hook(lambda g: seen.append((g.requires_grad, tl.is_grad_enabled())))
    z = y * y
    tl.autograd.grad(z, x, retain_graph=True)
    tl.autograd.grad(z, x, create_graph=True)
    assert seen == [(False, False), (True, True)]


def test_a_hook_needs_a_tensor_that_requires_grad(tl):
    with pytest.raises(RuntimeError, match="cannot register a hook on a tensor that doesn't require gradient"):
        tl.ones(1).register_hook(print)


def test_what_a_hook_may_return(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 1
    handle = y.register_hook(lambda g: g[:1])
    with pytest.raises(RuntimeError, match="has changed the size of value"):
        y.sum().backward()
    handle.remove()
    y.register_hook(lambda g: 3.0)
    with pytest.raises(TypeError, match="expected Variable, but hook returned"):
        (y * 1).sum().backward()
    assert x.grad is None


def test_a_hook_that_raises_leaves_gradients_and_the_next_step_sound(tl):
    x, w = leaf(tl, [1.0, 2.0]), leaf(tl, [3.0, 4.0])
    x.grad = tl.ones(2)
    y = (x * w).exp()

    def bad(g):
        raise KeyError("mine")

    handle = y.register_hook(bad)
    with pytest.raises(KeyError, match="mine"):
        y.sum().backward()
    assert numbers(x.grad) == [1.0, 1.0] and w.grad is None and tl.is_grad_enabled()
    handle.remove()
    (x * w).sum().backward()
    assert numbers(x.grad) == [4.0, 5.0] and numbers(w.grad) == [1.0, 2.0]


def test_the_graph_survives_a_hook_that_raised(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * x

    def bad(g):
        raise KeyError("mine")

    handle = y.register_hook(bad)
    z = (y * 3).sum()
    with pytest.raises(KeyError):
        z.backward(retain_graph=True)
    handle.remove()
    z.backward()
    assert numbers(x.grad) == [6.0, 12.0]


def test_a_hook_may_run_another_backward(tl):
    x, w = leaf(tl, 2.0), leaf(tl, 5.0)

    def inner(g):
        with tl.enable_grad():
            (w * w * g.detach()).backward()

    y = x * 3
    y.register_hook(inner)
    (y * 2).backward()
    assert numbers(x.grad) == 6.0 and numbers(w.grad) == 20.0


def test_a_hook_that_reads_values(tl):
    seen = []
    x = leaf(tl, [1.0, 2.0])
    h = x.exp()
    y = h * 2
    y.register_hook(lambda g: seen.append((g.sum().item(), numbers(h), repr(g)[:6])))
    y.sum().backward()
    assert near(seen[0][1], [2.7182817, 7.389056]) and seen[0][0] == 2.0 and seen[0][2] == "tensor"
    assert near(x.grad, [5.4365635, 14.778112])


def test_writing_the_gradient_inside_a_hook(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 1
    y.register_hook(lambda g: g.clone().mul_(3))
    y.sum().backward()
    assert numbers(x.grad) == [3.0, 3.0]


# ---------------------------------------------------------------- hooks and in-place


def test_hooks_bind_to_the_value_at_registration(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 1
    y.register_hook(log("before", None))
    y.mul_(3)
    y.register_hook(log("after", None))
    (y * 5).backward()
    assert log == [("after", 5.0), ("before", 15.0)] and numbers(x.grad) == 15.0


def test_several_in_place_ops_do_not_fire_a_hook_twice(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 1
    y.register_hook(log("y"))
    y.mul_(3)
    y.add_(1)
    y.mul_(7)
    y.backward()
    assert log == [("y", 21.0)]


def test_replacing_hooks_before_and_after_a_write(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 1
    y.register_hook(log("before", 2.0))
    y.mul_(3)
    y.register_hook(log("after", 5.0))
    y.backward()
    assert log == [("after", 1.0), ("before", 15.0)] and numbers(x.grad) == 30.0


def test_hooks_on_a_view_that_is_written_never_fire(tl):
    log = Log()
    x = leaf(tl, [1.0, 2.0])
    y = x * 1
    v = y[0:1]
    v.register_hook(log("old view"))
    v.mul_(3)
    v.register_hook(log("new view"))
    y.register_hook(log("base after"))
    y.sum().backward()
    assert log.names == ["base after"] and numbers(x.grad) == [3.0, 1.0]


def test_hooks_on_a_base_that_is_written_through_a_view(tl):
    log = Log()
    x = leaf(tl, [1.0, 2.0])
    y = x * 1
    y.register_hook(log("base before"))
    y[0:1].mul_(3)
    y.sum().backward()
    assert log == [("base before", [3.0, 1.0])]


def test_hooks_on_a_view_of_a_written_base(tl):
    log = Log()
    x = leaf(tl, [1.0, 2.0])
    y = x * 1
    v = y[0:1]
    v.register_hook(log("before"))
    y.mul_(3)
    (v * 5).sum().backward()
    assert log == [] and numbers(x.grad) == [15.0, 0.0]


def test_a_leaf_hook_survives_writes_under_no_grad(tl):
    log = Log()
    x = leaf(tl, [1.0, 2.0])
    x.register_hook(log("x"))
    with tl.no_grad():
        x.mul_(3)
    (x * x).sum().backward()
    assert log == [("x", [6.0, 12.0])]


# ---------------------------------------------------------------- retain_grad and hooks


def test_retain_grad_reports_the_result_of_all_hooks(tl):
    x = leaf(tl, 2.0)
    y = x * 1
    y.register_hook(lambda g: g * 2)
    y.retain_grad()
    y.register_hook(lambda g: g * 5)
    y.backward()
    assert numbers(y.grad) == 10.0 and numbers(x.grad) == 10.0


def test_retain_grad_after_a_write_reports_the_new_value(tl):
    x = leaf(tl, 2.0)
    y = x * 1
    y.register_hook(lambda g: g * 2)
    y.retain_grad()
    y.mul_(3)
    y.register_hook(lambda g: g * 5)
    y.backward()
    assert numbers(y.grad) == 5.0 and numbers(x.grad) == 30.0


def test_retained_gradients_with_node_prehooks(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 3
    y.retain_grad()
    y.grad_fn.register_prehook(log.pre("pre", 10.0))
    y.backward()
    assert numbers(y.grad) == 1.0 and numbers(x.grad) == 30.0 and log == [("pre", 1.0)]


def test_inputs_nonleaf_stores_after_tensor_hooks_and_before_prehooks(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 3
    y.register_hook(log("tensor", 2.0))
    y.grad_fn.register_prehook(log.pre("pre", 10.0))
    y.backward(inputs=[y])
    assert grad_or_none(y) == 2.0 and log.names == ["tensor", "pre"]
    y = x * 3
    log.clear()
    y.register_hook(log("tensor", 2.0))
    y.grad_fn.register_prehook(log.pre("pre", 10.0))
    y.backward(inputs=[y, x])
    assert grad_or_none(y) == 2.0 and numbers(x.grad) == 60.0 and log.names == ["tensor", "pre"]


# ---------------------------------------------------------------- leaves: the order


def accumulator(x: Any) -> Any:
    return x.view_as(x).grad_fn.next_functions[0][0]


def test_the_order_of_hooks_at_a_leaf(tl):
    log = Log()
    x = leaf(tl, 2.0)
    node = accumulator(x)
    node.register_hook(log.post("post"))
    x.register_post_accumulate_grad_hook(lambda t: log.append(("post accumulate", numbers(t.grad))))
    node.register_prehook(log.pre("pre", 5.0))
    x.register_hook(log("tensor", 3.0))
    (x * 2).backward()
    assert log == [("tensor", 2.0), ("pre", 6.0), ("post accumulate", 30.0), ("post", 30.0)]


def test_post_accumulate_hooks_see_the_grad_and_may_clear_it(tl):
    x = leaf(tl, [1.0, 2.0])
    seen = []

    def step(p):
        with tl.no_grad():
            p -= 0.5 * p.grad
        seen.append(numbers(p.grad))
        p.grad = None

    handle = x.register_post_accumulate_grad_hook(step)
    (x * x).sum().backward()
    assert seen == [[2.0, 4.0]] and x.grad is None and numbers(x) == [0.0, 0.0]
    handle.remove()
    (x * 3).sum().backward()
    assert numbers(x.grad) == [3.0, 3.0]


def test_post_accumulate_hooks_are_for_leaves(tl):
    x = leaf(tl, 2.0)
    with pytest.raises(RuntimeError, match="post accumulate grad hooks cannot be registered on non-leaf tensors"):
        (x * 2).register_post_accumulate_grad_hook(print)
    with pytest.raises(RuntimeError, match="cannot register a hook on a tensor that doesn't require gradient"):
        tl.ones(1).register_post_accumulate_grad_hook(print)


def test_autograd_grad_runs_tensor_hooks_and_no_accumulate_hooks(tl):
    log = Log()
    x = leaf(tl, 2.0)
    node = accumulator(x)
    node.register_prehook(log.pre("pre"))
    node.register_hook(log.post("post"))
    x.register_post_accumulate_grad_hook(lambda t: log.append(("post accumulate", 0)))
    x.register_hook(log("tensor", 3.0))
    (g,) = tl.autograd.grad(x * 2, x)
    assert log == [("tensor", 2.0)] and numbers(g) == 6.0 and x.grad is None


def test_grad_does_not_run_node_hooks_of_the_requested_tensor(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 3
    y.grad_fn.register_prehook(log.pre("pre"))
    y.grad_fn.register_hook(log.post("post"))
    y.register_hook(log("tensor"))
    z = y * 5
    (g,) = tl.autograd.grad(z, y, retain_graph=True)
    assert log.names == ["tensor"] and numbers(g) == 5.0
    log.clear()
    tl.autograd.grad(z, [y, x])
    assert log.names == ["tensor", "pre", "post"]


def test_a_requested_value_that_is_passed_on_is_reported_before_its_hooks(tl):
    w = leaf(tl, [1.0, 2.0])
    y = w * 3
    y.register_hook(lambda g: g * 2)
    z = y.sum()
    assert numbers(tl.autograd.grad(z, [y], retain_graph=True)) == [[2.0, 2.0]]
    assert numbers(tl.autograd.grad(z, [y, w])) == [[1.0, 1.0], [6.0, 6.0]]


def test_hooks_off_the_path_do_not_run(tl):
    log = Log()
    x, w = leaf(tl, 2.0), leaf(tl, 3.0)
    a, b = x * 1, w * 1
    a.register_hook(log("a"))
    b.register_hook(log("b"))
    w.register_hook(log("w"))
    tl.autograd.grad(a * b, x)
    assert log.names == ["a"]


# ---------------------------------------------------------------- node hooks


def test_node_hooks_may_replace_gradients_on_both_sides(tl):
    log = Log()
    x, w = leaf(tl, 2.0), leaf(tl, 3.0)
    y = x * w
    y.grad_fn.register_prehook(log.pre("pre", 10.0))
    y.grad_fn.register_hook(log.post("post", 100.0))
    y.backward()
    assert log == [("pre", 1.0), ("post", 10.0)]
    assert numbers(x.grad) == 3000.0 and numbers(w.grad) == 2000.0


def test_node_hook_results_of_wrong_length_are_refused(tl):
    x, w = leaf(tl, 2.0), leaf(tl, 3.0)
    y = x * w
    y.grad_fn.register_hook(lambda gi, go: (gi[0],))  # one of two
    with pytest.raises(RuntimeError, match="incorrect number of values"):
        y.backward()


def test_a_post_hook_sees_none_for_constants(tl):
    seen = []
    x = leaf(tl, 2.0)
    c = tl.tensor(3.0)
    y = x * c
    y.grad_fn.register_hook(lambda gi, go: seen.append([None if g is None else numbers(g) for g in gi]))
    y.backward()
    assert seen == [[3.0, None]]


SEVERAL = {
    "max": lambda tl, m: m.max(1),
    "sort": lambda tl, m: m.sort(1),
    "topk": lambda tl, m: m.topk(2),
    "cummax": lambda tl, m: m.cummax(1),
    "var_mean": lambda tl, m: tl.var_mean(m, 1),
    "aminmax": lambda tl, m: tl.aminmax(m),
    "slogdet": lambda tl, m: tl.linalg.slogdet(m),
    "eigh": lambda tl, m: tl.linalg.eigh(m),
    "svd": lambda tl, m: tl.linalg.svd(m),
    "qr": lambda tl, m: tl.linalg.qr(m),
}
MATRIX = [[1.0, 2.5, 3.0], [0.3, -1.0, 2.0], [0.2, 0.7, -0.4]]


def _shapes(grads: Any) -> list[Any]:
    return [None if g is None else tuple(g.shape) for g in grads]


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("early", [False, True])
def test_node_hooks_see_the_gradients_of_all_outputs(tl, name, early):
    m = leaf(tl, MATRIX)
    outputs = [o for o in SEVERAL[name](tl, m) if o.requires_grad]
    if name == "slogdet":
        outputs = outputs[::-1]  # a real sign has no gradient
    if early:
        numbers(outputs[0].detach())
    node = outputs[0].grad_fn
    assert all(o.grad_fn is node for o in outputs)
    seen = []
    node.register_prehook(lambda grads: seen.append(_shapes(grads)))
    node.register_hook(lambda inputs, grads: seen.append((_shapes(inputs), _shapes(grads))))
    chosen = 2 if len(outputs) > 2 else 1
    sum(o.abs().sum() for o in outputs[:chosen]).backward()
    given = [tuple(o.shape) for o in outputs[:chosen]] + [None] * (len(outputs) - chosen)
    if name == "slogdet":
        given = given[::-1]
    assert seen == [given, ([(3, 3)], given)]
    with_hooks, m.grad = m.grad, None
    sum(o.abs().sum() for o in [o for o in SEVERAL[name](tl, m) if o.requires_grad][:: -1 if name == "slogdet" else 1][:chosen]).backward()
    assert near(m.grad, numbers(with_hooks), 1e-4)


def test_node_hooks_may_replace_the_gradients_of_all_outputs(tl):
    m = leaf(tl, MATRIX)
    var, mean = tl.var_mean(m, 1)
    var.grad_fn.register_prehook(lambda grads: (grads[0] * 0, grads[1] * 6))
    mean.grad_fn.register_hook(lambda inputs, grads: (inputs[0] + 1,))
    (var.sum() + mean.sum()).backward()
    assert near(m.grad, [[3.0] * 3] * 3, 1e-4)


def test_node_hooks_may_make_a_gradient_undefined(tl):
    m = leaf(tl, MATRIX)
    var, mean = tl.var_mean(m, 1)
    var.grad_fn.register_prehook(lambda grads: (None, grads[1]))
    (var.sum() + mean.sum()).backward()
    assert near(m.grad, [[1 / 3] * 3] * 3, 1e-4)
    for register in ("register_prehook", "register_hook"):
        x = leaf(tl, [1.0, 2.0])
        y = x.exp()
        getattr(y.grad_fn, register)(lambda *grads: (None,))
        y.sum().backward()
        assert x.grad is None


def test_what_node_hooks_of_several_outputs_may_return(tl):
    m = leaf(tl, MATRIX)
    for result, error, match in (
        (lambda grads: grads[0], TypeError, "expected tuple, but hook returned 'Tensor'"),
        (lambda grads: grads[:1], RuntimeError, "incorrect number of values"),
        (lambda grads: (grads[0], grads[0]), RuntimeError, "can't replace a None gradient with a non-None value"),
    ):
        var, _ = tl.var_mean(m, 1)
        var.grad_fn.register_prehook(result)
        with pytest.raises(error, match=match):
            var.sum().backward()
    assert m.grad is None


def test_node_hooks_of_a_function_see_all_outputs(tl):
    class Three(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            sign = x > 0
            ctx.mark_non_differentiable(sign)
            return x * 2, sign, x * 3

        @staticmethod
        def backward(ctx, a, _, b):
            return 2 * a + 3 * b

    x = leaf(tl, [1.0, -2.0])
    a, _, b = Three.apply(x)
    seen = []
    a.grad_fn.register_prehook(lambda grads: seen.append(_shapes(grads)))
    a.grad_fn.register_hook(lambda inputs, grads: seen.append((_shapes(inputs), _shapes(grads))))
    b.sum().backward()
    assert seen == [[None, None, (2,)], ([(2,)], [None, None, (2,)])] and near(x.grad, [3.0, 3.0])


def test_node_hooks_of_several_outputs_under_create_graph_and_grad(tl):
    m = leaf(tl, MATRIX)
    s, v = tl.linalg.eigh(m + m.t())
    seen = []
    s.grad_fn.register_hook(lambda inputs, grads: seen.append(_shapes(grads)))
    (g,) = tl.autograd.grad((s**2).sum(), m, create_graph=True)
    (h,) = tl.autograd.grad(g.sum(), m, retain_graph=True)
    assert near(h, [[8.0] * 3] * 3, 1e-2)
    assert seen[0] == [(3,), None]
    seen.clear()
    tl.autograd.grad(s.sum(), s, retain_graph=True)  # the node need not run
    assert seen == []
    with tl.no_grad():
        v.mul_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        s.sum().backward()


def test_grad_fn_is_the_same_object_while_it_lives(tl):
    x = leaf(tl, 2.0)
    y = x * 3
    node = y.grad_fn
    assert y.grad_fn is node
    z = y + 1
    assert z.grad_fn.next_functions[0][0] is node
    assert accumulator(x) is accumulator(x)


def test_next_functions_and_names(tl):
    x, w = leaf(tl, [1.0]), leaf(tl, [2.0])
    y = (x * w).exp() + 1
    add = y.grad_fn
    assert add.name() == "AddBackward0"
    exp = add.next_functions[0][0]
    assert exp.name() == "ExpBackward0" and add.next_functions[1][0] is None
    mul = exp.next_functions[0][0]
    assert [f.name() for f, _ in mul.next_functions] == ["torch::autograd::AccumulateGrad"] * 2
    assert mul.next_functions[0][0].variable is x and mul.next_functions[1][0].variable is w


def test_metadata_is_kept_on_the_node(tl):
    x = leaf(tl, 2.0)
    y = x * 3
    y.grad_fn.metadata["who"] = "me"
    assert y.grad_fn.metadata == {"who": "me"}


# ---------------------------------------------------------------- multi-grad hooks


def test_a_multi_grad_hook_waits_for_all(tl):
    seen = []
    x, w, u = leaf(tl, 2.0), leaf(tl, 3.0), leaf(tl, 4.0)
    handle = tl.autograd.graph.register_multi_grad_hook((x, w, u), lambda gs: seen.append([None if g is None else numbers(g) for g in gs]))
    (x * w).backward()
    assert seen == [[3.0, 2.0, None]]
    (x * w * u).backward()
    assert seen[1] == [12.0, 8.0, 6.0]
    handle.remove()
    (x * w).backward()
    assert len(seen) == 2


@pytest.mark.parametrize("update", ["no_grad", "data", "requires_grad"])
@pytest.mark.parametrize("inner", [False, True])
def test_a_multi_grad_hook_follows_its_leaves_through_their_updates(tl, update, inner):
    """It belongs to the leaf, not to one of its values; a watched inner value is one value only."""
    seen = []
    x, w, u = leaf(tl, 2.0), leaf(tl, 3.0), leaf(tl, 4.0)
    kept = x * 2
    tl.autograd.graph.register_multi_grad_hook((x, w, u, *[kept] * inner), lambda gs: seen.append([g is not None for g in gs]))
    for step in range(3):
        (x * w).backward()
        assert seen[step] == [True, True, False, *[False] * inner]
        if update == "no_grad":
            with tl.no_grad():
                for p in (x, w):
                    p -= 0.1 * p.grad
        elif update == "data":
            x.data = x.data + 1
            w.data.mul_(0.5)
        else:
            x.requires_grad_(False)
            x.requires_grad_(True)
    (kept * 3).backward()
    assert seen[3] == [True, False, False, *[True] * inner]


def test_a_multi_grad_hook_for_any_runs_once(tl):
    seen = []
    x, w = leaf(tl, 2.0), leaf(tl, 3.0)
    tl.autograd.graph.register_multi_grad_hook((x, w), lambda g: seen.append(1), mode="any")
    (x * w).backward()
    (x * w).backward()
    assert seen == [1, 1]
    with pytest.raises(ValueError, match="Expects mode to be one of"):
        tl.autograd.graph.register_multi_grad_hook((x, w), print, mode="some")


# ---------------------------------------------------------------- gradient edges


def test_an_edge_stands_for_its_tensor_as_output_and_input(tl):
    x = leaf(tl, 2.0)
    y = x * x
    z = y * 3
    ey, ex = tl.autograd.graph.get_gradient_edge(y), tl.autograd.graph.get_gradient_edge(x)
    (g,) = tl.autograd.grad(z, [ey], retain_graph=True)
    assert numbers(g) == 3.0
    (g,) = tl.autograd.grad(ey, [ex], tl.tensor(10.0), retain_graph=True)
    assert numbers(g) == 40.0
    tl.autograd.backward(tl.autograd.graph.get_gradient_edge(z), tl.tensor(1.0))
    assert numbers(x.grad) == 12.0


def test_an_edge_taken_before_a_write_addresses_the_old_value(tl):
    x = leaf(tl, 2.0)
    y = x * 1
    edge = tl.autograd.graph.get_gradient_edge(y)
    y.mul_(3)
    new, old = tl.autograd.grad(y * 5, [y, edge])
    assert numbers(new) == 5.0 and numbers(old) == 15.0


def test_an_edge_needs_a_gradient(tl):
    with pytest.raises(RuntimeError, match="It is not possible to get the gradient edge for a Tensor that does not require gradients"):
        tl.autograd.graph.get_gradient_edge(tl.ones(1))


def test_an_unused_edge_is_not_materialised(tl):
    x, w = leaf(tl, 2.0), leaf(tl, 3.0)
    edge = tl.autograd.graph.get_gradient_edge(w * 2)
    (g,) = tl.autograd.grad(x * x, [edge], allow_unused=True)
    assert g is None
    with pytest.raises(RuntimeError, match="materialize_grads cannot be used when the given input is a GradientEdge"):
        tl.autograd.grad(x * x, [edge], materialize_grads=True)


# ---------------------------------------------------------------- mixtures


def test_hooks_retained_grads_forced_values_and_inputs_together(tl):
    log = Log()
    x, w = leaf(tl, [1.0, 2.0]), leaf(tl, [3.0, 4.0])
    h = x * w
    h.retain_grad()
    h.register_hook(log("h", 2.0))
    assert numbers(h) == [3.0, 8.0]
    k = h.exp()
    k.register_hook(log("k"))
    assert near(k, [20.085537, 2980.958])
    z = (k * w).sum()
    z.item()
    z.backward(inputs=[w, h])
    e3, e8 = 20.085537, 2980.958
    assert log.names == ["k", "h"]
    assert near(h.grad, [2 * 3 * e3, 2 * 4 * e8]) and x.grad is None
    assert near(w.grad, [e3 + 2 * 3 * e3 * 1, e8 + 2 * 4 * e8 * 2])


def test_hooks_on_every_value_of_a_chain(tl):
    log = Log()
    x = leaf(tl, 1.0)
    y = x
    for i in range(5):
        y = y * 2
        y.register_hook(log(str(i)))
    y.backward()
    assert log == [("4", 1.0), ("3", 2.0), ("2", 4.0), ("1", 8.0), ("0", 16.0)] and numbers(x.grad) == 32.0


def test_hooks_on_parallel_branches_see_their_own_gradient(tl):
    log = Log()
    x = leaf(tl, 1.0)
    a, b = x * 2, x * 3
    a.register_hook(log("a", 10.0))
    b.register_hook(log("b", 100.0))
    (a * 5 + b * 7).backward()
    assert sorted(log) == [("a", 5.0), ("b", 7.0)] and numbers(x.grad) == 2 * 50.0 + 3 * 700.0


def test_a_hook_between_two_uses_at_different_depths(tl):
    log = Log()
    x = leaf(tl, 2.0)
    y = x * 1
    y.register_hook(log("y"))
    z = y * y
    z.register_hook(log("z", 2.0))
    (z + y + (z * y)).backward()
    assert log == [("z", 3.0), ("y", 6.0 * 4 - 24 + 4 * 6 + 5.0)] or log[0] == ("z", 3.0)
    assert numbers(x.grad) == 2 * 3.0 * 2 * 2.0 + 1 + 4.0


def test_a_gradient_penalty_through_hooks(tl):
    x = leaf(tl, 2.0)
    y = x**3
    y.register_hook(lambda g: g * 2)
    (g,) = tl.autograd.grad(y, x, create_graph=True)
    (g * g).backward()
    assert near(g, 24.0) and near(x.grad, 2 * 24.0 * 24.0)


# ---------------------------------------------------------------- a hooked step that settles


def test_a_hooked_step_is_planned_once_and_is_one_program() -> None:
    """From the second step on nothing is compiled, nothing planned, and one program runs, whatever number the hook multiplies by."""
    w = leaf(tapejax, [1.0, 2.0])
    seen: list[Any] = []

    def step(factor: float) -> None:
        h = tapejax.tanh(w * 3)
        h.register_hook(lambda g: seen.append(g) or g * factor)
        (h * h).sum().backward()
        with tapejax.no_grad():
            w.sub_(w.grad * 0.01)
        w.grad = None

    for _ in range(3):
        step(0.5)
    before = CACHE.compiled, CACHE.launches, len(COURSES)
    for i in range(5):
        step(0.1 * i)
    assert (CACHE.compiled, CACHE.launches, len(COURSES)) == (before[0], before[1] + 5, before[2])
    assert len(seen) == 8


@pytest.mark.parametrize("what", ["moved", "unhooked", "hooked", "retained", "read", "freed"])
def test_a_known_course_still_sees_what_changed(tl: Any, what: str) -> None:
    """The same graph again, where a hook above changes what is below: versions, hooks and freed parts are looked at every time."""
    w = leaf(tl, [1.0, 2.0])
    for turn in range(3):
        w.grad = None
        a = w * 3
        h = a.tanh()
        y = h.exp()
        log: list[str] = []
        below = a.register_hook(lambda g, log=log: log.append("below"))

        def above(g: Any, a: Any = a, h: Any = h, y: Any = y, below: Any = below, log: Any = log, turn: int = turn) -> None:
            log.append("above")
            if not turn:
                return
            if what == "moved":
                with tl.no_grad():
                    h.add_(1)
            elif what == "unhooked":
                below.remove()
            elif what == "hooked":
                a.register_hook(lambda g: log.append("late"))
            elif what == "retained":
                a.retain_grad()
            elif what == "read":
                assert near(g, [1.0, 1.0])
            elif what == "freed":
                h.backward(tl.ones(2))

        y.register_hook(above)
        loss = y.sum()
        if turn and what in ("moved", "freed"):
            with pytest.raises(RuntimeError, match="modified by an inplace" if what == "moved" else "second time"):
                loss.backward()
            continue
        loss.backward()
        expected = {"unhooked": ["above"], "hooked": ["above", "below", "late"]}.get(what, ["above", "below"]) if turn else ["above", "below"]
        assert log == expected
        if turn and what == "retained":
            assert near(a.grad * 3, w.grad)
        assert near(w.grad, [3 * (1 - t * t) * e for t, e in zip(h.tolist(), y.tolist(), strict=True)], 1e-4)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_a_multi_grad_hook_runs_in_every_step(tl: Any, early: bool, retain: bool, inner: bool) -> None:
    """Also where the graph is known, its value was read before, or it is kept: the hook knows whom this backward reaches."""
    for _ in range(3):
        a, b, unused = leaf(tl, [1.0, 2.0]), leaf(tl, [3.0, 4.0]), leaf(tl, [5.0])
        h = a * b
        seen: list[Any] = []
        watched = [h, a] if inner else [a, b]
        tl.autograd.graph.register_multi_grad_hook([*watched, unused], lambda gs, seen=seen: seen.append([g is not None for g in gs]))
        loss = h.sinh().sum()
        if early:
            loss.item()
        loss.backward(retain_graph=retain)
        assert seen == [[True, True, False]]
        if retain:
            loss.backward(inputs=[b])
            assert seen == [[True, True, False], [inner, not inner, False]]


@pytest.mark.parametrize("read", ["gradient", "below", "above"])
def test_a_hook_may_read_any_value_from_the_first_step_on(tl: Any, read: str) -> None:
    """Reading runs a part of the forward, which keeps residuals; the backward that is under way goes on as it was planned."""
    COURSES.clear()  # the first step is the one that plans
    for _ in range(3):
        a = tl.tensor([0.1, 0.2], dtype=tl.float64, requires_grad=True)
        b = tl.tensor([3.0, 4.0], dtype=tl.float64, requires_grad=True)
        h = a * b  # held, so that reading `k` makes it too
        k = h.tanh()
        m = (k * a * 1.5).exp()
        n = (m * b).cosh()
        m.register_hook(lambda g, k=k, n=n: {"gradient": g, "below": k, "above": n}[read].tolist() and None)
        n.sum().backward()
        assert near(a.grad, [30.48718855, 536.48418395], 1e-8) and near(b.grad, [12.46599661, 91.2559556], 1e-8)
