"""Replay on a Ray cluster: the report of one process, and nothing lost or doubled when workers die."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import executor_tasks
import pytest
import report_runs as runs
import torch
from captures import capture, nothing
from executor_tasks import alive, wait_for

from dicore.executors import ExecutorError, ray_cluster, run_payloads
from op_tools import cli
from op_tools.report.collect import collect
from op_tools.runs import open_run

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.unit

TASKS = Path(executor_tasks.__file__).parent


@pytest.fixture(autouse=True)
def tasks_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TASKS))


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """One cluster of two workers for all tests of a process: it takes seconds to start."""
    with ray_cluster._connected(ray, "local", 2):
        yield
    assert not ray.is_initialized()


def numbered(count: int, **more: Any) -> list[tuple[dict[str, Any], int]]:
    return [({"number": number, **more}, 0) for number in range(count)]


# --- tasks --------------------------------------------------------------------------------------------------


def test_results_come_once_from_the_processes_of_two_workers(session: None, tmp_path: Path) -> None:
    found = list(run_payloads("executor_tasks:double", numbered(60), workers=2, ray="local"))
    assert sorted(index for index, _ in found) == list(range(60))
    assert all(result["twice"] == 2 * index for index, result in found)
    assert os.getpid() not in {result["pid"] for _, result in found}
    assert {result["folder"] for _, result in found} == {os.getcwd()}
    assert ray.is_initialized(), "a connection that was there before is left alone"


def test_what_lost_workers_held_is_run_again_and_only_the_guilty_is_blamed(
    session: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journal"
    payloads = numbered(60, journal=str(journal))
    payloads[20][0].update(kills="parent", marker=str(tmp_path / "once"))
    payloads[33][0].update(kills="parent")
    payloads[40][0].update(kills="self", marker=str(tmp_path / "own"))
    found = list(run_payloads("executor_tasks:deadly", payloads, workers=2, ray="auto", timeout=60))
    assert sorted(index for index, _ in found) == list(range(60))
    results = dict(found)
    assert results.pop(33) == {"error": "the cluster lost 3 workers while they ran it"}
    assert {index: result["twice"] for index, result in results.items()} == {n: 2 * n for n in results}
    runs = Counter(journal.read_text(encoding="utf-8").split())
    assert runs["20"] == 2 and runs["40"] == 2 and 3 <= runs["33"] <= 5
    assert capfd.readouterr().out == ""


def test_quick_results_arrive_before_the_slow_end(session: None) -> None:
    payloads = numbered(40, seconds=0.02)
    payloads[39][0]["seconds"] = 3.0
    arrived = {
        index: time.monotonic()
        for index, _ in run_payloads("executor_tasks:double", payloads, workers=2, ray="local")
    }
    assert len(arrived) == 40
    assert arrived[39] - sorted(arrived.values())[20] > 1.0


def test_a_path_that_a_machine_does_not_see_is_named_with_the_machine(session: None) -> None:
    with pytest.raises(ExecutorError, match=rf"{os.uname().nodename} cannot see .*/not/here\. .*network"):
        list(
            run_payloads(
                "executor_tasks:double", numbered(2), workers=2, ray="local", needs=[".", "not/here"]
            )
        )


def test_a_machine_without_these_programs_is_an_error_of_its_own(
    session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here_for_test.py").write_text("def run_batch(*_):\n    yield {}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    only_here = importlib.import_module("only_here_for_test")
    monkeypatch.setattr(ray_cluster, "run_batch", only_here.run_batch)
    with pytest.raises(ExecutorError, match=r"No module named 'only_here_for_test'.*Every machine needs"):
        list(run_payloads("executor_tasks:double", numbered(2), workers=2, ray="local"))


def test_giving_up_ends_what_runs(session: None, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    payloads = [({"pid_file": str(pid_file)}, 1 << 30), ({"pid_file": "/no/such/folder/pid"}, 0)]
    results = run_payloads("executor_tasks:hangs", payloads, workers=2, ray="local")
    index, result = next(results)
    assert index == 1 and "FileNotFoundError" in result["error"]
    wait_for(lambda: pid_file.exists() and pid_file.read_text(encoding="utf-8") != "")
    pid = int(pid_file.read_text(encoding="utf-8"))
    assert alive(pid)
    results.close()  # as Ctrl-C does
    wait_for(lambda: not alive(pid))


# --- replay -------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Forty calls: most are right, one is wrong, two are refused, one raises."""
    root = tmp_path / "data"
    torch.manual_seed(0)
    for number in range(1, 38):
        x = torch.randn(2 + number % 5, 8, requires_grad=True)
        func = (torch.exp, torch.sin, torch.nn.functional.gelu)[number % 3]
        change = (lambda y: y * 1.01) if number == 7 else (lambda y: y)
        capture(root, func, (x,), forward_id=number, change=change, grads=[torch.ones_like(x)])
    capture(root, nothing, ("x",), name="os.system", forward_id=38, outputs=False)
    capture(root, nothing, (torch.ones(10), 10**6, 10**6), name="torch.Tensor.repeat", forward_id=39)
    capture(root, nothing, (torch.ones(10), 3, 4), name="torch.Tensor.view", forward_id=40, outputs=False)
    return root


