"""dicore.workers: every task ends in one event, whatever becomes of its worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dicore.workers import Done, Lost, Progress, Ready, WorkerPool, describe_exit, one_line

pytestmark = pytest.mark.null

HERE = str(Path(__file__).parent)
ENTRY = "worker_tasks:start"


def made(setup: Any = None, *, workers: int = 2, timeout: Any = 60.0, **more: Any) -> WorkerPool:
    more.setdefault("environment", {})
    more["environment"] = {"PYTHONPATH": HERE, **more["environment"]}
    return WorkerPool(ENTRY, setup, workers=workers, timeout=timeout, **more)


@pytest.fixture(params=["child", "forked"])
def pool(request: pytest.FixtureRequest) -> Callable[..., WorkerPool]:
    """Both ways to start a worker must behave alike."""
    preload = () if request.param == "child" else ("worker_tasks", "decimal")
    return lambda *args, **more: made(*args, preload=preload, **more)


def answers(pool: WorkerPool, tasks: list[Any]) -> dict[Any, Any]:
    pool.add("", tasks)
    return {event.task: event for event in pool.run() if isinstance(event, Done | Lost)}


def test_answers_every_task_and_keeps_its_workers(pool: Callable[..., WorkerPool]) -> None:
    with pool() as open_pool:
        tasks = [("double", number) for number in range(20)]
        found = answers(open_pool, tasks)
        assert {task: event.value for task, event in found.items()} == {task: 2 * task[1] for task in tasks}
        pids = {answers(open_pool, [("pid", n)])[("pid", n)].value for n in range(4)}
        assert len(pids) <= 2 and os.getpid() not in pids


def test_a_crash_costs_its_task_and_is_described(pool: Callable[..., WorkerPool]) -> None:
    with pool() as open_pool:
        found = answers(open_pool, [("abort", 1), ("double", 4), ("exit", 9), ("raise", "k"), ("double", 5)])
    crash = found[("abort", 1)]
    assert (crash.cause, crash.message) == ("crash", "crashed (signal 6, SIGABRT)")
    assert crash.last_words == "assertion 1 failed"
    assert "Extension modules" not in crash.log
    assert (found[("exit", 9)].cause, found[("exit", 9)].message) == ("crash", "ended with exit code 9")
    assert (found[("raise", "k")].cause, found[("raise", "k")].message) == ("raised", "KeyError: 'k'")
    assert "in run" in found[("raise", "k")].log
    assert [found[("double", n)].value for n in (4, 5)] == [8, 10]


def test_a_hang_is_ended_after_its_own_limit(pool: Callable[..., WorkerPool]) -> None:
    limits = {"hang": 0.3}
    with pool(workers=1, timeout=lambda task, _: limits.get(task[0], 60.0)) as open_pool:
        found = answers(open_pool, [("hang", ""), ("double", 1)])
    assert (found[("hang", "")].cause, found[("hang", "")].message) == ("timeout", "timed out after 0.3 s")
    assert found[("hang", "")].seconds >= 0.3
    assert found[("double", 1)].value == 2


def test_progress_comes_before_the_answer_and_survives_a_crash(pool: Callable[..., WorkerPool]) -> None:
    with pool(workers=1) as open_pool:
        open_pool.add("", [("count", (3, None)), ("count", (5, 2))])
        events = [event for event in open_pool.run() if not isinstance(event, Ready)]
    first, second = ("count", (3, None)), ("count", (5, 2))
    assert [(e.task, e.value) for e in events if isinstance(e, Progress)] == [
        (first, 0), (first, 1), (first, 2), (second, 0), (second, 1),
    ]  # fmt: skip
    assert [(e.task, e.value) for e in events if isinstance(e, Done)] == [(first, 300)]
    assert [(e.task, e.cause) for e in events if isinstance(e, Lost)] == [(second, "crash")]


def test_the_limit_may_depend_on_the_last_progress() -> None:
    with made(workers=1, timeout=lambda _, progress: 60.0 if progress is None else 0.3) as open_pool:
        found = answers(open_pool, [("hang after progress", 1)])
    assert found[("hang after progress", 1)].message == "timed out after 0.3 s"


def test_tasks_can_be_added_while_it_runs_in_front_too() -> None:
    order = []
    with made(workers=1) as open_pool:
        open_pool.add("", [("double", 1), ("double", 2), ("double", 3)])
        for event in open_pool.run():
            if isinstance(event, Done):
                order.append(event.task[1])
                if event.task[1] == 1:
                    open_pool.add("", [("double", 10), ("double", 11)], first=True)
    # The second was given out before the first answer was looked at.
    assert order == [1, 2, 10, 11, 3]


def test_a_worker_that_retires_is_replaced() -> None:
    with made(workers=1) as open_pool:
        found = answers(open_pool, [("retire", 0), ("pid", 0)])
    assert isinstance(found[("retire", 0)], Done)
    assert found[("retire", 0)].value != found[("pid", 0)].value


def test_groups_have_their_own_workers_and_facts(pool: Callable[..., WorkerPool]) -> None:
    with pool(workers=1) as open_pool:
        for group in ("a", "b"):
            open_pool.open(group)
        facts = {}
        for event in open_pool.run():
            if isinstance(event, Ready):
                facts[event.group] = event.facts["group"]
                open_pool.add(event.group, [("double", event.group)])
            else:
                assert event.value == 2 * event.group
    assert facts == {"a": "a", "b": "b"}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "ValueError: no such library"),
        ("dies", "a worker ended with exit code 7 before it was ready"),
        ("hangs", "a worker was not ready within 2 s"),
    ],
)
def test_tasks_are_lost_when_no_worker_can_be_prepared(how: str, message: str) -> None:
    with made({"start": how}, workers=1, start_timeout=2.0, start_attempts=2) as open_pool:
        open_pool.add("", [("double", 1), ("double", 2)])
        events = list(open_pool.run())
    assert {event.message for event in events} == {message}
    assert {event.cause for event in events} == {"start"}
    # A worker that says why it cannot be is not tried again.
    assert [event.task for event in events if event.task is None] == [None] * (1 if how == "raises" else 2)
    assert [event.task for event in events if event.task is not None] == [("double", 1), ("double", 2)]


def test_an_entry_that_does_not_exist_is_named() -> None:
    with WorkerPool("worker_tasks:nothing", workers=1, timeout=1, environment={"PYTHONPATH": HERE}) as pool:
        pool.open("")
        (event,) = pool.run()
    assert event.message == "ImportError: module worker_tasks has no function 'nothing'"


def test_an_answer_that_cannot_be_sent_is_lost_alone() -> None:
    with made(workers=1) as open_pool:
        found = answers(open_pool, [("unsendable", 1), ("double", 2)])
    assert found[("unsendable", 1)].cause == "raised"
    assert found[("unsendable", 1)].message.startswith("its result cannot be sent: ")
    assert found[("double", 2)].value == 4


def test_idle_workers_close_in_order(pool: Callable[..., WorkerPool], tmp_path: Path) -> None:
    with pool({"closed": str(tmp_path)}, workers=1) as open_pool:
        pid = answers(open_pool, [("pid", 0)])[("pid", 0)].value
        assert list(tmp_path.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == [str(pid)]


def test_environment_and_modules_are_the_workers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICORE_TAKEN_AWAY", "1")
    environment = {"DICORE_GIVEN": "2", "DICORE_TAKEN_AWAY": None}
    with made(environment=environment, workers=1, preload=("decimal",)) as open_pool:
        found = answers(
            open_pool,
            [("environment", "DICORE_GIVEN"), ("environment", "DICORE_TAKEN_AWAY"), ("modules", "decimal")],
        )
    assert [event.value for event in found.values()] == ["2", None, True]
    assert os.environ["DICORE_TAKEN_AWAY"] == "1" and "DICORE_GIVEN" not in os.environ


def test_a_caller_that_stops_listening_leaves_a_usable_pool(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with made(workers=2) as open_pool:
        open_pool.add("", [("hang", str(pid_file)), ("double", 1), ("double", 2)])
        run = open_pool.run()
        while not isinstance(next(run), Done):
            pass
        _until(lambda: pid_file.exists() and pid_file.read_text())
        run.close()
        assert not _lives(int(pid_file.read_text()))
        assert answers(open_pool, [("double", 7)]) == {("double", 7): Done("", ("double", 7), 14)}


def test_a_worker_outlives_the_thread_that_started_it() -> None:
    """The kernel takes that thread for the parent, and would end the worker with it."""
    with made(workers=1) as open_pool:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(answers(open_pool, [("pid", 1)])))
        thread.start()
        thread.join()
        ((task, first),) = found[0].items()
        assert answers(open_pool, [task])[task].value == first.value


@pytest.mark.parametrize(
    ("preload", "in_thread"),
    [((), False), (("decimal",), False), ((), True)],
    ids=["child", "forked", "thread"],
)
def test_workers_end_with_a_parent_that_is_killed(
    preload: tuple[str, ...], in_thread: bool, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    program = textwrap.dedent(f"""
        import threading
        from dicore.workers import WorkerPool
        raise_if_run_again = open({str(tmp_path / "once")!r}, "x")
        pool = WorkerPool({ENTRY!r}, workers=1, timeout=600, preload={preload!r})
        pool.add("", [("hang", {str(pid_file)!r})])
        if {in_thread}:
            threading.Thread(target=lambda: list(pool.run())).start()
        else:
            list(pool.run())
    """)
    script = tmp_path / "no_guard.py"
    script.write_text(program)
    paths = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": paths})
    try:
        _until(lambda: pid_file.exists() and pid_file.read_text())
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    worker = int(pid_file.read_text())
    _until(lambda: not _lives(worker))
    assert not _lives(worker)


def test_describes_ends_and_errors() -> None:
    assert describe_exit(-11) == "crashed (signal 11, SIGSEGV)"
    assert describe_exit(3) == "ended with exit code 3"
    assert one_line(RuntimeError("a\n b\nException raised from f at x.cpp")) == "RuntimeError: a b"


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
