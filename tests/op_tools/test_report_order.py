"""What a reader of the report meets first: true titles, a timeline with bars, one way to write numbers, no internal operators."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from op_tools.report import html_of, write_report
from op_tools.report.rows import figure, is_internal
from op_tools.runs import open_run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from headless_browser import Browser, chromium_path

pytestmark = [pytest.mark.unit, pytest.mark.xdist_group("report_page")]
in_a_browser = pytest.mark.skipif(
    chromium_path() is None, reason="no Chromium on the PATH: the page is not looked at"
)

QUESTION = "aten._has_compatible_shallow_copy_type.default"


@pytest.mark.parametrize(
    "operator",
    [
        QUESTION, "aten.detach.default", "aten.alias.default", "aten.sym_size.int", "aten.is_same_size.default",
        "aten.lift_fresh.default", "torch.Tensor.size", "torch.Tensor.shape.__get__", "torch.Tensor.dim",
    ],
)  # fmt: skip
def test_operators_that_compute_nothing(operator: str) -> None:
    assert is_internal(operator)


@pytest.mark.parametrize(
    "operator",
    [
        "aten.add.Tensor", "aten.mm.default", "aten.equal.default", "aten._local_scalar_dense.default", "aten.view.default",
        "aten.copy_.default", "torch.add", "torch.Tensor.__getitem__", "my.operator", "aten.no_such.default", "aten", "",
        "aten._foreach_add_.List", "torch.Tensor.T.__get__",
    ],
)  # fmt: skip
def test_operators_that_do(operator: str) -> None:
    assert not is_internal(operator)


def test_first_rows_in_a_notebook_are_not_internal(tmp_path: Path) -> None:
    rows = [runs.compared(number, QUESTION) for number in range(30)]
    rows += [runs.compared(30 + number, "torch.add") for number in range(5)]
    runs.write(tmp_path / "run", "op_autocompare_info", rows)
    text = html_of(tmp_path / "run")
    assert text.index("torch.add output") < text.index(QUESTION)
    assert text.count("torch.add output") == 5


NUMBERS = [
    7.0, 9999.0, 10000.0, 1234567.0, 0.5, 0.1234567, 12.34567, 999.96, 1234.5, 98765.4, 2.5e7, 0.00123456,
    0.000999, 1e-5, 3.16228e-12, 5e20, math.inf,
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


def opened(browser: Browser, folder: Path, rows: list[dict[str, Any]]) -> None:
    runs.write(folder / "run", "op_autocompare_info", rows)
    browser.open(write_report(open_run(folder / "run"), folder / "report.html").path)


def texts(browser: Browser, selector: str) -> list[str]:
    words = f"[...document.querySelectorAll({selector!r})].map(element => element.textContent)"
    found: list[str] = browser.evaluate(words)
    return found


@in_a_browser
def test_the_page_of_a_run_without_a_fault(browser: Browser, tmp_path: Path) -> None:
    rows = [runs.compared(number, QUESTION) for number in range(40)]
    rows += [runs.compared(100 + number, "torch.add", "pass", error_over_bound=0.25) for number in range(120)]
    opened(browser, tmp_path, rows)
    assert texts(browser, "#operators h2") == ["Operators nearest to their bound"]
    assert texts(browser, "[data-chart=steps] h3") == ["Values compared in each step"]
    assert texts(browser, "[data-chart=steps] .legend li") == ["compared values"]
    tips = texts(browser, "[data-chart=steps] .drawing g title")
    assert tips == [
        f"step {step}: {count} values compared, 0 wrong" for step, count in ((0, 40), (1, 100), (2, 20))
    ]
    heights = browser.evaluate(
        "[...document.querySelectorAll('[data-chart=steps] rect.bars')].map(bar => Number(bar.getAttribute('height')))"
    )
    assert len([height for height in heights if height > 5]) == 4, "three bars and the legend's"
    assert set(texts(browser, "#rows-body tr.row td:first-child")) == {"torch.add"}
    assert "wrong" not in " ".join(texts(browser, "h2, h3"))


@in_a_browser
def test_numbers_are_written_in_one_way_with_and_without_scripts(browser: Browser, tmp_path: Path) -> None:
    rows = [runs.compared(n, "torch.add", "pass", max_abs_diff=number) for n, number in enumerate(NUMBERS)]
    opened(browser, tmp_path, rows)
    column = texts(browser, "#rows-head th").index("Max abs diff") + 1
    shown = texts(browser, f"#rows-body tr.row td:nth-child({column})")
    assert shown == [figure(number) for number in NUMBERS]
    assert shown[:8] == ["7", "9,999", "10,000", "1.23e+6", "0.5", "0.1235", "12.35", "1000"]
    assert shown[8:] == [
        "1,235",
        "98,765",
        "2.50e+7",
        "0.001235",
        "9.99e-4",
        "1.00e-5",
        "3.16e-12",
        "5.00e+20",
        "∞",
    ]
    assert all(f"<td>{text}</td>" in html_of(tmp_path / "run") for text in shown)


@in_a_browser
def test_the_page_of_a_run_with_a_fault(browser: Browser, tmp_path: Path) -> None:
    rows = [runs.compared(number, QUESTION) for number in range(120)]
    rows += [runs.compared(150, "torch.silu", "fail")]
    opened(browser, tmp_path, rows)
    assert texts(browser, "#operators h2") == ["Worst operators"]
    assert texts(browser, "[data-chart=steps] h3") == [
        "Values compared in each step, and where something is wrong"
    ]
    assert texts(browser, "[data-chart=steps] .legend li") == ["compared values", "wrong value, NaN or Inf"]
    assert texts(browser, "#rows-body tr.row td:first-child")[0] == "torch.silu"
    facts = dict(zip(texts(browser, "#first dt"), texts(browser, "#first dd"), strict=True))
    (worst,) = texts(browser, "#operators tbody tr td:nth-child(5)")
    assert facts["Error / bound"] == worst == "160"
