"""The Module: parameters, buffers and submodules as attributes, hooks around `forward`, saving and loading."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

from tapejax import dtypes
from tapejax.autograd.grad_mode import no_grad
from tapejax.devices import device as device_type
from tapejax.errors import refuse
from tapejax.nn import backward_hooks, hooks
from tapejax.nn.hooks import (
    Hook,
    RemovableHandle,
    register,
    register_module_backward_hook,
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from tapejax.nn.parameter import Buffer, Parameter
from tapejax.tensor import Tensor


class _IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):  # noqa: PYI024
    """What `load_state_dict` could not match."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()


_TABLES = ("_parameters", "_buffers", "_modules")


class Module:
    """Base of all layers and models. Assign Parameters, Buffers and Modules as attributes and define `forward`.

    >>> import tapejax as tj
    >>> class Scale(tj.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = tj.nn.Parameter(tj.tensor(3.0))
    ...     def forward(self, x):
    ...         return self.factor * x
    >>> Scale()(tj.tensor(2.0)).item()
    6.0
    """

    training: bool
    _version: ClassVar[int] = 1
    call_super_init: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            given = next(iter(kwargs), None)
            what = f"an unexpected keyword argument '{given}'" if given else f"{len(args)} positional arguments it does not take"
            raise TypeError(f"{type(self).__name__}.__init__() got {what}")
        put = super().__setattr__
        put("training", True)
        put("_parameters", {})
        put("_buffers", {})
        put("_non_persistent_buffers_set", set())
        put("_modules", {})
        for name in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
            "_state_dict_hooks",
            "_state_dict_pre_hooks",
            "_load_state_dict_pre_hooks",
            "_load_state_dict_post_hooks",
        ):
            put(name, OrderedDict())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's result: every subclass defines this."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    # -- calling ----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
            or hooks.FORWARD
            or hooks.FORWARD_PRE
            or hooks.BACKWARD
            or hooks.BACKWARD_PRE
        ):
            return self.forward(*args, **kwargs)
        return self._hooked_call(args, kwargs)

    _call_impl = __call__

    def _hooked_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        called: set[int] = set()
        result: Any = None
        after: list[tuple[int, Hook]] = [*hooks.FORWARD.items(), *self._forward_hooks.items()]
        try:
            for pre in (*hooks.FORWARD_PRE.values(), *self._forward_pre_hooks.values()):
                if pre.with_kwargs:
                    changed = pre.function(self, args, kwargs)
                    if changed is not None:
                        if not isinstance(changed, tuple) or len(changed) != 2:
                            raise RuntimeError(
                                f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {changed}."
                            )
                        args, kwargs = changed
                else:
                    changed = pre.function(self, args)
                    if changed is not None:
                        args = changed if isinstance(changed, tuple) else (changed,)
            watch = None
            befores = [*hooks.BACKWARD_PRE.values(), *self._backward_pre_hooks.values()]
            afters = [*hooks.BACKWARD.values(), *self._backward_hooks.values()]
            if befores or afters:
                watch = backward_hooks.Watch(self, befores, afters)
                args = watch.inputs(args)
            result = self.forward(*args, **kwargs)
            for key, hook in after:
                called.add(key)
                changed = hook.function(self, args, kwargs, result) if hook.with_kwargs else hook.function(self, args, result)
                if changed is not None:
                    result = changed
            return result if watch is None else watch.outputs(result)
        except Exception:
            # hooks that must run even if the forward (or another hook) failed; their own failures do not hide the first
            for key, hook in after:
                if hook.always and key not in called:
                    try:
                        changed = (
                            hook.function(self, args, kwargs, result) if hook.with_kwargs else hook.function(self, args, result)
                        )
                        result = result if changed is None else changed
                    except Exception as error:
                        import warnings

                        warnings.warn(
                            "module forward hook with ``always_call=True`` raised an exception that was silenced as another "
                            f"error was raised in forward: {error}",
                            stacklevel=2,
                        )
            raise

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before forward; what it returns (if not None) replaces the arguments.

        With `with_kwargs`: `hook(module, args, kwargs)`, returning None or both.
        """
        return register(self._forward_pre_hooks, Hook(hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; what it returns (if not None) replaces the output.

        With `with_kwargs`: `hook(module, args, kwargs, output)`; with `always_call` also when forward raises.
        """
        return register(self._forward_hooks, Hook(hook, with_kwargs, always_call), prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` before the module's backward; what it returns replaces `grad_output`."""
        return register(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` once the inputs' gradients are known; it may replace `grad_input`."""
        return register(self._backward_hooks, hook, prepend)

    register_backward_hook = register_full_backward_hook

    # -- attributes -------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__
        for table in _TABLES:
            found = held.get(table)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        held = self.__dict__
        parameters = held.get("_parameters")
        if isinstance(value, Parameter):
            if parameters is None:
                raise AttributeError("cannot assign parameters before Module.__init__() call")
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
            return
        if parameters is not None and name in parameters:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as parameter '{name}' (torch.nn.Parameter or None expected)"
                )
            self.register_parameter(name, None)
            return
        modules = held.get("_modules")
        if isinstance(value, Module):
            if modules is None:
                raise AttributeError("cannot assign module before Module.__init__() call")
            self._forget(name, "_modules")
            for hook in hooks.MODULE.values():
                changed = hook(self, name, value)
                value = value if changed is None else changed
            modules[name] = value
            return
        if modules is not None and name in modules:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{type(value).__name__}' as child module '{name}' (torch.nn.Module or None expected)"
                )
            modules[name] = None
            return
        buffers = held.get("_buffers")
        if isinstance(value, Buffer) or (buffers is not None and name in buffers):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"cannot assign '{type(value).__name__}' as buffer '{name}' (torch.Tensor or None expected)")
            if buffers is None:
                raise AttributeError("cannot assign buffers before Module.__init__() call")
            if isinstance(value, Buffer):
                self._forget(name, "_buffers")
                self.register_buffer(name, value, value.persistent)
            else:
                for hook in hooks.BUFFER.values():
                    changed = hook(self, name, value)
                    value = value if changed is None else changed
                buffers[name] = value
            return
        super().__setattr__(name, value)

    def _forget(self, name: str, kept: str) -> None:
        """Make room for `name` in the table `kept`: no other kind of attribute may have it. Its place there stays."""
        held = self.__dict__
        held.pop(name, None)
        for table in _TABLES:
            if table != kept:
                held[table].pop(name, None)
        held["_non_persistent_buffers_set"].discard(name)

    def __delattr__(self, name: str) -> None:
        for table in _TABLES:
            if name in self.__dict__[table]:
                del self.__dict__[table][name]
                self._non_persistent_buffers_set.discard(name)
                return
        super().__delattr__(name)

    def __dir__(self) -> list[str]:
        names = {*dir(type(self)), *self.__dict__, *self._parameters, *self._modules, *self._buffers}
        return sorted(n for n in names if not n[:1].isdigit())

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _check_name(self, what: str, name: Any) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{what} name can\'t contain "."')
        if name == "":
            raise KeyError(f'{what} name can\'t be empty string ""')

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter (or None, a parameter that is absent) under `name`."""
        self._check_name("parameter", name)
        if hasattr(self, name) and name not in self._parameters:
            raise KeyError(f"attribute '{name}' already exists")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' (torch.nn.Parameter or None required)"
            )
        if param is not None and not param.is_leaf:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly: compute it in forward()"
            )
        if param is not None:
            for hook in hooks.PARAMETER.values():
                changed = hook(self, name, param)
                param = param if changed is None else changed
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is stored and moved with the module but not trained; `persistent` ones are in `state_dict`."""
        self._check_name("buffer", name)
        if hasattr(self, name) and name not in self._buffers:
            raise KeyError(f"attribute '{name}' already exists")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (torch Tensor or None required)")
        for hook in hooks.BUFFER.values():
            changed = hook(self, name, tensor)
            tensor = tensor if changed is None else changed
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule under `name`."""
        self._check_name("module", name)
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        if hasattr(self, name) and name not in self._modules:
            raise KeyError(f"attribute '{name}' already exists")
        for hook in hooks.MODULE.values():
            changed = hook(self, name, module)
            module = module if changed is None else changed
        self._modules[name] = module

    register_module = add_module

    def get_submodule(self, target: str) -> Module:
        """Return the submodule with the dotted name `target` ("" is the module itself). Raises AttributeError if absent."""
        found: Any = self
        for part in target.split(".") if target else ():
            if not hasattr(found, part):
                raise AttributeError(f"{type(found).__name__} has no attribute `{part}`")
            found = getattr(found, part)
            if not isinstance(found, Module):
                raise AttributeError(f"`{part}` is not an nn.Module")
        return found

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Replace (or, unless `strict`, add) the submodule with the dotted name `target`."""
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        parent, _, last = target.rpartition(".")
        owner = self.get_submodule(parent)
        if strict and not hasattr(owner, last):
            raise AttributeError(f"{type(owner).__name__} has no attribute `{last}`")
        setattr(owner, last, module)

    def _get_held(self, target: str, table: str, what: str) -> Any:
        parent, _, last = target.rpartition(".")
        owner = self.get_submodule(parent)
        if not hasattr(owner, last):
            raise AttributeError(f"{type(owner).__name__} has no attribute `{last}`")
        if last not in getattr(owner, table):
            raise AttributeError(f"`{last}` is not {what}")
        return getattr(owner, table)[last]

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter with the dotted name `target`. Raises AttributeError if absent."""
        return self._get_held(target, "_parameters", "an nn.Parameter")

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer with the dotted name `target`. Raises AttributeError if absent."""
        return self._get_held(target, "_buffers", "a buffer")

    def get_extra_state(self) -> Any:
        """Return extra state for `state_dict`; defined by subclasses that have any."""
        raise RuntimeError("Reached a code path in Module.get_extra_state() that should never be called.")

    def set_extra_state(self, state: Any) -> None:
        """Take back what `get_extra_state` gave."""
        raise RuntimeError("Reached a code path in Module.set_extra_state() that should never be called.")

    # -- walking ----------------------------------------------------------------------------------------------------

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield every module below and including this one with its dotted name, each once unless told otherwise."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Yield this module and every module below it."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the direct submodules with their names."""
        memo: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in memo:
                memo.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """Yield the direct submodules."""
        for _, module in self.named_children():
            yield module

    def _named_members(
        self, table: Callable[[Module], Any], prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        memo: set[int] = set()
        owners = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for owner, module in owners:
            for name, value in table(module):
                if value is None or id(value) in memo:
                    continue
                if remove_duplicate:
                    memo.add(id(value))
                yield f"{owner}.{name}" if owner else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters, of submodules too if `recurse`, with their dotted names."""
        return self._named_members(lambda m: m._parameters.items(), prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, of submodules too if `recurse`."""
        for _, value in self.named_parameters(recurse=recurse):
            yield value

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers, of submodules too if `recurse`, with their dotted names."""
        return self._named_members(lambda m: m._buffers.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers, of submodules too if `recurse`."""
        for _, value in self.named_buffers(recurse=recurse):
            yield value

    # -- changing everything ----------------------------------------------------------------------------------------

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on every submodule, then on this module; returns the module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if recurse:
            for module in self.children():
                module._apply(fn)
        for p in self._parameters.values():
            if p is None:
                continue
            grad = p.grad
            with no_grad():
                if grad is not None:
                    p.grad = None  # its type is about to differ from the parameter's
                p.data = fn(p.data)
                if grad is not None:
                    p.grad = fn(grad)
        for name, b in self._buffers.items():
            if b is not None:
                self._buffers[name] = fn(b)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move parameters and buffers to a device, and floating ones to an element type; in place, returns the module.

        `to(device)`, `to(dtype)`, `to(device, dtype)`, `to(tensor)`.
        """
        place, kind = kwargs.pop("device", None), kwargs.pop("dtype", None)
        kwargs.pop("non_blocking", None)
        kwargs.pop("memory_format", None)
        like = kwargs.pop("tensor", None)
        if kwargs:
            raise TypeError(f"to() got an unexpected keyword argument {next(iter(kwargs))!r}")
        for a in args:
            if isinstance(a, Tensor):
                like = a
            elif isinstance(a, dtypes.dtype):
                kind = a
            elif isinstance(a, str | device_type | int) and not isinstance(a, bool):
                place = a
        if like is not None:
            place, kind = like.device, like.dtype
        kind = None if kind is None else dtypes.of(kind)
        if kind is not None and not kind.is_differentiable:
            raise refuse(
                TypeError, "to", f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={kind}"
            )

        def convert(t: Tensor) -> Tensor:
            cast = kind if kind is not None and (t.is_floating_point() or t.is_complex()) else None
            if place is not None:
                return t.to(place, cast) if cast is not None else t.to(place)
            return t if cast is None else t.to(cast)

        return self._apply(convert)

    def type(self, dst_type: Any) -> Self:
        """Convert every parameter and buffer to an element type."""
        return self._apply(lambda t: t.to(dtypes.of(dst_type)))

    def float(self) -> Self:
        """Convert floating parameters and buffers to float32."""
        return self.to(dtypes.float32)

    def double(self) -> Self:
        """Convert floating parameters and buffers to float64."""
        return self.to(dtypes.float64)

    def half(self) -> Self:
        """Convert floating parameters and buffers to float16."""
        return self.to(dtypes.float16)

    def bfloat16(self) -> Self:
        """Convert floating parameters and buffers to bfloat16."""
        return self.to(dtypes.bfloat16)

    def cpu(self) -> Self:
        """Move parameters and buffers to the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Self:
        """Move parameters and buffers to a GPU."""
        return self.to("cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)

    def train(self, mode: bool = True) -> Self:
        """Set training mode here and below (dropout and batch statistics depend on it); returns the module."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode here and below: `train(False)`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Say for every parameter whether gradients are recorded; returns the module."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zero."""
        for p in self.parameters():
            if p.grad is None:
                continue
            if set_to_none:
                p.grad = None
            else:
                p.grad.detach_().requires_grad_(False)
                p.grad.zero_()

    def share_memory(self) -> Self:
        """Return the module: arrays are immutable and shared already."""
        return self

    # -- saving and loading -----------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, p in self._parameters.items():
            if p is not None:
                destination[prefix + name] = p if keep_vars else p.detach()
        for name, b in self._buffers.items():
            if b is not None and name not in self._non_persistent_buffers_set:
                destination[prefix + name] = b if keep_vars else b.detach()
        if type(self).get_extra_state is not Module.get_extra_state:
            destination[prefix + "_extra_state"] = self.get_extra_state()

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Return an ordered dict from dotted names to parameters and persistent buffers (detached, sharing storage)."""
        if args:
            destination = args[0] if destination is None else destination
            prefix = args[1] if len(args) > 1 and prefix == "" else prefix
            keep_vars = args[2] if len(args) > 2 and not keep_vars else keep_vars
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = metadata
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in self._state_dict_hooks.values():
            changed = hook(self, destination, prefix, metadata)
            destination = destination if changed is None else changed
        return destination

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before `state_dict` collects."""
        return register(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, metadata)` after `state_dict` collected; what it returns replaces it."""
        return register(self._state_dict_hooks, hook)

    _register_state_dict_hook = register_state_dict_post_hook

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, metadata, strict, missing, unexpected, errors)` before loading."""
        return register(self._load_state_dict_pre_hooks, hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` after loading; it may edit the lists in place."""
        return register(self._load_state_dict_post_hooks, hook)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for hook in self._load_state_dict_pre_hooks.values():
            hook(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        kept = {k: v for k, v in self._buffers.items() if k not in self._non_persistent_buffers_set}
        assign = local_metadata.get("assign_to_params_buffers", False)
        for name, own in {**self._parameters, **kept}.items():
            if own is None:
                continue
            key = prefix + name
            if key not in state_dict:
                if strict:
                    missing_keys.append(key)
                continue
            given = state_dict[key]
            if not isinstance(given, Tensor):
                error_msgs.append(
                    f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like object from checkpoint but '
                    f"received {type(given)}"
                )
                continue
            if own.dim() == 0 and tuple(given.shape) == (1,):
                given = given[0]  # files from before 0-d tensors
            if tuple(given.shape) != tuple(own.shape):
                error_msgs.append(
                    f"size mismatch for {key}: copying a param with shape {given.shape} from checkpoint, the shape in current "
                    f"model is {own.shape}."
                )
                continue
            with no_grad():
                if not assign:
                    own.copy_(given)
                elif isinstance(own, Parameter):
                    setattr(self, name, given if isinstance(given, Parameter) else Parameter(given, own.requires_grad))
                else:
                    setattr(self, name, given)
        extra = prefix + "_extra_state"
        if type(self).set_extra_state is not Module.set_extra_state:
            if extra in state_dict:
                self.set_extra_state(state_dict[extra])
            elif strict:
                missing_keys.append(extra)
        elif strict and extra in state_dict:
            unexpected_keys.append(extra)
        if strict:
            known = {**self._parameters, **kept}
            for key in state_dict:
                if key.startswith(prefix) and key != extra:
                    first, dot, _ = key[len(prefix) :].partition(".")
                    if (dot and first not in self._modules) or (not dot and first not in known):
                        unexpected_keys.append(key)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> _IncompatibleKeys:
        """Copy values from `state_dict` into parameters and buffers (or, with `assign`, take its tensors themselves).

        Returns the missing and the unexpected keys; with `strict` either is a RuntimeError, as is a shape mismatch.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        metadata = getattr(state_dict, "_metadata", None)
        given = OrderedDict(state_dict)

        def load(module: Module, part: Any, prefix: str) -> None:
            local = {} if metadata is None else dict(metadata.get(prefix[:-1], {}))
            if assign:
                local["assign_to_params_buffers"] = True
            module._load_from_state_dict(part, prefix, local, True, missing, unexpected, errors)
            for name, child in module._modules.items():
                if child is not None:
                    below = f"{prefix}{name}."
                    load(child, {k: v for k, v in part.items() if k.startswith(below)}, below)
            keys = _IncompatibleKeys(missing, unexpected)
            for hook in module._load_state_dict_post_hooks.values():
                if hook(module, keys) is not None:
                    raise AssertionError(
                        "Hooks registered with register_load_state_dict_post_hook are not expected to return new values"
                    )

        load(self, given, "")
        if strict:
            if unexpected:
                errors.insert(0, "Unexpected key(s) in state_dict: " + ", ".join(f'"{k}"' for k in unexpected) + ". ")
            if missing:
                errors.insert(0, "Missing key(s) in state_dict: " + ", ".join(f'"{k}"' for k in missing) + ". ")
        if errors:
            lines = "\n\t".join(errors)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t{lines}")
        return _IncompatibleKeys(missing, unexpected)

    # -- printing ---------------------------------------------------------------------------------------------------

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """Return what `repr` shows between the parentheses; defined by subclasses."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        extra_lines = extra.split("\n") if extra else []
        children = [f"({name}): {indented(repr(module))}" for name, module in self._modules.items()]
        if not children and len(extra_lines) <= 1:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}(\n  " + "\n  ".join([*extra_lines, *children]) + "\n)"


def indented(text: str) -> str:
    return text.replace("\n", "\n  ")


__all__ = [
    "Module",
    "register_module_backward_hook",
    "register_module_buffer_registration_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
    "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]
