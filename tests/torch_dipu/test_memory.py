"""The allocator: blocks are split and merged, its figures are true, its history is what PyTorch's viewer reads."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import random
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_python import run_python

from torch_dipu import memory

MB = 2**20


@pytest.fixture(autouse=True)
def _fresh() -> None:
    gc.collect()
    torch.dipu.synchronize()
    torch.dipu.empty_cache()
    torch.dipu.reset_peak_memory_stats()
    torch.dipu.reset_accumulated_memory_stats()


@pytest.fixture
def history() -> Iterator[None]:
    memory._record_memory_history(clear_history=True)
    yield
    memory._record_memory_history(None)


def bytes_on(size: int, device: str = "dipu") -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


def figures(*names: str) -> list[int]:
    stats = torch.dipu.memory_stats()
    return [stats[f"{name}.current"] for name in names]


def blocks_of(snapshot: list[dict[str, Any]]) -> dict[int, tuple[int, str]]:
    return {
        block["address"]: (block["size"], block["state"])
        for segment in snapshot
        for block in segment["blocks"]
    }


def test_figures_of_both_pools() -> None:
    names = [f"{kind}.{pool}" for kind in ("requested_bytes", "allocated_bytes", "allocation") for pool in
             ("all", "small_pool", "large_pool")]  # fmt: skip
    before = figures(*names)
    small, large = bytes_on(1000), bytes_on(3 * MB + 1)
    change = [after - then for after, then in zip(figures(*names), before, strict=True)]
    assert change == [3 * MB + 1001, 1000, 3 * MB + 1, 3 * MB + 1536, 1024, 3 * MB + 512, 2, 1, 1]
    del small, large
    assert figures(*names) == before
    stats = torch.dipu.memory_stats()
    assert (
        stats["allocated_bytes.large_pool.allocated"]
        == stats["allocated_bytes.large_pool.freed"]
        == 3 * MB + 512
    )
    assert stats["requested_bytes.small_pool.peak"] >= 1000
    assert len(stats) >= 122


def test_blocks_are_cut_and_merged() -> None:
    """In a process of its own: what other tests hold decides where blocks come to lie."""
    code = """
        import itertools
        import torch

        def bytes_on(size):
            return torch.empty(size, dtype=torch.uint8, device="dipu")

        kept = [bytes_on(100 * 1024) for _ in range(4)]
        addresses = [tensor.data_ptr() for tensor in kept]
        assert [b - a for a, b in itertools.pairwise(addresses)] == [100 * 1024] * 3
        split = torch.dipu.memory_stats()["inactive_split.all.current"]
        del kept[1:3]
        wide = bytes_on(200 * 1024)  # fits where two were
        assert wide.data_ptr() == addresses[1]
        assert torch.dipu.memory_stats()["inactive_split.all.current"] == split
        del kept, wide
        torch.dipu.empty_cache()
        assert torch.dipu.memory_snapshot() == []
        print("merged")
        """
    done = run_python("-c", textwrap.dedent(code), timeout=60)
    assert done.stdout == "merged\n", done.stderr


@pytest.mark.parametrize("seed", range(3))
def test_segments_hold_together_whatever_is_freed(seed: int) -> None:
    draw = random.Random(seed)
    operand = torch.ones(3000, dtype=torch.int32, device="dipu")
    held: list[torch.Tensor] = []
    start = torch.dipu.memory_allocated()
    for round_ in range(400):
        if held and draw.random() < 0.5:
            held.pop(draw.randrange(len(held)))
        elif draw.random() < 0.2:  # made by a host kernel, adopted
            held.append(torch.bitwise_xor(operand[: draw.randrange(1, 3000)], 1))
        else:
            number = draw.randrange(256)
            held.append(
                torch.full(
                    (draw.choice([9, 600, 5000, MB, MB + 1, 3 * MB]),),
                    number,
                    dtype=torch.uint8,
                    device="dipu",
                )
            )
        if round_ % 40:
            continue
        for segment in torch.dipu.memory_snapshot(0):
            address = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == address
                address += block["size"]
            assert address == segment["address"] + segment["total_size"]
        starts = sorted((t.data_ptr(), t.nbytes) for t in held)
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(starts))
        assert all((tensor == tensor[0]).all() for tensor in held)
    held.clear()
    assert torch.dipu.memory_allocated() == start


def test_growing_temporaries_leave_no_segments_behind() -> None:
    reserved, held = torch.dipu.memory_reserved(), torch.dipu.memory_allocated()
    temporary = None
    for i in range(1, 401):
        temporary = bytes_on(15_000_000 * i // 400)
    del temporary
    taken = torch.dipu.max_memory_reserved() - reserved
    assert taken <= 1.3 * (torch.dipu.max_memory_allocated() - held)


def test_a_size_that_repeats_itself_asks_the_vendor_once() -> None:
    for size in (3 * MB, 7 * MB, 3 * MB, 9 * MB) * 3:
        del_me = bytes_on(size), bytes_on(size)
        del del_me
    calls = torch.dipu.memory_stats()["num_device_alloc"]
    for size in (3 * MB, 7 * MB, 3 * MB, 9 * MB) * 20:
        del_me = bytes_on(size), bytes_on(size)
        del del_me
    assert torch.dipu.memory_stats()["num_device_alloc"] - calls <= 2


def test_memory_of_a_step_does_not_grow() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to("dipu")
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []
    for step in range(300):
        optimizer.zero_grad()
        model(torch.randn(8, 16, device="dipu")).square().mean().backward()
        optimizer.step()
        if step in (100, 299):
            gc.collect()
            seen.append((torch.dipu.memory_reserved(), torch.dipu.memory_allocated()))
    assert seen[0] == seen[1]


@pytest.mark.usefixtures("history")
def test_history_is_what_the_viewer_reads(tmp_path: Path) -> None:
    from torch.cuda import _memory_viz

    x = bytes_on(5 * MB)
    address = x.data_ptr()
    del x
    y = bytes_on(7 * MB)
    with pytest.raises(torch.OutOfMemoryError):
        bytes_on(2**45)
    memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    events = snapshot["device_traces"][0]
    mine = [(event["action"], event["size"]) for event in events if event.get("addr") == address]
    assert ("segment_alloc", 6 * MB) in mine
    assert [pair for pair in mine if pair[1] == 5 * MB] == [
        ("alloc", 5 * MB), ("free_requested", 5 * MB), ("free_completed", 5 * MB),
    ]  # fmt: skip
    (failed,) = [event for event in events if event["action"] == "oom"]
    assert failed["size"] == 2**45 and failed["device_free"] > 0
    for event in events:
        if event["action"] in ("alloc", "free_requested", "oom"):
            assert any(frame["name"].startswith("test_history") for frame in event["frames"]), event
    (block,) = [b for s in snapshot["segments"] for b in s["blocks"] if b["address"] == y.data_ptr()]
    assert (block["state"], block["requested_size"]) == ("active_allocated", 7 * MB)
    assert block["frames"][0]["filename"].endswith("test_memory.py") or block["frames"][1][
        "filename"
    ].endswith("test_memory.py")
    for page in (_memory_viz.trace_plot(snapshot, device=0), _memory_viz.segment_plot(snapshot, device=0)):
        assert "MemoryViz.js" in page
    assert "test_memory.py" in _memory_viz.memory(snapshot, format_flamegraph=lambda text: text)
    assert "alloc" in _memory_viz.trace(snapshot)


@pytest.mark.usefixtures("history")
def test_our_own_page_shows_a_snapshot(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from torch_dipu.commands import app
    from torch_dipu.memory_page import curve, holders

    kept = [bytes_on(5 * MB) for _ in range(2)]
    snapshot = memory._snapshot()
    assert max(held for _, held in curve(snapshot["device_traces"][0])) >= 10 * MB
    (mine,) = [row for row in holders(snapshot["segments"]) if "test_memory.py" in row[0]]
    assert mine[1:] == (2, 10 * MB)
    file, output = tmp_path / "snapshot.pickle", tmp_path / "memory.html"
    memory._dump_snapshot(str(file))
    assert CliRunner().invoke(app, ["memory", str(file), "-o", str(output)]).exit_code == 0
    text = output.read_text()
    assert "10.00 MiB" in text and "test_memory.py" in text and "<polyline" in text
    file.write_bytes(pickle.dumps(Path("x")))
    refused = CliRunner().invoke(app, ["memory", str(file), "-o", str(output)])
    assert refused.exit_code == 2 and "is no memory snapshot" in refused.output
    del kept


@pytest.mark.usefixtures("history")
def test_out_of_memory_names_holders_and_call_sites() -> None:
    held = [bytes_on(4 * MB) for _ in range(3)]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        bytes_on(2**45)
    assert "12.00 MiB in 3 tensors of 4.00 MiB from " in str(caught.value)
    assert "test_memory.py:" in str(caught.value)
    memory._record_memory_history(None)
    del held
    held = [torch.full((2,), 5.0, device="dipu")]
    with pytest.raises(torch.OutOfMemoryError, match="_record_memory_history"):
        bytes_on(2**45)
    assert held[0].tolist() == [5.0, 5.0]


def test_wrong_arguments_of_the_history_are_refused() -> None:
    for wrong in ({"enabled": "yes"}, {"context": "some"}, {"stacks": "c"}):
        with pytest.raises(ValueError, match="expected"):
            memory._record_memory_history(**wrong)  # type: ignore[arg-type]


def test_the_summary_has_both_pools() -> None:
    kept = bytes_on(3 * MB)
    text = torch.dipu.memory_summary()
    assert "large pool" in text and "held by tensors" in text
    assert f"{torch.dipu.memory_allocated() / MB:.2f} MiB" in text
    assert "large pool" not in torch.dipu.memory_summary(abbreviated=True)
    del kept


def run(code: str, **environment: str) -> tuple[str, str]:
    done = run_python("-c", textwrap.dedent(code), timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("algorithm", "reserved", "size"), [("RAW", 0, 65536), ("BS", 73728, 73728), ("BF", 2 * MB, 66048)]
)
def test_algorithms(algorithm: str, reserved: int, size: int) -> None:
    out, _ = run(
        """
        import torch
        x = torch.empty(65536 if torch_raw else 66000, dtype=torch.uint8, device="dipu")
        print(torch.dipu.memory_allocated())
        del x
        print(torch.dipu.memory_reserved())
        """.replace("torch_raw", str(algorithm == "RAW")),
        DIPU_DEVICE_MEMCACHING_ALGORITHM=algorithm,
    )
    assert out.split() == [str(size), str(reserved)]


def test_the_checker_names_what_is_not_freed() -> None:
    _, err = run(
        """
        import ctypes, torch
        def lose():
            lost = torch.empty(3 * 2**20, dtype=torch.uint8, device="dipu")
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(lost))
        lose()
        for _ in range(10):
            torch.empty(10, device="dipu")
        """,
        DIPU_MEM_CHECK="1",
        DIPU_MEM_CHECK_ENABLE_BACKTRACE="1",
        DIPU_MEM_CHECK_LOG_INTERVAL="5",
    )
    assert "dipu memory checker: current block num = 2, total_size = 3MB, insert count = 5" in err
    assert "dipu memory checker: going to destruction. current block num = 1, total_size = 3MB" in err
    (found,) = [line for line in err.splitlines() if "not freed" in line]
    assert f"size: {3 * MB}, device: dipu:0" in found
    assert "in lose" in err and "dipu::allocate_on" in err


def test_the_checker_is_silent_when_all_is_freed_and_refuses_wrong_values() -> None:
    _, err = run("import torch; x = torch.ones(3, device='dipu')", DIPU_MEM_CHECK="1")
    assert "current block num = 0" in err and "not freed" not in err
    with pytest.raises(ValueError, match="DIPU_MEM_CHECK='maybe': expected 0 or 1"):
        os.environ["DIPU_MEM_CHECK"] = "maybe"
    assert os.environ.get("DIPU_MEM_CHECK") in (None, "0", "1")
