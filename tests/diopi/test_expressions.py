"""The table's expressions, which are Python, as the C++ of the registrations."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from diopi.generate.expressions import in_cpp
from diopi.table import TableError, load

TRANSLATIONS = {
    # constants and names
    "1": "1",
    "-1": "-1",
    "0.5": "0.5",
    "True": "true",
    "False": "false",
    "None": "nullptr",
    "'none'": '"none"',
    "'say \"x\"'": '"say \\"x\\""',
    "dim": "dim",
    "from_": "from",
    "in_": "in",
    "is_": "is",
    "lambda_": "lambda",
    # tensors
    "self.dim()": "self.dim()",
    "self.is_contiguous()": "self.is_contiguous()",
    "self.size(-1)": "self.size(-1)",
    "self.shape": "self.sizes()",
    "self.shape[0]": "self.sizes()[0]",
    "self.ndim": "self.dim()",
    "self.dtype": "self.scalar_type()",
    # dtypes
    "torch.bool": "at::kBool",
    "torch.uint8": "at::kByte",
    "torch.int8": "at::kChar",
    "torch.int16": "at::kShort",
    "torch.int32": "at::kInt",
    "torch.int64": "at::kLong",
    "torch.float16": "at::kHalf",
    "torch.bfloat16": "at::kBFloat16",
    "torch.float32": "at::kFloat",
    "torch.float64": "at::kDouble",
    "torch.complex64": "at::kComplexFloat",
    "torch.complex128": "at::kComplexDouble",
    # comparisons
    "a == b": "a == b",
    "a != b": "a != b",
    "a < b": "a < b",
    "a <= b": "a <= b",
    "a > b": "a > b",
    "a >= b": "a >= b",
    "0 <= a < b": "(0 <= a) && (a < b)",
    "self.dtype != torch.bool": "self.scalar_type() != at::kBool",
    # logic: brackets wherever the languages might bind differently
    "not a": "!a",
    "not (a and b)": "!(a && b)",
    "not a == b": "!(a == b)",
    "a and b": "a && b",
    "a or b": "a || b",
    "a and b or c": "(a && b) || c",
    "a and (b or c)": "a && (b || c)",
    "a < b and c": "(a < b) && c",
    # arithmetic
    "a + b": "a + b",
    "a - b - c": "(a - b) - c",
    "a - (b - c)": "a - (b - c)",
    "a * b + c": "(a * b) + c",
    "a * (b + c)": "a * (b + c)",
    "a // b": "a / b",
    "a % b": "a % b",
    "-(a + b)": "-(a + b)",
    # choices, lists, calls
    "a if c else b": "c ? a : b",
    "a if c > 0 else b if d else e": "(c > 0) ? a : (d ? b : e)",
    "[1, n]": "{1, n}",
    "(1, n)": "{1, n}",
    "[]": "{}",
    "float(alpha)": "alpha.toDouble()",
    "float(alpha) == 1": "alpha.toDouble() == 1",
    "len(tensors)": "count(tensors)",
    "one_dtype(self, other)": "one_dtype(self, other)",
    "not is_bool(alpha) and expandable(other, self)": "!is_bool(alpha) && expandable(other, self)",
}


@pytest.mark.parametrize("python", TRANSLATIONS)
def test_one_construct(python: str) -> None:
    assert in_cpp(python) == TRANSLATIONS[python]


REFUSALS = {
    "a is None": "present(x) or absent(x)",
    "a is not b": "present(x) or absent(x)",
    "a in (1, 2)": "present(x) or absent(x)",
    "1 < a in b": "present(x) or absent(x)",
    "a / b": "has no counterpart",
    "a ** 2": "has no counterpart",
    "a @ b": "has no counterpart",
    "a & b": "has no counterpart",
    "~a": "has no counterpart",
    "+a": "has no counterpart",
    "lambda x: x": "has no counterpart",
    "[x for x in y]": "has no counterpart",
    "{1: 2}": "has no counterpart",
    "{1, 2}": "has no counterpart",
    "f'{a}'": "has no counterpart",
    "a[1:2]": "indexes by something else",
    "a[-1]": "indexes by something else",
    "f(a, dim=1)": "names an argument",
    "b'x'": "has no counterpart",
    "f(*a)": "has no counterpart",
    "(b := a)": "has no counterpart",
}


@pytest.mark.parametrize("python", REFUSALS)
def test_what_has_no_counterpart_is_refused(python: str) -> None:
    with pytest.raises(TableError) as refusal:
        in_cpp(python)
    assert REFUSALS[python] in str(refusal.value)


def test_a_refusal_names_the_part_and_the_whole() -> None:
    with pytest.raises(TableError) as refusal:
        in_cpp("self.dim() > 2 and other is None")
    assert "'other is None'" in str(refusal.value)
    assert "'self.dim() > 2 and other is None'" in str(refusal.value)


def test_a_refused_part_may_be_anywhere() -> None:
    for whole in (
        "f(a ** 2)",
        "[1, a ** 2]",
        "x[a ** 2]",
        "a ** 2 if b else c",
        "-(a ** 2)",
        "float(a ** 2)",
    ):
        with pytest.raises(TableError, match="a \\*\\* 2"):
            in_cpp(whole)


def test_every_expression_of_the_table_can_be_translated() -> None:
    translated = 0
    for entry in load().entries.values():
        for text in [entry.when, *entry.args.values()]:
            if text and entry.aten:
                assert in_cpp(text)
                translated += 1
    assert translated > 50


# Python expression over numbers, and what Python makes of it with these values.
VALUES = {"a": 7, "b": 3, "c": 0, "d": 2}
COMPUTED = [
    "a - (b - d)",
    "a - b - d",
    "a * (b + d) % 4",
    "a // b * d",
    "-(a + b) * d",
    "not a == b",
    "not (a and c)",
    "c and a or b > d",
    "c < b < a",
    "b < c <= a",
    "a if c else b if d > 1 else 9",
    "(a if c else b) + 1",
    "not c and (b == 3 or a)",
]


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_cpp_computes_what_python_computes(tmp_path: Path) -> None:
    variables = "".join(f"    const long {name} = {value};\n" for name, value in VALUES.items())
    prints = "".join(f'    std::printf("%ld\\n", static_cast<long>({in_cpp(text)}));\n' for text in COMPUTED)
    source = tmp_path / "computed.cpp"
    source.write_text(f"#include <cstdio>\nint main() {{\n{variables}{prints}}}\n")
    program = tmp_path / "computed"
    subprocess.run(["c++", "-std=c++17", "-w", source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()

    # C++ has no value of `and` and `or` but true and false
    def expected(text: str) -> int:
        value = eval(text, dict(VALUES))
        return int(bool(value)) if " and " in text or " or " in text else int(value)

    assert printed == [str(expected(text)) for text in COMPUTED]
