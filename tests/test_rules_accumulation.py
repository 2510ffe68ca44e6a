"""Rules 1, 2, 12, 13: how gradients accumulate, what undefined means, what runs, what the options mean."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any

import pytest

from oracle import grad_or_none, near, numbers


def leaf(tl: Any, data: Any) -> Any:
    return tl.tensor(data, requires_grad=True)


# ---------------------------------------------------------------- accumulation keeps the object


def test_first_backward_sets_grad_and_later_ones_add(tl):
    x = leaf(tl, [1.0, 2.0])
    (x * x).sum().backward()
    assert numbers(x.grad) == [2.0, 4.0]
    (x * 3).sum().backward()
    assert numbers(x.grad) == [5.0, 7.0]


def test_later_backwards_add_into_the_existing_grad_object(tl):
    x = leaf(tl, [1.0, 2.0])
    (x * x).sum().backward()
    alias = x.grad
    (x * x).sum().backward()
    assert x.grad is alias
    assert numbers(alias) == [4.0, 8.0]


def test_accumulation_through_an_earlier_detached_alias_is_seen(tl):
    x = leaf(tl, [1.0, 2.0])
    (x * x).sum().backward()
    alias = x.grad.detach()
    (x * x).sum().backward()
    assert numbers(alias) == [4.0, 8.0]


def test_accumulation_is_seen_by_a_view_of_grad(tl):
    x = leaf(tl, [1.0, 2.0])
    (x * x).sum().backward()
    view = x.grad[0:1]
    (x * x).sum().backward()
    assert numbers(view) == [4.0]
    x.grad.zero_()
    assert numbers(view) == [0.0]


def test_accumulation_counts_as_a_write_to_grad(tl):
    x = leaf(tl, [1.0])
    (x * x).sum().backward()
    x.grad.detach()
    before = x.grad._version
    (x * x).sum().backward()
    assert x.grad._version == before + 1


def test_create_graph_makes_a_new_grad_and_leaves_the_alias(tl):
    x = leaf(tl, [1.0, 2.0])
    (x * x).sum().backward()
    alias = x.grad
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (x * x * x).sum().backward(create_graph=True)
    assert x.grad is not alias
    assert numbers(alias) == [2.0, 4.0]
    assert numbers(x.grad) == [5.0, 16.0]
    assert x.grad.requires_grad
    x.grad = None


def test_backward_after_create_graph_adds_out_of_place(tl):
    x = leaf(tl, [2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (x * x * x).sum().backward(create_graph=True)
    first = x.grad
    assert first.requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (x * x).sum().backward()
    assert near(x.grad, [16.0])
    x.grad = None


def test_a_grad_set_by_hand_is_added_to_in_place(tl):
    x = leaf(tl, [1.0, 2.0])
    mine = tl.tensor([10.0, 20.0])
    x.grad = mine
    (x * x).sum().backward()
    assert x.grad is mine
    assert numbers(mine) == [12.0, 24.0]


def test_zeroed_grad_is_reused(tl):
    x = leaf(tl, [1.0, 2.0])
    (x * x).sum().backward()
    g = x.grad
    g.zero_()
    (x * 5).sum().backward()
    assert x.grad is g and numbers(g) == [5.0, 5.0]


def test_grad_assignment_refuses_wrong_shape_and_dtype(tl):
    x = leaf(tl, [1.0, 2.0])
    with pytest.raises(RuntimeError, match="attempting to assign a gradient of size '?.3.'? to a tensor of size"):
        x.grad = tl.ones(3)
    with pytest.raises(RuntimeError, match="attempting to assign a gradient with dtype"):
        x.grad = tl.ones(2, dtype=tl.float64)
    with pytest.raises(TypeError, match="assigned grad expected to be a Tensor or None"):
        x.grad = 3.0
    assert x.grad is None


def test_a_given_gradient_is_never_modified(tl):
    x = leaf(tl, [1.0, 2.0])
    seed = tl.ones(2)
    (x + 0).backward(seed)
    (x + 0).backward(seed)
    assert numbers(seed) == [1.0, 1.0]
    assert numbers(x.grad) == [2.0, 2.0]


def test_a_leafs_gradient_does_not_share_with_the_seed(tl):
    x = leaf(tl, [1.0, 2.0])
    seed = tl.ones(2)
    x.backward(seed)
    x.grad.zero_()
    assert numbers(seed) == [1.0, 1.0]
    x.backward(seed)
    x.backward(seed)
    assert numbers(seed) == [1.0, 1.0] and numbers(x.grad) == [2.0, 2.0]


def test_writing_the_seed_after_backward_does_not_reach_grad(tl):
    x = leaf(tl, [1.0, 2.0])
    seed = tl.ones(2)
    (x * 2).backward(seed)
    seed.zero_()
    assert numbers(x.grad) == [2.0, 2.0]


def test_two_leaves_fed_the_same_gradient_do_not_share_it(tl):
    x, y = leaf(tl, [1.0]), leaf(tl, [2.0])
    (x + y).sum().backward()
    x.grad.mul_(10)
    assert numbers(y.grad) == [1.0]


def test_one_leaf_used_many_times_gets_the_sum(tl):
    x = leaf(tl, 3.0)
    (x * x + x * 2 + x).backward()
    assert numbers(x.grad) == 9.0


def test_several_roots_are_summed(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * x
    tl.autograd.backward([y.sum(), (y * 2).sum()])
    assert numbers(x.grad) == [6.0, 12.0]


def test_several_roots_with_seeds_and_none(tl):
    x = leaf(tl, [1.0, 2.0])
    tl.autograd.backward((x.sum(), x * x), (None, tl.tensor([1.0, 10.0])))
    assert numbers(x.grad) == [3.0, 41.0]


def test_the_same_root_twice_counts_twice(tl):
    x = leaf(tl, 3.0)
    y = x * x
    tl.autograd.backward([y, y])
    assert numbers(x.grad) == 12.0


def test_a_root_inside_another_roots_graph(tl):
    x = leaf(tl, 3.0)
    y = x * x
    z = y * 2
    tl.autograd.backward([z, y])
    assert numbers(x.grad) == 18.0


def test_a_leaf_as_root_receives_its_seed(tl):
    x = leaf(tl, 3.0)
    x.backward()
    assert numbers(x.grad) == 1.0
    x.backward(tl.tensor(5.0))
    assert numbers(x.grad) == 6.0


def test_a_leaf_and_its_function_as_roots(tl):
    x = leaf(tl, 3.0)
    tl.autograd.backward([x, x * x])
    assert numbers(x.grad) == 7.0


# ---------------------------------------------------------------- backward(inputs=)


def test_inputs_limit_where_gradients_go(tl):
    x, y = leaf(tl, 2.0), leaf(tl, 3.0)
    (x * y).backward(inputs=[x])
    assert numbers(x.grad) == 3.0 and y.grad is None


def test_inputs_may_be_one_tensor(tl):
    x, y = leaf(tl, 2.0), leaf(tl, 3.0)
    (x * y).backward(inputs=y)
    assert x.grad is None and numbers(y.grad) == 2.0


def test_inputs_may_be_a_dict(tl):
    x, y = leaf(tl, 2.0), leaf(tl, 3.0)
    tl.autograd.backward(x * y, inputs={"a": x})
    assert numbers(x.grad) == 3.0 and y.grad is None


def test_a_nonleaf_among_inputs_receives_and_accumulates(tl):
    x = leaf(tl, 2.0)
    y = x * x
    z = y * 3
    z.backward(inputs=[y], retain_graph=True)
    assert grad_or_none(y) == 3.0 and x.grad is None
    z.backward(inputs=[y, x])
    assert grad_or_none(y) == 6.0 and numbers(x.grad) == 12.0


def test_the_root_itself_among_inputs(tl):
    x = leaf(tl, 2.0)
    y = x * x
    y.backward(inputs=[y])
    assert grad_or_none(y) == 1.0 and x.grad is None


def test_empty_inputs_raise(tl):
    x = leaf(tl, 2.0)
    y = x * x
    with pytest.raises(RuntimeError, match="`inputs` argument to `?backward"):
        tl.autograd.backward(y, inputs=[])
    y.backward()
    assert numbers(x.grad) == 4.0


def test_inputs_without_grad_raise(tl):
    x = leaf(tl, 2.0)
    c = tl.tensor(3.0)
    with pytest.raises(RuntimeError, match="can't retain_grad on Tensor that has requires_grad=False"):
        (x * c).backward(inputs=[c])
    assert x.grad is None


def test_an_unreached_input_is_left_alone(tl):
    x, y = leaf(tl, 2.0), leaf(tl, 3.0)
    y.grad = tl.tensor(7.0)
    (x * x).backward(inputs=[x, y])
    assert numbers(x.grad) == 4.0 and numbers(y.grad) == 7.0


def test_duplicate_inputs_accumulate_once(tl):
    x = leaf(tl, 2.0)
    (x * x).backward(inputs=[x, x])
    assert numbers(x.grad) == 4.0


def test_the_graph_is_freed_along_the_path_to_inputs_only(tl):
    x, y = leaf(tl, 2.0), leaf(tl, 3.0)
    a, b = x.exp(), y.exp()
    (a + b).backward(inputs=[x])
    b.backward()
    assert near(y.grad, 20.085537)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        a.backward()


# ---------------------------------------------------------------- autograd.grad


def test_grad_never_touches_the_grad_field(tl):
    x = leaf(tl, [1.0, 2.0])
    (g,) = tl.autograd.grad((x * x).sum(), x)
    assert numbers(g) == [2.0, 4.0] and x.grad is None and not g.requires_grad


def test_grad_sums_over_outputs(tl):
    x = leaf(tl, 3.0)
    (g,) = tl.autograd.grad([x * x, 5 * x], [x])
    assert numbers(g) == 11.0


def test_grad_of_duplicates_gives_each_the_gradient(tl):
    x = leaf(tl, 3.0)
    a, b = tl.autograd.grad(x * x, [x, x])
    assert numbers(a) == 6.0 and numbers(b) == 6.0


def test_grad_of_an_output_with_respect_to_itself_is_the_seed(tl):
    x = leaf(tl, 3.0)
    y = x * x
    gy, gx = tl.autograd.grad(y, [y, x], tl.tensor(2.0))
    assert numbers(gy) == 2.0 and numbers(gx) == 12.0


def test_grad_of_a_leaf_with_respect_to_itself(tl):
    x = leaf(tl, 3.0)
    (g,) = tl.autograd.grad(x, x)
    assert numbers(g) == 1.0


def test_grad_at_nonleaves_and_leaves_together(tl):
    x = leaf(tl, 2.0)
    y = x * x
    z = y * y
    gz = tl.autograd.grad(z, [x, y])
    assert numbers(gz) == [32.0, 8.0]


def test_grad_takes_a_dict_of_inputs(tl):
    x, y = leaf(tl, 2.0), leaf(tl, 3.0)
    found = tl.autograd.grad(x * y, {"x": x, "y": y})
    assert isinstance(found, dict) and numbers(found) == {"x": 3.0, "y": 2.0}


def test_an_unused_input_raises_gives_none_or_zeros(tl):
    x, y = leaf(tl, 2.0), leaf(tl, [1.0, 2.0])
    z = x * x
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        tl.autograd.grad(z, [x, y], retain_graph=True)
    a, b = tl.autograd.grad(z, [x, y], retain_graph=True, allow_unused=True)
    assert numbers(a) == 4.0 and b is None
    a, b = tl.autograd.grad(z, [x, y], materialize_grads=True)
    assert numbers(a) == 4.0 and numbers(b) == [0.0, 0.0]


def test_materialize_grads_with_allow_unused_false_is_a_value_error(tl):
    x = leaf(tl, 2.0)
    with pytest.raises(ValueError, match="Expected allow_unused to be True or not passed when materialize_grads=True"):
        tl.autograd.grad(x * x, x, allow_unused=False, materialize_grads=True)


def test_grad_of_nothing_raises(tl):
    x = leaf(tl, 2.0)
    with pytest.raises(RuntimeError, match=r"`inputs` argument to `grad\(\)` cannot be empty"):
        tl.autograd.grad(x * x, [])


def test_grad_of_an_input_that_does_not_require_grad(tl):
    x, c = leaf(tl, 2.0), tl.tensor(3.0)
    with pytest.raises(RuntimeError, match="One of the differentiated Tensors does not require grad"):
        tl.autograd.grad(x * c, [c])


def test_an_input_written_in_place_meanwhile_is_unused(tl):
    x = leaf(tl, 2.0)
    a = x * 2
    b = a * 3
    a.mul_(2)
    (g,) = tl.autograd.grad(b, [a], allow_unused=True)
    assert g is None


def test_only_inputs_false_warns(tl):
    x = leaf(tl, 2.0)
    with pytest.warns(FutureWarning, match="only_inputs argument is deprecated"):
        (g,) = tl.autograd.grad(x * x, x, only_inputs=False)
    assert numbers(g) == 4.0


@pytest.mark.parametrize("create", [False, True])
def test_batched_seeds_give_a_batch_of_gradients(tl, create):
    x = leaf(tl, [1.0, 2.0, 3.0])
    y = x * x
    seeds = tl.eye(3)
    (jacobian,) = tl.autograd.grad(y, x, seeds, is_grads_batched=True, create_graph=create)
    assert numbers(jacobian) == [[2.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 6.0]]
    if create:
        (second,) = tl.autograd.grad(jacobian.sum(), x)
        assert numbers(second) == [2.0, 2.0, 2.0]


def test_batched_seeds_of_wrong_shape_raise(tl):
    x = leaf(tl, [1.0, 2.0, 3.0])
    with pytest.raises(RuntimeError, match="interpret the first dimension of each grad_output as the batch"):
        tl.autograd.grad(x * x, x, tl.eye(2), is_grads_batched=True)


# ---------------------------------------------------------------- roots and seeds that are refused


def test_a_nonscalar_root_needs_a_gradient(tl):
    x = leaf(tl, [1.0, 2.0])
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        (x * x).backward()
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        tl.autograd.grad(x * x, x)
    assert x.grad is None


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_one_element_counts_as_a_scalar(tl, shape):
    x = tl.ones(shape, requires_grad=True)
    (x * 3).backward()
    assert numbers(x.grad.reshape(-1)) == [3.0]


def test_an_implicit_gradient_needs_a_real_scalar(tl):
    x = tl.tensor(1.0 + 2.0j, requires_grad=True)
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for real scalar outputs"):
        (x * x).backward()
    assert x.grad is None


def test_a_gradient_of_wrong_shape_names_both_shapes(tl):
    x = leaf(tl, [1.0, 2.0])
    with pytest.raises(RuntimeError, match=r"Mismatch in shape: grad_output.* has a shape of .*3.* and output.* has a shape of .*2"):
        (x * x).backward(tl.ones(3))
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        tl.autograd.grad(x * x, x, tl.ones(2, 1))
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (x * x).sum().backward(tl.ones(1))
    assert x.grad is None


def test_a_complex_gradient_for_a_real_root_raises(tl):
    x = leaf(tl, [1.0, 2.0])
    with pytest.raises(RuntimeError, match="both grad_output and output are required to have the same dtype"):
        (x * x).backward(tl.ones(2, dtype=tl.complex64))


def test_a_gradient_of_another_float_type_is_cast(tl):
    x = leaf(tl, [1.0, 2.0])
    (x * x).backward(tl.ones(2, dtype=tl.float64))
    assert x.grad.dtype == tl.float32 and numbers(x.grad) == [2.0, 4.0]


def test_a_gradient_that_is_no_tensor_raises(tl):
    x = leaf(tl, [1.0, 2.0])
    with pytest.raises(TypeError, match="gradients can be either Tensors or None"):
        tl.autograd.backward([(x * x)], [3.0])


def test_a_root_without_grad_raises(tl):
    with pytest.raises(RuntimeError, match="element 0 of tensors does not require grad and does not have a grad_fn"):
        tl.tensor(3.0).backward()
    x = leaf(tl, 2.0)
    with pytest.raises(RuntimeError, match="element 1 of tensors does not require grad and does not have a grad_fn"):
        tl.autograd.backward([x * x, x.detach()])
    with pytest.raises(RuntimeError, match="does not require grad"):
        tl.autograd.grad(x.detach(), x)
    assert x.grad is None


def test_as_many_gradients_as_roots(tl):
    x = leaf(tl, 2.0)
    with pytest.raises(RuntimeError, match="got 2 tensors and 1 gradients"):
        tl.autograd.backward([x * x, x * x], [tl.tensor(1.0)])
    assert x.grad is None


def test_nothing_changes_when_an_argument_is_refused(tl):
    x = leaf(tl, [1.0, 2.0])
    y = (x * x).exp()
    with pytest.raises(RuntimeError):
        y.backward(tl.ones(3))
    y.sum().backward()
    assert near(x.grad, [5.4365635, 218.3926])


# ---------------------------------------------------------------- only what is needed runs


def test_a_node_off_the_path_never_runs(tl):
    class Bomb(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise ValueError("must not run")

    x, y = leaf(tl, 2.0), leaf(tl, 3.0)
    z = x * x + Bomb.apply(y)
    (g,) = tl.autograd.grad(z, x, retain_graph=True)
    assert numbers(g) == 4.0
    z.backward(inputs=[x], retain_graph=True)
    assert numbers(x.grad) == 4.0 and y.grad is None
    with pytest.raises(ValueError, match="must not run"):
        z.backward()
    assert y.grad is None


def test_nodes_above_the_requested_nonleaf_run_and_below_do_not(tl):
    seen = []

    class Watch(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x, name):
            ctx.name = name
            return x * 1

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.name)
            return g, None

    x = leaf(tl, 2.0)
    below = Watch.apply(x, "below")
    above = Watch.apply(below, "above")
    (g,) = tl.autograd.grad(above, below)
    assert seen == ["above"] and numbers(g) == 1.0


# ---------------------------------------------------------------- undefined is not zero


def test_a_none_from_a_function_leaves_grad_none_upstream(tl):
    class Nothing(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return None

    x = leaf(tl, 2.0)
    Nothing.apply(x.exp()).backward()
    assert x.grad is None
    (g,) = tl.autograd.grad(Nothing.apply(x.exp()), x, allow_unused=True)
    assert g is None
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        tl.autograd.grad(Nothing.apply(x.exp()), x)


def test_a_none_beside_a_real_gradient_adds_nothing(tl):
    class Nothing(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return None

    x = leaf(tl, 2.0)
    (Nothing.apply(x * 3) + x * x).backward()
    assert numbers(x.grad) == 4.0


def test_a_constant_factor_of_zero_still_gives_zeros(tl):
    x = leaf(tl, 2.0)
    (x * 0).backward()
    assert numbers(x.grad) == 0.0


# ---------------------------------------------------------------- complex


def test_a_complex_grad_is_the_steepest_ascent_direction(tl):
    z = tl.tensor([1.0 + 2.0j, -3.0 + 0.5j], requires_grad=True)
    (z.abs() ** 2).sum().backward()
    assert near(z.grad, [2 + 4j, -6 + 1j])


def test_real_leaves_of_complex_graphs_keep_real_gradients(tl):
    x = leaf(tl, [1.0, 2.0])
    z = tl.tensor([1.0 + 1.0j, 2.0 - 1.0j], requires_grad=True)
    y = x * z
    (y.real + 2 * y.imag).sum().backward()
    assert x.grad.dtype == tl.float32 and near(x.grad, [3.0, 0.0])
    assert near(z.grad, [1 + 2j, 2 + 4j])


def test_a_complex_seed_is_taken_in_torchs_convention(tl):
    z = tl.tensor([1.0 + 2.0j], requires_grad=True)
    (z * z).backward(tl.tensor([1.0j]))
    assert near(z.grad, [4 + 2j])


def test_a_mapping_other_than_dict_is_refused(tl):
    x = leaf(tl, 2.0)
    with pytest.raises(TypeError, match="must be a dict, not OrderedDict"):
        tl.autograd.grad(x * x, OrderedDict(x=x))
    with pytest.raises(TypeError, match="must be a dict, not OrderedDict"):
        tl.autograd.backward(x * x, inputs=OrderedDict(x=x))
    assert x.grad is None


def test_inputs_that_are_no_tensors_are_refused(tl):
    x = leaf(tl, 2.0)
    with pytest.raises(RuntimeError, match="all inputs have to be Tensors or GradientEdges, but got int"):
        tl.autograd.grad(x * x, [3])
    with pytest.raises(RuntimeError, match="all inputs have to be Tensors or GradientEdges, but got int"):
        tl.autograd.backward(x * x, inputs=[3])


def test_backward_of_nothing_does_nothing(tl):
    tl.autograd.backward([])


def test_grad_variables_is_the_old_name_of_grad_tensors(tl):
    x = leaf(tl, 2.0)
    with pytest.warns(FutureWarning, match="`grad_variables` is deprecated"):
        tl.autograd.backward(x * x, grad_variables=tl.tensor(3.0))
    assert numbers(x.grad) == 12.0
