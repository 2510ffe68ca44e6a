"""Why a program is new: the nearest one that was compiled before, and the first thing in which the two differ."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tapejax import dtypes
from tapejax.engine.cache import CACHE, Executable
from tapejax.engine.reroll import loops_of
from tapejax.tape.aval import Aval
from tapejax.tape.node import VAR
from tapejax.tape.program import Program

_CANDIDATES, _LONGEST = 64, 4096  # programs compared with, instructions looked at to find the nearest
_ALIKE = 0.5  # common operations over all operations: below it a program is seen for the first time


class Difference(NamedTuple):
    """`kind`: one word; `detail`: the two sides; `at`: the instruction whose line matters; `remedy`: what to do, if anything."""

    kind: str
    detail: str
    at: int | None = None
    remedy: str = ""
    base: int = 0  # number of the program it is compared with


def reason(made: Executable, place: Callable[[int], str] = lambda i: "") -> Difference:
    """Why `made` had to be compiled. `place(i)`: " at file.py:3" for an instruction, or ""."""
    gone = evicted(made)
    if gone is not None:
        return gone
    base = nearest(made)
    if base is None:
        return Difference("first sight", "no program like it was compiled before")
    return difference(made, base, place)._replace(base=base.number)


def evicted(made: Executable) -> Difference | None:
    number = CACHE.gone.get(hash(made.key))
    if number is None:
        return None
    remedy = "raise TAPEJAX_CACHE_SIZE or TAPEJAX_CACHE_BYTES"
    return Difference("evicted", f"the same as program {number}, which had left the cache", None, remedy, number)


def nearest(made: Executable) -> Executable | None:
    """The cached program most like `made`: same operations, then same request, then the latest."""
    mine = _names(made.program)
    count = Counter(mine)
    best: Executable | None = None
    best_score: Any = (_ALIKE,)
    for e in sorted((e for e in list(CACHE.entries.values()) if e is not made), key=lambda e: -e.used)[:_CANDIDATES]:
        same = e.program == made.program
        theirs = mine if same else _names(e.program)
        alike = 1.0 if same else _overlap(count, Counter(theirs))
        score = (alike, same, theirs == mine, e.request[0] == made.request[0], e.used)
        if score > best_score:
            best, best_score = e, score
    return best


def _names(program: Program) -> list[str]:
    return [_name(kind) for kind, _, _ in program.instructions[:_LONGEST]]


def _name(kind: Any) -> str:
    return "variable" if kind is VAR else kind.name


def _overlap(a: Counter[str], b: Counter[str]) -> float:
    """Common over all, of the sets of operations and of how often each occurs, whichever is larger (loops differ in how often)."""
    if not a and not b:
        return 1.0
    often = sum((a & b).values()) / sum((a | b).values())
    return max(often, 0.9 * len(a.keys() & b.keys()) / len(a.keys() | b.keys()))


def difference(new: Executable, old: Executable, place: Callable[[int], str]) -> Difference:
    """The first thing in which two programs differ."""
    if new.program.key == old.program.key and all(a is b for a, b in zip(new.program.inputs, old.program.inputs, strict=False)):
        return _of_requests(new, old, place)
    return _of_rounds(new, old) or _of_instructions(new.program, old, place) or _of_inputs(new.program, old)


# -- programs ----------------------------------------------------------------------------------------------------------


def _of_rounds(new: Executable, old: Executable) -> Difference | None:
    """Loops of the same body that run longer or shorter."""
    if len(new.program.instructions) == len(old.program.instructions):
        return None
    mine, theirs = ([(x.rounds, x.period, _body(e.program, x)) for x in loops_of(e.program)] for e in (new, old))
    if not mine or len(mine) != len(theirs) or any(a[1:] != b[1:] for a, b in zip(mine, theirs, strict=True)):
        return None
    for a, b, loop in zip(mine, theirs, loops_of(new.program), strict=True):
        if a[0] != b[0]:
            detail = f"a loop of {a[0]} rounds, {b[0]} in program {old.number}"
            return Difference("rounds", detail, loop.start, "let few lengths occur: pad to a multiple, or sort the lengths into buckets")
    return None


def _body(program: Program, loop: Any) -> tuple[str, ...]:
    return tuple(_name(kind) for kind, _, _ in program.instructions[loop.stop - loop.period : loop.stop])


def _of_instructions(new: Program, old: Executable, place: Callable[[int], str]) -> Difference | None:
    there = f"in program {old.number}"
    pairs = zip(new.instructions, old.program.instructions, strict=False)
    for i, ((kind, slots, stop), (kind2, slots2, stop2)) in enumerate(pairs):
        if kind is kind2 and slots == slots2 and stop == stop2:
            continue
        if _name(kind) != _name(kind2):
            if len(new.instructions) != len(old.program.instructions):
                return _of_lengths(new, old, i, place)
            return Difference("operation", f"{_name(kind)}{place(i)}, where program {old.number} has {_name(kind2)}", i)
        if kind is VAR:
            return Difference("operands", f"a variable is read in another order than {there}", i)
        if kind.statics != kind2.statics:
            return _of_statics(kind, kind2, i, there, place)
        if kind.form != kind2.form:
            detail = f"{kind.name}{place(i)} takes {len(slots)} operands, {len(slots2)} {there}"
            return Difference("operands", detail, i, "let few lengths occur: pad the list")
        for p, (a, b) in enumerate(zip(kind.inputs, kind2.inputs, strict=True)):
            if a is not b:
                return _of_avals(f"'{kind.operands[p]}' of {kind.name}{place(i)}", a, b, there, i)
        if stop != stop2:
            detail = f"no gradient flows through {kind.name}{place(i)}, it does {there}"
            return Difference("requires_grad", detail if stop else detail.replace("no gradient flows", "a gradient flows").replace("it does", "none"), i)
        if slots != slots2:
            return Difference("operands", f"{kind.name}{place(i)} reads other values than {there}", i)
    return _of_lengths(new, old, None, place) if len(new.instructions) != len(old.program.instructions) else None


def _of_lengths(new: Program, old: Executable, at: int | None, place: Callable[[int], str]) -> Difference:
    mine, theirs = (Counter(_name(k) for k, _, _ in p.instructions) for p in (new, old.program))
    more = ", ".join(f"{n} {name}" for name, n in (mine - theirs).most_common(4))
    less = ", ".join(f"{n} {name}" for name, n in (theirs - mine).most_common(4))
    if at is None:
        at = min(len(new.instructions), len(old.program.instructions))
    at = at if at < len(new.instructions) else None
    what = " and ".join(x for x in (more and f"{more} more", less and f"{less} fewer") if x) or "the same operations in another order"
    detail = f"{what} than program {old.number}"
    if at is not None:
        detail += f"; the first that differs is {_name(new.instructions[at][0])}{place(at)}"
    remedy = "" if set(mine) ^ set(theirs) else "a Python loop of another length is another program: let few lengths occur"
    return Difference("operations", detail, at, remedy)


def _of_statics(kind: Any, kind2: Any, i: int, there: str, place: Callable[[int], str]) -> Difference:
    for name, a, b in zip(kind.op.statics, kind.statics, kind2.statics, strict=True):
        if a != b:
            what, remedy = _about_static(kind, name, a, b)
            return Difference(what, f"{name}={_short(a)} of {kind.name}{place(i)}, {_short(b)} {there}", i, remedy)
    return Difference("static", f"{kind.name}{place(i)} has other parameters than {there}", i)


def _about_static(kind: Any, name: str, a: Any, b: Any) -> tuple[str, str]:
    if kind.name in ("slice", "basic_index"):
        return "static", "a slice of another length is another program: keep the length and mask, e.g. where(arange(N) < n, x, 0)"
    if name in ("size", "shape") and isinstance(a, tuple) and isinstance(b, tuple):
        return "shape", "let few sizes occur: pad to a multiple, or sort into buckets" if len(a) == len(b) else ""
    if isinstance(a, dtypes.dtype):
        return "dtype", ""
    return "static", f"every value of '{name}' is a program of its own: let few values occur"


def _of_avals(what: str, a: Any, b: Any, there: str, i: int | None) -> Difference:
    if isinstance(a, tuple) or isinstance(b, tuple):
        return Difference("shape", f"{what} is {a}, {b} {there}", i)
    if a.weak != b.weak:
        number, tensor = ("a Python number", "a tensor")
        return Difference("operand", f"{what} is {number if a.weak else tensor}, {tensor if a.weak else number} {there}", i, "pass the same kind every time")
    if a.dtype is not b.dtype:
        return Difference("dtype", f"{what} is {a.dtype.name}, {b.dtype.name} {there}", i, "convert once, where the data is made")
    if a.shape != b.shape:
        return Difference("shape", f"{what} is {a}, {b} {there}", i, _about_shapes(a, b))
    if a.device != b.device:
        return Difference("device", f"{what} is on {a.device or 'the default device'}, {b.device or 'the default device'} {there}", i)
    return Difference("inference", f"{what} was made {'in' if a.inference else 'outside'} inference mode, not so {there}", i)


def _about_shapes(a: Aval, b: Aval) -> str:
    if len(a.shape) != len(b.shape):
        return ""
    axes = [d for d, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n]
    which = f"dimension {axes[0]}" if len(axes) == 1 else "dimensions " + ", ".join(map(str, axes))
    hint = f"let few sizes of {which} occur: pad to a multiple, or sort into buckets"
    return hint + ("; drop the last, smaller batch" if axes == [0] and a.shape[0] < b.shape[0] else "")


def _of_inputs(new: Program, old: Executable) -> Difference:
    for n, (a, b) in enumerate(zip(new.inputs, old.program.inputs, strict=False)):
        if a is not b:
            return _of_avals(f"input %a{n}", a, b, f"in program {old.number}", None)
    return Difference("inputs", f"{len(new.inputs)} inputs, {len(old.program.inputs)} in program {old.number}")


# -- requests ----------------------------------------------------------------------------------------------------------

MODES = {"values": "values only", "pull": "values and gradients", "residuals": "values, keeping what backward needs"}


def _of_requests(new: Executable, old: Executable, place: Callable[[int], str]) -> Difference:
    mode, outputs, *rest = new.request
    mode2, outputs2, *rest2 = old.request
    there = f"in program {old.number}"

    def name(s: int) -> str:
        return f"input %a{-s - 1} ({new.program.inputs[-s - 1]})" if s < 0 else f"{_name(new.program.instructions[s][0])}{place(s)}"

    if mode != mode2:
        remedy = "a value was asked for before backward(): ask after it, where you can" if mode == "residuals" else ""
        return Difference("mode", f"asked for {MODES[mode]}, {there} for {MODES[mode2]}", None, remedy)
    if outputs != outputs2:
        kept, dropped = (sorted(set(a) - set(b)) for a, b in ((outputs, outputs2), (outputs2, outputs)))
        if kept:
            remedy = "a variable still holds it: del it, or keep only .detach() or .item() of what is needed"
            return Difference("outputs", f"the result of {_list(name, kept)} is kept alive, it was not {there}", kept[0], remedy)
        return Difference("outputs", f"the result of {_list(name, dropped)} is not kept alive, it was {there}", dropped[0])
    if mode == "pull":
        a, b = rest[0], rest2[0]
        if a.wanted != b.wanted:
            more, less = (len(set(x.wanted) - set(y.wanted)) for x, y in ((a, b), (b, a)))
            return Difference("gradients", f"gradients of {len(a.wanted)} tensors, {len(b.wanted)} {there} ({more} others, {less} missing)")
        if a.into != b.into:
            adds, adds2 = (sum(s is not None for s in x.into) for x in (a, b))
            remedy = "zero_grad() between backwards makes the first and the later steps one program" if adds > adds2 else ""
            return Difference("accumulation", f"{adds} gradients are added to a .grad that is there, {adds2} {there}", None, remedy)
        return Difference("seeds", f"backward starts from other roots or gradients than {there}")
    if rest != rest2:
        return Difference("gradients", f"what backward will need differs from {there}")
    more = len(new.donate) - len(old.donate)
    if more > 0:
        return Difference("memory", f"{len(new.donate)} inputs are held by nobody else and are overwritten, {len(old.donate)} {there}")
    remedy = "a variable still holds an old value that was replaced" if more < 0 else ""
    return Difference("memory", f"{len(new.donate)} inputs may be overwritten, {len(old.donate)} {there}", None, remedy)


def _list(name: Callable[[int], str], slots: Sequence[int]) -> str:
    shown = ", ".join(name(s) for s in itertools.islice(slots, 3))
    return shown + (f" and {len(slots) - 3} more" if len(slots) > 3 else "")


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 60 else text[:57] + "…"
