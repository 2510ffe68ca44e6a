"""torch's autograd on JAX: write torch-style code, have XLA run it.

Only public names live here, in torch's spelling.
"""

from __future__ import annotations

import importlib
import pkgutil
from math import e, inf, nan, pi
from typing import Any

from tapejax import dtypes, ops
from tapejax.tensor import Size, Tensor

for _module in pkgutil.iter_modules(ops.__path__):
    importlib.import_module(f"tapejax.ops.{_module.name}")

from tapejax import autograd, convert, dispatch, operators
from tapejax.autograd import is_anomaly_check_nan_enabled, is_anomaly_enabled
from tapejax.autograd import enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad, set_grad_enabled
from tapejax.devices import device
from tapejax.dtypes import dtype, get_default_dtype, set_default_dtype
from tapejax.rng import Generator, default_generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state

dispatch.bind_all()
_spaces = dispatch.exposures()
globals().update(_spaces.pop("torch"))
for _name, _function in _spaces.pop("Tensor").items():
    setattr(Tensor, _name, _function)
for _name, _function in _spaces.pop("Tensor.property").items():
    setattr(Tensor, _name, property(_function))
operators.install(globals())
for _dtype in dtypes.ALL:
    for _name in (_dtype.name, *_dtype.aliases):
        globals()[_name] = _dtype

from tapejax import cuda, debug, func, interop, nn, optim, testing, utils
from tapejax.func import vmap
from tapejax.interop import from_dlpack
from tapejax.serialization import load, save

for _space, _functions in _spaces.items():  # nn.functional, special, linalg, fft
    _module = importlib.import_module(f"tapejax.{_space}")
    for _name, _function in _functions.items():
        setattr(_module, _name, _function)

