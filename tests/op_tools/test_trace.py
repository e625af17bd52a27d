"""`op-tools trace`: the measured calls on a time line, checked event by event."""

from __future__ import annotations

import csv
import gzip
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_llama
import torch

import op_tools
from op_tools.cli import main
from op_tools.runs import open_run
from op_tools.storage.log import Log
from op_tools.trace.layout import TICK_NS

D = "dipu"
STEPS = 2
Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a small training under OpTimeMeasure."""
    folder = tmp_path_factory.mktemp("trained") / "results"
    with op_tools.OpTimeMeasure(results=str(folder)):
        small_llama.train(D, STEPS)
    return folder


def call(arguments: list[str], expect: int = 0) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert (raised.value.code or 0) == expect


def events_of(path: Path) -> Events:
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        trace = json.load(file)
    assert trace["displayTimeUnit"] == "ms" and trace["otherData"]["made_by"] == "op-tools trace"
    return trace["traceEvents"]


def traced(folder: Path, *options: str) -> Events:
    target = Path("out") / "trace.json"
    call(["trace", str(folder), "-o", str(target), *options])
    events = events_of(target)
    check_form(events)
    return events


def calls_of(events: Events, kind: str = "") -> Events:
    kinds = (kind,) if kind else ("forward", "backward")
    return [event for event in events if event["ph"] == "X" and event["cat"] in kinds]


def check_form(events: Events) -> None:
    """What every reader of the format relies on: fields, proper nesting on each track, arrows that lie in slices."""
    tracks: dict[tuple[int, int], Events] = defaultdict(list)
    named = set()
    for event in events:
        assert event["ph"] in {"X", "M", "s", "f", "C"}
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["ts"], int | float) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["name"] and event["cat"]
            tracks[event["pid"], event["tid"]].append(event)
        if event["ph"] == "M" and event["name"] == "thread_name":
            named.add((event["pid"], event["tid"]))
    assert named == set(tracks)
    for slices in tracks.values():
        check_nesting(slices)
    check_flows(events, tracks)


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    """As a reader would count that multiplies and cuts off: starts must survive it."""
    start = int(event["ts"] * 1000)
    assert start % TICK_NS == 0
    return start, start + int(event["dur"] * 1000)


def check_nesting(slices: Events) -> None:
    open_ends: list[int] = []
    last = 0
    for event in slices:
        start, end = nanoseconds(event)
        assert start >= last, "a slice stands behind one that starts later"
        last = start
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], f"{event} overlaps what is around it"
        assert open_ends or event["cat"] == "step", f"{event} lies in no step"
        open_ends.append(end)


def check_flows(events: Events, tracks: dict[tuple[int, int], Events]) -> None:
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == sum(event["ph"] == "s" for event in events)
    begun = {
        (*track, slice_["ts"], slice_["cat"]): slice_
        for track, slices in tracks.items()
        for slice_ in calls_of(slices)
    }
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e" and end["ts"] >= start["ts"]
        forward = begun[start["pid"], start["tid"], start["ts"], "forward"]
        backward = begun[end["pid"], end["tid"], end["ts"], "backward"]
        assert forward["args"]["forward_id"] == backward["args"]["forward_id"]


def csv_rows(folder: Path) -> list[dict[str, str]]:
    (file,) = (folder / "op_time_measure_result").glob("*.csv")
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_every_row_is_a_slice_as_long_as_the_csv_says(trained: Path) -> None:
    events = traced(trained)
    rows = {int(row["forward_id"]): row for row in csv_rows(trained)}
    forward, backward = calls_of(events, "forward"), calls_of(events, "backward")
    assert len(forward) == len(rows) > 300
    assert len(backward) == sum(bool(row["backward_elasped"]) for row in rows.values()) > 100
    for slices, column in ((forward, "forward_elasped"), (backward, "backward_elasped")):
        for event in slices:
            row = rows[event["args"]["forward_id"]]
            assert event["dur"] == pytest.approx(float(row[column]) * 1000, abs=1e-3)
            assert event["name"] == row["name"]
            said = {key: str(event["args"][key]) for key in ("call_site", "module", "step")}
            assert said == {key: row[key] for key in said}
            assert (event["args"]["inputs"], event["args"]["outputs"]) == (row["input"], row["output"])
    assert backward[0]["args"]["grad_outputs"].startswith("[float32")
    assert len([event for event in events if event["ph"] == "s"]) == len(backward)


def test_tracks_and_processes_have_names(trained: Path) -> None:
    events = traced(trained)
    names = {
        (event["name"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and "name" in event["args"]
    }
    host = next(open_run(trained).contents("time_measure")).header["host"]
    assert names == {
        ("process_name", 0): f"rank 0 (pid {os.getpid()}, {host})",
        ("thread_name", 1): "forward",
        ("thread_name", 2): "backward",
    }
    assert {event["tid"] for event in calls_of(events, "forward")} == {1}
    assert {event["tid"] for event in calls_of(events, "backward")} == {2}
    assert {event["pid"] for event in events} == {os.getpid()}


def test_steps_and_modules_enclose_their_calls_and_no_others(trained: Path) -> None:
    events = traced(trained)
    for tid, phase in ((1, "forward"), (2, "backward")):
        slices = [event for event in events if event["ph"] == "X" and event["tid"] == tid]
        steps = [event for event in slices if event["cat"] == "step"]
        assert [event["name"] for event in steps][:STEPS] == [f"step {n}" for n in range(STEPS)]
        modules = [event for event in slices if event["cat"] == "module"]
        assert {"Llama", "Llama.blocks.0", "Llama.blocks.1.attention"} <= {event["name"] for event in modules}
        for around in steps + modules:
            start, end = nanoseconds(around)
            inside = [e for e in calls_of(slices, phase) if start <= nanoseconds(e)[0] < end]
            assert len(inside) == around["args"]["calls"] > 0
            for event in inside:
                path = event["args"]["module"] + "."
                step = f"step {event['args']['step']}"
                assert step == around["name"] if around in steps else path.startswith(around["name"] + ".")


def test_calls_start_when_the_host_started_them() -> None:
    x = torch.ones(4, device=D, requires_grad=True)
    before = time.time() * 1e6
    with op_tools.OpTimeMeasure():
        y = x * 2
        time.sleep(0.05)
        y.sum().backward()
    after = time.time() * 1e6
    mul, total = open_run("op_tools_results").rows("time_measure")
    assert (mul["name"], mul["clock"]) == ("torch.Tensor.mul", "device")
    assert before - 2000 < mul["start_us"] < total["start_us"] - 50_000
    assert total["start_us"] < total["backward_start_us"] < mul["backward_start_us"] < after + 2000


def test_a_row_of_sync_mode_says_that_the_host_measured_it(rows: Any) -> None:
    x = torch.ones(4, device=D)
    with op_tools.OpTimeMeasure(sync=True):
        x.neg()
    (row,) = open_run("op_tools_results").rows("time_measure")
    assert row["clock"] == "host" and "backward_start_us" not in row
    assert not {"start_us", "clock"} & set(rows("op_time_measure_result")[0])


def test_a_device_that_lags_behind_gets_a_track_of_its_own(quiet_device: None) -> None:
    x = torch.ones(4, device=D, requires_grad=True)
    torch.dipu.synchronize()
    torch.dipu.configure(**{"async": 1, "delay_us": 4000})
    with op_tools.OpTimeMeasure():
        (x * 2).exp().sum().backward()
    events = traced(Path("op_tools_results"))
    slices = calls_of(events)
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == ["device dipu:0"]
    assert [(event["name"], event["cat"]) for event in slices] == [
        ("torch.Tensor.mul", "forward"), ("torch.Tensor.exp", "forward"), ("torch.Tensor.sum", "forward"),
        ("torch.Tensor.sum", "backward"), ("torch.Tensor.exp", "backward"), ("torch.Tensor.mul", "backward"),
    ]  # fmt: skip
    for row in csv_rows(Path("op_tools_results")):
        mine = [event["dur"] for event in slices if event["name"] == row["name"]]
        expected = [float(row["forward_elasped"]) * 1000, float(row["backward_elasped"]) * 1000]
        assert mine == pytest.approx(expected, abs=1e-3)
    assert slices[1]["ts"] >= slices[0]["ts"] + slices[0]["dur"] > 3000


# --- logs made by hand -----------------------------------------------------------------------------------

T0 = 1_800_000_000_000_000.0


def row(number: int, start: float, milliseconds: float, **more: Any) -> dict[str, Any]:
    plain = {
        "forward_id": number, "name": f"torch.op{number}", "call_site": f"a.py:{number} f: x", "module": "Net.layer",
        "step": 0, "thread": 7, "level": "api", "phase": "forward", "input": "(float32[2]@dev:0)",
        "output": "float32[2]@dev:0", "forward_elasped": milliseconds, "start_us": T0 + start, "clock": "host",
    }  # fmt: skip
    return plain | more


def write(rows: list[dict[str, Any]], name: str = "op_elasped_info", **place: Any) -> None:
    with Log("made/logs", name, **place) as log:
        log.extend(rows)


def test_two_ranks_are_two_processes_on_one_clock() -> None:
    write([row(1, 0, 0.1), row(2, 200, 0.1)], rank=0, world_size=2)
    write([row(1, 50, 0.1)], rank=1, world_size=2)
    events = traced(Path("made"))
    assert [(event["pid"], event["ts"]) for event in calls_of(events)] == [(0, 0), (0, 200), (1, 50)]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name.split(" (")[0] for name in names] == ["rank 0", "rank 1"]


def test_backwards_that_interleave_are_shown_as_they_were() -> None:
    first = row(1, 0, 0.01, backward_elasped=0.1, backward_start_us=T0 + 100)
    second = row(2, 20, 0.01, backward_elasped=0.1, backward_start_us=T0 + 150)
    third = row(3, 40, 0.01, backward_elasped=0.01, backward_start_us=T0 + 300)
    write([first, second, third])
    events = traced(Path("made"))
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    placed = [(tracks[event["tid"]], event["ts"], event["dur"]) for event in calls_of(events, "backward")]
    assert placed == [
        ("backward", 100, 100), ("backward", 300, 10), ("backward (overlapping 1)", 150, 100),
    ]  # fmt: skip


def test_kernels_of_backward_are_tied_to_the_call_they_belong_to() -> None:
    forward = [row(1, 0, 0.01, level="aten"), row(1, 20, 0.01, level="aten"), row(2, 40, 0.01, level="aten")]
    backward = [row(1, start, 0.01, level="aten", phase="backward", thread=8) for start in (100, 200)]
    write(forward + backward)
    events = traced(Path("made"))
    arrows = [(event["ph"], event["ts"]) for event in events if event["ph"] in "sf"]
    assert arrows == [("s", 20), ("f", 100)]


def test_threads_are_told_apart() -> None:
    write([row(1, 0, 0.1, thread=70), row(2, 50, 0.1, thread=71), row(3, 200, 0.1, thread=70)])
    events = traced(Path("made"))
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert Counter(tracks[event["tid"]] for event in calls_of(events)) == {
        "forward (thread 0)": 2,
        "forward (thread 1)": 1,
    }


def test_a_chain_of_modules_is_one_slice_and_a_single_call_none() -> None:
    modules = ["Net.a.b.c", "Net.a.b.d", "Net.a.b", "Net.e.f"]
    write([row(n, 100 * n, 0.01, module=module) for n, module in enumerate(modules)])
    events = traced(Path("made"))
    around = [
        (e["cat"], e["name"], e["args"]["calls"]) for e in events if e["ph"] == "X" and "calls" in e["args"]
    ]
    assert around == [("step", "step 0", 4), ("module", "Net", 4), ("module", "Net.a.b", 3)]


def test_memory_is_a_counter() -> None:
    write([row(1, 0, 0.1)])
    samples = [
        {"time_s": (T0 + 1e6 * n) / 1e6, "host_rss_bytes": 1000 + n, "device_allocated_bytes": n or None}
        for n in range(3)
    ]
    write(samples, "process_memory_info")
    counters = [event for event in traced(Path("made")) if event["ph"] == "C"]
    assert [(event["ts"], event["name"], event["args"]["bytes"]) for event in counters] == [
        (0, "host memory (bytes)", 1000),
        (1e6, "host memory (bytes)", 1001), (1e6, "device memory (bytes)", 1),
        (2e6, "host memory (bytes)", 1002), (2e6, "device memory (bytes)", 2),
    ]  # fmt: skip


def test_memory_samples_that_count_from_the_first_are_placed_by_the_start_of_their_log() -> None:
    begun = time.time()
    write([row(1, 0, 0.1, start_us=begun * 1e6)])
    write([{"time_s": n, "host_rss_bytes": 5} for n in (0.0, 30.0)], "process_memory_info")
    events = traced(Path("made"))
    (call_,) = calls_of(events)
    first, second = (event["ts"] for event in events if event["ph"] == "C")
    assert second - first == 30e6 and abs(first - call_["ts"]) < 10e6


def test_times_that_are_none_are_left_out_and_texts_are_data() -> None:
    hostile = '</script>"\\\n\u202e\U0001f600'
    write([row(1, 0, float("nan")), row(2, 10, 0.1, call_site=hostile, name=hostile)])
    (event,) = calls_of(traced(Path("made")))
    assert event["name"] == hostile and event["args"]["call_site"] == hostile


def test_strange_values_are_no_start_and_no_time(capfd: Any) -> None:
    strange = [
        row(2, 0, 0.1, start_us=1e308), row(3, 0, 0.1, start_us=-5.0), row(4, 0, 1e305), row(5, 10, 0.1, step=[0]),
        row(6, 20, 0.1, backward_elasped=1e305, backward_start_us=T0), row(7, 30, 0.1, phase=3),
        row(8, 40, 0.1, backward_elasped=0.1, backward_start_us=1e308),
    ]  # fmt: skip
    write([row(1, 0, 0.01), *strange])
    write(
        [{"time_s": 1e308, "host_rss_bytes": 5}, {"start_us": 1e308, "host_rss_bytes": 6}],
        "process_memory_info",
    )
    events = traced(Path("made"))
    assert [event["args"]["forward_id"] for event in calls_of(events)] == [1, 5, 6, 7, 8]
    assert not [event for event in events if event["ph"] == "C"]
    capfd.readouterr()
    call(["trace", "made", "-o", "t.json", "--json", "--steps", "0,1"])
    said = json.loads(capfd.readouterr().out)
    assert (said["slices"], said["without_start"], said["without_time"]) == (4, 2, 1)


def test_older_runs_in_the_folder_are_left_out(capfd: Any) -> None:
    write([row(1, 0, 0.1)], about={"run_id": "first"})
    write([row(2, 50, 0.1), row(3, 200, 0.1)], about={"run_id": "second"})
    call(["trace", "made", "-o", "t.json"])
    assert "1 log of an older run left out" in capfd.readouterr().out
    assert [event["name"] for event in calls_of(events_of(Path("t.json")))] == ["torch.op2", "torch.op3"]
    call(["trace", "made", "-o", "t.json", "--json"])
    assert json.loads(capfd.readouterr().out)["older_logs"] == 1


def test_many_rows_in_little_memory(capfd: Any) -> None:
    count = 20_000
    write([row(n, 30 * n, 0.01, step=n // 1000, module=f"Net.{n // 10 % 7}") for n in range(count)])
    call(["trace", "made", "-o", "trace.json.gz", "--json"])
    said = json.loads(capfd.readouterr().out)
    assert (said["rows"], said["slices"], said["processes"]) == (count, count, 1)
    assert said["bytes"] == Path("trace.json.gz").stat().st_size
    events = events_of(Path("trace.json.gz"))
    check_form(events)
    assert len(calls_of(events)) == count
    assert sum(event["ph"] == "X" and event["cat"] == "step" for event in events) == 20


# --- the command ------------------------------------------------------------------------------------------


def test_the_trace_lies_in_the_run_and_some_steps_can_be_chosen(trained: Path, capfd: Any) -> None:
    call(["trace", str(trained)])
    out = capfd.readouterr().out
    assert str(trained / "trace.json") in out and "ui.perfetto.dev" in out
    everything = len(calls_of(events_of(trained / "trace.json")))
    chosen = calls_of(traced(trained, "--steps", "1"))
    assert {event["args"]["step"] for event in chosen} == {1} and 100 < len(chosen) < everything


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere"], 2, "nowhere does not exist"),
        (["empty"], 5, "holds no results of op_tools"),
        (["file.csv"], 2, "is not a log of op_tools"),
        (["old"], 5, "measure again"),
        (["other"], 5, "ditorch run script.py --tool time"),
        (["good", "--steps", "4"], 5, "no measured calls of these steps"),
        (["good", "--steps", "x"], 2, "expected a number"),
        (["good", "-o", "file.csv/trace.json"], 2, "cannot be written"),
        (["broken"], 2, "cannot be read"),
        (["good", "-o", "."], 2, "is a folder"),
        (["good", "-o", "/"], 2, "is a folder"),
        (["good", "-o", "empty"], 2, "is a folder"),
        (["n" * 300], 2, "cannot be read: File name too long"),
        (["good", "-o", "n" * 300], 2, "cannot be read: File name too long"),
    ],
)
def test_bad_input_is_said_plainly(arguments: list[str], code: int, said: str, capfd: Any) -> None:
    Path("empty").mkdir()
    Path("file.csv").write_text("name\n")
    Path("broken").mkdir()
    Path("broken/op_elasped_info_pid1_2026.oplog").write_text("this is not a log, but it is long enough")
    old = {key: value for key, value in row(1, 0, 0.1).items() if key != "start_us"}
    for folder, name, one in (
        ("old", "op_elasped_info", old),
        ("other", "op_observe_info", old),
        ("good", "op_elasped_info", row(1, 0, 0.1)),
    ):
        with Log(folder, name) as log:
            log.append(one)
    call(["trace", *arguments], code)
    captured = capfd.readouterr()
    assert said in captured.err and captured.err.startswith("op-tools: ") and "Traceback" not in captured.err
    assert not list(Path().rglob("trace.json*"))
