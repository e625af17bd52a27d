"""Capability: a call of the vendor's table that fails is never silent, never a crash, and leaves a device that works.

Every entry of the table fails once, on request (the simulated chip's option `fault`), with synchronous and with asynchronous
queues: the vendor's message is in a Python exception, of the next synchronisation where something is only freed; the fault did
happen; memory is as it was, and the device computes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from built import library
from forked_python import run_python

import torch_dipu
from torch_dipu import kernels

if torch_dipu.dipu.vendor_name() != "host":
    pytest.skip("faults on request are an option of the simulated chip", allow_module_level=True)

DEVICE = "dipu:1"
COMPILED: dict[str, Path] = {}


@dataclass(frozen=True)
class Scenario:
    """Something whose `nth` call of `entry` fails. `prepared` is made before, `act` gets it."""

    entry: str
    what: str
    act: Callable[[list[object]], object]
    prepare: Callable[[], list[object]] = list
    deferred: bool = False  # nothing can be raised there: the next synchronisation raises it
    status: str = "DIPU_ERROR"
    nth: str = "1"
    message: str = ""
    modes: tuple[str, ...] = ("synchronous", "asynchronous")


def ones() -> list[object]:
    return [torch.ones(1000, device=DEVICE)]


def two_events() -> list[object]:
    events: list[object] = [torch.Event(DEVICE, enable_timing=True) for _ in range(2)]
    for event in events:
        event.record(torch.dipu.current_stream(DEVICE))  # type: ignore[attr-defined]
    torch.dipu.synchronize(DEVICE)
    return events


def module() -> list[object]:
    loaded = kernels.Module(COMPILED["kernels"], DEVICE)
    return [loaded, loaded.kernel("scale"), torch.ones(3, device=DEVICE)]


def launched(made: list[object]) -> None:
    made[1].launch((made[2], ctypes.c_float(2)), grid=(3,))  # type: ignore[attr-defined]
    torch.dipu.synchronize(DEVICE)


def copied(made: list[object]) -> None:
    made[0].clone()  # type: ignore[attr-defined]
    torch.dipu.synchronize(DEVICE)


def called_back(_: list[object]) -> None:
    torch.dipu.current_stream(DEVICE).add_callback(list)
    torch.dipu.synchronize(DEVICE)


def deferred(made: list[object]) -> None:
    made[0].bitwise_xor_(made[0])  # type: ignore[attr-defined]
    torch.dipu.synchronize(DEVICE)


def with_copies(act: Callable[[list[object]], object]) -> Callable[[list[object]], object]:
    """The same where operators without a DIOPI function run on copies."""

    def acted(made: list[object]) -> None:
        torch.dipu.configure(alias=False)
        try:
            act(made)
        finally:
            torch.dipu.configure(alias=True)

    return acted


def pinned_copy() -> list[object]:
    host = torch.ones(1000).pin_memory()
    return [host, host.to(DEVICE, non_blocking=True)]


def recorded_elsewhere() -> list[object]:
    tensor = torch.ones(1000, device=DEVICE)
    tensor.record_stream(torch.dipu.Stream(DEVICE))
    return [tensor]


def integers() -> list[object]:
    return [torch.ones(1000, dtype=torch.int32, device=DEVICE)]


def stream() -> torch.Stream:
    return torch.dipu.current_stream(DEVICE)


RAISED = [
    Scenario("features", "an operator by alias", lambda made: torch.bitwise_xor(made[0], made[0]), integers),
    Scenario("device_properties", "properties", lambda _: torch.dipu.get_device_properties(1)),
    Scenario("device_synchronize", "waiting for a device", lambda _: torch.dipu.synchronize(DEVICE)),
    Scenario("memory_info", "free memory", lambda _: torch.dipu.mem_get_info(1)),
    Scenario("memory_allocate", "a tensor", lambda _: torch.empty(12_345_678, device=DEVICE)),
    Scenario("pinned_allocate", "pinning", lambda _: torch.ones(5).pin_memory()),
    Scenario("copy", "to the device", lambda _: torch.ones(5).to(DEVICE)),
    Scenario("copy", "to the host", lambda made: made[0].cpu(), ones),
    Scenario("copy", "to the host, another dtype", lambda made: torch.empty(1000).double().copy_(made[0]), ones),
    Scenario("copy", "a number", lambda made: made[0][3].item(), ones),
    Scenario("copy", "between devices", lambda made: made[0].to("dipu:0"), ones),
    Scenario("copy", "within a device", copied, ones),
    Scenario("copy", "within a device, in the queue", copied, ones, status="queued", message="in queued work"),
    Scenario("copy", "a larger storage", lambda made: made[0].resize_(2000), ones),
    Scenario("copy", "a fallback on copies", with_copies(lambda made: torch.bitwise_xor(made[0], made[0])), integers),
    Scenario("copy", "back from a fallback", with_copies(lambda made: made[0].bitwise_xor_(made[0])), integers, nth="2"),
    Scenario("stream_create", "a stream", lambda _: torch.dipu.Stream(DEVICE, priority=-2).dipu_stream),
    Scenario("stream_priority_range", "a stream", lambda _: torch.dipu.Stream(DEVICE, priority=-2)),
    Scenario("stream_synchronize", "waiting for a stream", lambda _: stream().synchronize()),
    Scenario("stream_synchronize", "a copy to the host", lambda made: made[0].cpu(), ones),
    Scenario("stream_synchronize", "another dtype", lambda made: torch.empty(1000).double().copy_(made[0]), ones),
    Scenario("stream_synchronize", "a number", lambda made: made[0][3].item(), ones),
    Scenario("stream_synchronize", "between devices", lambda made: made[0].to("dipu:0"), ones, nth="2"),
    Scenario("stream_synchronize", "copies", with_copies(lambda made: torch.bitwise_xor(made[0], made[0])), integers),
    Scenario("stream_query", "asking a stream", lambda _: stream().query()),
    Scenario("stream_wait_event", "a stream waits", lambda made: stream().wait_event(made[0]), two_events),
    Scenario("event_create", "an event", lambda _: torch.Event(DEVICE, enable_timing=True).record(stream())),
    Scenario("event_create_with_flags", "an event", lambda _: torch.Event(DEVICE).record(stream())),
    Scenario("event_create_with_flags", "blocking", lambda _: torch.dipu.Event(blocking=True)),
    Scenario("event_record", "an event", lambda _: torch.Event(DEVICE).record(stream())),
    Scenario("event_synchronize", "waiting for an event", lambda made: made[0].synchronize(), two_events),
    Scenario("event_query", "asking an event", lambda made: made[0].query(), two_events),
    Scenario("event_elapsed", "two events", lambda made: made[0].elapsed_time(made[1]), two_events),
    Scenario("event_create", "a copy of pinned memory", lambda _: pinned_copy(), modes=("asynchronous",)),
    Scenario("event_record", "a copy of pinned memory", lambda _: pinned_copy(), modes=("asynchronous",)),
    Scenario("stream_run", "a callback", called_back),
    Scenario("stream_run", "a callback, in the queue", called_back, status="queued", message="in queued work"),
    Scenario("stream_run", "an operator", deferred, integers, modes=("asynchronous",)),
    Scenario("host_alias", "an operator by alias", lambda made: torch.bitwise_xor(made[0], made[0]), integers,
             message="asking for the host's address of device memory failed"),
    Scenario("adopt", "a result", lambda made: torch.bitwise_xor(made[0], made[0]), integers),
    Scenario("set_option", "an option", lambda _: torch.dipu.configure(delay_us=0)),
    Scenario("get_option", "an option", lambda _: torch.dipu.option("alias")),
    Scenario("module_load", "a module", lambda _: kernels.Module(COMPILED["kernels"])),
    Scenario("module_function", "a kernel", lambda made: made[0].kernel("refuse"), module),
    Scenario("kernel_launch", "a launch", launched, module),
    Scenario("kernel_launch", "a launch, in the queue", launched, module, status="queued", message="in queued work"),
    Scenario("last_error", "no reason", lambda _: stream().query(), message="no reason given by the vendor"),
]  # fmt: skip

DEFERRED = [
    Scenario("pinned_free", "pinned memory", list.clear, lambda: [torch.ones(5).pin_memory()], deferred=True),
    Scenario("event_destroy", "an event", list.clear, two_events, deferred=True),
    Scenario("module_unload", "a module", list.clear, module, deferred=True),
    Scenario("event_synchronize", "pinned memory in use", list.clear, pinned_copy, deferred=True, modes=("asynchronous",)),
    Scenario("memory_free", "the cache", lambda _: torch.dipu.empty_cache(),
             lambda: [torch.empty(12_345_678, device=DEVICE)].clear() or [], deferred=True),
    Scenario("release", "a result", list.clear, lambda: [torch.bitwise_xor(*integers() * 2)], deferred=True),
    Scenario("event_create", "a tensor of two streams", list.clear, recorded_elsewhere, deferred=True),
    Scenario("event_record", "a tensor of two streams", list.clear, recorded_elsewhere, deferred=True),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    COMPILED["kernels"] = library("kernels.c", tmp_path_factory.mktemp("faults"))


@pytest.fixture(params=["synchronous", "asynchronous"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    torch.dipu.configure(**{"async": request.param == "asynchronous"})
    yield request.param
    torch.dipu.configure(fault="")
    torch.dipu.configure(**{"async": False})


def hits() -> list[int]:
    return [int(found) for found in re.findall(r"=(\d+)", torch.dipu.option("fault"))]


def memory() -> tuple[list[int], list[int]]:
    """What tensors hold, and what the devices have left once the cache is empty."""
    gc.collect()
    for index in (0, 1):
        torch.dipu.synchronize(index)
    torch.dipu.empty_cache()
    return [torch.dipu.memory_allocated(index) for index in (0, 1)], [
        torch.dipu.mem_get_info(index)[0] for index in (0, 1)
    ]


def cases() -> list[object]:
    return [
        pytest.param(scenario, id=f"{scenario.entry}-{scenario.what.replace(' ', '-')}")
        for scenario in [*RAISED, *DEFERRED]
    ]


@pytest.mark.parametrize("scenario", cases())
def test_a_fault_is_told_and_survived(scenario: Scenario, mode: str) -> None:
    if mode not in scenario.modes:
        pytest.skip(f"only {', '.join(scenario.modes)} queues call it")
    before = memory()
    made = scenario.prepare()
    fault = f"{scenario.entry}:{scenario.nth}:{scenario.status}"
    also = ",stream_query:1:DIPU_ERROR" if scenario.entry == "last_error" else ""
    torch.dipu.configure(fault=fault + also)
    expected = scenario.message or f"injected fault: {scenario.entry}, call {scenario.nth}"
    with pytest.raises(RuntimeError, match=re.escape(expected)):
        scenario.act(made)
        if scenario.deferred:
            gc.collect()
            torch.dipu.synchronize(DEVICE)
    assert hits() == [1, 1] if also else [1]
    torch.dipu.configure(fault="")
    made.clear()
    assert memory() == before
    x = torch.arange(8.0, device=DEVICE)
    assert torch.bitwise_xor((x + 1).int(), 1).tolist() == [0, 3, 2, 5, 4, 7, 6, 9]


def run(code: str, fault: str, **variables: str) -> str:
    environment = {**os.environ, "DIPU_HOST_FAULT": fault, **variables}
    done = run_python("-c", textwrap.dedent(code), timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("entry", "doing"),
    [
        ("device_count", "counting devices failed"),
        ("alias_device_type", "asking the vendor whose kernels run over its memory failed"),
    ],
)
def test_a_fault_at_the_first_use_is_told_and_the_second_works(entry: str, doing: str) -> None:
    told = run(
        """
        import torch
        try:
            torch.ones(2, device="dipu")
        except RuntimeError as error:
            print("raised", error)
        print((torch.ones(2, device="dipu") + 1).tolist(), torch.dipu.option("fault"))
        """,
        f"{entry}:1:DIPU_ERROR",
    )
    assert f"dipu: {doing}: injected fault: {entry}, call 1" in told
    assert told.count("[2.0, 2.0]") == 1
    assert f"{entry}:1:DIPU_ERROR=1" in told


# Under the loader of libraries, without torch: entry -> the call that fails, what makes it, what is said.
LOADER = {
    "fill": (1, "memory.fill(block, 7, 64)", "filling device memory failed"),
    "memory_allocate": (2, "memory.allocate(64)", "allocating device memory failed"),
    "memory_free": (1, "memory.free(block)", "freeing device memory failed"),
    "copy": (1, "memory.write(block, text, 3)", "copying to the device failed"),
    "stream_synchronize": (1, "memory.synchronize()", "synchronising failed"),
    "stream_create": (2, "LibraryMemory(table, 1)", "making a stream failed"),
    "stream_destroy": (1, "direct().machine_destroy(memory.machine)", "destroying a stream failed"),
}


def test_faults_under_the_loader_are_told() -> None:
    acts = "\n".join(
        f"try:\n    {act}\nexcept LibraryError as error:\n    print(error)" for _, act, _ in LOADER.values()
    )
    program = f"""
