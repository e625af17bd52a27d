"""Which labels are no finding: by name, by a device profile, whatever the label is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from op_tools.allowances import Allowances, BadAllowance, read_profile

pytestmark = pytest.mark.unit

TF32 = "lower precision than its dtype: behaves like TF32"


def row(
    name: str, verdict: str = "lower_precision", reason: str = TF32, device: str = "npu:0"
) -> dict[str, Any]:
    text = f"(float32[4, 4]@{device}, float32[4, 4]@{device})"
    return {"name": f"{name} output", "verdict": verdict, "reason": reason, "input": text}


@pytest.mark.parametrize("verdict", ["same", "pass", "skipped", "fail", "", None])
def test_what_is_right_wrong_or_not_judged_has_no_label(verdict: Any) -> None:
    assert Allowances().finding(row("aten.mm.default", verdict)) == ""


@pytest.mark.parametrize("label", ["lower_precision", "a_label_of_tomorrow"])
def test_any_label_is_a_finding_until_it_is_allowed(label: str) -> None:
    mine = row("aten.mm.default", label)
    assert Allowances().finding(mine) == label
    for text in ("aten.mm.default", "aten.*", ".*:tf32", "aten.mm.*:behaves like", label, f"{label}:TF32"):
        assert Allowances.of([text], []).finding(mine) == "", text
    for text in ("aten.mm", "aten.bmm.default", ".*:bfloat16", "aten.mm.default:half", "other_label"):
        assert Allowances.of([text], []).finding(mine) == label, text
    assert Allowances.of(["aten.bmm.default", "aten.mm.default"], []).finding(mine) == ""


def test_a_profile_declares_arithmetic_for_operators(tmp_path: Path) -> None:
    profile = tmp_path / "chip.toml"
    profile.write_text(
        '[[lower_precision]]\noperators = ["aten.mm.*", "torch.mm"]\narithmetic = "TF32"\nreason = "its matrix unit"\n'
        '[[lower_precision]]\noperators = ["aten.cumsum.*"]\n'
    )
    allowed = Allowances.of([], [str(profile)])
    assert allowed.finding(row("torch.mm")) == ""
    assert allowed.finding(row("aten.cumsum.default", reason="behaves like accumulation in bfloat16")) == ""
    assert allowed.finding(row("aten.mm.default", reason="values carry only bfloat16")) == "lower_precision"
    assert allowed.finding(row("aten.bmm.default")) == "lower_precision"
    assert allowed.finding(row("torch.mm", "a_label_of_tomorrow")) == "a_label_of_tomorrow"


def test_published_defaults_of_a_device_hold_for_that_device_only() -> None:
    convolution = row("torch.nn.functional.conv2d", device="cuda:0")
    assert Allowances().finding(convolution) == ""
    assert Allowances().finding(row("torch.nn.functional.conv2d")) == "lower_precision"
    assert Allowances().finding(row("torch.nn.functional.linear", device="cuda:0")) == "lower_precision"
    half = row("aten.mm.default", reason="behaves like accumulation in bfloat16", device="cuda:1")
    assert Allowances().finding(half) == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[lower_precision]\noperators = ['x']", r"expected \[\[lower_precision\]\]"),
        ("lower_precision = ['x']", r"expected \[\[lower_precision\]\]"),
        ("[[lower_precision]]\narithmetic = 'TF32'", "needs operators"),
        ("[[lower_precision]]\noperators = 'aten.mm'", "is not understood. The keys are: operators"),
        ("[[lower_precision]]\noperators = ['(']", "is not a valid pattern"),
        ("[[lower_precision]]\noperators = ['x']\nops = 1", "ops = 1 is not understood"),
        ("operators = [", "is no TOML"),
    ],
)
def test_a_bad_profile_says_what_was_expected(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "chip.toml").write_text(text)
    with pytest.raises(BadAllowance, match=told):
        read_profile(tmp_path / "chip.toml")
