"""torch.func on the tape: transforms of functions that nest in any order, and with `backward()` outside.

Owns the transforms; may import everything above it (tape, engine, storage, tensor, dispatch, autograd). Invariants: what a
transform records is ordinary tape, so there is no second system of differentiation; what comes out of a transform requires
grad only for the sake of something outside it.
"""

from tapejax.func.custom import VmapInfo
from tapejax.func.forward import jvp, linearize
from tapejax.func.functional_call import functional_call, stack_module_state
from tapejax.func.functionalize import functionalize
from tapejax.func.jacobian import hessian, jacfwd, jacrev
from tapejax.func.reverse import grad, grad_and_value, vjp
from tapejax.func.vmap import vmap

__all__ = [
    "VmapInfo",
    "functional_call",
    "functionalize",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "stack_module_state",
    "vjp",
    "vmap",
]
