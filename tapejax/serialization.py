"""`save` and `load`: Python objects that hold tensors, in one file.

The file is a pickle whose tensors are NumPy arrays, so loading needs no device. As with every pickle, load only files
you trust; `weights_only=True` (the default) admits nothing but tensors and plain containers.
"""

from __future__ import annotations

import builtins
import collections
import io
import os
import pickle
from typing import Any

from tapejax.errors import refuse
from tapejax.tensor import Tensor

_ALLOWED = {
    ("tapejax.tensor", "_rebuild"), ("tapejax.tensor", "Tensor"), ("tapejax.tensor", "Size"), ("tapejax.nn.parameter", "Parameter"),
    ("tapejax.dtypes", "of"), ("tapejax.devices", "device"), ("collections", "OrderedDict"), ("collections", "defaultdict"),
    ("numpy._core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"),
    ("numpy._core.numeric", "_frombuffer"), ("ml_dtypes", "bfloat16"),
}  # fmt: skip


class _WeightsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED or (module == "builtins" and name in ("set", "frozenset", "complex", "slice")):
            return super().find_class(module, name)
        raise refuse(
            pickle.UnpicklingError,
            "load",
            f"Weights only load failed: the file holds {module}.{name} → if you trust it, tapejax.load(f, weights_only=False)",
        )


def save(obj: Any, f: Any) -> None:
    """Write `obj` (a state_dict, tensors in containers, ...) to a path or a binary file."""
    data = pickle.dumps(obj, protocol=4)
    if isinstance(f, (str, os.PathLike)):
        temporary = f"{os.fspath(f)}.part"
        with builtins.open(temporary, "wb") as out:
            out.write(data)
        os.replace(temporary, f)  # a crash leaves the old file whole
    else:
        f.write(data)


def load(f: Any, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Read what `save` wrote; tensors come back on `map_location` (default: the default device)."""
    if isinstance(f, (str, os.PathLike)):
        with builtins.open(f, "rb") as source:
            data = source.read()
    else:
        data = f.read()
    stream = io.BytesIO(data)
    found = (_WeightsOnly(stream) if weights_only else pickle.Unpickler(stream)).load()
    return found if map_location is None else _moved(found, map_location)


def _moved(x: Any, where: Any) -> Any:
    if isinstance(x, Tensor):
        moved = x.to(where)  # type: ignore[attr-defined]
        return moved if moved is x or not x.requires_grad else moved.detach().requires_grad_()
    if isinstance(x, dict):
        return type(x)((k, _moved(v, where)) for k, v in x.items()) if not isinstance(x, collections.defaultdict) else x
    if isinstance(x, (list, tuple)):
        return type(x)(_moved(v, where) for v in x)
    return x


__all__ = ["load", "save"]
