"""`ditorch run`: a program runs as Python would run it, with the tools on, and leaves as it would leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from forked_programs import run_commands
from forked_python import clean_environment

from _ditorch import run, run_tools
from _ditorch.gates import Gate, parse_gate
from dicore import main_module
from op_tools.runs import open_run

pytestmark = pytest.mark.device
HERE = Path(__file__).resolve().parent

FACTS = """
import json, sys
main = sys.modules["__main__"]
facts = {key: repr(value).split(" object at ")[0] for key, value in vars(main).items() if key.startswith("__")}
facts |= {"argv": sys.argv, "path": sys.path, "main": vars(main) is globals(), "name": __name__}
torch = sys.modules.get("torch")
facts["loaded"] = [name for name in ("typer", "rich", "op_tools", "prettytable") if name in sys.modules]
facts["modes"] = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack() if torch else 0
print(json.dumps(facts))
"""

# Ends as its first argument says, after some work on the device.
WORK = """
import sys
import torch

def work(x):
    return (x @ x).relu().sum()

x = torch.ones(4, 4, device="cuda", requires_grad=True)
work(x).backward()
print("device", x.device, sys.argv[1:])
how = sys.argv[1] if len(sys.argv) > 1 else ""
if how == "three":
    sys.exit(3)
if how == "text":
    sys.exit("farewell")
if how == "raise":
    work(torch.ones(2, 3, device="cuda"))
if how == "interrupt":
    raise KeyboardInterrupt
if how == "nan":
    torch.zeros(3, device="cuda") / torch.zeros(3, device="cuda")
if how == "terminate":
    import os, signal, time
    time.sleep(1.5)
    os.kill(os.getpid(), signal.SIGTERM)
if how == "thread":
    import threading, time
    threading.Thread(target=lambda: (time.sleep(0.3), torch.ones(2, device="cuda").exp())).start()
