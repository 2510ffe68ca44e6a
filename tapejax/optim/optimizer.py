"""The base of all optimizers: parameter groups, state, saving and loading, the loop over parameters.

A subclass names its recurrence and the state and numbers that go into it. Nothing is computed in `step`: the update of a whole
group is recorded as one node and written in place, so it joins the next program, and no number is read back to the host.
"""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, Self

import numpy as np

from tapejax import dtypes
from tapejax.autograd.grad_mode import enable_grad, set_grad_enabled
from tapejax.dispatch import assign
from tapejax.errors import refuse
from tapejax.optim.updates import next_step
from tapejax.storage.view import check_writable
from tapejax.tape.node import Node, scalar
from tapejax.tape.op import Op
from tapejax.tape.record import pick, record
from tapejax.tensor import Tensor, leaf_node, wrap

Group = dict[str, Any]
State = dict[str, Any]


class Removable:
    """What registering a hook returns: `remove()` takes it off again."""

    def __init__(self, hooks: dict[int, Any], key: int) -> None:
        self._hooks, self._key = hooks, key

    def remove(self) -> None:
        self._hooks.pop(self._key, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Optimizer:
    """Hold parameter groups and the state of their descent; subclasses define one step.

    `params`: an iterable of leaf Tensors, of `(name, Tensor)` pairs, or of dicts with a "params" entry and options that
    differ from `defaults`.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._set_up()
        self.defaults = defaults
        self.state: defaultdict[Tensor, State] = defaultdict(dict)
        self.param_groups: list[Group] = []
        if isinstance(params, Tensor):
            raise refuse(
                TypeError,
                type(self).__name__,
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                "but got a Tensor → put it in a list: [tensor]",
            )
        groups = list(params)
        if not groups:
            raise refuse(
                ValueError,
                type(self).__name__,
                "optimizer got an empty parameter list → a generator such as model.parameters() can be used only once",
            )
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def _set_up(self) -> None:
        """What is neither saved nor pickled."""
        self._hooks: dict[str, dict[int, Callable[..., Any]]] = {name: OrderedDict() for name in _HOOKS}
        self._next_hook = 0
        self._stepping = False
        self._scheduled = False  # a learning rate scheduler drives this optimizer
        self._opt_called = False  # ... which warns if it is stepped first

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = _with_hooks(cls.__dict__["step"])  # type: ignore[method-assign]

    # Groups and state

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters, for example layers that are unfrozen later, with options of their own."""
        who = type(self).__name__
        if not isinstance(param_group, dict):
            raise refuse(TypeError, who, f"param_group must be a dict, but got {type(param_group).__name__}")
        given = param_group["params"]
        if isinstance(given, Tensor):
            given = [given]
        elif isinstance(given, set):
            raise refuse(
                TypeError,
                who,
                "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in sets "
                "will change between runs. Please use a list instead.",
            )
        given = list(given)
        named = [isinstance(p, tuple) for p in given]
        if any(named):
            if not all(named):
                raise refuse(
                    ValueError, who, "all optimizer params should be with/without names. Some param names are missing"
                )
            param_group["param_names"] = [name for name, _ in given]
            given = [p for _, p in given]
        if self.param_groups and ("param_names" in param_group) != ("param_names" in self.param_groups[0]):
            raise refuse(
                ValueError,
                who,
                "all optimizer param groups should be with/without names. "
                f"cannot add param group {'with' if any(named) else 'without'} names to the optimizer",
            )
        for p in given:
            if not isinstance(p, Tensor):
                raise refuse(
                    TypeError, who, f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}"
                )
            if not self.defaults.get("differentiable") and not (p.is_leaf or p.retains_grad):
                raise refuse(
                    ValueError,
                    who,
                    f"can't optimize a non-leaf Tensor, and this one, of shape {tuple(p.shape)}, is the result of an "
                    "operation → pass the tensor that it was computed from, or differentiable=True",
                )
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise refuse(
                    ValueError, who, f"parameter group didn't specify a value of required optimization parameter {name}"
                )
            param_group.setdefault(name, default)
        if len(given) != len(set(given)):
            text = "optimizer contains a parameter group with duplicate parameters; in future, this will cause an error"
            warnings.warn(f"{text} → each of them moves twice a step: drop the repeats", stacklevel=3)
        if not {p for g in self.param_groups for p in g["params"]}.isdisjoint(given):
            raise refuse(ValueError, who, "some parameters appear in more than one parameter group")
        param_group["params"] = given
        self.param_groups.append(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients: drop them, or with `set_to_none=False` overwrite them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if set_to_none:
                    p.grad = None
                else:
                    if p.grad.grad_fn is not None:
                        p.grad.detach_()
                    else:
                        p.grad.requires_grad_(False)
                    p.grad.zero_()

    # One step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient; return what `closure` (which recomputes the loss) returned."""
        with set_grad_enabled(bool(self.defaults.get("differentiable"))):
            loss = None
            if closure is not None:
                with enable_grad():
                    loss = closure()
            counted: dict[Node, Node] = {}
            for group in self.param_groups:
                for batch, fresh in self._batches(group):
                    self._advance(batch, fresh, group, counted)
        return loss

    # What an optimizer consists of: a recurrence, the names of the state it moves, its numbers and flags.

    _update: Op
    _counts = True  # state has a "step"

    def _kept(self, group: Group) -> tuple[str, ...]:
        """The state that the recurrence moves, in the order in which it returns it."""
        raise NotImplementedError

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        """Fill the state of a parameter before its first step."""
        raise NotImplementedError

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        """The numbers of the recurrence, weight decay apart; `fresh` in a parameter's first step."""
        raise NotImplementedError

    def _batches(self, group: Group) -> Iterable[tuple[list[Tensor], bool]]:
        """The parameters that have a gradient, in batches for one recorded op each: usually one."""
        batches: dict[tuple[Any, bool], list[Tensor]] = {}
        states = self.state
        starts: dict[Any, Node] = {}
        for p in group["params"]:
            if p.grad is not None:
                state = states[p]
                fresh = not state
                if fresh:
                    self._begin_one(p, state, group, starts)
                key = (p._node.aval.device, fresh)
                batch = batches.get(key)
                if batch is None:
                    batches[key] = [p]
                else:
                    batch.append(p)
        return [(batch, fresh) for (_, fresh), batch in batches.items()]

    def _begin_one(self, p: Tensor, state: State, group: Group, starts: dict[Any, Node]) -> None:
        if self._counts:
            device = p._node.aval.device
            if device not in starts:
                starts[device] = begin_number(p, 0.0).node
            state["step"] = wrap(starts[device])
        self._begin(p, state, group)

    def _begin_all(self) -> None:
        """For optimizers whose state exists before the first step."""
        starts: dict[Any, Node] = {}
        for group in self.param_groups:
            for p in group["params"]:
                self._begin_one(p, self.state[p], group, starts)

    def _advance(self, batch: list[Tensor], fresh: bool, group: Group, counted: dict[Node, Node]) -> None:
        """Record one step of `batch`. Parameters of the same age share a step count: one node, as many tensors."""
        states = [self.state[p] for p in batch]
        kept = self._kept(group)
        targets = [*batch, *(state[name] for name in kept for state in states)]
        lists: dict[str, list[Any]] = {"param": batch, "grad": [p.grad for p in batch]}
        for name in kept:
            lists[name] = [state[name] for state in states]
        nodes = {name: [t.node for t in tensors] for name, tensors in lists.items()}
        if self._counts:
            nodes["step"] = steps = []
            for state in states:
                before = state["step"].node
                after = counted.get(before)
                if after is None:
                    after = counted[before] = next_step(state["step"]).node
                state["step"] = wrap(after)
                steps.append(after)
        numbers = self._numbers(group, fresh)
        if group.get("weight_decay"):
            numbers["weight_decay"] = group["weight_decay"]

        op = self._update
        inputs: list[Node] = []
        form: list[Any] = []
        for param in op.params:
            if param.role == "arrays":
                members = nodes.get(param.name, ())
                inputs += members
                form.append((len(members),))
            elif param.role == "scalar":
                number = numbers.get(param.name)
                form.append(None if number is None else 1)
                if number is not None:
                    inputs.append(number.node if isinstance(number, Tensor) else scalar(float(number)))
        flags = tuple([group[_FLAGS.get(name, name)] for name in op.statics])
        new = record(op, tuple(form), flags, tuple(inputs))
        recording = self.defaults.get("differentiable")
        for i, target in enumerate(targets):
            if recording:
                check_writable(target, "step", new.requires_grad)
            assign(target, pick(new, i), "step")

    # Hooks

    def _hook(self, kind: str, hook: Callable[..., Any]) -> Removable:
        key = self._next_hook
        self._next_hook += 1
        self._hooks[kind][key] = hook
        return Removable(self._hooks[kind], key)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Removable:
        """Call `hook(optimizer, args, kwargs)` before each step; it may return new `(args, kwargs)`."""
        return self._hook("step_pre", hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Removable:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return self._hook("step_post", hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Removable:
        """Call `hook(optimizer)` before `state_dict()`."""
        return self._placed("save_pre", hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Removable:
        """Call `hook(optimizer, state_dict)` after `state_dict()`; it may return another dict."""
        return self._placed("save_post", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Removable:
        """Call `hook(optimizer, state_dict)` before loading; it may return another dict."""
        return self._placed("load_pre", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Removable:
        """Call `hook(optimizer)` after loading."""
        return self._placed("load_post", hook, prepend)

    def _placed(self, kind: str, hook: Callable[..., Any], prepend: bool) -> Removable:
        made = self._hook(kind, hook)
        if prepend:
            self._hooks[kind].move_to_end(made._key, last=False)  # type: ignore[attr-defined]
        return made

    # Saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Return `{"state": ..., "param_groups": ...}` with parameters numbered in order: torch's format."""
        for before in list(self._hooks["save_pre"].values()):
            before(self)
        number: dict[Tensor, int] = {}
        groups = []
        for group in self.param_groups:
            for p in group["params"]:
                number.setdefault(p, len(number))
            groups.append(
                {k: v for k, v in group.items() if k != "params"} | {"params": [number[p] for p in group["params"]]}
            )
        state = {number[k] if isinstance(k, Tensor) else k: v for k, v in self.state.items()}
        made = {"state": state, "param_groups": groups}
        for after in list(self._hooks["save_post"].values()):
            made = after(self, made) or made
        return made

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over groups and state from `state_dict()` of an optimizer over parameters of the same shapes.

        State is cast to its parameter's element type and device, except the step count.
        """
        state_dict = dict(state_dict)
        for before in list(self._hooks["load_pre"].values()):
            state_dict = before(self, state_dict) or state_dict
        ours, saved = self.param_groups, deepcopy(state_dict["param_groups"])
        who = f"{type(self).__name__}.load_state_dict"
        if len(ours) != len(saved):
            raise refuse(
                ValueError,
                who,
                f"loaded state dict has a different number of parameter groups: {len(saved)}, the optimizer has {len(ours)}",
            )
        for i, (mine, theirs) in enumerate(zip(ours, saved, strict=True)):
            if len(mine["params"]) != len(theirs["params"]):
                raise refuse(
                    ValueError,
                    who,
                    "loaded state dict contains a parameter group that doesn't match the size of optimizer's group: "
                    f"group {i} has {len(theirs['params'])} parameters there and {len(mine['params'])} here",
                )
        of = {
            n: p
            for mine, theirs in zip(ours, saved, strict=True)
            for n, p in zip(theirs["params"], mine["params"], strict=True)
        }
        state: defaultdict[Any, State] = defaultdict(dict)
        ages: dict[Any, Tensor] = {}
        for key, value in state_dict["state"].items():
            if key in of:
                state[of[key]] = mine = _cast(of[key], value)
                step = mine.get("step") if isinstance(mine, dict) else None
                if isinstance(step, (int, float)):
                    step = begin_number(of[key], step)
                if isinstance(step, Tensor):  # the same count is one node again
                    age = (step.item(), step.dtype, step._node.aval.device)
                    mine["step"] = wrap(ages.setdefault(age, step).node)
            else:
                state[key] = value
        for mine, theirs in zip(ours, saved, strict=True):
            theirs["params"] = mine["params"]
            if "param_names" in mine:
                theirs["param_names"] = mine["param_names"]
        self.__setstate__({"state": state, "param_groups": saved})
        for after in list(self._hooks["load_post"].values()):
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_hooks" not in self.__dict__:
            self._set_up()
        self.__dict__.update(state)
        for group in self.param_groups:  # groups saved by an older version lack the newer options
            for name, default in self.defaults.items():
                group.setdefault(name, default)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines += [f"Parameter Group {i}", *(f"    {k}: {group[k]}" for k in sorted(group) if k != "params")]
        return "\n".join(lines) + "\n)"


class _Required:
    """The default of an option that every group must give."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()
_FLAGS = {"decoupled": "decoupled_weight_decay"}  # static of a recurrence -> option of a group, where they differ
_HOOKS = ("step_pre", "step_post", "save_pre", "save_post", "load_pre", "load_post")


def _with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def wrapped(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if self._stepping:  # a subclass's step that calls super().step() fires hooks once
            return step(self, *args, **kwargs)
        hooks = self._hooks
        if hooks["step_pre"]:
            for before in list(hooks["step_pre"].values()):
                changed = before(self, args, kwargs)
                if changed is not None:
                    if not (isinstance(changed, tuple) and len(changed) == 2):
                        raise refuse(
                            RuntimeError,
                            "step",
                            f"a pre-hook must return None or a tuple of (new_args, new_kwargs), got {changed}",
                        )
                    args, kwargs = changed
        self._stepping = True
        try:
            out = step(self, *args, **kwargs)
        finally:
            self._stepping = False
        self._opt_called = True
        if hooks["step_post"]:
            for after in list(hooks["step_post"].values()):
                after(self, args, kwargs)
        return out

    return wrapped


Optimizer.step = _with_hooks(Optimizer.step)  # type: ignore[method-assign]


def _cast(p: Tensor, value: Any, key: str = "") -> Any:
    """A loaded state entry, in the element type and on the device of its parameter."""
    if isinstance(value, Tensor):
        if key == "step" or not p.is_floating_point():
            return value.to(device=p.device) if key != "step" else value
        return value.to(dtype=p.dtype, device=p.device)
    if isinstance(value, dict):
        return {k: _cast(p, v, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(p, v, key) for v in value)
    return value


def begin_number(p: Tensor, value: float) -> Tensor:
    """A number of the state, ready from the start, on the device of `p`; in single precision, as torch keeps it."""
    wide = dtypes.float64 if dtypes.get_default_dtype() is dtypes.float64 else dtypes.float32
    return wrap(leaf_node(np.asarray(value, wide.np), wide, p._node.aval.device))


def full_like(p: Tensor, value: float) -> Tensor:
    """State of the shape of `p`, ready from the start: recorded zeros would make the first step a program of its own."""
    fill = complex(value, value) if p.is_complex() else value  # a complex number is a pair of reals
    return wrap(leaf_node(np.full(tuple(p.shape), fill, p.dtype.np), p.dtype, p._node.aval.device))


def zeros_like(p: Tensor) -> Tensor:
    return full_like(p, 0.0)


def check(who: str, phrase: str, value: Any, good: Any) -> None:
    """Refuse a hyper-parameter outside its range."""
    if not good:
        raise refuse(ValueError, who, f"{phrase}: {value}")


def check_lr(who: str, lr: Any) -> None:
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise refuse(ValueError, who, f"Tensor lr must be 1-element, but it has shape {tuple(lr.shape)}")
        return
    check(who, "Invalid learning rate", lr, lr >= 0)


def check_betas(who: str, betas: Any) -> None:
    for i, beta in enumerate(betas):
        check(who, f"Invalid beta parameter at index {i}", beta, 0 <= beta < 1)
