"""The op declaration: one documented function, one decorator, everything else follows from it.

    @op("torch Tensor Tensor_", promote="float", saves="result")
    def exp(input: Array) -> Array:
        \"\"\"Return e raised to each element ...\"\"\"
        return jnp.exp(input)

The function's body is the JAX implementation: a pure function of `jax.Array`s. Its parameters' annotations say
what each argument is:

=================  =========================================================================================
`Array`            a tensor operand; a Python number given instead enters as a weak scalar *leaf*
`Array | None`     an operand that may be absent
`Arrays`           a list or tuple of operands (`cat`, `stack`, `einsum`)
`Scalar`           a Python number that may change every step without a recompile (`alpha`, `eps`, `lr`)
`Ints`, `Dims`     statics: a tuple of ints that users may spread, an int or tuple or None
`Seed`             a random op's key operand, filled in from the generator; the user passes `generator=`
anything else      a *static*: hashable, part of the program key (`dim`, `keepdim`, shapes, flags)
=================  =========================================================================================

Knows no jit and no Tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tapejax import dtypes
from tapejax.tape.aval import Aval

if TYPE_CHECKING:  # inside a body operands are JAX arrays (a list arrives as a tuple of them)
    Array = Any
    Arrays = Any
    Scalar = Any
    Seed = Any
    Ints = Any
    Dims = Any
else:

    class Array:
        """Annotation: a tensor operand. Inside the body it is a `jax.Array` (or a tracer)."""

    class Arrays:
        """Annotation: a list of tensor operands. Inside the body it is a tuple of `jax.Array`s."""

    class Scalar:
        """Annotation: a Python number that is a leaf. Inside the body it is a 0-d `jax.Array`."""

    class Seed:
        """Annotation: a random op's key. Inside the body it is a `jax.random` key."""

    class Ints:
        """Annotation: a static tuple of ints that users may also spread (`x.view(2, 3)`); one int arrives as a 1-tuple."""

    class Dims:
        """Annotation: a static that is None, an int or a tuple of ints."""


class Param(NamedTuple):
    name: str
    role: str  # "array", "optional", "arrays", "scalar", "seed" or "static"
    spread: bool  # an `Ints` static
    default: Any  # inspect.Parameter.empty where required
    keyword_only: bool


class Sample(NamedTuple):
    """One call of an op, for the tests and for `tapejax check --op`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rough: str = ""  # why its gradient is not to be compared with finite differences

    @property
    def smooth(self) -> bool:
        """Whether finite differences make sense; at infinity and NaN the conventions are torch's and there is no slope."""
        return not self.rough and _finite((self.args, *self.kwargs.values()))


def _finite(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_finite, value))
    return not (isinstance(value, np.ndarray) and value.dtype.kind in "fc") or bool(np.isfinite(value).all())


