"""The guide from a wrong loss to the operator: its commands have the options it shows, and its story runs."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from forked_python import run_python
from typer.testing import CliRunner

from op_tools.cli import app

pytestmark = pytest.mark.device

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = (ROOT / "docs" / "wrong_loss.md").read_text(encoding="utf-8")
LLAMA = Path(__file__).with_name("small_llama.py")


def commands() -> list[list[str]]:
    """The words of every command of op-tools in the guide's examples."""
    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", GUIDE, re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line for line in words if line[:1] == ["op-tools"]]


def test_commands_of_the_guide_have_the_options_it_shows() -> None:
    found = commands()
    assert {line[1] for line in found} == {
        "diff",
        "bisect",
        "reproduce",
        "report",
        "trace",
        "check",
        "replay",
    }
    helps = {
        name: CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).stdout
        for name in {line[1] for line in found}
    }
    for line in found:
        own = line[2:] if line[1] != "bisect" else line[2 : line.index("train.py")]
        for word in own:
            if word.startswith("-"):
                assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", helps[line[1]]), (line, word)
    for name, options in (("bisect", 10), ("diff", 7), ("reproduce", 7)):
        section = GUIDE[GUIDE.index(f"`op-tools {name}", GUIDE.index("## Run a program")) :]
        table = section[section.index("| Option |") :].split("\n\n")[0]
        shown = re.findall(r"`(--?[a-z][\w-]*)", table)
        assert len(shown) >= options, name
        assert [word for word in shown if word not in helps[name]] == [], name


def run(folder: Path, *words: str, expect: int = 0) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = run_python("-m", *words, cwd=folder, env=environment, timeout=200)
    assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tool(folder: Path, *words: str, expect: int = 0) -> str:
    previous = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(app, list(words))
    finally:
        os.chdir(previous)
    assert done.exit_code == expect, f"{words}: {done.exit_code}\n{done.output}"
    return done.stdout


@pytest.mark.slow
def test_the_story_from_a_wrong_loss_to_a_file_for_the_vendor(tmp_path: Path) -> None:
    """The commands in the order a person types them, each on what the one before left behind."""
    train = (str(LLAMA), "--steps", "2", "--wrong", "silu_backward")
    printed = run(tmp_path, "ditorch", "run", "--tool", "autocompare", "--tool", "memory", *train)
    assert "WRONG: aten.silu_backward.default" in printed and "op-tools report" in printed
    run(tmp_path, "ditorch", "run", "--tool", "time", *train)
    found = json.loads(tool(tmp_path, "report", "--json"))
    page = tmp_path / "op_tools_results" / "report.html"
    assert page.stat().st_size > 50_000 and "aten.silu_backward.default" in json.dumps(found)
    tool(tmp_path, "trace")
    events = json.loads((tmp_path / "op_tools_results" / "trace.json").read_text())["traceEvents"]
    assert any(event.get("name") == "torch.nn.functional.silu" for event in events)
    assert any(event["ph"] == "C" for event in events), "memory"
    tool(tmp_path, "check", "--save", "baseline.json", "op_tools_results")
    tool(tmp_path, "check", "baseline.json", "op_tools_results")
    reproduced = tool(tmp_path, "reproduce", "first", "--no-verify")
    assert "silu_backward" in reproduced
    script = run_python("repro.py", "--device", "dipu", cwd=tmp_path, timeout=100)
    assert script.returncode == 0, script.stdout  # this process's device has the right kernel
