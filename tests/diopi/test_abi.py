"""The generated headers against the published interface, by the compiler."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from abi_rows import HEADERS, LAYOUT, ROOT, Row, rows, spelled

from diopi.library.errors import STATUS
from diopi.library.handles import DTYPES
from diopi.library.signatures import OPERATORS, RUNTIME, TEXTS

ROWS = rows()
_C_CHECK = "ASSERT(__builtin_types_compatible_p(__typeof__({name}), {type}), {text});"
_CPP_CHECK = "static_assert(std::is_same<decltype({name}), {type}>::value, {text});"


def _source(language: str, functions: list[Row]) -> str:
    check = _C_CHECK if language == "c11" else _CPP_CHECK
    lines = [f"#include <diopi/{header}>" for header in HEADERS]
    if language == "c11":
        lines += ["#include <assert.h>", "#define ASSERT _Static_assert"]
    else:
        lines += ["#include <type_traits>", "#define ASSERT static_assert"]
    lines.append(LAYOUT)
    for row in functions:
        arguments = ", ".join(spelled(t) for t in row.types) or "void"
        text = f'"{row.header} {row.name}"'
        lines.append(check.format(name=row.name, type=f"{row.returns}({arguments})", text=text))
    return "\n".join(lines) + "\n"


def _compile(folder: Path, language: str, source: str, include: Path = ROOT / "include") -> str:
    """What the compiler says; empty if it agrees."""
    compiler = "gcc" if language == "c11" else "g++"
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    file = folder / ("abi.c" if language == "c11" else "abi.cpp")
    file.write_text(source)
    ran = subprocess.run(
        [
            compiler,
            f"-std={language}",
            "-fsyntax-only",
            "-Wno-deprecated-declarations",
            f"-I{include}",
            str(file),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode == 0) == ("error" not in ran.stderr)
    return ran.stderr


@pytest.mark.parametrize("language", ["c11", "c++17"])
def test_every_prototype_and_layout_is_the_published_one(language: str, tmp_path: Path) -> None:
    assert len(ROWS) == 568
    source = _source(language, ROWS)
    assert source.count("diopirt.h diopi") + source.count("functions") > 568
    assert _compile(tmp_path, language, source) == ""


@pytest.mark.parametrize("language", ["c11", "c++17"])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("diopiError_t diopiAdd(diopiContextHandle_t ctx, ", "diopiError_t diopiAdd("),  # an argument less
        ("int64_t groups);", "int32_t groups);"),  # a narrower number
        ("diopiSize_t dim);", "const diopiSize_t* dim);"),  # by pointer instead of by value
        ("diopiTensorHandle_t* out,", "diopiTensorHandle_t out,"),
        ("diopiError_t diopiExp(", "int64_t diopiExp("),
        ("diopiError_t diopiTan(", "diopiError_t diopiTangent("),  # missing
    ],
)
def test_a_changed_header_is_caught(language: str, right: str, wrong: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "include", tmp_path / "include")
    header = tmp_path / "include" / "diopi" / "functions.h"
    text = header.read_text()
    assert right in text
    changed = text.replace(right, wrong, 1)
    function = next(
        re.search(r"(diopi\w+)\(", a)[1]  # type: ignore[index]
        for a, b in zip(text.splitlines(), changed.splitlines(), strict=True)
        if a != b
    )
    header.write_text(changed)
    complaint = _compile(tmp_path, language, _source(language, ROWS), tmp_path / "include")
    assert function in complaint


def test_a_changed_value_or_layout_is_caught(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "include", tmp_path / "include")
    header = tmp_path / "include" / "diopi" / "diopirt.h"
    text = header.read_text()
    for right, wrong, named in [
        ("diopi_dtype_bfloat16 = 12", "diopi_dtype_bfloat16 = 17", "dtypes"),
        ("diopiNoImplement = 13", "diopiNoImplement = 15", "codes"),
        ("    int64_t len;\n", "    int32_t len, other;\n    int64_t more;\n", "diopiSize_t"),
    ]:
        assert right in text
        header.write_text(text.replace(right, wrong, 1))
        assert named in _compile(tmp_path, "c11", _source("c11", []), tmp_path / "include")


def test_the_loader_knows_the_codes_and_dtypes_of_the_header() -> None:
    text = (ROOT / "include" / "diopi" / "diopirt.h").read_text()
    enumerated = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", text)}
    assert {name: code for code, name in STATUS.items()} == {
        name: code
        for name, code in enumerated.items()
        if re.match(r"diopi[A-Z5]", name) and "MemoryFormat" not in name
    }
    dtypes = {
        n.removeprefix("diopi_dtype_"): c for n, c in enumerated.items() if n.startswith("diopi_dtype_")
    }
    del dtypes["unsupported"]
    assert {name: code for name, (code, _) in DTYPES.items()} == dtypes


def test_the_loader_knows_every_function() -> None:
    operators = {r.name for r in ROWS if r.header != "diopirt.h" and r.returns == "diopiError_t"}
    assert set(OPERATORS) == operators and len(operators) == 538
    assert set(RUNTIME) | {"diopiGetVersion"} == {r.name for r in ROWS if r.header == "diopirt.h"}
    assert set(TEXTS) == {r.name for r in ROWS if r.returns == "const char*"}
