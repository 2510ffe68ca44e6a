"""The Tensor: a name for a node, with torch's identity and Python protocol. Its methods come from the op table."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from tapejax import devices, display, dtypes
from tapejax.engine.materialise import force
from tapejax.engine.replay import Row
from tapejax.errors import refuse
from tapejax.storage.view import alias_of, detach_value, detached, history_of, move_to, refresh, show
from tapejax.tape import modes
from tapejax.tape.aval import aval_of
from tapejax.tape.node import VAR, Node, leaf, variable
from tapejax.tape.note import Meta, note_of
from tapejax.tape.record import record

if TYPE_CHECKING:
    from tapejax.methods import TensorMethods  # generated: python -m tapejax.stubs
else:
    TensorMethods = object

_new = object.__new__


class Size(tuple[int, ...]):
    """A shape: a tuple that prints as torch's."""

    __slots__ = ()

    def numel(self) -> int:
        n = 1
        for s in self:
            n *= s
        return n

    def __repr__(self) -> str:
        return f"torch.Size([{', '.join(map(str, self))}])"

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Size(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Size:
        return Size(tuple.__add__(self, tuple(other)))


class Tensor(TensorMethods):
    """A multi-dimensional array whose operations are recorded, computed by XLA and differentiated by torch's rules.

    Make one with `tapejax.tensor(data)`, a factory (`zeros`, `randn`, ...) or an operation. `Tensor(2, 3)` makes an
    uninitialised float tensor and `Tensor([1, 2])` one from data, as torch's legacy constructor does.
    """

    __slots__ = ("__dict__", "__weakref__", "_alias", "_meta", "_node")

    _node: Node
    _alias: Any
    _meta: Meta | None
    __array_priority__ = 1000
    methods: ClassVar[dict[str, Any]] = {}  # what the op table added

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = _new(cls)
        made._alias = None
        made._meta = None
        return made

    def __init__(self, *data: Any) -> None:
        default = dtypes.get_default_dtype()
        if len(data) == 1 and not isinstance(data[0], int):
            source = data[0]
            if isinstance(source, Tensor):
                self._node = record(detach_value, (1,), (), (source.node,))
                return
            array = np.asarray(source).astype(default.np) if not isinstance(source, np.ndarray) else source.astype(default.np)
        else:
            array = np.zeros(data if data else (0,), default.np)
        self._node = leaf_node(array, default, None)

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """The tape node that holds the current value."""
        alias = self._alias
        return self._node if alias is None or alias.seen == alias.storage.epoch else refresh(self)

    @property
    def shape(self) -> Size:
        return Size(self._node.aval.shape)

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one of its entries."""
        if dim is None:
            return self.shape
        n = self._node.aval.ndim
        if not -n <= dim < n:
            raise refuse(IndexError, "size", f"Dimension out of range (expected to be in range of [{-max(n, 1)}, {max(n, 1) - 1}], but got {dim})")
        return self._node.aval.shape[dim]

    @property
    def ndim(self) -> int:
        return self._node.aval.ndim

    def dim(self) -> int:
        return self._node.aval.ndim

    ndimension = dim

    def numel(self) -> int:
        return self._node.aval.size

    nelement = numel

    @property
    def dtype(self) -> dtypes.dtype:
        return self._node.aval.dtype

    @property
    def device(self) -> devices.device:
        return devices.of_aval(self._node.aval.device)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def element_size(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        return self.dtype.is_complex

    def is_signed(self) -> bool:
        return self.dtype.is_signed

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    # -- autograd state ---------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        return self.node.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Say whether operations on this leaf are recorded for gradients. Returns the tensor itself.

        RuntimeError for non-leaf tensors (False) and for integral or boolean ones (True).
        """
        node = self.node
        if node.requires_grad == bool(requires_grad):
            return self
        if not requires_grad:
            if node.kind is not VAR:
                raise refuse(
                    RuntimeError,
                    "requires_grad_",
                    "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a subgraph that"
                    " doesn't require differentiation use var_no_grad = var.detach().",
                )
            value = leaf(node.value, node.aval) if node.value is not None else node.inputs[0]
            self._set_leaf(value, None)
            return self
        if node.aval.inference and not modes.MODE.get() & modes.INFERENCE:
            raise refuse(
                RuntimeError, "requires_grad_", "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed. → clone() it first"
            )
        if not node.aval.differentiable:
            raise refuse(
                RuntimeError,
                "requires_grad_",
                f"only Tensors of floating point dtype can require gradients, this one is {self.dtype} → convert with .float() first",
            )
        meta = self._autograd_meta()
        self._set_leaf(node, meta)
        return self

    def _set_leaf(self, value: Node, meta: Meta | None) -> None:
        if self._meta is not None:
            self._meta.accumulates = meta is not None
        made = value if meta is None else variable(value, meta)
        alias = self._alias
        if alias is not None and not alias.lenses:
            alias.storage.meta = meta
            made.home = value.home or (alias.storage.counter, alias.storage.counter.version)
            alias.storage.head = made
        elif alias is not None:
            show(self, self, alias.storage.counter, made)
        self._node = made

    def _autograd_meta(self) -> Meta:
        meta = self._meta
        if meta is None:
            meta = self._meta = Meta()
            meta.tensor = weakref.ref(self)
        return meta

    @property
    def is_leaf(self) -> bool:
        node = self.node
        return node.kind is VAR or not node.requires_grad

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward()` accumulated here; None before, and for non-leaf tensors unless retained."""
        meta = self._meta
        if meta is not None and meta.grad is not None:
            return meta.grad
        if (meta is None or not meta.retains_grad) and self._node.requires_grad and not self.is_leaf:
            warnings.warn(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute won't be populated"
                " during autograd.backward(). If you indeed want the .grad field to be populated for a non-leaf Tensor, use"
                " .retain_grad() on the non-leaf Tensor.",
                UserWarning,
                stacklevel=2,
            )
        return None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise refuse(TypeError, "grad", f"assigned grad expected to be a Tensor or None but got {type(value).__name__}")
            if value is self:
                raise refuse(RuntimeError, "grad", "can't assign Variable as its own grad")
            if value._node.aval.shape != self._node.aval.shape:
                raise refuse(
                    RuntimeError,
                    "grad",
                    f"attempting to assign a gradient of size '{list(value.shape)}' to a tensor of size '{list(self.shape)}'. Please ensure that the"
                    " gradient and the tensor are the same size",
                )
            if value.dtype is not self.dtype:
                raise refuse(
                    RuntimeError,
                    "grad",
                    f"attempting to assign a gradient with dtype '{value.dtype}' to a tensor with grad_dtype '{self.dtype}'. The gradient must match the"
                    " tensor's dtype → convert it with .to()",
                )
        elif self._meta is None:
            return
        self._autograd_meta().grad = value

    @grad.deleter
    def grad(self) -> None:
        if self._meta is not None:
            self._meta.grad = None

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf tensor in `.grad` as well; it follows the tensor through in-place writes."""
        node = self.node
        if not node.requires_grad:
            raise refuse(RuntimeError, "retain_grad", "can't retain_grad on Tensor that has requires_grad=False → call requires_grad_() on a leaf first")
        if node.kind is VAR:
            return
        meta = self._autograd_meta()
        meta.retains_grad = True
        meta.retain_at(history_of(node))

    @property
    def retains_grad(self) -> bool:
        return self._meta is not None and self._meta.retains_grad

    def detach(self) -> Tensor:
        """Return a tensor that shares this one's storage but not its history; never requires grad."""
        return self._detached(hidden=False)

    @property
    def data(self) -> Tensor:
        """The value without history, for writes that the version counter does not see."""
        return self._detached(hidden=True)

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise refuse(TypeError, "data", f"Variable data has to be a tensor, but got {type(value).__name__}")
        move_to(self, value)

    def _detached(self, hidden: bool) -> Tensor:
        made = wrap(record(detach_value, (1,), (), (self.node,)))
        detached(self, made, shares_counter=not hidden)
        return made

    def detach_(self) -> Tensor:
        """Cut this tensor off from its history, in place."""
        alias = self._alias
        if alias is not None and alias.lenses:
            raise refuse(RuntimeError, "detach_", "Can't detach views in-place. Use detach() instead.")
        node = self.node
        if node.requires_grad:
            cut = record(detach_value, (1,), (), (node,))
            if self._meta is not None:
                self._meta.retains_grad = False
            self._set_leaf(cut, None)
        return self

    @property
    def _version(self) -> int:
        if self._node.aval.inference:
            raise refuse(RuntimeError, "_version", "Inference tensors do not track version counter.")
        return 0 if self._alias is None else self._alias.storage.counter.version

    @property
    def _base(self) -> Any:
        return None if self._alias is None or not self._alias.lenses or self._node.aval.inference else _base_of(self)

    def _is_view(self) -> bool:
        return self._base is not None

    @property
    def output_nr(self) -> int:
        node = self.node
        return node.kind.statics[0] if node.kind is not VAR and getattr(node.kind, "name", "") == "pick" else 0

    # -- values -----------------------------------------------------------------------------------------------------

    def array(self) -> jax.Array:
        """The value as a `jax.Array` (computing it if it is pending)."""
        node = self.node
        if node.value is None:
            force([node])
        value = node.value
        if value.__class__ is Row:
            value = node.value = value.read()
        return value

    def __jax_array__(self) -> jax.Array:
        return self.array()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """Return the value as a read-only NumPy array, without a copy where the device allows it.

        RuntimeError for a tensor that requires grad, unless `force`: call `.detach()` first.
        """
        if self.requires_grad and not force:
            raise refuse(RuntimeError, "numpy", "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return _host(self.array())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self.numpy()
        if dtype is not None and found.dtype != dtype:
            return found.astype(dtype)
        return found.copy() if copy else found

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self._node.aval.size != 1:
            raise refuse(
                RuntimeError, "item", f"a Tensor with {self._node.aval.size} elements cannot be converted to Scalar (shape {tuple(self.shape)}) →"
                " reduce it, or use .tolist()"
            )
        return _host(self.array()).item()

    def tolist(self) -> Any:
        """Return the values as nested Python lists (a number for a 0-d tensor)."""
        return _host(self.array()).tolist()

    def __bool__(self) -> bool:
        n = self._node.aval.size
        if n != 1:
            what = "no values" if n == 0 else "more than one value"
            raise refuse(RuntimeError, "bool", f"Boolean value of Tensor with {what} is ambiguous (shape {tuple(self.shape)}) → use .any() or .all()")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self._real_item("int", "int64_t"))

    def __float__(self) -> float:
        return float(self._real_item("float", "double"))

    def _real_item(self, asked: str, kind: str) -> Any:
        """The only element; a complex one must be real."""
        value = self._only()
        if not isinstance(value, complex):
            return value
        if value.imag:
            raise refuse(RuntimeError, asked, f"value cannot be converted to type {kind} without overflow: {value} → take .real, or use complex()")
        return value.real

    def _only(self) -> Any:
        if self._node.aval.size != 1:
            what = f"only one element tensors can be converted to Python scalars, this one has shape {tuple(self.shape)} → reduce it, or use .tolist()"
            raise refuse(ValueError, "item", what)
        return self.item()

    def __complex__(self) -> complex:
        return complex(self._only())

    def __index__(self) -> int:
        if self.dtype.category > 1 or self._node.aval.size != 1:
            raise refuse(TypeError, "index", "only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __len__(self) -> int:
        if not self._node.aval.shape:
            raise refuse(TypeError, "len", "len() of a 0-d tensor")
        return self._node.aval.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self._node.aval.shape:
            raise refuse(TypeError, "iter", "iteration over a 0-d tensor")
        return iter(self.unbind(0))  # type: ignore[attr-defined]

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any().item())

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        node = self.node
        is_leaf = node.kind is VAR
        name = None
        if node.requires_grad and not is_leaf:
            name = grad_fn_name(node)
        return display.format_tensor(
            _host(self.array()),
            self.dtype,
            requires_grad=node.requires_grad and is_leaf,
            grad_fn_name=name,
            device=None if self.is_cpu else str(self.device),
        )

    def __format__(self, spec: str) -> str:
        if self._node.aval.ndim == 0 and type(self) is Tensor:  # a subclass prints as what it is, as in torch
            return format(self.item(), spec)
        return object.__format__(self, spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise refuse(
                RuntimeError,
                "deepcopy",
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment → copy x.detach()",
            )
        made = _new(type(self))
        made._alias = None
        made._meta = None
        node = self.node
        array = self.array()
        made._node = leaf(array, node.aval)
        memo[id(self)] = made
        if node.requires_grad:
            made.requires_grad_()
        if self._meta is not None and self._meta.grad is not None:
            made.grad = self._meta.grad.__deepcopy__(memo)
        made.__dict__.update({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items()})
        return made

    def __reduce__(self) -> Any:
        if not self.is_leaf:
            raise refuse(RuntimeError, "pickle", "only leaf tensors can be pickled → save x.detach()")
        return (_rebuild, (type(self), _host(self.array()).copy(), self.dtype.name, self.requires_grad, dict(self.__dict__)))

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if self.requires_grad:
            raise refuse(BufferError, "dlpack", "Can't export tensors that require gradient, use tensor.detach()")
        array: Any = self.array()
        return array.__dlpack__(stream=stream, **options)

    def __dlpack_device__(self) -> Any:
        array: Any = self.array()
        return array.__dlpack_device__()

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


def wrap(node: Node) -> Tensor:
    """A new Tensor naming `node`."""
    made: Tensor = _new(Tensor)
    made._node = node
    made._alias = None
    made._meta = None
    return made


def leaf_node(data: Any, dtype: dtypes.dtype, where: Any) -> Node:
    """A leaf holding `data` (array-like) as `dtype` on the JAX device `where` (None: the default one)."""
    aval = aval_of(tuple(np.shape(data)), dtype, where, inference=modes.MODE.get() & modes.INFERENCE > 0)
    if isinstance(data, jax.Array):
        if data.dtype == dtype.np and where is None:
            return leaf(data, aval)
        with jax.enable_x64(True):
            data = data.astype(dtype.np)
            return leaf(data if where is None else jax.device_put(data, where), aval)
    array = np.array(data, dtype=dtype.np)  # a copy: later writes to the user's array must not show here
    with jax.enable_x64(True):
        return leaf(jax.device_put(array, where), aval)


def leaf_tensor(data: Any, dtype: dtypes.dtype, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A leaf tensor holding `data` (a NumPy or JAX array)."""
    made = wrap(leaf_node(data, dtype, devices.resolve(device)))
    return made.requires_grad_() if requires_grad else made


def from_array(array: jax.Array) -> Tensor:
    """A leaf tensor around a JAX array, without a copy."""
    return wrap(leaf_node(array, dtypes.of(array.dtype), None if isinstance(array, jax.core.Tracer) else _where(array)))


def _where(array: jax.Array) -> Any:
    found = list(array.devices())
    return None if len(found) != 1 or found[0] == devices.default_jax_device() else found[0]


def _host(array: Any) -> np.ndarray:
    if isinstance(array, jax.core.Tracer):
        raise refuse(
            RuntimeError,
            "numpy",
            "this value is being traced by jax.jit, vmap or grad and has no number yet → keep Python control flow on static values",
        )
    return np.asarray(array)


def _base_of(tensor: Tensor) -> Tensor:
    storage = tensor._alias.storage
    there = storage.base() if storage.base is not None else None
    if there is not None:
        return there
    made = wrap(storage.head)
    made._alias = type(tensor._alias)(storage)
    made._meta = storage.meta
    return made


def grad_fn_name(node: Node) -> str:
    """torch's name of the node's backward, e.g. MulBackward0."""
    while True:
        if node.kind is VAR:
            return "AccumulateGrad"
        if node.note is not None and node.note.cut is not None:
            return node.note.cut.name
        kind = node.kind
        if kind.name == "overlay" or kind.name == "pick":
            node = node.inputs[0] if node.inputs else node
            if not node.inputs and kind is node.kind:
                return "CopyBackwards"
            continue
        if kind.op.grad_name == "CopySlices":
            return "CopySlices"
        return f"{kind.op.grad_name}Backward0"


def _rebuild(cls: type[Tensor], array: np.ndarray, dtype: str, requires_grad: bool, state: dict[str, Any]) -> Tensor:
    made = _new(cls)
    made._alias = None
    made._meta = None
    made._node = leaf_node(array, dtypes.of(dtype), None)
    made.__dict__.update(state)
    return made.requires_grad_() if requires_grad else made


def _flatten(t: Tensor) -> Any:
    return (t.array(),), (type(t), t.requires_grad and t.is_leaf)


def _unflatten(aux: Any, children: Any) -> Any:
    (value,) = children
    if not isinstance(value, jax.Array):
        made = object.__new__(Tensor)
        made.__dict__["placeholder"] = value  # JAX unflattens with arbitrary objects while inspecting trees
        return made
    return from_array(value)


jax.tree_util.register_pytree_node(Tensor, _flatten, _unflatten)

__all__ = ["Size", "Tensor", "alias_of", "from_array", "leaf_node", "leaf_tensor", "modes", "note_of", "wrap"]
