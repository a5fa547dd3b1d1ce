"""Results on the machine come from lowprec's kernels alone: the sources that make them call no arithmetic of NumPy's.

NumPy's functions differ between builds and machines (SIMD widths, BLAS, pairwise sums); what is left to it here is
moving elements, comparing them and laying out integers.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ipu_core

ROOT = Path(ipu_core.__file__).parent
SOURCES = [
    *sorted((ROOT / "chip").glob("tile*.py")),
    *sorted((ROOT / "library").rglob("*.py")),
    *(ROOT / "ir" / "run" / name for name in ("kernels.py", "execute.py", "declared.py")),
    *(ROOT / "engine" / name for name in ("bind.py", "compile.py")),
]
WORDS = """
    add subtract multiply divide true_divide floor_divide power float_power negative square reciprocal sqrt cbrt hypot
    exp exp2 expm1 log log2 log10 log1p logaddexp sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh arcsinh
    arccosh arctanh sum nansum mean average median var std prod cumsum cumprod max min amax amin maximum minimum fmax
    fmin clip dot vdot inner outer matmul einsum tensordot kron convolve correlate interp trapezoid linalg fft
"""
FUNCTIONS = set(WORDS.split())
METHODS = {"sum", "mean", "var", "std", "prod", "cumsum", "cumprod", "dot"}
MATHS = {"exp", "log", "sqrt", "fsum", "tanh", "erf", "sin", "cos", "pow"}
ELSEWHERE = {("fields.py", "cumsum"), ("attention.py", "cos"), ("attention.py", "sin"), ("tile_scatter.py", "maximum")}
"""No results of the machine's: borders of blocks; a table of angles that the host makes in float64, as `nn` does; the
largest of rows, which is one of them."""
IEEE = {"add", "subtract", "multiply", "divide", "square", "negative", "sqrt", "maximum", "minimum", "clip", "max"}
"""What float64 may be computed with, in an order that is written down: IEEE 754 says every bit, or it is a choice."""
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)


def foreign(source: str, name: str) -> Iterator[str]:
    """Where a source computes with NumPy's or Python's arithmetic, in words."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            yield f"{name}:{node.lineno}: @"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, function = node.value.id, node.attr
            known = (module in ("np", "numpy") and function in FUNCTIONS) or (module == "math" and function in MATHS)
            if known and (name, function) not in ELSEWHERE:
                yield f"{name}:{node.lineno}: {module}.{function}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            owner = node.func.value
            if not isinstance(owner, ast.Name) or owner.id not in ("np", "math", "tile"):
                yield f"{name}:{node.lineno}: .{node.func.attr}()"
    yield from computing(tree, name)


def computing(tree: ast.AST, name: str) -> Iterator[str]:
    """Operators in what codelets run: `compute` moves elements or calls the kernel that `prepare` made ready."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "compute":
            for node in ast.walk(function):
                if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, OPERATORS):
                    yield f"{name}:{node.lineno}: an operator in compute"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_result_is_made_by_numpy(path: Path) -> None:
    assert list(foreign(path.read_text(), path.name)) == []


@pytest.mark.parametrize("name", ["wide.py", "wide_functions.py"])
def test_float64_is_made_by_operations_that_are_defined_to_the_bit(name: str) -> None:
    text = (ROOT / "ir" / "run" / name).read_text()
    assert [line for line in foreign(text, name) if line.rpartition(".")[2] not in IEEE] == []
    assert ".reduce(" not in text  # which adds in an order of NumPy's


@pytest.mark.parametrize(
    "line",
    [
        "out[...] = a @ b",
        "out[...] = np.sum(x, axis=1)",
        "out[...] = x.sum(axis=1)",
        "np.exp(x, out=out)",
        "np.add.at(out, i, x)",
        "np.multiply.reduce(x)",
        "from numpy import linalg\nnp.linalg.solve(a, b)",
        "y = math.exp(x)",
        "class A:\n    def compute(self):\n        self.out[...] = self.a + self.b",
        "class A:\n    def compute(self):\n        self.out *= 2",
    ],
)
def test_the_check_sees_what_it_is_there_for(line: str) -> None:
    assert list(foreign(line, "new.py"))


def test_what_is_no_arithmetic_passes() -> None:
    source = "np.take(x, i)\nnp.copyto(a, b)\nnp.arange(3)\ntile.sum(x)\nn = 2 * 3\nstop = max(a, b)\nmath.prod(s)"
    assert list(foreign(source, "new.py")) == []
