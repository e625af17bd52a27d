"""`op-tools bisect` on real scripts: a wrong kernel is found by running the script again and again."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from captures import TOOLS
from forked_python import run_python as run_forked
from typer.testing import CliRunner
from wrong_kernels import WRONG, aten_name

from op_tools.bisect.readings import Reading
from op_tools.bisect.running import Runner
from op_tools.cli import app
from op_tools.runs import BadInput

pytestmark = pytest.mark.device

LLAMA = Path(__file__).with_name("small_llama.py")
HERE = str(LLAMA.parent)


def bisect(*words: str | Path) -> tuple[int, str]:
    """The exit code and what was printed. Bad input is raised, as the program's own main sees it."""
    done = CliRunner().invoke(app, ["bisect", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """A script on the device; its wrong kernels are those of wrong_kernels."""

    def write(code: str) -> Path:
        file = tmp_path / "train.py"
        head = f"import sys\nsys.path.append({HERE!r})\nimport torch\n"
        file.write_text(head + textwrap.dedent(code))
        return file

    return write


@pytest.fixture
def runs_start_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a search begin with torch loaded. Other tests start them as users do."""

    def execute(self: Runner, folder: Path) -> tuple[int, bool]:
        code = "import sys\nfrom op_tools.bisect.driver import main\nmain(sys.argv[1])"
        environment = {**os.environ, "OP_TOOLS_RESULTS": str(folder / "results")}
        done = run_forked("-c", code, folder / "job.json", env=environment, preload=TOOLS)
        (folder / "stdout.txt").write_text(done.stdout)
        (folder / "stderr.txt").write_text(done.stderr)
        return done.returncode, True

    monkeypatch.setattr(Runner, "_execute", execute)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.usefixtures("runs_start_warm")
def test_a_wrong_kernel_in_training_is_found(wrong: str) -> None:
    code, printed = bisect("--json", LLAMA, "--layers", "1", "--steps", "2", "--wrong", wrong)
    answer: dict[str, Any] = json.loads(printed)
    assert code == answer["exit_code"] == 0
    assert answer["operators"] == [aten_name(wrong)]
    runs, seen = answer["runs"], answer["seen"]
    assert len(seen) > 30
    assert len(runs) <= math.log2(len(seen)) + 2
    bad, reference, last = runs[0]["result"], runs[1]["result"], runs[-1]
    assert len(reference) == 2 and bad != reference
    assert last["on_cpu"] == [aten_name(wrong)] and last["restored"]
    assert last["result"] == pytest.approx(reference, rel=2e-6)
    assert answer["command"].startswith(f"OP_FALLBACK_LIST={aten_name(wrong)} ditorch run --tool fallback ")


@pytest.mark.slow
@pytest.mark.usefixtures("runs_start_warm")
def test_the_first_run_and_the_answer_are_what_the_user_gets(run_python: Callable[..., str]) -> None:
    """The judging in the first run changes nothing, and OpFallback with the list found gives the reference."""
    words = (str(LLAMA), "--steps", "2", "--wrong", "silu")
    answer = json.loads(bisect("--json", *words)[1])
    run = """
        import sys, runpy, op_tools
        tool = op_tools.OpFallback() if sys.argv.pop(1) == "fallback" else op_tools.OpObserve(list="nothing")
        sys.argv = sys.argv[1:]
        with tool:
            runpy.run_path(sys.argv[0], run_name="__main__")
    """
    alone = Reading().read(run_python(run, "alone", *words))
    assert list(alone) == answer["runs"][0]["result"]
    listed = ",".join(answer["operators"])
    fixed = Reading().read(run_python(run, "fallback", *words, OP_FALLBACK_LIST=listed))
    assert list(fixed) == answer["runs"][-1]["result"] == answer["reference"]


@pytest.mark.slow
def test_two_wrong_kernels_in_a_script_run_as_python_would(
    script: Callable[[str], Path], tmp_path: Path
) -> None:
    """One in forward and one in backward; NaN until the first of them is on the CPU."""
    train = script(
        """
        import atexit, json, os, pickle
        from pathlib import Path
        import wrong_kernels
        wrong_kernels.WRONG.update(silu=lambda y: y.fill_(float("nan")), sigmoid_backward=lambda y: y.mul_(3))
        wrong_kernels.install("silu"), wrong_kernels.install("sigmoid_backward")

        class Own:
            pass

        def main():
            assert sys.argv == ["train.py", "--json", "a b"], sys.argv
            assert "sched" in sys.modules
            assert __file__ == os.path.abspath("train.py") and __name__ == "__main__" and __spec__ is None
            assert sys.path[0] == os.path.dirname(os.path.realpath(__file__)), sys.path
            assert type(pickle.loads(pickle.dumps(Own()))) is Own  # found by name in __main__
            x = torch.linspace(-2, 2, 8).to("dipu").requires_grad_()
            y = (torch.nn.functional.silu(x) + x.sigmoid() * 2).sum()
            y.backward()
            Path("numbers.json").write_text(json.dumps({"y": y.item(), "gradient": x.grad.tolist()}))
            atexit.register(lambda: print(Own.__name__, sys.modules["__main__"].main is main))

        if __name__ == "__main__":
            main()
        """
    )
    code, printed = bisect(
        "--import", "sched", "--result-file", "numbers.json", "--keep", "kept", train.name, "--json", "a b"
    )
    assert code == 0, printed
    assert re.search(r"\n2 of \d+ operators must run on the CPU to restore the result; \d runs:", printed)
    listed = printed.partition("export OP_FALLBACK_LIST=")[2].strip()
    assert set(listed.split(",")) == {"aten.sigmoid_backward.default", "aten.silu.default"}
    assert max(map(len, printed.split("\n\n")[0].splitlines())) <= 100
    assert (tmp_path / "kept/run-01/stdout.txt").read_text() == "Own True\n"


@pytest.mark.usefixtures("runs_start_warm")
def test_a_nan_loss_and_a_suspect_that_is_tried_at_once(script: Callable[[str], Path]) -> None:
    train = script(
        """
        import wrong_kernels
        wrong_kernels.WRONG["exp"] = lambda y: y.fill_(float("nan"))
        wrong_kernels.install("exp")
        print("Loss:", torch.ones(4, device="dipu").add(1).exp().mean().item())
        """
    )
    code, printed = bisect("--json", train)
    answer = json.loads(printed)
    assert (code, answer["operators"]) == (0, ["aten.exp.default"])
    assert [run["result"] for run in answer["runs"]] == [["nan"], *[[pytest.approx(math.exp(2))]] * 2]


@pytest.mark.usefixtures("runs_start_warm")
def test_a_fault_that_the_loss_does_not_show_is_named(script: Callable[[str], Path]) -> None:
    """What runs in backward comes after the only loss that is printed."""
    train = script(
        """
        import wrong_kernels
        wrong_kernels.WRONG["sigmoid_backward"] = lambda y: y.mul_(1.5)
        wrong_kernels.install("sigmoid_backward")
        x = torch.linspace(-2, 2, 64).to("dipu").requires_grad_()
        y = x.sigmoid().sum()
        print("loss", y.item())
        y.backward()
        """
    )
    code, printed = bisect(train)
    assert code == 0
    first, second = (printed.splitlines()[index] for index in (1, 2))
    assert first.startswith("  1  nothing")
    assert second.startswith("     judged wrong: aten.sigmoid_backward.default: 64 of 64 elements are off")
    assert "searched by verdict: the result is the same with every operator on the CPU" in printed
    assert "1 operator is judged wrong; 3 runs:\n    aten.sigmoid_backward.default\n" in printed
    assert "with aten.sigmoid_backward.default on the CPU no other operator is judged wrong" in printed
    assert f"at {train}:9 <module>: y = x.sigmoid().sum()" in " ".join(printed.split()), "of the forward call"
    assert max(map(len, printed.split("\n\n")[0].splitlines())) <= 100


@pytest.mark.usefixtures("runs_start_warm")
def test_a_random_operator_is_judged_by_its_distribution(script: Callable[[str], Path]) -> None:
    """Run on the CPU everything but the random operators is the same: no list restores anything."""
    train = script(
        """
        import torch_dipu
        def twice_as_often(x, p, train):
            kept = torch.rand(x.shape) > 2 * p
            return (x.cpu() * kept / (1 - p)).to("dipu"), kept.to("dipu")
        library = torch.library.Library("aten", "IMPL")
        library.impl("native_dropout", twice_as_often, "PrivateUse1", allow_override=True)
        torch.manual_seed(0)
        x = torch.ones(64, 64, device="dipu")
        print("loss", torch.nn.functional.dropout(x, 0.1).exp().mean().item())
        """
    )
    code, printed = bisect("--json", train)
    answer = json.loads(printed)
    assert (code, answer["by"], answer["operators"]) == (0, "verdict", [])
    assert answer["stays"] == ["aten.native_dropout.default"]


@pytest.mark.usefixtures("runs_start_warm")
def test_a_kernel_that_is_wrong_in_every_second_call_is_named_by_verdict(
    script: Callable[[str], Path],
) -> None:
    train = script(
        """
        import wrong_kernels
        calls = []
        wrong_kernels.WRONG["exp"] = lambda y: calls.append(0) or len(calls) % 2 or y.mul_(1 + 1e-4)
        wrong_kernels.install("exp")
        x = torch.linspace(-1, 1, 64).to("dipu")
        for _ in range(4):
            x.exp()
        print("loss", 1.0)
        """
    )
    code, printed = bisect(train)
    assert code == 0
    assert "1 operator is judged wrong; 4 runs:\n    aten.exp.default\n" in printed


CUDA_STYLE = """
import sys
sys.path.append({here!r})
import torch
import wrong_kernels
wrong_kernels.WRONG["exp"] = lambda y: y.mul_(2)
wrong_kernels.install("exp")
device = torch.device("cuda")
print("name", __name__, "package", __package__, "words", sys.argv[1:], file=sys.stderr)
print("loss", torch.ones(4).cuda().add(1).exp().to(device).mean().item())
"""


@pytest.mark.parametrize("as_module", [False, True])
@pytest.mark.usefixtures("runs_start_warm")
def test_a_script_written_for_cuda_needs_no_option(tmp_path: Path, as_module: bool) -> None:
    package = tmp_path / "model"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(CUDA_STYLE.format(here=HERE))
    words = ["-m", "model.train"] if as_module else ["model/train.py"]
    code, printed = bisect("--json", "--no-prior", "--keep", "kept", *words, "--lr", "1")
    answer = json.loads(printed)
    assert (code, answer["operators"]) == (0, ["aten.exp.default"])
    assert answer["command"].endswith(f"--tool fallback {' '.join(words)} --lr 1")
    said = (tmp_path / "kept/run-01/stderr.txt").read_text()
    name = "model" if as_module else "None"
    assert f"name __main__ package {name} words ['--lr', '1']" in said
    assert (tmp_path / "kept/run-01/stdout.txt").read_text().startswith("loss ")


def test_a_program_that_cannot_be_started_says_why(
    script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = script("print('loss', 1)")
    with pytest.raises(BadInput, match="module no_such_module was not found"):
        bisect("-m", "no_such_module")
    monkeypatch.setenv("DITORCH_DEVICE", "abacus")
    with pytest.raises(BadInput, match=r"abacus.* to run without it, give --no-ditorch"):
        bisect(train)
    with pytest.raises(BadInput, match=r"nothing to search|no operator ran"):
        bisect("--no-ditorch", "--no-prior", train)


@pytest.mark.usefixtures("runs_start_warm")
def test_a_kernel_that_ends_the_process_is_found(script: Callable[[str], Path]) -> None:
    train = script(
        """
        import os, wrong_kernels
        wrong_kernels.WRONG["exp"] = lambda y: os.abort()
        wrong_kernels.install("exp")
        x = torch.ones(4, device="dipu").add(1).exp().mul(2)
        sys.exit(0 if x.mean().item() > 0 else 1)
        """
    )
    code, printed = bisect("--exit-code", "--no-prior", train)
    assert code == 0
    assert "killed by SIGABRT" in printed
    assert "    aten.exp.default\n" in printed


@pytest.mark.usefixtures("runs_start_warm")
def test_a_right_device_leaves_nothing_to_search(script: Callable[[str], Path]) -> None:
    with pytest.raises(BadInput, match="the same with every operator on the CPU") as caught:
        bisect(script("print('loss', torch.rand(4).to('dipu').mul(0).exp().sum().item())"))
    assert caught.value.code == 5


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("raise ValueError('no data')", "fails too: exit code 1: ValueError: no data"),
        ("sys.exit(3)", r"fails too: exit code 3\."),
    ],
)
@pytest.mark.usefixtures("runs_start_warm")
def test_a_script_that_fails_either_way_is_not_an_operators_fault(
    script: Callable[[str], Path], last: str, message: str
) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        bisect("--no-prior", script(f"print('loss', torch.ones(2, device='dipu').sum().item())\n{last}"))
    assert caught.value.code == 5


@pytest.mark.usefixtures("runs_start_warm")
def test_a_pattern_that_matches_nothing_says_how_to_give_one(script: Callable[[str], Path]) -> None:
    with pytest.raises(BadInput, match=r"--result 'accuracy .*' matches no number.*--result-file") as caught:
        bisect("--result", "accuracy (.*)", script("print('loss 1')"))
    assert caught.value.code == 2


@pytest.fixture
def instead_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Runs end in a moment: a few words of shell stand for the interpreter and all it would do."""

    def put(words: str) -> None:
        stand_in = tmp_path / "stand_in"
        stand_in.write_text(f"#!/bin/sh\n{words}\n")
        stand_in.chmod(0o755)
        monkeypatch.setattr("op_tools.bisect.running.sys.executable", str(stand_in))

    return put


def test_a_run_that_takes_too_long_is_ended_with_all_it_started(
    script: Callable[[str], Path], instead_of_python: Callable[[str], None], tmp_path: Path
) -> None:
    instead_of_python("sleep 77.5 &\necho $! >> started\necho loss 1\nsleep 60")
    began = time.monotonic()
    with pytest.raises(BadInput, match=r"fails too: ended after --timeout 1 s"):
        bisect("--timeout", "1", script(""))
    assert 2 <= time.monotonic() - began < 30
    started = (tmp_path / "started").read_text().split()
    assert len(started) == 2
    commands = [Path("/proc", pid, "cmdline") for pid in started]
    deadline = time.monotonic() + 30  # who is killed may take a moment to die on a busy machine
    while any("sleep" in command.read_text() for command in commands if command.exists()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_result_file_from_before_is_no_result_of_the_run(
    script: Callable[[str], Path], instead_of_python: Callable[[str], None], tmp_path: Path
) -> None:
    runner = Runner(script(""), (), Reading(file=tmp_path / "numbers"), tmp_path / "runs")
    (tmp_path / "numbers").write_text("1.5")
    instead_of_python("exit 0")
    assert runner.run(()).result == ()
    instead_of_python("echo 2.5 > numbers")
    assert runner.run(()).result == (2.5,)
    instead_of_python("echo 3.5 > numbers; echo last words >&2; echo op_tools: of us >&2; exit 4")
    failed = runner.run(())
    assert (failed.result, failed.code, failed.problem) == ((), 4, "exit code 4: last words")
    instead_of_python("kill -SEGV $$")
    assert runner.run(()).problem == "killed by SIGSEGV"


def test_settings_of_the_user_reach_the_script_but_not_the_results_folder(
    script: Callable[[str], Path],
    instead_of_python: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path / "mine"))
    monkeypatch.setenv("MY_OWN", "passes through")
    instead_of_python('echo "$MY_OWN"; echo "$OP_TOOLS_RESULTS"; cat "$4"')
    Runner(script(""), ("--lr", "1"), Reading(), tmp_path / "runs").run(["aten.mm.default"])
    said, results, *job = (tmp_path / "runs/run-01/stdout.txt").read_text().splitlines()
    assert (said, results) == ("passes through", str(tmp_path / "runs/run-01/results"))
    told = json.loads("".join(job))
    assert (told["arguments"], told["fallback"], told["results"]) == (
        ["--lr", "1"],
        ["aten.mm.default"],
        None,
    )


def test_control_c_ends_the_run_and_tells_what_is_known(
    script: Callable[[str], Path], tmp_path: Path
) -> None:
    train = script("from pathlib import Path\nPath('began').touch()\nimport time\ntime.sleep(100)")
    command = [sys.executable, "-m", "op_tools.cli", "bisect", "--no-prior", str(train)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(600):
            if (tmp_path / "began").exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "interrupted after 0 runs" in said
    assert "Traceback" not in said
    assert printed.startswith("run  on the CPU")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian.py"], r"trian.py does not exist\. .* Did you mean train.py\?"),
        (["."], "is not a file"),
        (["broken.py"], r"broken.py is not a Python script: .*line 1"),
        (["--result", "a", "--exit-code", "train.py"], "Give one of them"),
        (["--result", "(", "train.py"], "not a valid pattern"),
        (["--expect", "none", "train.py"], "--expect 'none' holds no result"),
        (["--expect", "1", "--expect-file", "train.py", "train.py"], "Give one of them"),
        (["--expect-file", "missing", "train.py"], "--expect-file missing does not exist"),
        (["--by", "verdicts", "train.py"], "--by verdicts: expected loss or verdict. Did you mean 'verdict'"),
        (["--by", "verdict", "--no-prior", "train.py"], "Give one of them"),
        (["--expect", "1", "--exit-code", "train.py"], "has no meaning beside it"),
        (["--import", "nowhere.at.all", "train.py"], "--import nowhere.at.all: there is no such module"),
        (["--keep", "train.py", "train.py"], "--keep train.py is not a folder"),
    ],
)
def test_bad_input_is_said_before_anything_runs(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "train.py").write_text("print('loss 1')\n")
    (tmp_path / "broken.py").write_text("not Python at all\n")
    with pytest.raises(BadInput, match=message) as caught:
        bisect(*words)
    assert caught.value.code == 2


def test_scripts_of_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("print('loss 1')\n")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(BadInput, match="WORLD_SIZE is 4, but bisect runs scripts of one process only"):
        bisect("train.py")
    assert os.listdir(tmp_path) == ["train.py"]
