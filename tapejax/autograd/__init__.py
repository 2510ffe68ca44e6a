"""torch.autograd on the tape: the entry points, the careful backward, hooks, grad modes.

May import tape/, engine/, storage/, tensor and dispatch. Invariants: gradients are recorded like anything else; no
gradient is written before every hook has run; what raises leaves `.grad` and graphs as they were.
"""

from tapejax.autograd import forward_ad, functional, graph
from tapejax.autograd.anomaly import (
    detect_anomaly,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_detect_anomaly,
)
from tapejax.autograd.entry import backward, grad
from tapejax.autograd.function import Function
from tapejax.autograd.grad_mode import (
    enable_grad,
    is_grad_enabled,
    is_multithreading_enabled,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)
from tapejax.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from tapejax.autograd.inference import inference_mode, is_inference_mode_enabled
from tapejax.autograd.saved import SavedTensor
from tapejax.autograd.variable import Variable

__all__ = [
    "Function",
    "GradcheckError",
    "SavedTensor",
    "Variable",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "forward_ad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_multithreading_enabled",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
    "set_multithreading_enabled",
]