class ErrorSample(NamedTuple):
    """A call that must be refused with `error`, matching the regular expression `match` (torch's key phrase)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    error: type[Exception]
    match: str


def sample(*args: Any, **kwargs: Any) -> Sample:
    return Sample(args, kwargs)


def rough(why: str, *args: Any, **kwargs: Any) -> Sample:
    """A sample whose gradient follows a convention, or whose result rounds too coarsely: not compared with finite differences."""
    return Sample(args, kwargs, why)


def error_sample(error: type[Exception], match: str, *args: Any, **kwargs: Any) -> ErrorSample:
    return ErrorSample(args, kwargs, error, match)


class Op:
    """One declared operation. Hashed by identity; `name` is unique in the table."""

    def __init__(self, impl: Callable[..., Any], expose: str, options: dict[str, Any], params: Sequence[Param] | None = None) -> None:
        self.impl = impl
        self.name: str = options.pop("name", None) or impl.__name__.rstrip("_")
        self.expose: tuple[str, ...] = tuple(expose.split())
        self.aliases: tuple[str, ...] = tuple(options.pop("aliases", "").split())
        self.promote: str | Callable[..., Any] | None = options.pop("promote", None)
        self.saves: dict[str, tuple[str, ...]] = _saves(options.pop("saves", ""))
        self.computes: tuple[str, ...] = tuple(options.pop("computes", "").split())
        self.computed_by: Op | None = None  # gives the values that `computes` names; see `computed`
        self.put: Callable[..., Any] | None = options.pop("put", None)  # the write-back of a view op
        self.returns: tuple[str, ...] = tuple(options.pop("returns", "").split())
        self.grad_name: str = options.pop("grad_name", None) or "".join(p[:1].upper() + p[1:] for p in self.name.split("_"))
        self.differentiable: bool = options.pop("differentiable", True)
        self.triangle: bool = options.pop("triangle", False)
        self.oracle: str | None = options.pop("oracle", self.name)  # the dotted name below `torch` to compare with
        if options:
            raise TypeError(f"op {self.name}: unknown options {sorted(options)}")
        self.params: tuple[Param, ...] = tuple(_params(impl) if params is None else params)
        self.operands = tuple(p.name for p in self.params if p.role != "static")
        self.statics = tuple(p.name for p in self.params if p.role == "static")
        known = {*self.operands, *self.returns, *self.computes, "*", "result", "computed"}
        if unknown := {name for of, names in self.saves.items() for name in (of, *names)} - known:
            raise TypeError(f"op {self.name}: saves {sorted(unknown)}, which are no operands of it")
        self.only_arrays = all(p.role in ("array", "optional", "static") for p in self.params)
        self.kinds: dict[Any, Any] = {}  # inference cache: (form, statics, *input avals) -> Kind
        self._samples: Callable[..., Iterator[Any]] | None = None
        self._errors: Callable[..., Iterator[ErrorSample]] | None = None
        self.__doc__ = impl.__doc__
        self.__name__ = self.name

    @property
    def is_view(self) -> bool:
        return self.put is not None

    def samples(self, make: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Decorator: attach a generator `f(make)` of `sample(...)`s. See `tapejax.ops.samples.Make` for `make`."""
        self._samples = make
        return make

    def computed(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: attach `f(<the op's arguments>)`, the tuple of what `saves` names beside operands and results.

        These values exist where somebody asks for them: hooks on saved tensors, `_saved_<name>`, a checkpointed call.
        """
        options = {"name": f"{self.name}_computed", "oracle": None, "differentiable": False, "promote": self.promote, "returns": " ".join(self.computes)}
        self.computed_by = Op(make, "", options, self.params)
        return make

    def error_samples(self, make: Callable[..., Iterator[ErrorSample]]) -> Callable[..., Iterator[ErrorSample]]:
        """Decorator: attach a generator `f(make)` of `error_sample(...)`s."""
        self._errors = make
        return make

    def sample_inputs(self, make: Any) -> list[Sample]:
        found = [] if self._samples is None else list(self._samples(make))
        return [s if isinstance(s, Sample) else Sample(s if isinstance(s, tuple) else (s,), {}) for s in found]

    def error_inputs(self, make: Any) -> list[ErrorSample]:
        return [] if self._errors is None else list(self._errors(make))

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    #: Set by `tapejax.dispatch`: records a call. Before that an Op is data only.
    call: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


TABLE: dict[str, Op] = {}


def op(expose: str = "torch Tensor", **options: Any) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op.

    `expose`: where users reach it, separated by spaces: `torch` (function), `Tensor` (method), `Tensor_` (in-place
    method `name_`), `nn.functional`, `nn.functional_` (in-place twin there), `special`, `linalg`, `fft`; empty: internal.

    Options: `name`; `aliases` (space separated, exposed everywhere the op is); `promote`, how operands are cast before
    the body sees them: None (as they are), "common" (torch's result type), "float" (the same, integers become the
    default float type), "first" (all take the first operand's type), or a callable `(avals, statics) -> target dtypes`;
    `saves`, what the backward needs, for version checks and "freed graph" errors: names of operands and returned fields,
    "result" (every one), of values that `computes` names and "computed" (other things the user cannot write to), space separated, or a dict
    from operand to what *its* gradient needs (`{"input": "other", "other": "input"}`); `computes`, names of values that torch saves beside
    operands and results (a deviation, a mask), given by the function that `@<op>.computed` attaches: `saves` is then in torch's order;
    `put`, for views, the write-back `put(base, value, *other operands, **statics) -> base`; `returns`, field names of a
    several-output op; `grad_name` ("Mul" prints as MulBackward0); `differentiable=False` for results without gradient;
    `triangle`: only one triangle of the first operand is read, and its gradient is Hermitian;
    `oracle`, the name below `torch` to compare with (None: no counterpart).
    """

    def declare(impl: Callable[..., Any]) -> Op:
        made = Op(impl, expose, options)
        if made.name in TABLE:
            raise TypeError(f"op {made.name} is declared twice")
        TABLE[made.name] = made
        return made

    return declare


#: Functions composed of ops on Tensors, exposed like ops: (function, where, names).
COMPOSITES: list[tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...]]] = []


def composite(expose: str = "torch Tensor", aliases: str = "", name: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Declare a function that calls ops on Tensors (it records nothing of its own)."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        COMPOSITES.append((function, tuple(expose.split()), (name or function.__name__.rstrip("_"), *aliases.split())))
        return function

    return declare


def _saves(spec: str | dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Normalise to: operand whose gradient is wanted ("*": any) -> names that must be unmodified."""
    if isinstance(spec, dict):
        return {k: tuple(v.split()) for k, v in spec.items()}
    return {"*": tuple(spec.split())} if spec else {}


_ROLES = {"Array": "array", "Array | None": "optional", "Arrays": "arrays", "Scalar": "scalar", "Seed": "seed"}


def _params(impl: Callable[..., Any]) -> Iterator[Param]:
    for p in inspect.signature(impl).parameters.values():
        annotation = p.annotation if isinstance(p.annotation, str) else getattr(p.annotation, "__name__", str(p.annotation))
        yield Param(p.name, _ROLES.get(annotation, "static"), annotation == "Ints", p.default, p.kind is p.KEYWORD_ONLY)


def cast_targets(op: Op, avals: Sequence[Aval | None], statics: tuple[Any, ...]) -> tuple[dtypes.dtype | None, ...]:
    """The element type each operand is cast to before the body runs (None: as it is)."""
    rule = op.promote
    present = [a for a in avals if a is not None]
    if rule is None or not present:
        return (None,) * len(avals)
    if callable(rule):
        return tuple(rule(avals, statics))
    if rule == "first":
        return (present[0].dtype,) * len(avals)
    target = dtypes.common((a.dtype, a.rank) for a in present)
    if rule == "float" and target.category < 2:
        target = dtypes.get_default_dtype()
    return (target,) * len(avals)