"""


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return name


def lines_of(folder: Path, results: str) -> int:
    """Rows in the CSV files of a tool."""
    return sum(len(path.read_text().splitlines()) - 1 for path in (folder / results).glob("*.csv"))


# -- the words of the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "tools", "target", "arguments"),
    [
        ("--tool time train.py --lr 0.1", ["time"], "train.py", "--lr 0.1"),
        ("train.py --tool time --lr 0.1 --tool x", ["time"], "train.py", "--lr 0.1 --tool x"),
        ("--tool=time train.py --tool overflow a --tool x", ["time", "overflow"], "train.py", "a --tool x"),
        ("train.py -- --tool x", [], "train.py", "--tool x"),
        ("train.py --tool time -- --tool x", ["time"], "train.py", "--tool x"),
        ("--tool time -- train.py --tool x", ["time"], "train.py", "--tool x"),
        ("-m pkg.mod --tool time,cast -m other", ["time", "cast"], "pkg.mod", "-m other"),
        ("train.py --help", [], "train.py", "--help"),
        ("train.py --strict --allow x", [], "train.py", "--strict --allow x"),
        ("train.py --gate autocompare --strict --allow x --lr 1 --strict", [], "train.py", "--lr 1 --strict"),
        ("train.py", [], "train.py", ""),
    ],
)
def test_whose_option_is_it(words: str, tools: list[str], target: str, arguments: str) -> None:
    given = run.parse(words.split())
    assert (given.tools, given.target) == (tools, target)
    assert given.arguments == arguments.split()
    assert given.module == words.startswith("-m")


def test_all_options_are_understood() -> None:
    words = "--results r --set time.top=3 --gate memory=1G --no-ditorch x.py --results=s"
    given = run.parse(words.split())
    assert (given.results, given.settings, given.gates) == ("s", ["time.top=3"], ["memory=1G"])
    assert given.mapping is False
    words = "--gate autocompare --strict --allow a,b x.py --allow=c --profile p.toml y"
    strict = run.parse(words.split())
    assert (strict.strict, strict.allow, strict.profiles) == (True, ["a", "b", "c"], ["p.toml"])
    assert (strict.target, strict.arguments) == ("x.py", ["y"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--tool autocompar x.py", "Did you mean 'autocompare'?"),
        ("--tol time x.py", "Did you mean '--tool'"),
        ("x.py --tool", "--tool needs a value"),
        ("--tool time", "no script to run"),
        ("--strict x.py", "it needs --gate autocompare or --gate sentinel beside it"),
        ("--gate overflow --strict x.py", "it needs --gate autocompare or --gate sentinel beside it"),
        ("--gate autocompare --allow aten.mm.default x.py", "give --strict too"),
        ("--gate autocompare --strict --allow :TF32 x.py", "names no operator"),
        ("--gate autocompare --strict --allow ( x.py", "is not a valid pattern"),
        ("--gate autocompare --strict --profile none.toml x.py", "none.toml cannot be read"),
        ("--tool time --set time.tip=1 x.py", "Did you mean 'top'?"),
        ("--tool time --set time.top=many x.py", "invalid literal"),
        ("--set time.top=3 x.py", "Add --tool time"),
        ("--tool time --set top=3 x.py", "expected tool.setting=value"),
        ("--gate overflo x.py", "Did you mean 'overflow'"),
        ("--gate memory=much x.py", "memory=8G"),
        ("--gate autocompare=3 x.py", "takes no value"),
        ("nowhere.py", "nowhere.py does not exist"),
        ("folder", "folder is a folder"),
        ("binary", "is not a Python program"),
        ("shell.sh", "is not a Python program (line 2"),
        ("-m no.such.module", "module no.such.module was not found"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_starts(
    words: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ditorch", "run"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(run_tools.RunningTools, "start", lambda self: pytest.fail("started"))
    write(tmp_path, "x.py", "pass")
    write(tmp_path, "shell.sh", "#!/bin/sh\nif true; then echo yes; fi\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    with pytest.raises(SystemExit) as ended:
        run.main(words.split())
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("ditorch run: ") and expected in printed


def test_names_of_sections_are_names_of_tools() -> None:
    for word, name in (("overflow_check", "overflow"), ("time_measure", "time"), ("dtype_cast", "cast")):
        assert run_tools.tool_named(word).command_name == name
    config = run_tools.RunConfig.of(["time", "time_measure"], "there", ["time_measure.top=3"])
    assert config.tools == (("time", (("results", os.path.abspath("there")), ("top", 3))),)
    assert parse_gate("overflow_check") == Gate("overflow")
    assert parse_gate("memory=2G") == Gate("memory", 2 * 2**30)


def test_the_tracebacks_lose_our_frames_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # preparing puts the script's folder in the first place
    prepared = main_module.prepare_script(str(tmp_path / write(tmp_path, "x.py", "def f():\n  1 / 0\nf()\n")))
    before = sys.modules["__main__"], sys.argv[:]
    try:
        with pytest.raises(ZeroDivisionError) as raised:
            prepared.run([])
    finally:
        sys.modules["__main__"], sys.argv[:] = before
    error = raised.value
    main_module.without_our_frames(error, prepared.code)
    trace, names = error.__traceback__, []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names == ["<module>", "f"]
    never_raised = ValueError("the cause")
    error.__cause__ = never_raised
    main_module.without_our_frames(error, prepared.code)
    assert never_raised.__traceback__ is None


# -- as Python would run it ----------------------------------------------------------------------------------


def test_a_program_finds_what_it_would_find_without_us(tmp_path: Path) -> None:
    write(tmp_path, "facts.py", FACTS)
    write(tmp_path, "package/__init__.py", "")
    write(tmp_path, "package/__main__.py", FACTS)
    write(tmp_path, "package/part.py", FACTS)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.py").symlink_to("../facts.py")
    programs = [
        ["facts.py", "--lr", "0.1", "-m"],
        ["elsewhere/link.py"],
        ["-m", "package.part", "a"],
        ["-m", "package"],
    ]
    ours = run_commands(tmp_path, *(["run", *words] for words in programs))
    for words, ended in zip(programs, ours, strict=True):
        command = [sys.executable, *words]
        plain = subprocess.run(
            command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=True
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert json.loads(ended.stdout) == json.loads(plain.stdout), words


def test_the_packages_of_a_module_are_part_of_the_program(tmp_path: Path) -> None:
    write(
        tmp_path,
        "work/__init__.py",
        "import sys, torch\nprint(sys.argv, (torch.ones(2, device='cuda') + 1).device)",
    )
    write(tmp_path, "work/train.py", "print(__name__)")
    write(tmp_path, "empty/__init__.py", "")
    write(tmp_path, "raises/__init__.py", "def f():\n    1 / 0\nf()")
    write(tmp_path, "raises/train.py", "print('never')")
    write(tmp_path, "needs/__init__.py", "import no_such_library")
    write(tmp_path, "needs/train.py", "print('never')")
    write(tmp_path, "leaves/__init__.py", "raise SystemExit(7)")
    write(tmp_path, "leaves/__main__.py", "print('never')")
    write(tmp_path, "spoilt/__init__.py", "x = (")
    write(tmp_path, "spoilt/train.py", "print('never')")
    work, without, raises, needs, leaves, spoilt, missing = run_commands(
        tmp_path,
        ["run", "--tool", "observe", "-m", "work.train", "--lr", "1"],
        ["run", "--tool", "time", "--results", "none", "-m", "empty"],
        ["run", "--tool", "time", "-m", "raises.train"],
        ["run", "-m", "needs.train"],
        ["run", "-m", "leaves"],
        ["run", "-m", "spoilt.train"],
        ["run", "-m", "empty.nothing"],
    )
    assert (work.returncode, work.stderr) == (0, "")
    assert "['-m', '--lr', '1'] dipu:0" in work.stdout and "__main__" in work.stdout.splitlines()
    assert lines_of(tmp_path, "op_tools_results/op_observe_result") == 1
    assert (without.returncode, without.stdout) == (2, "")
    assert "module empty.__main__ is a package without a __main__" in without.stderr
    assert raises.returncode == 1 and raises.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert raises.stderr.startswith(
        f'Traceback (most recent call last):\n  File "{tmp_path}/raises/__init__.py", line 3, in <module>\n'
    )
    assert "op elasped info saved to" in raises.stdout or "OpTimeMeasure" in raises.stdout
    assert needs.returncode == 1 and needs.stderr.count("  File ") == 1
    assert needs.stderr.endswith("ModuleNotFoundError: No module named 'no_such_library'\n")
    assert (leaves.returncode, leaves.stdout, leaves.stderr) == (7, "", "")
    assert spoilt.returncode == 1 and spoilt.stderr.startswith(
        f'  File "{tmp_path}/spoilt/__init__.py", line 1'
    )
    assert missing.returncode == 2 and "module empty.nothing was not found" in missing.stderr


def test_a_program_leaves_as_it_would_leave_without_us(tmp_path: Path) -> None:
    write(tmp_path, "work.py", WORK)
    write(tmp_path, "broken.py", "x = (\n")
    words = ("three", "text", "raise", "interrupt", "thread")
    tools = ["--tool", "time"]
    ended = run_commands(
        tmp_path,
        *(["run", *tools, "work.py", word] for word in words),
        ["run", "--tool", "observe", "--results", "killed", "work.py", "terminate"],
        ["run", "work.py", "three"],
        ["run", "broken.py"],
    )
    three, text, raised, interrupted, thread, terminated, without_tools, broken = ended
    assert (three.returncode, three.stderr) == (3, "")
    assert (text.returncode, text.stderr) == (1, "farewell\n")
    assert raised.returncode == 1
    assert raised.stderr.count("Traceback") == 1
    assert raised.stderr.startswith(
        f'Traceback (most recent call last):\n  File "{tmp_path}/work.py", line 17, in <module>'
    )
    assert "line 6, in work" in raised.stderr and "RuntimeError" in raised.stderr.splitlines()[-1]
    assert "ditorch/" not in raised.stderr and "op_tools/" not in raised.stderr
    assert interrupted.returncode == -2  # killed by SIGINT, which a shell shows as 130
    assert interrupted.stderr.endswith("KeyboardInterrupt\n")
    assert (thread.returncode, "torch.Tensor.exp" in thread.stdout) == (0, True)
    # The signal is the program's affair: it dies of it at once, and the rows of the log have reached the disk by then.
    assert terminated.returncode == -15
    assert [row["name"].rpartition(".")[2] for row in open_run(tmp_path / "killed").rows("observe")] == [
        "matmul", "relu", "sum",
    ]  # fmt: skip
    assert (without_tools.returncode, without_tools.stdout) == (3, "device dipu:0 ['three']\n")
    assert not without_tools.stderr
    assert broken.returncode == 1 and broken.stderr.startswith(f'  File "{tmp_path}/broken.py", line 1')
    for one in (three, text, raised, interrupted):  # every summary was printed, and where the rows are
        assert "op elasped info saved to" in one.stdout
        assert one.stdout.endswith("op-tools report op_tools_results\n")
    assert lines_of(tmp_path, "op_tools_results/op_time_measure_result") >= 10


def test_tools_before_and_after_the_script(tmp_path: Path) -> None:
    write(tmp_path, "work.py", WORK)
    before, after, several = run_commands(
        tmp_path,
        ["run", "--tool", "observe", "--results", "one", "work.py", "--lr"],
        ["run", "work.py", "--tool", "observe", "--results", "two", "--lr", "--tool", "x"],
        [
            "run",
            "--tool",
            "observe,overflow",
            "--results",
            "three",
            "--set",
            "observe.list=.*matmul",
            "work.py",
        ],
    )
    assert "device dipu:0 ['--lr']" in before.stdout
    assert "device dipu:0 ['--lr', '--tool', 'x']" in after.stdout
    assert lines_of(tmp_path, "one/op_observe_result") == lines_of(tmp_path, "two/op_observe_result") == 3
    assert lines_of(tmp_path, "three/op_observe_result") == 1
    assert "OpOverflowCheck checked" in several.stdout
    assert not (tmp_path / "op_tools_results").exists()
    assert [one.returncode for one in (before, after, several)] == [0, 0, 0]


def test_a_bad_setting_ends_it_before_the_script_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from op_tools.engine import ENGINE

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ditorch", "run"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("OP_TIME_MEASURE_LIST", "*add")
    monkeypatch.setattr(main_module.Program, "run", lambda self, arguments: pytest.fail("started"))
    write(tmp_path, "x.py", "pass")
    with pytest.raises(SystemExit) as ended:
        run.main(["--no-ditorch", "--tool", "observe,time", "x.py"])
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out, ENGINE.tools) == (2, "", ())
    assert "the tool time cannot be started" in printed.err and "'*add' is not a valid pattern" in printed.err


# -- gates ---------------------------------------------------------------------------------------------------

WRONG = """
import os, sys
os.chdir("/")
sys.path.insert(0, TOOLS)
import torch, wrong_kernels
wrong_kernels.install("silu")
for _ in range(7):
    torch.nn.functional.silu(torch.ones(64, device="cuda"))
