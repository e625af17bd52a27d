"""A results folder that several runs wrote to: which logs are of one run, and which run is the newest."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_python

from op_tools import results
from op_tools.results import Results, make_run_id, mark_run, run_id
from op_tools.runs import BadInput, open_run
from op_tools.storage.log import Log
from op_tools.storage.log_reader import read_header

pytestmark = pytest.mark.unit


def log(name: str, number: int, folder: str = "r", **about: Any) -> Path:
    with Log(folder, name, about=about) as opened:
        opened.append({"name": f"torch.op{number}"})
        return opened.path


def names(folder: str, tool: str) -> list[str]:
    return [row["name"] for row in open_run(folder).rows(tool)]


def python(*arguments: str) -> None:
    """Start a fresh interpreter that no run has given an id."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OP_", "TORCHELASTIC"))}
    done = run_python(*arguments, env=kept, timeout=120)
    assert done.returncode == 0, done.stderr


# -- reading ---------------------------------------------------------------------------------------------------


def test_each_tool_has_its_newest_run() -> None:
    log("op_autocompare_info", 1, run_id="first")
    log("op_elasped_info", 2, run_id="first")
    log("op_autocompare_info", 3, run_id="second")
    log("op_autocompare_info", 4, "r/below", run_id="second")
    run = open_run("r")
    assert run.older == 1 and len(run.logs["autocompare"]) == 2
    assert sorted(names("r", "autocompare")) == ["torch.op3", "torch.op4"]
    assert names("r", "time_measure") == ["torch.op2"], "newest per tool, not per folder"
    assert run.about_older() == "1 log of an older run left out, the newest run of each tool counts: r"
    assert open_run(run.logs["autocompare"][0]).older == 0


def test_names_of_runs_say_nothing_about_their_age() -> None:
    for number, name in enumerate(("zz", "mm", "aa")):
        log("op_observe_info", number, run_id=name)
    assert names("r", "observe") == ["torch.op2"]
    assert open_run("r").older == 2
    assert "2 logs of older runs left out" in open_run("r").about_older()


def test_logs_without_an_id() -> None:
    old = log("op_autocompare_info", 1)
    log("op_autocompare_info", 2)
    assert len(names("r", "autocompare")) == 2 and open_run("r").older == 0
    assert open_run("r").about_older() == ""
    ancient = old.rename(old.with_name("op_autocompare_info_pid1_2020-01-01-00-00-00.oplog"))
    log("op_autocompare_info", 3, "r/new", run_id="first")
    future = old.with_name("op_autocompare_info_pid7_2999-01-01-00-00-00.oplog")
    future.write_bytes(ancient.read_bytes()[:10])  # killed while its file was being made
    kept = [path.name for path in open_run("r").logs["autocompare"]]
    assert ancient.name not in kept and future.name in kept and open_run("r").older >= 1


def test_a_log_that_cannot_be_read_is_bad_input_as_ever() -> None:
    path = log("op_autocompare_info", 1, run_id="first")
    broken = path.with_name("op_autocompare_info_pid7_2999-01-01-00-00-00_3.oplog")
    broken.write_bytes(b"this is not a log at all, but long enough")
    with pytest.raises(BadInput, match="cannot be read"):
        names("r", "autocompare")


def test_watchers_of_several_processes_do_not_hide_each_other() -> None:
    log("process_memory_info_of10", 1, run_id="watcher 1")
    log("process_memory_info_of11", 2, run_id="watcher 2")
    log("process_memory_info", 3, run_id="program")
    log("process_memory_info_of11", 4, run_id="watcher 3")
    assert sorted(names("r", "memory")) == ["torch.op1", "torch.op3", "torch.op4"]


def test_ranks_are_of_one_run_by_their_id_and_not_by_their_file_names() -> None:
    for world in ("first", "second"):
        for rank in range(3):
            with Log("r", "op_observe_info", rank=rank, world_size=3, about={"run_id": world}) as opened:
                opened.append({"name": f"{world} {rank}"})
    assert sorted(names("r", "observe")) == ["second 0", "second 1", "second 2"]


@pytest.mark.parametrize(
    ("path", "said"), [("n" * 300, "cannot be read: File name too long"), ("file/r", "does not exist")]
)
def test_paths_that_cannot_be(path: str, said: str) -> None:
    Path("file").write_text("")
    with pytest.raises(BadInput, match=said) as raised:
        open_run(path)
    assert raised.value.code == 2


# -- the id ----------------------------------------------------------------------------------------------------


def header_of(folder: str) -> Mapping[str, Any]:
    made = Results(folder, "op_observe_info", ("name",))
    made.append({"name": "torch.add"})
    made.close()
    (path,) = Path(folder).glob("*.oplog")
    return read_header(path)


