"""The example of the README: it runs, finds the fault, and prints what the README shows."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from forked_python import run_python
from printed import STAMP

pytestmark = pytest.mark.device

ROOT = Path(__file__).resolve().parent.parent.parent


def run(folder: Path, *command: str, expect: int = 0) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OP_", "DIPU_"))}
    done = run_python(*command, cwd=folder, env={**environment, "OMP_NUM_THREADS": "1"}, timeout=120)
    assert done.returncode == expect, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("example")


@pytest.fixture(scope="module")
def output(folder: Path) -> str:
    return run(folder, str(ROOT / "examples" / "find_wrong_operator.py"))


def test_the_fault_is_found_and_taken_out_of_the_way(output: str) -> None:
    right, wrong, mended = (float(loss) for loss in re.findall(r"^loss on .*: +(\d\.\d{6})", output, re.M))
    assert wrong > 2 * right
    assert mended == pytest.approx(right, rel=1e-3)
    named = re.findall(
        r"^op_tools: WRONG: (\S+ \w+)( in the backward of torch\.nn\.functional\.gelu)?$", output, re.M
    )
    assert [name for name, _ in named] == [
        "aten.gelu_backward.default output",
        "torch.nn.functional.gelu grad",
    ]
    places = re.findall(
        r"^    at \S+/find_wrong_operator\.py:\d+ forward: hidden = F\.gelu\(self\.up\(x\)\)$", output, re.M
    )
    assert len(places) == 2


def test_the_readme_shows_what_is_printed(output: str) -> None:
    def masked(text: str) -> str:
        text = re.sub(r"at \S+/examples/", "at EXAMPLES/", text)
        text = re.sub(rf"pid\d+_{STAMP}", "PID_TIME", text)
        return re.sub(r"-?\d+\.\d+(e[+-]?\d+)?|element \d+", "NUMBER", text)

    for readme in ("README.md", "README.zh-CN.md"):
        shown = re.search(
            r"examples/find_wrong_operator\.py\n```\n\n```text\n(.*?)```", (ROOT / readme).read_text(), re.S
        )
        assert shown is not None
        assert masked(shown[1]) == masked(output)
        assert max(map(len, shown[1].splitlines())) <= 100


def test_what_the_readme_says_to_do_next(output: str, folder: Path) -> None:
    """The commands that stand after the example, in their order, in the folder it was run in."""
    after = (ROOT / "README.md").read_text().partition("examples/find_wrong_operator.py\n")[2]
    commands = [
        line.split() for line in re.findall(r"^(?:\S*/)?(op-tools (?:report|reproduce) ?\S*)$", after, re.M)
    ]
    assert commands == [["op-tools", "report"], ["op-tools", "reproduce", "first"]]
    said = [run(folder, str(Path(sys.executable).with_name(name)), *words) for name, *words in commands]
    assert "2 of 18" in said[0] and list(folder.rglob("*.html"))
    assert "aten.gelu_backward.default" in said[1] and "passes on the CPU" in said[1]
    # The file is right on the CPU, as the command says, and shows the fault to nobody who has not its kernel.
    assert run(folder, "repro.py")
