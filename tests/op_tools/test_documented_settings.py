"""The guide to the tools names every setting, default and column there is, in both languages, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dicore.settings import Variable, variables_of
from op_tools import registry
from op_tools.replay import summary
from op_tools.settings import NATIVE, PATH, RUN_ID, TOLERANCE, ToolSettings
from op_tools.verdict.tolerance import DEFAULTS

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDES = ("docs/op_tools.md", "docs/op_tools.zh-CN.md")
STORIES = ("docs/wrong_loss.md", "docs/wrong_loss.zh-CN.md")
UNSET = {"no limit", "all", "empty", RUN_ID.unset, "不限", "全部", "空", "由启动器的变量生成"}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def schemas() -> list[type[ToolSettings]]:
    found = [tool.schema for tool in registry.tools()]
    assert len(found) == len(set(found)) == 10
    return [ToolSettings, *found]


def settings() -> dict[str, tuple[str, Variable]]:
    of_tools = {v.name: (name, v) for schema in schemas() for name, v in variables_of(schema).items()}
    return of_tools | {v.name: ("", v) for v in (PATH, RUN_ID, NATIVE)}  # which no argument sets


def rows(guide: str) -> dict[str, list[str]]:
    """The table of settings: variable, then its other cells."""
    lines = [line for line in text(guide).splitlines() if re.match(r"\| `OP_[A-Z_]+` \|", line)]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert len({row[0] for row in cells}) == len(cells), "each variable once"
    return {row[0].strip("` "): row[1:] for row in cells}


@pytest.mark.parametrize("guide", GUIDES)
def test_every_setting_is_in_the_guide_and_the_guide_names_no_other(guide: str) -> None:
    assert set(rows(guide)) == set(settings())
    # Beside the settings of tools: the setting of the tool that is shown as an example.
    known = {*settings(), "OP_SIGN_LEAST"}
    assert set(re.findall(r"\bOP_(?!DTYPE_CAST_DICT)[A-Z_]+[A-Z]\b", text(guide))) <= known


@pytest.mark.parametrize("guide", GUIDES)
def test_arguments_and_defaults_are_those_of_the_code(guide: str) -> None:
    for variable, (default, _meaning, argument) in rows(guide).items():
        name, declared = settings()[variable]
        assert argument.strip("` ") in ([name] if name else ["none", "无"]), variable
        if default in UNSET:
            assert declared.default in ("", None), variable
        else:
            assert declared.parse(default.strip("`")) == declared.default, variable


@pytest.mark.parametrize("guide", GUIDES)
def test_tolerances_are_those_of_the_code(guide: str) -> None:
    line = next(line for line in text(guide).splitlines() if line.startswith(f"| `{TOLERANCE.name}_"))
    shown = {name.lower(): float(value) for name, value in re.findall(r"(FLOAT\d+|BFLOAT16) `([^`]+)`", line)}
    assert shown == {str(dtype).removeprefix("torch."): value for dtype, value in DEFAULTS.items()}


@pytest.mark.parametrize("guide", GUIDES)
def test_tools_features_and_columns_are_those_of_the_code(guide: str) -> None:
    tools = {tool.feature: tool.__name__ for tool in registry.tools() if tool.feature}
    named = re.findall(r"^\| `(Op\w+)` \|.*\| `(\w+)` \|$", text(guide), re.M)
    assert {feature: tool for tool, feature in named} == tools
    for tool in registry.tools():
        if tool.result_folder and tool.__name__ != "OpCapture":
            line = next(
                line for line in text(guide).splitlines() if line.startswith(f"| `{tool.result_folder}/")
            )
            assert line.split(" | ")[1].strip("| ").replace(" (ms)", "").split(", ") == list(tool.columns)


@pytest.mark.parametrize("guide", GUIDES)
def test_exit_codes_and_verdicts_are_those_of_the_code(guide: str) -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text(guide), re.M)}
    constants = ("SAME", "DIFFERS", "USAGE", "INTERNAL", "NOTHING_COMPARED", "INTERRUPTED")
    assert codes == {getattr(summary, name) for name in constants}
    verdicts = re.findall(r"^\| `(same|pass|lower_precision|fail|skipped)` \|", text(guide), re.M)
    assert verdicts == ["same", "pass", "lower_precision", "fail", "skipped"]


def _uncommented(block: str) -> str:
    """Comments of examples are in the language of the guide; headings are marks alone."""
    return re.sub(r" *#\s.*", "", block).replace("、", ", ")


@pytest.mark.parametrize("guides", [GUIDES, STORIES], ids=["op_tools", "wrong_loss"])
def test_both_languages_have_the_same_structure(guides: tuple[str, str]) -> None:
    english, chinese = map(text, guides)
    for pattern in (
        r"^(#+) ",
        r"```((?:sh|python|bash)\n.*?)```",
        r"^\| (`[^|]+`) \|",
        r"\]\((decisions/[^)]+)\)",
    ):
        flags = re.M | re.S if "```" in pattern else re.M
        found = [[_uncommented(item) for item in re.findall(pattern, it, flags)] for it in (english, chinese)]
        assert found[0] == found[1], pattern
    assert english.count("\n- ") == chinese.count("\n- ")
    assert english.count("\n|") == chinese.count("\n|")


def test_examples_in_the_guide_are_valid_python() -> None:
    blocks = re.findall(r"```python\n(.*?)```", text(GUIDES[0]) + text(STORIES[0]), re.S)
    assert len(blocks) == 8
    for block in blocks:
        ast.parse(block)
