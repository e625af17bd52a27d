"""dicore.executors: every payload has one result, whatever one of them does to its process."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from executor_tasks import alive, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st

from dicore.executors import ExecutorError, LocalExecutor, WorkerStartError, run_payloads
from dicore.executors.ray_cluster import (
    BATCHES_PER_WORKER,
    ITEM_COST,
    LARGEST_BATCH,
    batch_target,
    batches_of,
)

pytestmark = pytest.mark.null

HERE = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def tasks_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def numbered(count: int, **more: Any) -> list[tuple[dict[str, Any], int]]:
    return [({"number": number, **more}, 0) for number in range(count)]


# --- batches ------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 200 << 20), max_size=300), st.integers(1, 64))
def test_every_task_is_in_one_batch_and_batches_are_even(weights: list[int], workers: int) -> None:
    batches = batches_of(weights, workers)
    assert sorted(index for batch in batches for index in batch) == list(range(len(weights)))
    target = batch_target(weights, workers)
    costs = [sum(weights[index] + ITEM_COST for index in batch) for batch in batches]
    assert all(cost <= target for cost, batch in zip(costs, batches, strict=True) if len(batch) > 1)
    large = [cost >= target for cost in costs]
    assert large == sorted(large, reverse=True)
    small = [cost for cost, batch in zip(costs, batches, strict=True) if cost < target or len(batch) > 1]
    assert all(first + second > target for first, second in itertools.pairwise(small))
    assert len(batches) <= max(2 * BATCHES_PER_WORKER * workers, 2 * sum(costs) // LARGEST_BATCH) + 1


def test_very_many_small_tasks_make_few_batches() -> None:
    batches = batches_of([10_000] * 100_000, 8)
    assert 4 * 8 <= len(batches) < 200
    assert max(map(len, batches)) < 2000
    assert batches_of([0] * 10, 2)[:2] == [[0], [1]]
    assert batches_of([], 2) == []


def test_a_large_task_is_alone_and_first() -> None:
    weights = [1000] * 50
    weights[20], weights[30] = 1 << 30, 2 << 30
    batches = batches_of(weights, 2)
    assert batches[:2] == [[30], [20]]
    assert {len(batch) for batch in batches[2:]} == {48}


# --- processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_results_carry_their_index(workers: int) -> None:
    found = dict(run_payloads("executor_tasks:double", numbered(20), workers=workers))
    assert {index: result["twice"] for index, result in found.items()} == {n: 2 * n for n in range(20)}
    pids = {result["pid"] for result in found.values()}
    assert pids == {os.getpid()} if workers == 0 else os.getpid() not in pids and len(pids) <= 2
    assert list(run_payloads("executor_tasks:double", [], workers=workers)) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_function_raises_is_a_result(workers: int) -> None:
    found = dict(run_payloads("executor_tasks:raises", numbered(2), workers=workers))
    assert found == {n: {"error": f"ValueError: number {n} is not good"} for n in range(2)}


def test_a_result_that_is_not_plain_data_is_said() -> None:
    ((_, result),) = run_payloads("executor_tasks:not_plain", numbered(1), workers=1)
    assert "not plain data" in result["error"] and "object" in result["error"]


def test_a_task_that_kills_its_process_is_tried_once_more(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    payloads = numbered(12, journal=str(journal))
    payloads[3][0].update(kills="self", marker=str(tmp_path / "marker"))
    payloads[5][0].update(kills="self")
    found = list(run_payloads("executor_tasks:deadly", payloads, workers=2))
    assert sorted(index for index, _ in found) == list(range(12))
    results = dict(found)
    assert "SIGKILL" in results.pop(5)["error"]
    assert {index: result["twice"] for index, result in results.items()} == {n: 2 * n for n in results}
    runs = Counter(journal.read_text(encoding="utf-8").split())
    assert {number: count for number, count in runs.items() if count != 1} == {"3": 2, "5": 2}


def test_a_task_that_hangs_is_given_up_and_not_tried_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    payloads = numbered(4, journal=str(journal))
    payloads[1][0]["seconds"] = 3600
    found = dict(run_payloads("executor_tasks:double", payloads, workers=1, timeout=0.5))
    assert "0.5 s" in found.pop(1)["error"]
    assert {index: result["twice"] for index, result in found.items()} == {0: 0, 2: 4, 3: 6}
    assert Counter(journal.read_text(encoding="utf-8").split())["1"] == 1


def test_a_function_that_is_not_there_is_said() -> None:
    with pytest.raises(ExecutorError, match="'executor_tasks:nothing'"):
        list(run_payloads("executor_tasks:nothing", numbered(1), workers=0))
    with pytest.raises(WorkerStartError, match=r"could be prepared: .*'executor_tasks:nothing'"):
        list(run_payloads("executor_tasks:nothing", numbered(1), workers=1))


def test_processes_stay_for_the_next_run_and_a_run_given_up_leaves_nothing(tmp_path: Path) -> None:
    with LocalExecutor("executor_tasks:double", workers=1, timeout=60, folder=str(tmp_path)) as pool:
        ((_, first),) = pool.run([(0, {"number": 1})])
        ((index, second),) = pool.run([(7, {"number": 2})])
        assert (index, second["twice"], second["pid"]) == (7, 4, first["pid"])
        assert second["folder"] == str(tmp_path)
        given_up = pool.run([(0, {"number": 3}), (1, {"number": 4, "seconds": 3600})])
        assert next(given_up)[1]["twice"] == 6
        given_up.close()
        ((index, third),) = pool.run([(9, {"number": 5})])
        assert (index, third["twice"]) == (9, 10)
        assert third["pid"] != first["pid"]
    assert not alive(third["pid"]) and not alive(first["pid"])


def test_a_worker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
        from dicore.executors import run_payloads
        list(run_payloads("executor_tasks:hangs", [({{"pid_file": {str(pid_file)!r}}}, 0)], workers=1))
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)]) as parent:
        wait_for(lambda: pid_file.exists() and pid_file.read_text(encoding="utf-8") != "")
        worker = int(pid_file.read_text(encoding="utf-8"))
        assert alive(worker)
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not alive(worker))
