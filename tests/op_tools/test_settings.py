"""Settings: argument, environment, file, default; and lists that say what is wrong with them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import op_tools
from dicore.settings import SettingError, flag, one_of, read, setting, size
from op_tools.settings import NameFilter, ToolSettings


@dataclasses.dataclass(frozen=True)
class Some(ToolSettings):
    list: str = setting(".*", "OP_SOME_LIST")
    disable_list: str = setting("", "OP_SOME_DISABLE_LIST")
    count: int = setting(3, "OP_SOME_COUNT", int)
    fast: bool = setting(False, "OP_SOME_FAST", flag)


def test_argument_then_environment_then_file_then_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, sources = read(Some, "op_tools.some", {})
    assert values.count == 3 and sources["count"].origin == "default"
    (tmp_path / "pyproject.toml").write_text(
        "[tool.ditorch.op_tools]\nverbose = true\n[tool.ditorch.op_tools.some]\ncount = 4\n"
    )
    values, sources = read(Some, "op_tools.some", {})
    assert (values.count, values.verbose) == (4, True) and sources["count"].origin.endswith("pyproject.toml")
    (tmp_path / "ditorch.toml").write_text(
        '[op_tools.some]\ncount = 5\nlist = ["torch.add", "torch.mul"]\nfast = true\n'
    )
    values, sources = read(Some, "op_tools.some", {})
    assert (values.count, values.list, values.fast) == (5, "torch.add,torch.mul", True)
    monkeypatch.setenv("OP_SOME_COUNT", "6")
    values, sources = read(Some, "op_tools.some", {})
    assert values.count == 6 and sources["count"].origin == "environment variable OP_SOME_COUNT"
    values, sources = read(Some, "op_tools.some", {"count": 7, "fast": None})
    assert values.count == 7 and sources["count"].origin == "argument" and values.fast is True


def test_every_promised_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = {"CAPTURE": "OpCapture", "AUTOCOMPARE": "OpAutoCompare", "FALLBACK": "OpFallback", "DTYPE_CAST": "OpDtypeCast",
             "TIME_MEASURE": "OpTimeMeasure", "OBSERVE": "OpObserve", "OVERFLOW_CHECK": "OpOverflowCheck"}  # fmt: skip
    for word, name in tools.items():
        monkeypatch.setenv(f"OP_{word}_LIST", " torch.add , torch.nn.functional.*")
        monkeypatch.setenv(f"OP_{word}_DISABLE_LIST", "torch.nn.functional.relu")
        names = getattr(op_tools, name)().names
        assert names.match("torch.add") and names.match("torch.nn.functional.linear")
        assert (
            not names.match("torch.nn.functional.relu")
            and not names.match("torch.sub")
            and not names.match("torch.add_")
        )
    monkeypatch.setenv("OP_TOOLS_MAX_CACHE_SIZE", "17")
    monkeypatch.setenv("OP_TOOLS_PRINT_STACK", "1")
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "yes")
    settings = op_tools.OpObserve().settings
    assert (settings.max_cache_size, settings.print_stack, settings.verbose) == (17, True, True)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("OP_OBSERVE_LIST", "*add*", r"OP_OBSERVE_LIST.*'\*add\*'.*\.\*add\.\*"),
        ("OP_OBSERVE_DISABLE_LIST", "torch.add,(", "OP_OBSERVE_DISABLE_LIST.*pattern"),
        ("OP_TOOLS_VERBOSE", "perhaps", "OP_TOOLS_VERBOSE.*1 or 0.*perhaps"),
        ("OP_TOOLS_MAX_CACHE_SIZE", "many", "OP_TOOLS_MAX_CACHE_SIZE.*many"),
    ],
)
def test_a_bad_value_names_its_variable_and_what_is_expected(
    variable: str, value: str, words: str, monkeypatch: Any
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=words):
        op_tools.OpObserve()


def test_a_bad_file_and_an_unknown_argument_are_clear(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"unknown setting 'lists'\. Did you mean 'list'\? Known are: verbose"
    ):
        op_tools.OpObserve(lists="torch.add")
    (tmp_path / "ditorch.toml").write_text("[op_tools\n")
    with pytest.raises(SettingError, match=r"ditorch\.toml cannot be read"):
        op_tools.OpObserve()
    (tmp_path / "ditorch.toml").write_text('[op_tools.observe]\nverbose = "maybe"\n')
    with pytest.raises(SettingError, match=r"verbose in .*ditorch\.toml.*maybe"):
        op_tools.OpObserve()


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("ditorch.toml", "op_tools = 3", "op_tools must be a table, got 3"),
        ("ditorch.toml", "op_tools = 0", "op_tools must be a table, got 0"),
        ("ditorch.toml", "[[op_tools]]\nverbose = true", "op_tools must be a table, got "),
        ("ditorch.toml", "[op_tools]\nobserve = 5", r"op_tools\.observe must be a table, got 5"),
        ("ditorch.toml", "[[op_tools.observe]]\nverbose = true", r"op_tools\.observe must be a table"),
        ("pyproject.toml", "[tool]\nditorch = 3", r"tool\.ditorch must be a table, got 3"),
        ("pyproject.toml", "tool = []", r"tool must be a table, got \[\]"),
    ],
)
def test_a_file_of_the_wrong_shape_is_clear(file: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(SettingError, match=rf"{file}: {words}"):
        op_tools.OpObserve()
    if "observe" in text:  # of another tool
        assert op_tools.OpCapture().settings.verbose is False


CHOICES = [
    ("OpCapture", "level", "OP_CAPTURE_LEVEL", "api or aten"),
    ("OpCapture", "store", "OP_CAPTURE_STORE", "files or blobs"),
    ("OpObserve", "level", "OP_OBSERVE_LEVEL", "api or aten"),
    ("OpTimeMeasure", "level", "OP_TIME_MEASURE_LEVEL", "api or aten"),
    ("OpOverflowCheck", "level", "OP_OVERFLOW_CHECK_LEVEL", "api or aten"),
    ("OpAutoCompare", "mode", "OP_AUTOCOMPARE_MODE", "one of every, sampled, changed"),
]


@pytest.mark.parametrize(("tool", "name", "variable", "choices"), CHOICES)
def test_a_choice_that_there_is_not_is_refused(
    tool: str, name: str, variable: str, choices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = getattr(op_tools, tool)
    word = choices.rsplit(maxsplit=1)[-1]
    assert getattr(make(**{name: word}).settings, name) == word
    with pytest.raises(SettingError, match=f"argument {name}: expected {choices}, got 'foo'"):
        make(**{name: "foo"})
    monkeypatch.setenv(variable, "foo")
    with pytest.raises(SettingError, match=f"{variable}: expected {choices}, got 'foo'"):
        make()
    monkeypatch.setenv(variable, f" {word.upper()} ")
    assert getattr(make().settings, name) == word
    with pytest.raises(ValueError, match="expected a or b, got 'c'"):
        one_of("a", "b")("c")


def test_lists_match_whole_names_and_alternatives_stay_apart() -> None:
    names = NameFilter("torch.add|torch.sub, torch.Tensor.m.*", "")
    assert (
        names.match("torch.sub") and names.match("torch.Tensor.mul") and not names.match("torch.Tensor.add")
    )
    assert not names.match("torch.subtract") and NameFilter("", "").match("torch.add") is False
    assert NameFilter(".*", "torch.add").match("aten.add.Tensor", "torch.add") is False
    assert NameFilter("torch.add").match("aten.add.Tensor", "torch.add") is True
    assert NameFilter("torch.rand , a.*").names_exactly("torch.rand") and not NameFilter("a.*").names_exactly(
        "abc"
    )
    assert NameFilter(".*", " torch.add , b.*").excludes("torch.add") and not NameFilter(".*").excludes(
        "torch.add"
    )


def test_flags_and_sizes() -> None:
    assert [flag(word) for word in ("1", "On", "true", "0", "no", "", " off ")] == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert [size(text) for text in ("10", "4K", "1.5 M", "2GiB", "3gb")] == [
        10,
        4096,
        1572864,
        2 << 30,
        3 << 30,
    ]
    with pytest.raises(ValueError, match="64K"):
        size("ten")