"""


def test_gates(tmp_path: Path) -> None:
    write(tmp_path, "work.py", WORK)
    write(tmp_path, "wrong.py", WRONG.replace("TOOLS", repr(str(HERE.parent / "op_tools"))))
    write(tmp_path, "idle.py", "pass")
    wrong, right, nan, small, large, own_code, idle = run_commands(
        tmp_path,
        ["run", "--gate", "autocompare", "wrong.py"],
        ["run", "work.py", "--gate", "autocompare,overflow"],
        ["run", "--gate", "overflow", "work.py", "nan"],
        ["run", "--gate", "memory=10M", "work.py"],
        ["run", "--gate", "memory=900G", "work.py"],
        ["run", "--gate", "overflow", "--gate", "memory=10M", "work.py", "three"],
        ["run", "--gate", "autocompare", "idle.py"],
    )
    assert wrong.returncode == 1
    assert "ditorch: gate autocompare failed: 7 findings" in wrong.stderr and "and 2 more" in wrong.stderr
    assert wrong.stderr.count("torch.nn.functional.silu output is wrong") == 5
    assert f"at {tmp_path}/wrong.py:8" in wrong.stderr
    # What an earlier run left in the folder is not this one's.
    assert (right.returncode, right.stderr) == (0, "")
    assert nan.returncode == 1
    assert "gate overflow failed: 1 finding\n    NaN born in aten.div.Tensor, step 0" in nan.stderr
    assert f"at {tmp_path}/work.py:21" in nan.stderr
    assert (
        small.returncode == 1
        and "gate memory failed" in small.stderr
        and "the limit is 10.00 MiB" in small.stderr
    )
    assert (large.returncode, large.stderr) == (0, "")
    assert (own_code.returncode, own_code.stderr) == (3, "")
    assert idle.returncode == 5 and "nothing was compared" in idle.stderr


# -- several processes ---------------------------------------------------------------------------------------

SPAWN = """
import multiprocessing, sys
import torch

