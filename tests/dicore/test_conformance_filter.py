"""Which cases a run wants."""

from __future__ import annotations

from pathlib import Path

import pytest

from dicore.conformance.case_filter import (
    CaseFilter,
    SelectionError,
    SkipRule,
    dtypes_named,
    functions_like,
    read_case_filter,
    read_skip_rules,
)
from dicore.conformance.cases import Case, split_case_id

pytestmark = pytest.mark.null

KNOWN = ("chipAdd", "chipSub", "chipConv2d", "chipConv3d")


def test_functions_are_found_by_name_pattern_and_expression() -> None:
    assert functions_like(["chipAdd"], KNOWN) == {"chipAdd"}
    assert functions_like(["chipConv*"], KNOWN) == {"chipConv2d", "chipConv3d"}
    assert functions_like(["chip(Add|Sub)", "chipAdd"], KNOWN) == {"chipAdd", "chipSub"}
    with pytest.raises(SelectionError, match=r"'chipAddd'; near are chipAdd"):
        functions_like(["chipAddd"], KNOWN)
    with pytest.raises(SelectionError, match=r"no function of the interface is called '\('$"):
        functions_like(["("], KNOWN)


def test_the_options_of_a_command_make_a_filter() -> None:
    wanted = read_case_filter(["chipAdd, chipSub"], KNOWN, ["torch.int8", "bool,"], None, True, None)
    assert wanted == CaseFilter(frozenset({"chipAdd", "chipSub"}), frozenset({"int8", "bool"}), quick=8)
    assert not wanted.whole and read_case_filter(None, KNOWN, None, None, False, None).whole
    with pytest.raises(
        SelectionError, match="'float3' is no dtype of the suite; known are float16, bfloat16"
    ):
        dtypes_named(["float3"])


def test_a_filter_wants_what_fits_all_that_is_given() -> None:
    add, unknown = Case("own:a:1", "chipAdd", "int8"), Case("own:a:2", "", "int8")
    assert CaseFilter(frozenset({"chipAdd"}), frozenset({"int8"})).wants(add)
    assert not CaseFilter(frozenset({"chipSub"})).wants(add)
    assert not CaseFilter(dtypes=frozenset({"bool"})).wants(add)
    assert CaseFilter(frozenset({"chipSub"})).wants(unknown), (
        "which function it would have been of is not known"
    )
    assert CaseFilter(frozenset({"chipSub"}), case="own:a:1").wants(add)


def test_ids_are_split_and_wrong_ones_refused() -> None:
    assert split_case_id("opinfo:nn.functional.conv2d:x:7") == ("opinfo", "nn.functional.conv2d:x", 7)
    with pytest.raises(ValueError, match="which is source:group:number"):
        split_case_id("diopiAdd")


def test_skip_files(tmp_path: Path) -> None:
    path = tmp_path / "skip.toml"
    path.write_text('[[skip]]\nfunction = "diopiA*"\ndtype = "float64"\nreason = "no doubles"\n')
    (skip,) = read_skip_rules(path)
    assert skip == SkipRule("no doubles", "diopiA*", "float64")
    assert skip.fits(Case("own:diopiAdd:1", "diopiAdd", "float64"))
    assert not skip.fits(Case("own:diopiAdd:1", "diopiAdd", "float32"))
    for text, message in (
        ('[[skip]]\nfunction = "diopiAdd"\n', "needs a reason"),
        ('[[skip]]\nreason = "all"\n', "say what to skip"),
        ('[[skip]]\nop = "x"\nreason = "r"\n', r"unknown keys \['op'\]"),
        ("skip = [", "is not TOML"),
    ):
        path.write_text(text)
        with pytest.raises(SelectionError, match=message):
            read_skip_rules(path)