def replayed(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", *map(str, words)])
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def without_addresses(text: str) -> list[str]:
    """The lines, without what differs from process to process: addresses, so widths of columns, and names of files."""
    text = re.sub(r"saved to \w+/.*", "saved to", re.sub(r"\d{8,}", "address", text))
    return re.sub(r"[- +]{2,}", " ", text).splitlines()


def comparisons(out: Path) -> list[list[str]]:
    (path,) = (out / "op_autocompare_result").glob("*.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_the_report_is_that_of_one_process(
    session: None, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (tree.name, "--device", "cpu", "--verbose")
    code, one = replayed(capsys, *words, "--workers", "1", "--out", "one")
    ray_code, many = replayed(capsys, *words, "--ray", "local", "--workers", "2", "--out", "ray")

    assert code == ray_code == 1
    assert without_addresses(many) == without_addresses(one)
    assert one.splitlines()[-1] == "40 calls: 36 same, 2 refused, 1 error, 1 fail"
    assert one.count("| torch.sin output ") == 13
    assert comparisons(tmp_path / "ray") == comparisons(tmp_path / "one")
    logs = {name: list(open_run(tmp_path / name).rows("replay")) for name in ("one", "ray")}
    origin = ("pid", "started")
    plain = {
        name: sorted(
            json.dumps({k: v for k, v in row.items() if k not in origin}, sort_keys=True) for row in rows
        )
        for name, rows in logs.items()
    }
    assert plain["ray"] == plain["one"]
    assert len({row["item"] for row in logs["ray"]}) == 40


# --- reports ------------------------------------------------------------------------------------------------


def test_a_report_of_ranks_is_that_of_one_process(session: None, tmp_path: Path) -> None:
    for rank in range(6):
        rows = [runs.compared(n, verdict="fail" if rank == 4 and n > 50 else "same") for n in range(60)]
        runs.write(tmp_path / "run", "op_autocompare_info", rows, rank=rank, world_size=6)
    run = open_run(tmp_path / "run")
    here = collect(run).summary()
    there = collect(run, ray="local", workers=2).summary()
    assert (there["selected"], here["selected"]) == (True, False)
    assert there["wrong"] == 9 and there["compared"] == 360
    for name in ("operators", "ranks", "counts", "steps", "environment"):
        assert there[name] == here[name]
    assert {**there["first"], "row": 0} == {**here["first"], "row": 0}


# --- addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (
            "127.0.0.1:1",
            "no Ray cluster could be reached with --ray 127.0.0.1:1: .*refused.*ray start --head",
        ),
        ("somewhere", "expected local, auto, or HOST:PORT"),
        ("ray://somewhere:10001", "Ray Client .*--ray auto"),
    ],
)
def test_a_cluster_that_is_not_there_is_said_at_once(
    address: str,
    expected: str,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", str(tree), "--ray", address])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("op-tools: ") and re.search(expected, said)
