"""torch.profiler on the device: rows, columns, links, sums."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from chrome_trace import Trace
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

import torch_dipu  # noqa: F401

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


@pytest.fixture
def vendor_options() -> Iterator[Callable[..., None]]:
    """Sets options of the simulated chip, and puts them back."""
    yield lambda **options: torch.dipu.configure(**options)
    torch.dipu.configure(**{"async": 0, "delay_us": 0, "alias": 1})


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 5)
    )
    return layers.to("dipu")


def train(net: nn.Module) -> None:
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator("cpu").manual_seed(0)).to("dipu")
    net(x).square().mean().backward()


def trained(**options: Any) -> Any:
    net = model()
    train(net)
    with profile(activities=BOTH, **options) as recorded, record_function("training"):
        train(net)
    return recorded


@pytest.fixture(scope="module")
def step() -> Any:
    return trained()


@pytest.fixture(scope="module")
def trace(step: Any, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return Trace(step, tmp_path_factory.mktemp("trace"))  # torch writes a trace once


def rows(recorded: Any, device_type: DeviceType = DeviceType.PrivateUse1) -> dict[str, Any]:
    return {row.key: row for row in recorded.key_averages() if row.device_type == device_type}


def device_work(recorded: Any) -> list[Any]:
    """What counts: kernels and copies, not the annotations over them."""
    events = recorded.events()
    return [e for e in events if e.device_type == DeviceType.PrivateUse1 and not e.is_user_annotation]


def test_the_activity_is_supported_and_a_profile_of_the_cpu_alone_has_no_device_rows() -> None:
    assert ProfilerActivity.PrivateUse1 in torch.autograd._supported_activities()
    net = model()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        train(net)
    assert device_work(recorded) == [] and rows(recorded) == {}
    assert "DIPU" not in recorded.key_averages().table(sort_by="cpu_time_total")
    host = rows(recorded, DeviceType.CPU)
    assert "aten::convolution_overrideable" in host and not [
        name for name in host if name.startswith("LaunchKernel_")
    ]


def test_the_rows_of_an_operator(step: Any) -> None:
    device, host = rows(step), rows(step, DeviceType.CPU)
    for operator, functions in {
        "convolution_overrideable": ["diopiConvolution2d"],
        "native_batch_norm": ["diopiBatchNorm"],
        "convolution_backward_overrideable": ["diopiConvolution2dBackward"],
    }.items():
        for name in (f"dipu_{operator}", *functions):
            assert device[name].count == 1 and device[name].device_time_total > 0, name
        for name in (
            f"aten::{operator}",
            f"LaunchKernel_dipu_{operator}",
            *(f"LaunchKernel_{f}" for f in functions),
        ):
            assert host[name].count == 1 and host[name].cpu_time_total > 0, name
    assert host["wrapper_DIPU_empty_memory_format"].count >= 1
    assert host["dipuMemcpyAsync"].count == device["Memcpy HtoD (Pageable -> Device)"].count == 1


def test_nothing_counts_twice(step: Any) -> None:
    device, host = rows(step), rows(step, DeviceType.CPU)
    for operator, function in [
        ("convolution_overrideable", "diopiConvolution2d"),
        ("native_batch_norm", "diopiBatchNorm"),
    ]:
        work = device[function].device_time_total
        assert host[f"aten::{operator}"].self_device_time_total == pytest.approx(work)
        assert host[f"aten::{operator}"].device_time_total == pytest.approx(work)
        assert device[f"dipu_{operator}"].device_time_total >= work
    assert host["aten::conv2d"].self_device_time_total == 0
    assert host["aten::conv2d"].device_time_total == pytest.approx(
        device["diopiConvolution2d"].device_time_total
    )


def test_the_sum_of_all_work_is_the_total_of_the_table(step: Any, trace: Trace) -> None:
    total = sum(e.device_time_total for e in device_work(step))
    averages = step.key_averages()
    assert sum(
        a.self_device_time_total for a in averages if a.device_type == DeviceType.CPU
    ) == pytest.approx(total)
    by_trace = sum(e["dur"] for e in trace.work())
    assert by_trace == pytest.approx(total, rel=1e-3)
    printed = averages.table(time_unit="us").rpartition("Self DIPU time total: ")[2]
    assert float(printed.removesuffix("us\n")) == pytest.approx(total, abs=0.01)
    (range_,) = [e for e in step.events() if e.name == "training" and e.device_type == DeviceType.CPU]
    inside = sum(
        e.self_device_time_total
        for e in step.events()
        if e.device_type == DeviceType.CPU and e.thread == range_.thread
    )
    assert range_.device_time_total == pytest.approx(inside)
    assert 0 < inside < total, "autograd's thread did the rest"


def test_columns_and_sorting(step: Any) -> None:
    for key in ("device_time_total", "cuda_time_total", "self_device_time_total", "self_cuda_time_total"):
        averages = step.key_averages()
        lines = averages.table(sort_by=key, row_limit=6, time_unit="us").splitlines()
        titles, *shown = [re.split(r"\s{2,}", line.strip()) for line in (lines[1], *lines[3:9])]
        assert titles[6:] == ["Self DIPU", "Self DIPU %", "DIPU total", "DIPU time avg", "# of Calls"]
        column = titles.index("Self DIPU" if key.startswith("self") else "DIPU total")
        largest = sorted((getattr(a, key.replace("cuda", "device")) for a in averages), reverse=True)[:6]
        assert [float(row[column].removesuffix("us")) for row in shown] == pytest.approx(largest, abs=1e-3)
        assert largest[0] > largest[-1] > 0


def test_all_work_is_linked_to_its_operator_and_its_launch(trace: Trace) -> None:
    operators, work = trace.operators_by_id(), trace.work()
    begins, ends = trace.flows()
    assert len(work) > 20
    assert begins.keys() == ends.keys() and len(begins) == len(work)
    runtime = [e for e in trace.of("privateuse1_runtime") if "args" in e]  # waits of the host have none
    launches = {e["args"]["correlation"]: e for e in runtime if "correlation" in e["args"]}
    for each in work:
        operator, launch = operators[each["args"]["External id"]], launches[each["args"]["correlation"]]
        # times of 1e12 microseconds are written with three digits: ends are known to a hundredth
        assert operator["ts"] - 0.01 <= launch["ts"]
        assert launch["ts"] + launch["dur"] <= operator["ts"] + operator["dur"] + 0.01
        assert operator["tid"] == launch["tid"]
        assert each["ts"] + 1.0 >= launch["ts"], "work begins after its launch"
        assert (each["pid"], each["tid"]) == (0, 0)
    names = {
        operators[e["args"]["External id"]]["name"] for e in work if e["name"] == "diopiBatchNormBackward"
    }
    assert names == {"aten::native_batch_norm_backward"}


def test_annotations_lie_over_the_work_of_operators_and_ranges(trace: Trace) -> None:
    over = {e["name"]: e for e in trace.of("gpu_user_annotation")}
    for name, inner in (("dipu_native_batch_norm", "diopiBatchNorm"), ("training", "diopiConvolution2d")):
        (work,) = [e for e in trace.work() if e["name"] == inner]
        assert over[name]["ts"] <= work["ts"]
        assert over[name]["ts"] + over[name]["dur"] >= work["ts"] + work["dur"]
    titles = [e["args"] for e in trace.events if e.get("ph") == "M" and e["pid"] == 0]
    assert {"labels": "dipu:0"} in titles and {"name": "stream 0"} in titles


def test_an_operator_by_alias_and_one_by_copies(vendor_options: Callable[..., None], tmp_path: Path) -> None:
    x = torch.ones(4, 4, device="dipu")
    with profile(activities=BOTH) as by_alias:
        torch.digamma(x)
    work = rows(by_alias)
    assert work["alias::digamma"].count == work["dipu_digamma"].count == 1
    assert (
        rows(by_alias, DeviceType.CPU)["aten::digamma"].self_device_time_total
        == work["alias::digamma"].device_time_total
        > 0
    )
    assert not [name for name in work if name.startswith("Memcpy")]
    vendor_options(alias=0)
    with profile(activities=BOTH) as by_copies:
        torch.digamma(x)
    work = rows(by_copies)
    assert not [name for name in work if name.startswith("alias::")]
    copies = [
        (e["name"], e["args"]["bytes"], e["args"]["stream"])
        for e in Trace(by_copies, tmp_path).of("gpu_memcpy")
    ]
    assert copies == [
        ("Memcpy DtoH (Device -> Pageable)", 64, 0),
        ("Memcpy HtoD (Pageable -> Device)", 64, 0),
    ]


def test_copies_say_their_kind_and_size(tmp_path: Path) -> None:
    pinned, plain = torch.zeros(1000).pin_memory(), torch.zeros(500, dtype=torch.float64)
    with profile(activities=BOTH) as recorded:
        x = pinned.to("dipu", non_blocking=True)
        plain.to("dipu").cpu()
        x.clone()
        x.sum().item()
    copies = [(e["name"], e["args"]["bytes"]) for e in Trace(recorded, tmp_path).of("gpu_memcpy")]
    assert copies == [
        ("Memcpy HtoD (Pinned -> Device)", 4000),
        ("Memcpy HtoD (Pageable -> Device)", 4000),
        ("Memcpy DtoH (Device -> Pageable)", 4000),
        ("Memcpy DtoD (Device -> Device)", 4000),
        ("Memcpy DtoH (Device -> Pageable)", 4),
    ]


def test_queued_work_has_the_devices_time(vendor_options: Callable[..., None], tmp_path: Path) -> None:
    """The chip sleeps before each piece of work, so each takes at least that long there, and its launch does not."""
    x = torch.ones(8, device="dipu")
    vendor_options(**{"async": 1, "delay_us": 100_000})
    with profile(activities=BOTH) as recorded:
        y = x
        for _ in range(3):
            y = y * 2
        torch.dipu.synchronize()
    row = rows(recorded)["diopiMulScalar" if "diopiMulScalar" in rows(recorded) else "diopiMul"]
    host = rows(recorded, DeviceType.CPU)
    assert row.count == 3 and row.device_time_total >= 300_000
    assert host["aten::mul"].device_time_total == pytest.approx(row.device_time_total)
    assert host["aten::mul"].cpu_time_total < 100_000
    assert host["dipuDeviceSynchronize"].cpu_time_total >= 200_000
    trace = Trace(recorded, tmp_path)
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in trace.work()]
    assert all(before[1] <= after[0] + 0.01 for before, after in itertools.pairwise(spans))
    assert len(trace.flows()[0]) == 3
    assert y.tolist() == [8.0] * 8


def test_streams_and_devices_have_rows_of_their_own(tmp_path: Path) -> None:
    x, far = torch.ones(8, device="dipu:0"), torch.ones(8, device="dipu:1")
    side = torch.dipu.Stream()
    with profile(activities=BOTH) as recorded:
        x.neg()
        with torch.dipu.stream(side):
            x.exp()
        far.abs()
    where = {e["name"]: (e["pid"], e["tid"]) for e in Trace(recorded, tmp_path).work()}
    assert where == {"diopiNeg": (0, 0), "diopiExp": (0, side.stream_id), "diopiAbs": (1, 0)}
    assert {e.name: e.device_index for e in device_work(recorded)} == {
        "diopiNeg": 0,
        "diopiExp": 0,
        "diopiAbs": 1,
    }


def test_threads(tmp_path: Path) -> None:
    """Work of a thread that torch's profiler does not follow is on the device's rows, as with cuda."""
    x = torch.ones(8, device="dipu", requires_grad=True)
    with profile(activities=BOTH) as recorded:
        thread = threading.Thread(target=lambda: [x.detach().abs() for _ in range(50)])
        thread.start()
        for _ in range(50):
            x.exp().sum().backward()
        thread.join()
    work = rows(recorded)
    assert work["diopiExp"].count == 50 and work["diopiAbs"].count == 50
    trace = Trace(recorded, tmp_path)
    operators = trace.operators_by_id()
    forward = {operators[e["args"]["External id"]]["tid"] for e in trace.work() if e["name"] == "diopiExp"}
    backward = {operators[e["args"]["External id"]]["tid"] for e in trace.work() if e["name"] == "diopiMul"}
    assert len(forward) == len(backward) == 1 and forward != backward
    assert not any(e["args"].get("External id") for e in trace.work() if e["name"] == "diopiAbs")
    assert len(trace.flows()[1]) == len(trace.work())


def test_each_profile_has_its_own_work_only() -> None:
    x = torch.ones(8, device="dipu")
    counts = []
    for calls in (3, 1, 0, 2):
        with profile(activities=BOTH) as recorded:
            for _ in range(calls):
                x.neg()
        x.neg()
        row = rows(recorded).get("diopiNeg")
        counts.append(row.count if row else 0)
    assert counts == [3, 1, 0, 2]


def test_an_error_inside_leaves_the_rest_of_the_profile_whole(vendor_options: Callable[..., None]) -> None:
    x, wrong = torch.ones(4, 3, device="dipu"), torch.tensor([9], device="dipu")
    with pytest.raises(IndexError), profile(activities=BOTH) as recorded:
        x.neg()
        torch.nn.functional.embedding(wrong, x)
    work = rows(recorded)
    assert work["diopiNeg"].count == 1 and "diopiEmbedding" not in work
    vendor_options(**{"async": 1})
    with profile(activities=BOTH) as recorded:
        torch.nn.functional.embedding(wrong, x)
        with pytest.raises(RuntimeError, match="diopiEmbedding"):
            torch.dipu.synchronize()
        x.neg()
    assert rows(recorded)["diopiNeg"].count == 1
    with profile(activities=BOTH) as recorded:
        x.neg()
    assert rows(recorded)["diopiNeg"].count == 1


def test_a_forked_process_neither_records_into_its_parents_profile_nor_waits_for_it() -> None:
    x = torch.ones(8, device="dipu")
    with profile(activities=BOTH) as recorded:
        x.neg()
        child = os.fork()
        if child == 0:
            ok = (x.exp() > 0).all().item()
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        x.abs()
    counted = {name: row.count for name, row in rows(recorded).items() if name.startswith("diopi")}
    assert counted == {"diopiNeg": 1, "diopiAbs": 1}


def test_memory_of_the_device_is_in_its_own_columns() -> None:
    with profile(activities=BOTH, profile_memory=True) as recorded:
        with record_function("kept"):
            x = torch.empty(1 << 20, dtype=torch.uint8, device="dipu")
        with record_function("passing"):
            x.neg()
    host = rows(recorded, DeviceType.CPU)
    assert host["kept"].device_memory_usage == host["aten::empty"].device_memory_usage == 1 << 20
    assert host["kept"].cpu_memory_usage == 0
    assert host["passing"].device_memory_usage == 0 and host["aten::neg"].device_memory_usage == 1 << 20
    head = recorded.key_averages().table(sort_by="device_memory_usage").splitlines()[1]
    for title in ("CPU Mem", "Self CPU Mem", "DIPU Mem", "Self DIPU Mem"):
        assert f"  {title}" in head
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as plain:
        torch.empty(1 << 20, dtype=torch.uint8)
    assert "DIPU Mem" not in plain.key_averages().table()


def test_an_allocation_that_fails_is_an_event_too() -> None:
    with profile(activities=BOTH, profile_memory=True) as recorded, pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="dipu")
    assert "[OutOfMemory]" in {event.name for event in recorded.events()}


def test_shapes_stacks_and_flops() -> None:
    x, weight = torch.ones(2, 3, device="dipu"), torch.ones(3, 5, device="dipu")
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
    with profile(
        activities=BOTH, record_shapes=True, with_stack=True, with_flops=True, experimental_config=verbose
    ) as recorded:
        x @ weight
    by_shape = recorded.key_averages(group_by_input_shape=True)
    assert [row.input_shapes for row in by_shape if row.key == "aten::mm"] == [[[2, 3], [3, 5]]]
    by_stack = recorded.key_averages(group_by_stack_n=5)
    for name in ("aten::mm", "diopiMm"):
        (stack,) = [row.stack for row in by_stack if row.key == name]
        assert any("test_shapes_stacks_and_flops" in entry for entry in stack), name
    assert {row.flops for row in recorded.key_averages() if row.key == "aten::mm"} == {2 * 2 * 3 * 5}


def test_a_schedule_and_its_files(tmp_path: Path) -> None:
    x, seen = torch.ones(8, device="dipu"), []

    def ready(recorded: Any) -> None:
        seen.append((recorded.step_num, rows(recorded)["diopiNeg"].count))
        torch.profiler.tensorboard_trace_handler(str(tmp_path), worker_name="worker")(recorded)

    plan = torch.profiler.schedule(skip_first=2, wait=1, warmup=1, active=3, repeat=2)
    with profile(activities=BOTH, schedule=plan, on_trace_ready=ready) as recorded:
        for _ in range(14):
            x.neg()
            recorded.step()
    assert seen == [(7, 3), (12, 3)]
    assert len(list(tmp_path.glob("worker.*.pt.trace.json"))) == 2


def test_some_kinds_of_rows_alone(tmp_path: Path) -> None:
    if torch.__version__ < "2.13":
        pytest.skip("filters of activities are of torch 2.13")
    x = torch.ones(8)
    with profile(
        activities=[ProfilerActivity.CPU, {ProfilerActivity.PrivateUse1: ["GPU_MEMCPY"]}]
    ) as recorded:
        x.to("dipu").neg()
    trace = Trace(recorded, tmp_path)
    assert [e["name"] for e in trace.work()] == ["Memcpy HtoD (Pageable -> Device)"]
    assert trace.of("gpu_user_annotation") == []
    assert "LaunchKernel_diopiNeg" in {e["name"] for e in trace.of("privateuse1_runtime")}, (
        "torch asks for these with the CPU's"
    )


def test_the_older_profiler_with_and_without_kineto(vendor_options: Callable[..., None]) -> None:
    x = torch.ones(8, device="dipu")
    vendor_options(**{"async": 1, "delay_us": 20_000})
    for kineto in (True, False):
        with torch.autograd.profiler.profile(use_device="dipu", use_kineto=kineto) as recorded:
            x.neg().abs()
        times = {
            row.key: row.device_time_total for row in recorded.key_averages() if row.key.startswith("aten::")
        }
        assert times["aten::neg"] >= 20_000 and times["aten::abs"] >= 20_000, kineto