def test_logs_of_one_process_have_one_id_and_the_environment_is_left_alone() -> None:
    before = dict(os.environ)
    first, second = header_of("a")["run_id"], header_of("b")["run_id"]
    assert first == second == run_id() and str(os.getpid()) in first
    assert dict(os.environ) == before


def test_the_variable_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_RUN_ID", "given")
    assert run_id() == header_of("a")["run_id"] == "given"


def test_a_run_without_rows_is_newer_than_one_with_rows() -> None:
    mark_run("r", "op_overflow_check_info")
    assert not Path("r").exists(), "in a fresh folder there is nothing to hide"
    log("op_overflow_check_info", 1, run_id="first")
    mark_run("r", "op_overflow_check_info", {"tool": "OpOverflowCheck"})
    mark_run("r", "op_overflow_check_info")  # of a child: the run is known already
    (path,) = open_run("r").logs["overflow_check"]
    assert read_header(path)["run_id"] == run_id() and read_header(path)["tool"] == "OpOverflowCheck"
    assert names("r", "overflow_check") == [] and open_run("r").older == 1


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_ADDR": "h", "MASTER_PORT": "29500",
    "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_ERROR_FILE": "/tmp/t_x/none_abc/attempt_0/{rank}/error.json",
}  # fmt: skip


def ranks(**more: str) -> str:
    """The id of all ranks, which is one."""
    made = {
        make_run_id(
            {
                name: value.format(rank=rank) if name.endswith("FILE") else value
                for name, value in {**TORCHRUN, "RANK": str(rank), **more}.items()
            }
        )
        for rank in range(4)
    }
    (one,) = made
    return one


def test_ranks_of_a_torchrun_job() -> None:
    job = ranks()
    assert ranks(TORCHELASTIC_ERROR_FILE="/tmp/t_x/none_def/attempt_0/{rank}/error.json") != job
    assert ranks(TORCHELASTIC_RESTART_COUNT="1") != job
    without = ranks(TORCHELASTIC_ERROR_FILE="")
    assert without == f"torchrun-h-29500-{os.getppid()}-0"
    assert ranks(TORCHELASTIC_ERROR_FILE="", TORCHELASTIC_RUN_ID="job7") == "torchrun-job7-0"
    # Agents on several hosts count restarts each for itself and have folders of their own.
    several = {"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job7"}
    assert ranks(**several) == ranks(
        **several, TORCHELASTIC_RESTART_COUNT="1", TORCHELASTIC_ERROR_FILE="/a/b/c/d/e/f"
    )


def test_ranks_of_other_launchers() -> None:
    one = {"WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1234"}
    assert make_run_id({**one, "RANK": "0"}) == make_run_id({**one, "RANK": "1"}) == "ranks-h-1234"
    step = {"SLURM_NTASKS": "8", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3"}
    assert make_run_id({**step, "SLURM_PROCID": "5"}) == "ranks-77-3"
    assert make_run_id({**one, "WORLD_SIZE": "1"}) == make_run_id({}) == results._made_run_id()


CHILDREN = """
    import multiprocessing, os, subprocess, sys
    from op_tools.results import Results

    def write(name):
        made = Results(sys.argv[1], "op_observe_info", ("name",))
        made.append({"name": name})
        made.close()

    def worker(name):
        os.environ.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="h", MASTER_PORT="1")  # as programs do
        write(name)

    if __name__ == "__main__":
        if len(sys.argv) > 2:
            write("program")
        else:
            early = multiprocessing.get_context("fork").Process(target=worker, args=("fork",))
            early.start(), early.join()
            pid = os.fork()
            if not pid:
                write("plain fork")
                os._exit(0)
            os.waitpid(pid, 0)
            late = multiprocessing.get_context("spawn").Process(target=worker, args=("spawn",))
            late.start(), late.join()
            write("parent")
            subprocess.run([sys.executable, __file__, sys.argv[1], "program"], check=True)
            assert "OP_TOOLS_RUN_ID" not in os.environ
    """


def test_children_of_a_program_belong_to_its_run_and_a_second_program_does_not() -> None:
    Path("program.py").write_text(textwrap.dedent(CHILDREN))
    python("program.py", "all")
    assert set(names("all", "observe")) == {"fork", "plain fork", "spawn", "parent", "program"}
    assert open_run("all").older == 0
    second = Results(
        "all", "op_observe_info", ("name",)
    )  # of this process, which is no child of that program
    second.append({"name": "second"})
    second.close()
    assert names("all", "observe") == ["second"] and open_run("all").older == 5


def test_ranks_that_torchrun_started() -> None:
    Path("rank.py").write_text(
        "import os\nfrom op_tools.results import Results\n"
        "made = Results('r', 'op_observe_info', ('name',))\n"
        "made.append({'name': 'rank ' + os.environ['RANK']})\nmade.close()\n"
    )
    log("op_observe_info", 1, run_id="first")
    python("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "rank.py")
    assert sorted(names("r", "observe")) == ["rank 0", "rank 1"] and open_run("r").older == 1
