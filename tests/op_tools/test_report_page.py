"""The report's page in a real browser: what a person sees, types and presses."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs
from forked_python import run_python

from op_tools.report import write_report
from op_tools.runs import open_run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from headless_browser import Browser, chromium_path

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(chromium_path() is None, reason="no Chromium on the PATH: the page is not looked at"),
    # One browser for all of them; spread over workers each would start its own.
    pytest.mark.xdist_group("report_page"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report(open_run(runs.write_run(folder / "run")), folder / "report.html").path


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(running: Browser, page: Path) -> Browser:
    """The page, freshly opened at 1280 pixels."""
    running.problems.clear()
    running.requests.clear()
    running.resize(1280, 900)
    running.colours(dark=False)
    running.open(page)
    return running


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(element => element.textContent)"
    )
    return found


def column(browser: Browser, key: str) -> list[str]:
    """The cells of a column of the table, on this page."""
    found: list[str] = browser.evaluate(
        f"""(() => {{
            const heads = [...document.querySelectorAll("#rows-head th button")].map(head => head.dataset.column);
            const place = heads.indexOf({key!r});
            return [...document.querySelectorAll("#rows-body tr.row")].map(row => row.children[place].textContent);
        }})()"""
    )
    return found


def set_filter(browser: Browser, name: str, value: str) -> None:
    browser.evaluate(
        f"""(() => {{
            const control = document.getElementById("filter-{name}");
            control.value = {value!r};
            control.dispatchEvent(new Event(control.tagName === "SELECT" ? "change" : "input"));
        }})()"""
    )


def focused(browser: Browser) -> str:
    return str(browser.evaluate("document.activeElement.id || document.activeElement.dataset.row || ''"))


# -- what is shown ---------------------------------------------------------------------------------------------


def test_it_opens_without_errors_and_asks_for_nothing(browser: Browser, page: Path) -> None:
    assert browser.problems == []
    assert browser.requests == [page.resolve().as_uri()]
    assert texts(browser, "h2")[:3] == ["First divergence", "First NaN or Inf", "Worst operators"]


def test_the_answers_agree_with_the_rows(browser: Browser) -> None:
    assert texts(browser, "#answer .sentence") == [
        "Something is wrong: 3 of 349 compared values are wrong, in 2 operators; 1 call made a NaN or Inf."
    ]
    assert texts(browser, "#answer .counts li") == [
        "3 fail", "1 NaN", "2 lower_precision", "174 pass", "170 same", "1 skipped",
    ]  # fmt: skip
    assert texts(browser, "#first .what") == ["torch.nn.functional.silu output fail"]
    assert texts(browser, "#first .why") == ["130 of 4096 elements are off"]
    assert texts(browser, "#first .source") == [
        "/home/someone/model.py:30 forward: y = torch.nn.functional.silu(x)"
    ]
    facts = dict(zip(texts(browser, "#first dt"), texts(browser, "#first dd"), strict=True))
    assert (facts["Step"], facts["Phase"], facts["Module"]) == ("1", "forward", "Model.layer1")
    assert (facts["Error / bound"], facts["Max abs diff"]) == ("140", "0.5")
    assert texts(browser, "#first-overflow .what") == ["aten.div.Tensor  NaN"]
    assert texts(browser, "#operators tbody td:first-child") == [
        "torch.nn.functional.silu", "torch.mm", "torch.add",
    ]  # fmt: skip
    assert texts(browser, "#time tbody tr:first-child td")[:4] == ["torch.add", "119", "119", "238"]
    assert texts(browser, "#rows-found") == ["471 of 471 rows"]


def test_the_timeline_has_a_bar_per_step_and_marks_where_it_is_wrong(browser: Browser) -> None:
    tips = texts(browser, "[data-chart=steps] .drawing g title")
    assert tips[:3] == ["step 0: 300 ms, 0 wrong", "step 1: 200 ms, 2 wrong", "step 2: 0 ms, 2 wrong"]
    marked = browser.evaluate(
        "[...document.querySelectorAll('[data-chart=steps] .drawing g')].map(g => g.querySelector('.mark-bad') !== null)"
    )
    assert marked == [False, True, True, False]
    assert browser.evaluate("document.querySelectorAll('[data-chart=memory] .drawing path.line').length") == 2


def test_the_link_of_the_first_divergence_opens_its_row(browser: Browser) -> None:
    browser.evaluate("document.querySelector('#first a.to-row').click()")
    assert focused(browser) == "130"
    assert texts(browser, "#page-number") == ["Page 1 of 5"], "what needs attention comes first"
    details = texts(browser, "tr.details dd[data-fact=reason]")
    assert details == ["130 of 4096 elements are off"]
    line = texts(browser, "tr.details .command code")
    assert line == ["ditorch run SCRIPT.py --tool capture --set capture.list=torch.nn.functional.silu"]


def test_the_line_that_captures_an_operator_captures_it(browser: Browser, tmp_path: Path) -> None:
    (line,) = texts(browser, "#first-overflow .command code")
    (tmp_path / "script.py").write_text(
        "import torch\nx = torch.ones(4, device='cuda')\n(x / x).sum().item()\n"
    )
    words = shlex.split(line.replace("SCRIPT.py", "script.py"))
    command = ["-m", *words]
    done = run_python(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    captured = list((tmp_path / "op_tools_results" / "op_capture_results").rglob("input.pth"))
    assert [path.parts[-5] for path in captured] == ["aten.div.Tensor"]


# -- filters, sorting, pages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "found", "shown"),
    [
        ("operator", "SILU", 2, {"operator": {"torch.nn.functional.silu"}}),
        ("verdict", "fail", 3, {"verdict": {"fail"}}),
        ("verdict", "attention", 6, {"verdict": {"fail", "NaN", "lower_precision"}}),
        ("step", "1", 120, {"step": {"1"}}),
        ("step", "2-3", 151, {"step": {"2"}}),
        ("tool", "time_measure", 120, {"tool": {"time_measure"}}),
        ("module", "layer2", 157, {"module": {"Model.layer2"}}),
        ("phase", "forward", 471, {}),
        ("level", "api", 470, {}),
        ("rank", "0", 471, {}),
        ("search", "131 of 4096", 1, {"operator": {"torch.mm"}}),
        ("search", "no such text", 0, {}),
    ],
)
def test_a_filter_narrows_to_the_right_rows(
    browser: Browser, name: str, value: str, found: int, shown: dict[str, set[str]]
) -> None:
    set_filter(browser, name, value)
    browser.wait(f"document.getElementById('rows-found').textContent === '{found} of 471 rows'")
    for key, values in shown.items():
        assert set(column(browser, key)) == values
    if not found:
        assert texts(browser, "#rows-body td") == ["No row fits the filters."]


def test_filters_go_together_and_are_reset(browser: Browser) -> None:
    browser.evaluate("document.querySelector('[data-verdict=fail]').click()")
    assert column(browser, "operator") == ["torch.nn.functional.silu", "torch.mm", "torch.nn.functional.silu"]
    set_filter(browser, "step", "2")
    browser.wait("document.getElementById('rows-found').textContent === '1 of 471 rows'")
    browser.evaluate("document.querySelector('.bar button').click()")
    assert texts(browser, "#rows-found") == ["471 of 471 rows"]
    assert browser.evaluate("document.getElementById('filter-verdict').value") == ""


def test_sorting_by_a_column(browser: Browser) -> None:
    def click() -> str:
        browser.evaluate("document.querySelector('#rows-head [data-column=error_over_bound]').click()")
        return str(
            browser.evaluate(
                "document.querySelector('#rows-head [data-column=error_over_bound]').parentElement.ariaSort"
            )
        )

    assert click() == "descending"
    assert column(browser, "error_over_bound")[:4] == ["260", "141", "140", ""]
    assert click() == "ascending"
    assert column(browser, "error_over_bound")[:4] == ["140", "141", "260", ""], (
        "rows without a number stay last"
    )
    assert click() == "none"
    browser.evaluate("document.querySelector('#rows-head [data-column=operator]').click()")
    assert column(browser, "operator")[0] == "aten.div.Tensor"


def test_pages(browser: Browser) -> None:
    assert len(column(browser, "operator")) == 100
    assert browser.evaluate("document.getElementById('previous').disabled") is True
    for _ in range(4):
        browser.evaluate("document.getElementById('next').click()")
    assert texts(browser, "#page-number") == ["Page 5 of 5"]
    assert len(column(browser, "operator")) == 71
    assert browser.evaluate("document.getElementById('next').disabled") is True


# -- the keyboard ----------------------------------------------------------------------------------------------


def test_everything_by_keyboard(browser: Browser) -> None:
    browser.press("/")
    assert focused(browser) == "filter-search"
    browser.type("silu")
    browser.wait("document.getElementById('rows-found').textContent.startsWith('2 of')")
    browser.press("Escape")
    assert focused(browser) == "130"
    browser.press("ArrowDown")
    assert focused(browser) == "250"
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.ariaExpanded") == "true"
    assert texts(browser, "tr.details dd[data-fact=reason]") == ["250 of 4096 elements are off"]
    browser.press("Enter")
    assert texts(browser, "tr.details") == []
    browser.press("ArrowUp")
    assert focused(browser) == "130"


def test_pages_by_keyboard(browser: Browser) -> None:
    # Six rows need attention and come first, four of them from the first 200.
    browser.evaluate("document.querySelector('#rows-body tr.row').focus()")
    browser.press("PageDown")
    assert (texts(browser, "#page-number"), focused(browser)) == (["Page 2 of 5"], "96")
    browser.press("ArrowRight")
    assert focused(browser) == "198"
    browser.press("PageUp", "ArrowLeft", "PageUp")
    first = texts(browser, "#rows-body tr.row:first-child td:nth-child(3)")
    assert (texts(browser, "#page-number"), first) == (["Page 1 of 5"], ["lower_precision"])


def test_tab_reaches_the_controls_and_the_focus_is_seen(browser: Browser) -> None:
    reached: list[Any] = []
    for _ in range(150):
        browser.press("Tab")
        reached.append(
            browser.evaluate(
                "[document.activeElement.id, document.activeElement.className, "
                "parseFloat(getComputedStyle(document.activeElement).outlineWidth)]"
            )
        )
        if reached[-1][0] == "filter-module":
            break
    names = [name for name, _, _ in reached]
    assert reached[0][1] == "skip"
    assert [name for name in names if name.startswith(("filter", "language"))] == [
        "language", "filter-search", "filter-operator", "filter-verdict", "filter-phase", "filter-level", "filter-step",
        "filter-rank", "filter-tool", "filter-module",
    ]  # fmt: skip
    assert all(width >= 1 for _, _, width in reached)


def test_controls_have_names(browser: Browser) -> None:
    nameless = browser.evaluate(
        """[...document.querySelectorAll("input, select, button")].filter(control =>
            !(control.labels?.[0]?.textContent.trim() || control.textContent.trim() || control.ariaLabel))
            .map(control => control.outerHTML)"""
    )
    assert nameless == []


# -- languages, colours, sizes ---------------------------------------------------------------------------------


def test_the_language_can_be_switched(browser: Browser) -> None:
    set_filter(browser, "verdict", "fail")
    browser.evaluate("document.getElementById('language').click()")
    assert browser.evaluate("document.documentElement.lang") == "zh-CN"
    assert texts(browser, "#answer .sentence") == [
        "有问题：比较的 349 个值中有 3 个错误，涉及 2 个算子；1 次调用产生了 NaN 或 Inf。"
    ]
    assert texts(browser, "#rows-found") == ["471 行中的 3 行"], "the filters stay"
    browser.evaluate("document.getElementById('language').click()")
    assert browser.evaluate("document.documentElement.lang") == "en"


def test_both_languages_have_every_word() -> None:
    import re

    import op_tools.report

    source = Path(op_tools.report.__file__).with_name("page").joinpath("words.js").read_text(encoding="utf-8")
    table = source.partition("const WORDS = {")[2].partition("};")[0]
    words = re.findall(r'([a-z_]+): \[\s*"([^"]*)",\s*"([^"]+)",?\s*\]', table)
    assert len(words) > 100 and len(words) == table.count(": [") == len({key for key, _, _ in words})
    slots = [[sorted(re.findall(r"\{\d\}", text)) for text in texts] for _, *texts in words]
    assert [pair for pair in slots if pair[0] != pair[1]] == []
    assert all(
        re.search(r"[\u4e00-\u9fff]", chinese)
        for key, english, chinese in words
        if english != chinese and key != "other"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_colours_follow_the_system_and_can_be_read(browser: Browser, dark: bool) -> None:
    browser.colours(dark=dark)
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
    browser.evaluate("document.querySelector('#first a.to-row').click()")
    found = browser.evaluate(_CONTRASTS)
    assert len(found) > 200
    assert [line for line in found if line["ratio"] < 4.5] == []


# The contrast of every element that shows text of its own with what lies behind it (WCAG 2).
_CONTRASTS = """(() => {
    const channels = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = element => {
        for (let here = element; here; here = here.parentElement) {
            const colour = channels(getComputedStyle(here).backgroundColor);
            if (colour.length === 3 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll("body *")].filter(element => element.checkVisibility()
        && !element.matches("script, option, datalist, :disabled") && !element.closest("noscript")
        && [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())).map(element => {
        const style = getComputedStyle(element);
        const own = channels(element instanceof SVGElement ? style.fill : style.color);
        const [bright, dim] = [light(own), light(behind(element))].sort((a, b) => b - a);
        return {what: element.tagName + "." + element.getAttribute("class"), ratio: (bright + 0.05) / (dim + 0.05)};
    });
})()"""


@pytest.mark.parametrize("width", [400, 320, 800])
def test_narrow_screens_scroll_tables_and_not_the_page(browser: Browser, width: int) -> None:
    browser.resize(width, 800)
    browser.evaluate("document.querySelector('#first a.to-row').click()")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    boxes = browser.evaluate(
        "[...document.querySelectorAll('.scroll')].map(box => [box.clientWidth, box.scrollWidth])"
    )
    assert all(own < width for own, _ in boxes)
    assert any(inside > own for own, inside in boxes)
    browser.wait(
        "document.querySelector('[data-chart=steps] svg').getBoundingClientRect().width < innerWidth"
    )


def test_print_leaves_out_the_controls(browser: Browser) -> None:
    browser.colours(dark=False, media="print")
    assert browser.evaluate("getComputedStyle(document.querySelector('.filters')).display") == "none"
    assert browser.evaluate("getComputedStyle(document.querySelector('#rows-scroll')).overflowX") == "visible"


# -- hostile texts ---------------------------------------------------------------------------------------------


def test_hostile_texts_are_shown_and_never_run(running: Browser, tmp_path: Path) -> None:
    rows = [
        runs.compared(
            number, f"torch.{kind}{text[:200].replace(' ', '')}", "fail", reason=text, module=text, error_info=text,
            call_site=text, level=text, phase=text,
        )
        for number, (kind, text) in enumerate(runs.HOSTILE.items())
    ]  # fmt: skip
    runs.write(tmp_path / "r", "op_autocompare_info", rows)
    born = [runs.row(9, text, kind=text, status="born") for text in runs.HOSTILE.values()]
    runs.write(tmp_path / "r", "op_overflow_check_info", born)
    path = write_report(open_run(tmp_path / "r"), tmp_path / "report.html", title=runs.HOSTILE["script"]).path
    running.problems.clear()
    running.requests.clear()
    running.resize(400, 800)
    running.colours(dark=False)
    running.open(path)
    running.evaluate("[...document.querySelectorAll('#rows-body tr.row')].forEach((_, place) => "
                     "document.querySelectorAll('#rows-body tr.row')[place].click())")  # fmt: skip
    assert running.evaluate("window.hacked === undefined")
    assert running.problems == []
    assert running.requests == [path.resolve().as_uri()]
    assert (
        running.evaluate("document.images.length + document.querySelectorAll('iframe, object').length") == 0
    )
    reasons = texts(running, "tr.details dd[data-fact=reason]")
    assert reasons[0] == runs.HOSTILE["script"]
    assert reasons[2] == runs.HOSTILE["image"]
    assert reasons[3] == runs.HOSTILE["quotes"]
    assert reasons[4].startswith("\\u202egnp.tfel-ot-thgir\\u202c"), "what turns the direction is written out"
    assert reasons[5] == runs.HOSTILE["emoji"]
    assert "\\u001b[31m" in reasons[6]
    assert len(reasons[7]) == 10_000
    assert running.evaluate("document.title") == runs.HOSTILE["script"]
    assert running.evaluate("document.documentElement.scrollWidth") <= 400


BARE = [{"name": "torch.add", "rank": None}, {"name": None, "verdict": "fail"}]
NOT_FINITE = runs.compared(1, verdict="fail", max_abs_diff=float("nan"), error_over_bound=float("inf"))
ONE_WRONG = "Something is wrong: 1 of 1 compared values are wrong, in 1 operator."
SUSPECT = "Something may be wrong: 1 call suspect, none proved wrong."
UNJUDGED = "Nothing was judged: the run has no comparison."
ODD_RUNS: dict[str, tuple[str, list[dict[str, Any]], str, int]] = {
    "only memory": ("process_memory_info", [{"time_s": 5.0, "host_rss_bytes": 1000}], UNJUDGED, 0),
    "only observed": ("op_observe_info", [runs.row(1)], UNJUDGED, 1),
    "only bare rows": ("op_autocompare_info", BARE, ONE_WRONG, 2),
    "suspect": ("op_diff_info", [runs.row(1, verdict="suspect")], SUSPECT, 1),
    "all right": ("op_autocompare_info", [runs.compared(1)], "Nothing is wrong: 1 compared value.", 1),
    "not finite": ("op_autocompare_info", [NOT_FINITE], ONE_WRONG, 1),
}


@pytest.mark.parametrize("kind", ODD_RUNS)
def test_odd_runs_are_shown_too(running: Browser, tmp_path: Path, kind: str) -> None:
    log, rows, sentence, count = ODD_RUNS[kind]
    runs.write(tmp_path / "r", log, rows)
    running.problems.clear()
    running.open(write_report(open_run(tmp_path / "r"), tmp_path / "report.html").path)
    running.evaluate("document.querySelector('#rows-body tr.row')?.click()")
    assert running.problems == []
    assert texts(running, "#answer .sentence") == [sentence]
    assert texts(running, "#rows-found") == [f"{count} of {count} rows"]
    if kind == "not finite":
        assert texts(running, "tr.details dd[data-fact=max_abs_diff]") == ["NaN"]
        assert texts(running, "tr.details dd[data-fact=error_over_bound]") == ["∞"]


def test_ranks_side_by_side(running: Browser, tmp_path: Path) -> None:
    """A cell a rank, tips that say what is wrong, a click that shows its rows, and what is odd about one of them."""
    for rank in range(12):
        rows = [runs.compared(n, verdict="fail" if rank == 5 and n % 2 else "same") for n in range(40)]
        if rank != 7:
            runs.write(tmp_path / "run", "op_autocompare_info", rows, rank=rank, world_size=12)
    running.problems.clear()
    running.resize(1280, 900)
    running.open(write_report(open_run(tmp_path / "run"), tmp_path / "report.html").path)
    tips = texts(running, "#ranks g.rank title")
    assert len(tips) == 12
    assert tips[5] == "rank 5, wrong values, NaN or Inf: 20 wrong of 40 compared, 0 NaN or Inf, last step 0"
    assert tips[7] == "rank 7: no log"
    assert tips[0].startswith("rank 0, nothing wrong: 0 wrong of 40 compared")
    assert "11 of 12 ranks have data." in texts(running, "#ranks p")
    assert texts(running, "#ranks [data-fact=lacks_missing]") == ["7"]
    (odd,) = texts(running, "#ranks tbody tr")
    assert odd == "5share of wrong valuestorch.add20 of 40 (50 %)0 of 400 (0 %)"
    assert texts(running, "#operators tbody tr td:nth-child(3)")[0] == "1 of 11"
    assert texts(running, "#operators tbody tr td:nth-child(4)")[0] == "5"
    running.evaluate("document.querySelector('g.rank[data-rank=\"3\"]').dispatchEvent(new Event('click'))")
    assert texts(running, "#rows-found") == ["40 of 440 rows"]
    assert running.problems == []


def test_a_browser_that_cannot_unpack_says_so(running: Browser, page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    start = text.index('id="rows">') + len('id="rows">')
    broken = tmp_path / "broken.html"
    broken.write_text(text[:start] + "AAAA" + text[start + 400 :], encoding="utf-8")
    running.open(broken)
    assert running.evaluate("document.documentElement.dataset.ready") == "no"
    assert texts(running, "#all-rows p")[0].startswith("The rows cannot be read in this browser:")
    assert texts(running, "#answer .sentence")[0].startswith("Something is wrong"), (
        "the answers are there anyway"
    )
