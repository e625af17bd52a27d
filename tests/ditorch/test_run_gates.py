"""The gates of `ditorch run`: what other processes find counts, and what cannot be known is no success."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from forked_programs import run_commands
from forked_python import clean_environment

from _ditorch import gates, run, run_tools
from _ditorch.gates import Gate, GateChecker
from _ditorch.ranks import LaunchedRank, LocalRanks, launched_rank
from op_tools.runs import open_run
from op_tools.storage.log import Log

pytestmark = pytest.mark.device
HERE = Path(__file__).resolve().parent

NAN = """
import sys
import torch

def born():
    x = torch.zeros(4, device="cuda")
    return x / x
"""
PROGRAMS = {
    "nan": "born()",
    "calm": "torch.ones(4, device='cuda') + 1",
    "fork": """
        import multiprocessing
        process = multiprocessing.get_context("fork").Process(target=born)
        process.start()
        process.join()
        """,
    "not_joined": """
        import multiprocessing, time
        multiprocessing.get_context("fork").Process(target=lambda: (time.sleep(0.5), born())).start()
        """,
    "pool": """
        import time
        from concurrent.futures import ThreadPoolExecutor
        executor = ThreadPoolExecutor(1)
        executor.submit(lambda: (time.sleep(0.2), born()))
        """,
    "late_thread": """
        import threading, time
        def first():
            time.sleep(0.1)
            threading.Thread(target=lambda: (time.sleep(0.3), born())).start()
        threading.Thread(target=first).start()
        """,
    "other_world": """
        import multiprocessing, os
        def rank_one():
            os.environ.update(RANK="1", WORLD_SIZE="2")
            born()
        os.environ["WORLD_SIZE"] = "2"
        process = multiprocessing.get_context("fork").Process(target=rank_one)
        process.start()
        process.join()
        """,
    "tensor_code": "sys.exit(torch.ones(2, device='cuda'))",
    "false_code": "sys.exit(False)",
    "killed_worker": """
        import multiprocessing, os, signal
        def work():
            born()
            os.kill(os.getpid(), signal.SIGTERM)
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        """,
    "few_bits": """
        def kernel(a, b):
            return (a.cpu().bfloat16().float() @ b.cpu().bfloat16().float()).to(a.device)
        library = torch.library.Library("aten", "IMPL")
        library.impl("mm", kernel, "PrivateUse1", allow_override=True)
        torch.manual_seed(0)
        torch.mm(torch.randn(16, 32).cuda(), torch.randn(32, 16).cuda())
        """,
    "killed_comparison": f"""
        import multiprocessing, os, signal
        sys.path.insert(0, {str(HERE.parent / "op_tools")!r})
        import wrong_kernels
        wrong_kernels.install("silu")
        torch.ones(4, device="cuda") + 1  # right
        def work():
            torch.nn.functional.silu(torch.ones(64, device="cuda"))
            os.kill(os.getpid(), signal.SIGTERM)
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        """,
}


def write_programs(folder: Path) -> None:
    for name, text in PROGRAMS.items():
        (folder / f"{name}.py").write_text(NAN + textwrap.dedent(text))


def gate(program: str, results: str, name: str = "overflow") -> list[str]:
    return ["run", "--gate", name, "--results", results, f"{program}.py"]


def test_a_strict_gate_fails_on_labels_that_nobody_has_allowed(tmp_path: Path) -> None:
    """A float32 kernel that multiplies in bfloat16: neither right nor wrong, and nothing that should pass unseen."""
    write_programs(tmp_path)
    (tmp_path / "chip.toml").write_text(
        '[[lower_precision]]\noperators = ["torch.mm"]\narithmetic = "bfloat16"\n'
    )
    plain, strict, declared = run_commands(
        tmp_path,
        gate("few_bits", "results", "autocompare"),
        [*gate("few_bits", "results", "autocompare"), "--strict"],
        [*gate("few_bits", "results", "autocompare"), "--strict", "--profile", "chip.toml"],
    )
    assert (plain.returncode, strict.returncode, declared.returncode) == (0, 1, 0), strict.stderr
    assert "gate autocompare passed, but values have a label (1 lower_precision); --strict" in plain.stderr
    assert "gate autocompare failed: 1 finding\n    torch.mm output is lower_precision: " in strict.stderr
    assert "behaves like bfloat16 inputs" in strict.stderr and "few_bits.py" in strict.stderr
    assert "no value is wrong; --allow OPERATOR[:ARITHMETIC] or --profile FILE allows labels" in strict.stderr
    assert "gate autocompare" not in declared.stderr


def test_one_operator_that_always_fails_does_not_hide_the_others() -> None:
    found = [f"torch.silu output is wrong, step {step}" for step in range(9)] + ["torch.mm output is wrong"]
    assert gates._each_operator_first(found)[:3] == [found[0], found[9], found[1]]
    assert sorted(gates._each_operator_first(found)) == sorted(found)


def test_what_other_threads_and_processes_find_fails_the_gate(tmp_path: Path) -> None:
    write_programs(tmp_path)
    names = ("fork", "not_joined", "pool", "late_thread", "other_world", "killed_worker")
    for name, ended in zip(names, run_commands(tmp_path, *(gate(name, name) for name in names)), strict=True):
        assert (name, ended.returncode) == (name, 1), ended
        assert "gate overflow failed: 1 finding\n    NaN born in aten.div.Tensor" in ended.stderr, name
        # Only the process of the program itself prints a summary and says where the results are.
        assert ended.stdout.count("OpOverflowCheck checked") == ended.stdout.count("op-tools report") == 1, (
            name
        )


def test_forked_workers_write_all_they_have_seen(tmp_path: Path) -> None:
    write_programs(tmp_path)
    (ended,) = run_commands(tmp_path, ["run", "--tool", "observe", "--results", "seen", "fork.py"])
    assert (ended.returncode, ended.stderr) == (0, "")
    (row,) = open_run(tmp_path / "seen").rows("observe")
    assert row["name"].endswith("div") and "born" in row["call_site"]


def test_a_worker_killed_at_once_has_written_what_was_wrong(tmp_path: Path) -> None:
    write_programs(tmp_path)
    (ended,) = run_commands(tmp_path, gate("killed_comparison", "results", "autocompare"))
    assert ended.returncode == 1 and "torch.nn.functional.silu output is wrong" in ended.stderr


def test_where_results_cannot_be_written_nothing_is_known(tmp_path: Path) -> None:
    write_programs(tmp_path)
    nowhere = "/proc/nowhere"
    born, calm, memory, compared = run_commands(
        tmp_path,
        gate("nan", nowhere),
        gate("calm", nowhere),
        gate("calm", nowhere, "memory=900G"),
        gate("calm", nowhere, "autocompare"),
    )
    assert [one.returncode for one in (born, calm, memory, compared)] == [1, 5, 5, 5]
    for one in (calm, memory, compared):
        assert "nothing is known" in one.stderr and nowhere in one.stderr, one.stderr
    # What was found is known, written or not, and the disk is spoken of once.
    assert "op_tools: first NaN" in born.stdout and "gate overflow failed: 1 finding" in born.stderr
    assert born.stderr.count("can no longer be written") == 1 and "not saved" in born.stdout


def test_odd_exit_codes_and_variables(tmp_path: Path) -> None:
    write_programs(tmp_path)
    tensor, false = run_commands(tmp_path, gate("tensor_code", "a"), gate("false_code", "b"))
    assert (
        tensor.returncode == 1
        and tensor.stderr.startswith("tensor([1., 1.]")
        and "Traceback" not in tensor.stderr
    )
    assert (false.returncode, false.stderr) == (0, "")
    (odd,) = run_commands(tmp_path, gate("nan", "c"), settings={"RANK": "abc", "WORLD_SIZE": "x"})
    assert odd.returncode == 1 and "gate overflow failed: 1 finding" in odd.stderr
    assert "op-tools report c" in odd.stdout  # a rank that is no number is the first one


@pytest.mark.parametrize("words", [["--gate", ",", "x.py"], ["--tool", " , ", "x.py"], ["x.py", "--gate=,"]])
def test_a_list_without_a_name_is_refused(words: list[str]) -> None:
    with pytest.raises(run_tools.UsageError, match="there is no name in it"):
        run.parse(words)


# -- what a gate reads ---------------------------------------------------------------------------------------

BORN = {"status": "born", "kind": "NaN", "name": "aten.div.Tensor"}


class Fake:
    """As much of a tool as a gate looks at."""

    section, result_folder, result_file, results = "overflow_check", "there", "info", None

    def __init__(self, folder: Path) -> None:
        self.settings = type("Settings", (), {"results": str(folder)})


def verdict(folder: Path, launched: LaunchedRank, *logs: tuple[int, int, dict[str, Any]]) -> int:
    """The exit code, where logs of (rank, world size, row) are written by another process."""
    checker = GateChecker([Gate("overflow")], [Fake(folder)], launched)  # type: ignore[list-item]
    for rank, world_size, row in logs:
        pid = os.fork()
        if pid == 0:
            with Log(folder / "there", "info", rank=rank, world_size=world_size) as log:
                log.append(row)
            os._exit(0)
        os.waitpid(pid, 0)
    return checker.verdict()[0]


def test_whose_rows_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_of_two = LaunchedRank(rank=0, world_size=2)
    monkeypatch.setenv("WORLD_SIZE", "2")  # what the program has put there later is not asked
    monkeypatch.setenv("RANK", "0")
    assert verdict(tmp_path / "a", LaunchedRank(), (1, 2, BORN)) == 1
    assert verdict(tmp_path / "b", first_of_two, (1, 2, BORN)) == 0  # that rank answers for itself
    assert verdict(tmp_path / "c", first_of_two, (0, 2, BORN)) == 1
    assert verdict(tmp_path / "d", first_of_two, (5, 8, BORN)) == 1  # a worker that a rank has started


def test_what_a_tool_has_written_when_it_starts_is_of_this_run(tmp_path: Path) -> None:
    tool: Any = Fake(tmp_path)
    with Log(tmp_path / "there", "info") as log:
        log.append(BORN)
        log.flush()
        tool.results = type("Results", (), {"log": log})
        assert GateChecker([Gate("overflow")], [tool], LaunchedRank()).verdict()[0] == 1
        tool.results = None
        assert GateChecker([Gate("overflow")], [tool], LaunchedRank()).verdict()[0] == 0


def test_a_log_that_cannot_be_read_or_is_torn(tmp_path: Path) -> None:
    def with_log(name: str, spoil: Any) -> tuple[int, list[str]]:
        checker = GateChecker([Gate("overflow")], [Fake(tmp_path / name)], LaunchedRank())  # type: ignore[list-item]
        with Log(tmp_path / name / "there", "info") as log:
            log.append({"status": "seen"})
        spoil(log.path)
        return checker.verdict()

    assert with_log("whole", lambda path: None) == (0, [])
    for name, spoil, expected in (
        ("torn", lambda path: path.write_bytes(path.read_bytes()[:-3]), "is lost"),
        ("foreign", lambda path: path.write_bytes(b"something else entirely"), "cannot be read"),
    ):
        code, (line,) = with_log(name, spoil)
        assert code == 5 and "nothing is known" in line and expected in line


def test_a_process_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GateChecker([Gate("overflow")], [Fake(tmp_path)], LaunchedRank())  # type: ignore[list-item]
    monkeypatch.setattr(gates, "_PATIENCE", 0.1)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    code, (line,) = checker.verdict()
    child.terminate()
    child.join()
    assert code == 5 and f"nothing is known of process {child.pid}, which" in line
    assert checker.verdict() == (0, [])


def test_a_gate_that_cannot_be_looked_at_is_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checker = GateChecker([Gate("overflow")], [Fake(tmp_path)], LaunchedRank())  # type: ignore[list-item]
    monkeypatch.setattr(checker, "verdict", lambda: 1 / 0)
    one = run._Run(lambda: pytest.fail("not run"), run_tools.RunConfig(), [])
    assert one._gate(checker) == 5
    assert "nothing is known: the gates cannot be read: ZeroDivisionError" in capsys.readouterr().err


# -- the ranks of a job --------------------------------------------------------------------------------------


def test_launched_as() -> None:
    job = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert launched_rank(job) == LaunchedRank(3, 4, 1, 2)
    assert (
        launched_rank({})
        == launched_rank({"RANK": "abc", "WORLD_SIZE": "4"})
        == launched_rank({"RANK": ""})
        == LaunchedRank()
    )
    assert launched_rank({**job, "LOCAL_RANK": "x"}) == LaunchedRank(3, 4, 0, 1)


def forked_rank(folder: Path, rank: int, seconds: float, dies: bool) -> int:
    """A rank that begins now and ends after a while; its process number."""
    pid = os.fork()
    if pid == 0:
        other = LocalRanks(LaunchedRank(rank, 2, rank, 2), str(folder))
        other.begin()
        time.sleep(seconds)
        if not dies:
            other.end()
            time.sleep(1)
        os._exit(0)
    return pid


@pytest.mark.parametrize("dies", [False, True])
def test_a_rank_waits_until_the_others_have_ended(
    dies: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = LocalRanks(LaunchedRank(0, 2, 0, 2), str(tmp_path), patience=20, silence=0.2)
    mine.begin()
    began = time.monotonic()
    child = forked_rank(tmp_path, 1, 0.5, dies)
    mine.wait()
    assert 0.4 < time.monotonic() - began < (10 if dies else 1.4)
    assert "waiting for local ranks 1 to end, at most 20 seconds" in capsys.readouterr().err
    os.waitpid(child, 0)
    if not dies:
        assert list(tmp_path.iterdir()) == []  # who ends last clears up


def test_patience_ends_and_a_rank_alone_waits_for_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = LocalRanks(LaunchedRank(0, 2, 0, 2), str(tmp_path), patience=0.2, silence=9)
    mine.begin()
    mine.wait()  # the other never begins
    assert "local ranks 1 have not ended in 0.2 seconds; leaving" in capsys.readouterr().err
    for place, folder in (
        (LaunchedRank(), tmp_path / "alone"),
        (LaunchedRank(0, 2, 0, 2), Path("/proc/nowhere")),
    ):
        other = LocalRanks(place, str(folder), patience=60)
        other.begin()
        thread = threading.Thread(target=other.wait, daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
    assert not (tmp_path / "alone").exists()


CHECKPOINT = """
import os, time
if os.environ["RANK"] == "1":
    born()
else:
    time.sleep(3)
    open("checkpoint", "w").write("whole")
"""


def torchrun(folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launch, "-m", "ditorch", *words],
        cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def test_a_failed_gate_lets_the_other_ranks_finish(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NAN + CHECKPOINT)
    done = torchrun(tmp_path, gate("train", "results"))
    assert done.returncode == 1
    assert "ditorch: rank 1: gate overflow failed: 1 finding" in done.stderr
    assert (tmp_path / "checkpoint").read_text() == "whole"
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["op_overflow_check_result"]
