"""Hooks on modules: how they are kept, and the tables of global ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tapejax.autograd.hooks import RemovableHandle


class Hook:
    """A hook and how it wants to be called."""

    __slots__ = ("always", "function", "with_kwargs")

    def __init__(self, function: Callable[..., Any], with_kwargs: bool = False, always: bool = False) -> None:
        self.function = function
        self.with_kwargs = with_kwargs
        self.always = always


def register(table: OrderedDict[int, Any], hook: Any, prepend: bool = False) -> RemovableHandle:
    """Add `hook` to `table`, at its front if `prepend`."""
    handle = RemovableHandle(table)
    table[handle.id] = hook
    if prepend:
        table.move_to_end(handle.id, last=False)
    return handle


#: Hooks that run for every module.
FORWARD: OrderedDict[int, Hook] = OrderedDict()
FORWARD_PRE: OrderedDict[int, Hook] = OrderedDict()
BACKWARD: OrderedDict[int, Callable[..., Any]] = OrderedDict()
BACKWARD_PRE: OrderedDict[int, Callable[..., Any]] = OrderedDict()
#: Hooks that see a parameter, buffer or submodule before it is registered, and may replace it.
PARAMETER: OrderedDict[int, Callable[..., Any]] = OrderedDict()
BUFFER: OrderedDict[int, Callable[..., Any]] = OrderedDict()
MODULE: OrderedDict[int, Callable[..., Any]] = OrderedDict()


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, args)` before every module's forward; what it returns (if not None) replaces the arguments."""
    return register(FORWARD_PRE, Hook(hook))


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call `hook(module, args, output)` after every module's forward; what it returns (if not None) replaces the output."""
    return register(FORWARD, Hook(hook, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_output)` before every module's backward."""
    return register(BACKWARD_PRE, hook)


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_input, grad_output)` when the gradients of any module's inputs are known."""
    return register(BACKWARD, hook)


register_module_backward_hook = register_module_full_backward_hook


def register_module_parameter_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, name, parameter)` at every parameter registration; what it returns replaces the parameter."""
    return register(PARAMETER, hook)


def register_module_buffer_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, name, buffer)` at every buffer registration; what it returns replaces the buffer."""
    return register(BUFFER, hook)


def register_module_module_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, name, submodule)` at every submodule registration; what it returns replaces the submodule."""
    return register(MODULE, hook)
