"""Devices: torch's spellings for JAX's devices. The process default device is written None inside avals."""

from __future__ import annotations

from typing import Any

import jax

from tapejax.errors import refuse

_PLATFORM = {"cuda": "gpu", "gpu": "gpu", "cpu": "cpu", "tpu": "tpu", "mps": "METAL"}


class device:
    """A device as torch spells it: `device("cuda:0")`, `device("cpu")`, `device("cuda", 1)`."""

    __slots__ = ("index", "type")

    type: str
    index: int | None

    def __init__(self, type: Any = None, index: int | None = None) -> None:
        if isinstance(type, device):
            type, index = type.type, type.index
        elif isinstance(type, str):
            type, _, number = type.partition(":")
            if number:
                if not number.isdigit():
                    raise refuse(RuntimeError, "device", f"Invalid device string: '{type}:{number}' → write 'cuda:0'")
                index = int(number)
        elif isinstance(type, int):
            type, index = "cuda", type
        elif isinstance(type, jax.Device):
            type, index = spelling(type), type.id
        if type not in _PLATFORM:
            raise refuse(RuntimeError, "device", f"Expected one of cpu, cuda, tpu device type at start of device string: {type}")
        self.type = "cuda" if type == "gpu" else type
        self.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        inside = f"type='{self.type}'" + ("" if self.index is None else f", index={self.index}")
        return f"device({inside})"


def spelling(d: Any) -> str:
    return "cuda" if d.platform in ("gpu", "cuda", "rocm") else d.platform


_default: list[Any] = []


def default_jax_device() -> Any:
    """The device of the process default backend (found once, on first use)."""
    if not _default:
        chosen = jax.config.jax_default_device  # type: ignore[attr-defined]  # JAX sets it at run time
        _default.append(chosen if isinstance(chosen, jax.Device) else jax.local_devices()[0])
    return _default[0]


def resolve(spec: Any) -> Any:
    """The JAX device that `spec` names, as avals write it (None: the default one). Absent devices are refused."""
    if spec is None:
        return None
    if isinstance(spec, jax.Device):
        return None if spec == default_jax_device() else spec
    wanted = spec if isinstance(spec, device) else device(spec)
    try:
        found = jax.devices(_PLATFORM[wanted.type])
    except RuntimeError:
        found = []
    index = wanted.index or 0
    if index >= len(found):
        have = ", ".join(f"{spelling(d)}:{d.id}" for d in jax.devices())
        raise refuse(RuntimeError, "device", f"{wanted} is not available here (this process has {have}) → use one of these, or 'cpu'")
    if wanted.index is None and spelling(default_jax_device()) == wanted.type:
        return None
    return None if found[index] == default_jax_device() else found[index]


def of_aval(where: Any) -> device:
    d = default_jax_device() if where is None else where
    kind = spelling(d)
    return device(kind) if kind == "cpu" and d.id == 0 else device(kind, d.id)
