"""Containers: modules and parameters in a row, a list or a dict."""

from __future__ import annotations

import itertools
import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from tapejax.nn.module import Module, indented
from tapejax.nn.parameter import Parameter
from tapejax.tensor import Tensor


def _position(index: Any, length: int, name: str) -> int:
    at = operator.index(index)
    if not -length <= at < length:
        raise IndexError(f"index {at} is out of range for a {name} of length {length}")
    return at % length


class Sequential(Module):
    """Apply modules one after the other. Pass them as arguments, or as an OrderedDict with their names.

    >>> import tapejax as tj
    >>> tj.nn.Sequential(tj.nn.Identity(), tj.nn.Flatten())
    Sequential(
      (0): Identity()
      (1): Flatten(start_dim=1, end_dim=-1)
    )
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = (
            args[0].items() if len(args) == 1 and isinstance(args[0], OrderedDict) else ((str(i), m) for i, m in enumerate(args))
        )
        for name, module in named:
            self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(OrderedDict(list(self._modules.items())[index]))
        return list(self._modules.values())[_position(index, len(self), "Sequential")]

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, list(self._modules)[_position(index, len(self), "Sequential")], module)

    def __delitem__(self, index: Any) -> None:
        names = list(self._modules)
        for name in names[index] if isinstance(index, slice) else [names[_position(index, len(self), "Sequential")]]:
            delattr(self, name)
        self._renumber(list(self._modules.values()))

    def _renumber(self, modules: list[Any]) -> None:
        self.__dict__["_modules"] = {str(i): m for i, m in enumerate(modules)}

    def __add__(self, other: Any) -> Sequential:
        if not isinstance(other, Sequential):
            raise ValueError(f"add operator supports only objects of Sequential class, but {type(other)} is given.")
        return Sequential(*self, *other)

    def __iadd__(self, other: Any) -> Self:
        if not isinstance(other, Sequential):
            raise ValueError(f"add operator supports only objects of Sequential class, but {type(other)} is given.")
        return self.extend(other)

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, sequential: Iterable[Module]) -> Self:
        """Add several modules at the end."""
        for module in sequential:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Add a module before position `index`."""
        if not isinstance(module, Module):
            raise AssertionError(f"module should be of type: {Module}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}")
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def pop(self, key: Any) -> Module:
        """Take a module out and return it."""
        found = self[key]
        del self[key]
        return found


class ModuleList(Module):
    """A list of modules whose parameters are registered; it has no `forward`."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self._modules.values())[index])
        return self._modules[str(_position(index, len(self), "ModuleList"))]

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, str(_position(index, len(self), "ModuleList")), module)

    def __delitem__(self, index: Any) -> None:
        modules = list(self._modules.values())
        del modules[index]
        self._renumber(modules)

    def _renumber(self, modules: list[Any]) -> None:
        self.__dict__["_modules"] = {str(i): m for i, m in enumerate(modules)}

    def __iadd__(self, modules: Iterable[Module]) -> Self:
        return self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList(itertools.chain(self, other))

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add several modules at the end."""
        if not isinstance(modules, Iterable):
            raise TypeError(f"ModuleList.extend should be called with an iterable, but got {type(modules).__name__}")
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Add a module before position `index`."""
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._renumber(modules)

    def pop(self, key: Any) -> Module:
        """Take a module out and return it."""
        found = self[key]
        del self[key]
        return found

    def __repr__(self) -> str:
        if not len(self):
            return f"{self._get_name()}()"
        lines = []
        for text, group in itertools.groupby(enumerate(repr(m) for m in self), key=lambda pair: pair[1]):
            at = [i for i, _ in group]
            label = f"({at[0]})" if len(at) == 1 else f"({at[0]}-{at[-1]}): {len(at)} x"
            lines.append(f"{label}{':' if len(at) == 1 else ''} {indented(text)}")
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


class ModuleDict(Module):
    """A dict of modules whose parameters are registered; keeps insertion order; it has no `forward`."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Remove every module."""
        self._modules.clear()

    def pop(self, key: str) -> Module:
        """Take a module out and return it."""
        return self._modules.pop(key)

    def keys(self) -> Any:
        """Return the names."""
        return self._modules.keys()

    def items(self) -> Any:
        """Return names and modules."""
        return self._modules.items()

    def values(self) -> Any:
        """Return the modules."""
        return self._modules.values()

    def update(self, modules: Any) -> None:
        """Add or replace modules, from a mapping or from pairs."""
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"ModuleDict.update should be called with an iterable of key/value pairs, but got {type(modules).__name__}"
            )
        for key, module in modules.items() if isinstance(modules, Mapping | ModuleDict) else modules:
            self[key] = module


def _described(value: Any, kind: Any) -> str:
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    size = "x".join(map(str, value.shape))
    return f"{'Parameter' if isinstance(value, Parameter) else 'Tensor'} containing: [{kind(value)} of size {size}]"


class ParameterList(Module):
    """A list of parameters (tensors become parameters) that a Module registers."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter(self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(getattr(self, str(i)) for i in range(*index.indices(len(self))))
        return getattr(self, str(_position(index, len(self), "ParameterList")))

    def __setitem__(self, index: int, value: Any) -> None:
        at = str(_position(index, len(self), "ParameterList"))
        setattr(self, at, _as_parameter(value))

    def append(self, value: Any) -> Self:
        """Add a parameter at the end."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add several parameters at the end."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}")
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> Self:
        return self.extend(values)

    def extra_repr(self) -> str:
        return "\n".join(f"  ({i}): {_described(v, lambda t: t.dtype)}" for i, v in enumerate(self))

    def __repr__(self) -> str:
        return f"{self._get_name()}(" + ("\n  " + self.extra_repr().replace("\n", "\n  ") + "\n)" if len(self) else ")")


def _as_parameter(value: Any) -> Any:
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


class ParameterDict(Module):
    """A dict of parameters (tensors become parameters) that a Module registers; keeps insertion order."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, str(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._keys[str(key)] = None
        setattr(self, str(key), _as_parameter(value))

    def __delitem__(self, key: Any) -> None:
        del self._keys[str(key)]
        delattr(self, str(key))

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: Any) -> bool:
        return key in self._keys

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return self._keys.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return names and parameters."""
        return ((k, self[k]) for k in self._keys)

    def values(self) -> Iterable[Any]:
        """Return the parameters."""
        return (self[k] for k in self._keys)

    def pop(self, key: str) -> Any:
        """Take a parameter out and return it."""
        found = self[key]
        del self[key]
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """Return a parameter, or `default` if there is none of that name."""
        return self[key] if key in self else default  # noqa: SIM401 (this is get)

    def update(self, parameters: Any) -> None:
        """Add or replace parameters, from a mapping or from pairs."""
        for key, value in parameters.items() if isinstance(parameters, Mapping | ParameterDict) else parameters:
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(f"  ({k}): {_described(v, lambda t: f'torch.{t.dtype.tensor_name}Tensor')}" for k, v in self.items())

    def __repr__(self) -> str:
        return f"{self._get_name()}(" + ("\n  " + self.extra_repr().replace("\n", "\n  ") + "\n)" if len(self) else ")")
