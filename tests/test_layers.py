"""The architecture, held by a test: imports point upward in one listing, and importing tapejax changes nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: From the ground up: a module imports only what stands before it. A folder is one entry.
ORDER = [
    "errors", "config", "dtypes", "devices", "display",
    "tape",           # what was asked
    "engine",         # how it runs
    "storage",        # what changes
    "rng",
    "methods",        # the stub of the generated methods, for type checkers
    "tensor",
    "dispatch",       # a user's call becomes a node
    "ops",            # one declaration per operation
    "operators",
    "autograd",
    "convert",        # dtypes and devices of tensors, copies between them
    "nn",
    "optim",
    "func",
    "interop",
    "serialization",
    "cuda", "testing", "utils",
    "debug",
    "fft", "linalg", "special",  # namespaces filled from the table
    "__init__",
    "stubs",          # writes the .pyi files: looks at everything
    "cli",
]  # fmt: skip

#: Functions that import when they run, and why.
INSIDE_FUNCTIONS = {
    "tapejax/autograd/functional.py": "the namespace of the factories, which stands above",
    "tapejax/autograd/selective.py": "the public functions by which users name operations, which stand above",
    "tapejax/func/functional_call.py": "the namespace of the modules, which stands above",
    "tapejax/autograd/function.py": "graph and function know each other",
    "tapejax/testing.py": "the generator, only where values are drawn",
}


def sources(*folders: str) -> list[Path]:
    return [f for folder in folders for f in sorted((ROOT / folder).rglob("*.py"))]


def layer_of(module: str) -> str:
    """`tapejax.tape.op` -> `tape`; the package itself -> `__init__`."""
    return module.split(".")[1] if "." in module else "__init__"


def imports(file: Path) -> Iterator[tuple[int, str, bool, bool]]:
    """(line, module, inside a function, for type checkers only) of every import of tapejax in a file."""
    tree = ast.parse(file.read_text())

    def walk(node: ast.AST, inside: bool, typing: bool) -> Iterator[tuple[int, str, bool, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield child.lineno, alias.name, inside, typing
            elif isinstance(child, ast.ImportFrom) and not child.level:
                if child.module == "tapejax":
                    for alias in child.names:
                        known = (ROOT / "tapejax" / alias.name).is_dir() or (ROOT / "tapejax" / f"{alias.name}.py").exists()
                        yield child.lineno, f"tapejax.{alias.name}" if known else "tapejax", inside, typing
                else:
                    yield child.lineno, child.module or "", inside, typing
            checks = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from walk(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)), typing or checks)

    yield from walk(tree, False, False)


def test_imports_point_upward() -> None:
    wrong = []
    for file in sources("tapejax", "cli"):
        path = file.relative_to(ROOT)
        own = "cli" if path.parts[0] == "cli" else path.parts[1].removesuffix(".py")
        for line, module, inside, _ in imports(file):
            if not (module == "tapejax" or module.startswith("tapejax.")) or (inside and str(path) in INSIDE_FUNCTIONS):
                continue
            other = layer_of(module)
            if other != own and ORDER.index(other) > ORDER.index(own):
                wrong.append(f"{path}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_every_module_has_its_place() -> None:
    here = {p.name.removesuffix(".py") for p in (ROOT / "tapejax").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert here - {"cli"} <= set(ORDER)


def test_no_imports_inside_functions() -> None:
    """None of tapejax inside a function, except where the list says why."""
    found = {
        str(f.relative_to(ROOT)) for f in sources("tapejax") for _, module, inside, _ in imports(f) if inside and module.split(".")[0] == "tapejax"
    }
    assert found <= set(INSIDE_FUNCTIONS), found - set(INSIDE_FUNCTIONS)


def test_the_engine_never_sees_a_tensor() -> None:
    for file in sources("tapejax/engine", "tapejax/tape"):
        names = {n.id for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Name)}
        names |= {n.attr for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Attribute)}
        assert "Tensor" not in names, file


def test_only_the_engine_compiles() -> None:
    """`jax.jit` has one home."""
    for file in sources("tapejax"):
        if "engine" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("jit", "pjit") and ast.unparse(node.value) == "jax":
                raise AssertionError(f"{file}:{node.lineno} calls jax.{node.attr}")


def test_only_public_jax() -> None:
    for file in sources("tapejax", "cli", "tests", "examples", "benchmarks"):
        if file != Path(__file__).resolve():
            assert "jax._src" not in file.read_text(), file
        for line, module, _, _ in imports(file):
            private = [p for p in module.split(".") if p.startswith("_") and not p.startswith("__")]
            assert not (module.startswith("jax") and private), f"{file}:{line} imports {module}"


def test_every_package_says_what_it_owns() -> None:
    for file in (ROOT / "tapejax").rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(file.read_text())), file


def run(program: str) -> str:
    made = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert made.returncode == 0, made.stderr[-2000:]
    return made.stdout


def test_importing_changes_nothing() -> None:
    """No backend is started, no JAX setting changed, no random state touched, and torch stays out."""
    run(
        "import sys, random, numpy, jax\n"
        "settings = {k: v for k, v in jax.config.values.items()}\n"
        "drawn, python = numpy.random.get_state()[1].tolist(), random.getstate()\n"
        "import tapejax\n"
        "assert not [m for m in sys.modules if m == 'torch' or m.startswith('torch.')]\n"
        "changed = {k for k, v in jax.config.values.items() if settings.get(k, v) is not v and settings.get(k, v) != v}\n"
        "assert not changed, changed\n"
        "assert numpy.random.get_state()[1].tolist() == drawn and random.getstate() == python\n"
        "jax.config.update('jax_num_cpu_devices', 2)  # refused once a backend is there\n"
        "assert len(jax.devices('cpu')) == 2\n"
        "assert jax.numpy.ones(1).dtype == 'float32' and jax.config.jax_default_device is None\n"
    )


def test_computing_leaves_jax_in_single_precision() -> None:
    run(
        "import jax, jax.numpy as jnp, tapejax as tj\n"
        "x = tj.ones(3, dtype=tj.float64, requires_grad=True)\n"
        "(x * x).sum().backward()\n"
        "assert x.grad.dtype is tj.float64\n"
        "assert jnp.arange(2.0).dtype == 'float32' and not jax.config.jax_enable_x64\n"
    )


@pytest.mark.parametrize("module", ["nn", "optim", "autograd", "func", "fft", "linalg", "special", "testing"])
def test_namespaces_come_with_the_package(module: str) -> None:
    """`import tapejax` is enough to say `tapejax.nn.functional.relu`, as in torch."""
    import tapejax

    assert getattr(tapejax, module).__name__ == f"tapejax.{module}"