import ctypes
from diopi.library import LibraryError
from diopi.library.direct import direct
from diopi.library.loader import Library, _vendor_table
from diopi.library.memory import LibraryMemory
from diopi.vendors import installed
path = installed()["host"].library
memory, table = Library.open(path).memory, _vendor_table(path, ctypes.CDLL(str(path)))
text, block = ctypes.create_string_buffer(b"abc"), memory.allocate(64)
text = ctypes.addressof(text)
{acts}
again = LibraryMemory(table)
print("allocated", again.allocate(64) > 0)
"""
    faults = ",".join(f"{entry}:{call}:DIPU_ERROR" for entry, (call, _, _) in LOADER.items())
    told = run(program, faults, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    for entry, (call, _, doing) in LOADER.items():
        assert f"{doing}: injected fault: {entry}, call {call}\n" in told
    assert "allocated True" in told


def test_every_entry_has_a_scenario() -> None:
    entries = set(torch.dipu.option("fault_entries").split(", "))
    assert {scenario.entry for scenario in [*RAISED, *DEFERRED]} | {
        "device_count",
        "alias_device_type",
    } | set(LOADER) == entries


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("event_creates:1:DIPU_ERROR", "entries are last_error, features, device_count"),
        ("copy:1", "expected entry:call:status, such as event_create:3:DIPU_ERROR; three parts"),
        ("copy:0:DIPU_ERROR", "calls count from 1"),
        ("copy:x:DIPU_ERROR", "calls count from 1"),
        ("copy:1:FAILED", "a status is DIPU_ERROR,"),
        ("event_query:1:queued", "only copy, fill, stream_run and kernel_launch queue work"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(fault: str, expected: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(expected)):
        torch.dipu.configure(fault=fault)
    assert torch.dipu.option("fault") == ""


def test_faults_count_from_when_they_are_set(mode: str) -> None:
    torch.dipu.configure(fault="stream_query:2+:DIPU_ERROR, event_query:9:DIPU_ERROR")
    assert stream().query() in (True, False)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"injected fault: stream_query, call [234]"):
            stream().query()
    assert torch.dipu.option("fault") == "stream_query:2+:DIPU_ERROR=3,event_query:9:DIPU_ERROR=0"
    assert torch_dipu.dipu.vendor()["options"]["fault"] == torch.dipu.option("fault")
