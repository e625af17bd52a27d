"""The operator table, its checks and what is generated from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from diopi.table import TableError, load
from diopi.table.reader import _entry

ROOT = Path(__file__).parents[2]
HEADERS = [*sorted((ROOT / "include" / "diopi").glob("*.h")), ROOT / "include" / "dipu" / "vendor.h"]


def test_the_whole_published_interface_is_there() -> None:
    table = load()
    assert len(table.functions) == 568
    assert len(table.by_header("diopirt.h")) == 27
    add = table.functions["diopiAdd"]
    assert [a.name for a in add.arguments] == ["ctx", "out", "input", "other", "alpha"]
    assert add.arguments[-1].ctype == "const diopiScalar_t*"


def test_the_hot_operators_are_served() -> None:
    table = load()
    assert len(table.entries) >= 60
    served = table.by_overload()
    for name in (
        "add.Tensor",
        "mm",
        "addmm",
        "_softmax",
        "native_layer_norm",
        "convolution_overrideable",
        "native_batch_norm",
        "embedding",
    ):
        assert served[name], name
    # a scalar operand has its own function, tried first
    assert [e.name for e in served["add.Tensor"]] == ["diopiAddScalar", "diopiAdd"]


def test_in_place_forms_are_known_by_their_name() -> None:
    functions = load().functions
    assert functions["diopiAddInp"].in_place
    assert functions["diopiFusedSiluFfnInp"].in_place
    assert not functions["diopiAdd"].in_place


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"dtypes": "fp what"}, "unknown dtype groups"),
        ({"tolerance": "loose"}, "unknown tolerance"),
        ({"args": {"nothing": "self"}}, "args names"),
        ({"shape": "x"}, "unknown keys"),
        ({"scalar": "nothing"}, "scalar names"),
    ],
)
def test_a_wrong_entry_is_named_with_its_fault(given: dict, complaint: str) -> None:
    defaults = {"category": "elementwise", "dtypes": "fp", "tolerance": "ulp"}
    with pytest.raises(TableError, match=f"some.toml: diopiAdd: {complaint}"):
        _entry("some.toml", load().functions["diopiAdd"], defaults, given)


@pytest.mark.parametrize("header", HEADERS, ids=lambda h: h.name)
@pytest.mark.parametrize("language", ["c11", "c++17"])
def test_headers_compile_alone(header: Path, language: str, tmp_path: Path) -> None:
    source = tmp_path / ("one.c" if language == "c11" else "one.cpp")
    source.write_text(f"#include <{header.parent.name}/{header.name}>\nint main(void) {{ return 0; }}\n")
    compiler = "gcc" if language == "c11" else "g++"
    subprocess.run(
        [
            compiler,
            f"-std={language}",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
            str(ROOT / "include"),
            "-fsyntax-only",
            str(source),
        ],
        check=True,
    )
