"""Switching recording on and off: as context managers, as decorators (functions, generators, coroutines), as calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from tapejax.tape import modes

F = TypeVar("F", bound=Callable[..., Any])


def is_grad_enabled() -> bool:
    """Whether operations are being recorded for gradients in this thread."""
    return modes.grad_enabled()


class _Switch:
    """A mode bit held at a value for a block or a function."""

    bit = modes.GRAD
    on = True

    def __init__(self) -> None:
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(modes.switch(self.bit, self.on))

    def __exit__(self, *exc: object) -> None:
        before = self._before.pop()
        modes.switch(self.bit, before & self.bit == self.bit)

    def _again(self) -> _Switch:
        return type(self)()

    def __call__(self, function: F) -> F:
        if inspect.isclass(function):
            raise TypeError(f"{type(self).__name__}(): decorating a class is not supported → decorate its methods")
        again = self._again
        if inspect.isgeneratorfunction(function):
            return _generator(function, again)  # type: ignore[return-value]
        if inspect.iscoroutinefunction(function):
            return _coroutine(function, again)  # type: ignore[return-value]
        if inspect.isasyncgenfunction(function):
            return _async_generator(function, again)  # type: ignore[return-value]

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with again():
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]


def _generator(function: Callable[..., Any], again: Callable[[], Any]) -> Callable[..., Any]:
    """The mode holds on every resume; the caller's own mode at every yield."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with again():
            inner = function(*args, **kwargs)
            try:
                answer = next(inner)
            except StopIteration as stop:
                return stop.value
        while True:
            try:
                request = yield answer
            except GeneratorExit:
                with again():
                    inner.close()
                raise
            except BaseException as error:
                with again():
                    try:
                        answer = inner.throw(error)
                    except StopIteration as stop:
                        return stop.value
            else:
                with again():
                    try:
                        answer = inner.send(request)
                    except StopIteration as stop:
                        return stop.value

    return run


class _Awaiting:
    """Drive a coroutine with the mode set on every step."""

    def __init__(self, inner: Any, again: Callable[[], Any]) -> None:
        self.inner = inner
        self.again = again

    def __await__(self) -> Any:
        def steps() -> Any:
            return (yield from self.inner.__await__())

        return _generator(steps, self.again)()


def _coroutine(function: Callable[..., Any], again: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await _Awaiting(function(*args, **kwargs), again)

    return run


def _async_generator(function: Callable[..., Any], again: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        try:
            answer = await _Awaiting(inner.__anext__(), again)
            while True:
                try:
                    request = yield answer
                except GeneratorExit:
                    await _Awaiting(inner.aclose(), again)
                    raise
                except BaseException as error:
                    answer = await _Awaiting(inner.athrow(error), again)
                else:
                    answer = await _Awaiting(inner.asend(request), again)
        except StopAsyncIteration:
            return

    return run


class no_grad(_Switch):
    """Record nothing for gradients: `with no_grad():`, `@no_grad()` or `@no_grad`.

    Tensors made inside do not require grad (a factory's `requires_grad=True` still counts).
    """

    on = False

    def __new__(cls, function: Any = None) -> Any:
        made = object.__new__(cls)
        if function is None:
            return made
        _Switch.__init__(made)
        return made(function)

    def __init__(self, function: Any = None) -> None:
        super().__init__()


class enable_grad(no_grad):
    """Record again inside `no_grad`."""

    on = True


class set_grad_enabled(_Switch):
    """Set recording at once by calling it; also a context manager and a decorator, which restore it."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self.on = bool(mode)
        self._found = modes.switch(modes.GRAD, self.on)
        self._entered = False

    def __enter__(self) -> None:
        if self._entered:
            self._before.append(modes.switch(self.bit, self.on))
        else:
            self._before.append(self._found)
            modes.switch(self.bit, self.on)
        self._entered = True

    def _again(self) -> _Switch:
        return type(self)(self.on)

    def __call__(self, function: F) -> F:
        modes.switch(self.bit, self._found & self.bit == self.bit)  # used as a decorator it does not act at once
        return super().__call__(function)


class set_multithreading_enabled:
    """Accepted for torch's sake: a backward is one program, and XLA decides on threads."""

    _enabled = True

    def __init__(self, mode: bool) -> None:
        self._before = set_multithreading_enabled._enabled
        set_multithreading_enabled._enabled = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        set_multithreading_enabled._enabled = self._before


def is_multithreading_enabled() -> bool:
    """What `set_multithreading_enabled` was last given."""
    return set_multithreading_enabled._enabled
