"""A tool is one file: put into a folder of OP_TOOLS_PATH it is everywhere that tools are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from forked_python import run_python as run_forked

from op_tools import registry
from op_tools.registry import BadTool

SIGN_CHANGES = '''
"""OpSignChanges: finds calls whose result is negative."""

import dataclasses

from dicore.settings import setting
from op_tools import describe
from op_tools.settings import ToolSettings
from op_tools.tool import Tool


@dataclasses.dataclass(frozen=True)
class SignSettings(ToolSettings):
    least: float = setting(0.0, "OP_SIGN_LEAST", float, "values below this are wrong")


class OpSign(Tool):
    section = "sign_check"
    command_name = "sign"
    feature = "check_sign"
    hook_name = "OpSignHook"
    schema = SignSettings
    result_folder = "op_sign_result"
    result_file = "op_sign_info"
    columns = ("forward_id", "name", "verdict", "reason", "call_site")
    report_section = "findings"
    judges = True

    def after(self, call, result):
        lowest = result.min().item()
        verdict = "pass" if lowest >= self.settings.least else "fail"
        row = {"verdict": verdict, "reason": f"lowest value {lowest}", "input": describe.brief_call(call.args, call.kwargs)}
        self.open_results().append({**self.row_of(call), **row})

    def closed(self):
        if self.results is not None:
            self.say(f"sign: {self.results.count} calls")
            self.results.close()
            self.results = None
'''

SCRIPT = """
import torch
x = torch.ones(4, device="cuda")
torch.neg(x)
torch.abs(x)
"""

IN_ONE_PROCESS = """
import contextlib, io, json, sys
import torch, torch_dipu, op_tools
from _ditorch import configuration, gates, run, run_tools
from op_tools.report.collect import collect

x = torch.ones(4, device="dipu")
with op_tools.apply_feature(["torch.neg"], "check_sign", least=-2.0), contextlib.redirect_stdout(io.StringIO()):
    torch.neg(x), torch.abs(x)
rows = list(op_tools.open_run("op_tools_results").rows("sign_check"))
summary = collect(op_tools.open_run("results")).summary()
print(json.dumps({
    "help": run._usage(),
    "config": [entry.variable for entry in configuration.read_all().entries if entry.group == "sign_check"],
    "file": configuration.example(),
    "feature": [(row["name"], row["verdict"]) for row in rows],
    "gate": gates.parse_gate("sign").tool,
    "attribute": op_tools.OpSign.section,
    "report": {key: summary[key] for key in ("state", "wrong", "compared", "first", "findings")},
}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sign.py").write_text(SIGN_CHANGES)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path / "mine"


@pytest.mark.device
def test_a_tool_in_one_file_is_everywhere(
    folder: Path, tmp_path: Path, run_python: Callable[..., str]
) -> None:
    words = ["run", "--gate", "sign", "--results", "results", "--set", "sign.least=-0.5", "script.py"]
    run = f"import sys\nsys.argv = ['ditorch', *{words!r}]\nfrom _ditorch.cli import app\napp()\n"
    told = run_forked("-c", run, cwd=tmp_path, env=_environment(folder))
    assert told.returncode == 1, told.stderr
    assert "sign: 2 calls" in told.stdout
    assert "gate sign failed: 1 finding" in told.stderr
    assert "torch.neg is wrong: lowest value -1.0, step 0" in told.stderr

    found = json.loads(run_python(IN_ONE_PROCESS, OP_TOOLS_PATH=str(folder)).splitlines()[-1])
    assert "layers, memory, sign; may be repeated" in " ".join(found["help"].split())
    assert "memory=SIZE, sign (such as" in " ".join(found["help"].split())
    assert found["config"] == ["OP_SIGN_LEAST"]
    assert (
        "[op_tools.sign_check]\n# values below this are wrong (OP_SIGN_LEAST)\nleast = 0.0\n" in found["file"]
    )
    assert found["feature"] == [["torch.neg", "pass"]]
    assert (found["gate"], found["attribute"]) == ("sign", "sign_check")
    report = found["report"]
    assert (report["state"], report["wrong"], report["compared"]) == ("wrong", 1, 2)
    assert (report["first"]["tool"], report["first"]["operator"]) == ("sign_check", "torch.neg")
    assert report["findings"]["sign_check"]["counts"] == [["fail", 1], ["pass", 1]]


def _environment(folder: Path) -> dict[str, str]:
    import os

    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OP_", "DIPU_", "DITORCH_"))
    }
    return {**kept, "OP_TOOLS_PATH": str(folder), "OMP_NUM_THREADS": "1"}


def test_the_tools_of_this_package_say_all_that_others_read() -> None:
    found = registry.by_section()
    assert list(found) == [
        "autocompare", "sentinel", "overflow_check", "time_measure", "capture", "observe", "fallback", "dtype_cast", "layers",
        "memory",
    ]  # fmt: skip
    assert {section for section, tool in found.items() if tool.judges} == {
        "autocompare",
        "sentinel",
        "overflow_check",
        "memory",
    }
    assert {tool.feature for tool in found.values()} - {""} == {
        "fallback", "autocompare", "measure_op_time", "dump_op_args", "cast_dtype", "op_capture", "overflow_check",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module\n", "the tool broken cannot be imported: ModuleNotFoundError"),
        (
            "from op_tools.tool import Tool\nclass Mine(Tool):\n    section = 'mine'\n    command_name = 'time'\n",
            "have the same command_name, 'time'",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, run_python: Callable[..., str], text: str, said: str
) -> None:
    (tmp_path / "broken.py").write_text(text)
    out = run_python(
        """
        from op_tools import registry
        try:
            registry.tools()
        except registry.BadTool as error:
            print(error)
        """,
        OP_TOOLS_PATH=str(tmp_path),
    )
    assert said in out and BadTool.__name__ == "BadTool"