class Answer:
    def __init__(self, value):
        self.value = value

def work(queue):
    x = torch.ones(3, device="cuda")
    queue.put(Answer(str((x + x).device)))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    answer = queue.get(timeout=100)
    process.join()
    print("child", answer.value, isinstance(answer, Answer), process.exitcode)
"""


def test_spawned_processes_have_the_mapping_and_the_tools(tmp_path: Path) -> None:
    write(tmp_path, "spawn.py", SPAWN)
    (ended,) = run_commands(tmp_path, ["run", "--tool", "observe", "spawn.py"])
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[0] == "child dipu:0 True 0"
    assert lines_of(tmp_path, "op_tools_results/op_observe_result") == 1


RANKS = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
x = torch.ones(2, device=f"cuda:{rank}") * (rank + 1)
dist.all_reduce(x)
sys.stdout.write(f"rank {rank} {x.tolist()} {sys.argv[1:]}\\n")
dist.destroy_process_group()
"""


def test_torchrun(tmp_path: Path) -> None:
    write(tmp_path, "train.py", RANKS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, "-m", "ditorch", "run", "train.py", "--tool", "time", "--lr", "1"],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"rank {rank} [3.0, 3.0] ['--lr', '1']" in done.stdout
    logs = sorted((tmp_path / "op_tools_results/op_time_measure_result").glob("*.csv"))
    assert [path.name.partition("_pid")[0] for path in logs] == [
        "op_elasped_info_rank0",
        "op_elasped_info_rank1",
    ]
    assert all("torch.distributed.all_reduce" in path.read_text() for path in logs)
    assert done.stdout.count("op elasped info saved to") == 1
    assert done.stdout.count("op-tools report") == 1


def test_another_rank_says_only_what_it_finds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    tools = run_tools.RunningTools(run_tools.RunConfig.of(["observe"], None, []), quiet=True)
    tools.start()
    (tool,) = tools.started
    tool.say_applied("torch.add")
    tool.say("found")
    tools.stop()
    tool.say("summary")
    assert capsys.readouterr().out == f"[process {os.getpid()}] found\n"
    assert type(tool).__name__ == "OpObserve"


def test_an_error_of_a_tool_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Bad:
        def stop(self) -> None:
            raise RuntimeError("out of order")

    tools = run_tools.RunningTools(run_tools.RunConfig())
    tools.started = [Bad()]  # type: ignore[list-item]
    tools.stop()
    assert "Bad could not be stopped: RuntimeError: out of order" in capsys.readouterr().err
