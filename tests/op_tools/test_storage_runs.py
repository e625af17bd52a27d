"""The store during a run: layout, limits, back-pressure, errors of the disk, threads, forks, thousands of calls."""

from __future__ import annotations

import json
import os
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_python import run_python

from op_tools.storage import CallInfo, CaptureError, CaptureStore, Limits, load
from op_tools.storage.pool import Pool, capacity_for
from op_tools.storage.writer import BackgroundWriter

pytestmark = pytest.mark.unit

KINDS = ("files", "blobs")


def captures(root: Path) -> list[Path]:
    return sorted(root.rglob("*.pth"))


def call(number: int = 1, name: str = "torch.Tensor.add", **more: Any) -> CallInfo:
    return CallInfo(name, number, time="2024-10-09-11-42-15", **more)


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: some disks take a millisecond to reuse a file that was just deleted."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class TestLayout:
    def test_promised_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        said: list[str] = []
        with CaptureStore("op_tools_results", on_saved=said.append) as store:
            one = call(161)
            for part in ("input", "output", "grad_inputs", "grad_outputs"):
                store.put(one, part, (torch.ones(2),))
            monkeypatch.chdir("/")  # what a training does to its folder must not move the results
        base = f"op_tools_results/op_capture_results/torch.Tensor.add/{os.getpid()}/161/2024-10-09-11-42-15"
        assert said == [f"{base}/{part}.pth" for part in ("input", "output", "grad_inputs", "grad_outputs")]
        folder = tmp_path / base
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            f"{part}.pth{end}"
            for part in ("input", "output", "grad_inputs", "grad_outputs")
            for end in ("", ".json")
        )
        assert not (tmp_path / "op_tools_results/op_capture_results/.incoming").exists()

    def test_rank_and_host_in_multi_rank_runs(self, tmp_path: Path) -> None:
        with CaptureStore(tmp_path) as store:
            store.put(call(rank=3, world_size=8), "input", ())
        (path,) = captures(tmp_path)
        process = path.parent.parent.parent.name
        assert process.startswith("rank3_") and process.endswith(f"_{os.getpid()}")
        assert load(path)["__op_tools__"]["rank"] == 3

    def test_autocompare_folders(self, tmp_path: Path) -> None:
        with CaptureStore(tmp_path) as store:
            store.put(call(231, purpose="autocompare", side="device"), "input", ())
        (path,) = captures(tmp_path)
        expected = f"{os.getpid()}/autocompare/231/2024-10-09-11-42-15/device/input.pth"
        assert path.relative_to(tmp_path / "op_capture_results/torch.Tensor.add").as_posix() == expected

    @pytest.mark.parametrize(
        "name", ["../../etc/passwd", "a/b", "..", "blobs", "x" * 400, "op<lambda>\0", ""]
    )
    def test_operator_names_cannot_leave_the_folder(self, tmp_path: Path, name: str) -> None:
        root = tmp_path / "root"
        with CaptureStore(root) as store:
            assert store.put(call(name=name), "input", (1,))
        (path,) = captures(tmp_path)
        assert len(path.relative_to(root / "op_capture_results").parts) == 5
        assert load(path)["__op_tools__"]["operator"] == name
        assert not (root / "op_capture_results/blobs").exists()

    def test_header_and_description(self, tmp_path: Path) -> None:
        one = call(9, step=4, device="dipu:0", call_site="train.py:3 f: x + y", extra={"rng": "kept"})
        with CaptureStore(tmp_path) as store:
            store.put(one, "input", (torch.ones(2, 3).t(), 2.5), {"alpha": None})
        (path,) = captures(tmp_path)
        header = torch.load(path, weights_only=True)["__op_tools__"]
        expected = {
            "format": 1,
            "operator": "torch.Tensor.add",
            "forward_id": 9,
            "step": 4,
            "device": "dipu:0",
            "devices": ("cpu",),
            "call_site": "train.py:3 f: x + y",
            "part": "input",
            "pid": os.getpid(),
            "torch": torch.__version__,
            "extra": {"rng": "kept"},
        }
        assert {key: header[key] for key in expected} == expected
        described = json.loads(Path(f"{path}.json").read_text())
        assert described["args"][0] == {
            "shape": [3, 2],
            "stride": [1, 3],
            "numel": 6,
            "dtype": "float32",
            "device": "cpu",
            "requires_grad": False,
            "layout": "torch.strided",
            "class": "Tensor",
            "saved_stride": [1, 3],
        }
        assert described["args"][1] == 2.5 and described["kwargs"] == {"alpha": None}

    @pytest.mark.parametrize("kind", KINDS)
    def test_removed_results_are_made_again(self, tmp_path: Path, kind: Any) -> None:
        import shutil

        x = torch.ones(3)
        with CaptureStore(tmp_path / "r", kind) as store:
            store.put(call(1), "input", (x,))
            store.flush()
            shutil.rmtree(tmp_path / "r")
            store.put(call(1), "output", (2,))
            store.flush()
            store.put(call(2), "input", (x,))
        assert load(captures(tmp_path)[0])["args"] == (2,)
        assert torch.equal(load(captures(tmp_path)[1])["args"][0], x)
        assert store.stats.complete


class TestBlobs:
    def test_equal_bytes_are_kept_once(self, tmp_path: Path) -> None:
        large, small = torch.randn(100_000), torch.randn(100)
        with CaptureStore(tmp_path, "blobs") as store:
            for number in range(10):
                store.put(call(number), "input", (large, small, large.view(100, 1000)))
                store.put(call(number), "output", (large.clone(), small + number))
        blobs = tmp_path / "op_capture_results/blobs"
        own = [path for path in blobs.iterdir() if not path.name.endswith(".pack")]
        assert [path.stat().st_size for path in own] == [400_000]
        (pack,) = blobs.glob("*.pack")
        assert pack.stat().st_size == 400 * 10  # small + 0 has the bytes of small
        assert store.stats.raw_bytes == 10 * (3 * 400_000 + 800)
        for path in captures(tmp_path):
            found = load(path)["args"]
            assert torch.equal(found[0], large)
        assert torch.equal(load(captures(tmp_path)[-1])["args"][1], small + 9)

    def test_the_file_of_another_rank_is_used(self, tmp_path: Path) -> None:
        weights = torch.randn(100_000)
        for _ in range(2):
            with CaptureStore(tmp_path, "blobs") as store:
                store.put(call(rank=1, world_size=2), "input", (weights,))
        assert store.stats.written_bytes < 10_000
        assert torch.equal(load(captures(tmp_path)[0])["args"][0], weights)

    def test_a_lost_blob_is_reported(self, tmp_path: Path) -> None:
        with CaptureStore(tmp_path, "blobs") as store:
            store.put(call(), "input", (torch.randn(100_000),))
        (blob,) = (tmp_path / "op_capture_results/blobs").iterdir()
        content = bytearray(blob.read_bytes())
        content[77] ^= 1
        blob.write_bytes(content)
        with pytest.raises(CaptureError, match="are not those of"):
            load(captures(tmp_path)[0])
        blob.unlink()
        with pytest.raises(CaptureError, match="no such file"):
            load(captures(tmp_path)[0])


class TestLimits:
    def test_calls_per_signature_are_whole_calls(self, tmp_path: Path) -> None:
        said: list[str] = []
        limits = Limits(calls_per_signature=2)
        with CaptureStore(tmp_path, limits=limits, on_problem=said.append) as store:
            calls = [call(number, signature=number % 2) for number in range(10)]
            taken = [store.put(one, "input", (1,)) for one in calls]
            assert taken == [True] * 4 + [False] * 6
            assert [store.put(one, "output", (1,)) for one in calls] == taken
        assert len(captures(tmp_path)) == 8
        assert (store.stats.calls, store.stats.left_out, store.stats.complete) == (4, 6, True)
        assert len(said) == 1

    def test_steps_and_ranks(self, tmp_path: Path) -> None:
        limits = Limits(steps=range(2, 4), ranks={0})
        with CaptureStore(tmp_path, limits=limits, on_problem=lambda _: None) as store:
            taken = [store.put(call(n, step=n, rank=n % 2), "input", ()) for n in range(6)]
        assert taken == [False, False, True, False, False, False]

    def test_bytes(self, tmp_path: Path) -> None:
        said: list[str] = []
        limits = Limits(total_bytes=1_000_000)
        with CaptureStore(tmp_path, limits=limits, on_problem=said.append) as store:
            taken = [store.put(call(number), "input", (torch.randn(100_000),)) for number in range(5)]
        assert taken == [True, True, False, False, False]
        assert len(said) == 1 and "1000000 bytes" in said[0]
        assert not store.stats.complete and "1000000 bytes" in store.stats.reason and store.stats.dropped == 3

    def test_bytes_count_duplicates_once_in_blobs(self, tmp_path: Path) -> None:
        x = torch.randn(100_000)
        with CaptureStore(tmp_path, "blobs", Limits(total_bytes=1_000_000)) as store:
            assert all(store.put(call(number), "input", (x,)) for number in range(5))


class TestWriter:
    def test_put_waits_while_the_queue_is_full(self) -> None:
        go, done = threading.Event(), []

        def handle(item: int) -> bool:
            go.wait(10)
            done.append(item)
            return True

        writer = BackgroundWriter(handle, lambda item: None, max_bytes=100)
        threading.Timer(0.2, go.set).start()
        for number in range(5):
            assert writer.put(number, 40)
            assert writer.queued_bytes <= 100
        assert writer.waits >= 1 and writer.wait_seconds > 0.05
        assert writer.put(99, 5000)  # larger than the queue: let in when it is empty
        writer.close()
        assert done == [0, 1, 2, 3, 4, 99]
        assert not writer.put(1, 1)

    def test_items_are_bounded_too(self) -> None:
        writer = BackgroundWriter(lambda item: time.sleep(0.01) is None, lambda item: None, max_items=2)
        for number in range(6):
            writer.put(number, 0)
        assert writer.waits >= 3
        assert writer.close()

    def test_after_a_stop_everything_is_dropped(self) -> None:
        dropped: list[int] = []
        started = threading.Event()

        def handle(item: int) -> bool:
            started.wait(10)
            return item != 1

        writer = BackgroundWriter(handle, dropped.append)
        for number in range(4):
            writer.put(number, 1)
        started.set()
        assert writer.flush(10)
        assert dropped == [2, 3] and writer.stopped and not writer.put(5, 1)
        writer.close()

    def test_flush_has_a_timeout(self) -> None:
        go = threading.Event()
        writer = BackgroundWriter(lambda item: go.wait(10), lambda item: None)
        writer.put(1, 1)
        assert not writer.flush(0.05)
        go.set()
        assert writer.flush(10)
        writer.close()

    def test_buffers_are_used_again_and_bounded(self) -> None:
        pool = Pool(idle_bytes=3000)
        first = pool.take(600)
        pool.give(first)
        assert pool.take(700) is first  # the same size class
        buffers = [pool.take(1000) for _ in range(5)]
        for buffer in buffers:
            pool.give(buffer)
        assert pool.idle_bytes <= 3000
        for size in (1, 512, 513, 10_000, 1 << 20, (1 << 20) + 1):
            assert size <= capacity_for(size) <= max(512, size * 1.13 + 512)


class TestListeners:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_listener_may_flush_and_close(self, tmp_path: Path, kind: Any) -> None:
        """It runs on the writer's own thread, which must not wait for itself."""
        flushed: list[bool] = []
        ready = threading.Event()

        def listen(path: str) -> None:
            ready.wait(10)
            flushed.append(store.flush(5))
            if len(flushed) == 3:
                store.close()

        store = CaptureStore(tmp_path, kind, on_saved=listen)
        assert all(store.put(call(number), "input", (torch.ones(1000),)) for number in range(10))
        ready.set()
        deadline = time.monotonic() + 20
        while store._state.writer._thread.is_alive() or store._state.disk.flush(0) is False:  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert flushed == [False] * 10
        assert len(captures(tmp_path)) == 10 and store.stats.complete


class TestManyAtOnce:
    @pytest.mark.parametrize("kind", KINDS)
    def test_threads(self, tmp_path: Path, kind: str) -> None:
        """Four threads put the same values at the same time: nothing is lost, mixed up or refers to missing bytes."""
        seen: list[str] = []

        def check(path: str) -> None:
            load(path)  # what was reported as saved is whole, references included
            seen.append(path)

        problems: list[str] = []
        with CaptureStore(tmp_path, kind, on_saved=check, on_problem=problems.append) as store:  # type: ignore[arg-type]

            def work(thread: int) -> None:
                for number in range(50):
                    shared = torch.full((2000,), float(number))
                    store.put(call(thread * 1000 + number), "input", (shared, thread))

            threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert problems == [] and len(seen) == 200 == len(captures(tmp_path))
        for path in captures(tmp_path):
            number = int(path.parent.parent.name)
            values, thread = load(path)["args"]
            assert (values.unique().item(), thread) == (number % 1000, number // 1000)

    @pytest.mark.parametrize("kind", KINDS)
    def test_forked_children_have_their_own_files(self, tmp_path: Path, kind: str) -> None:
        with CaptureStore(tmp_path, kind) as store:  # type: ignore[arg-type]
            for number in range(20):
                store.put(call(number), "input", (torch.full((100_000,), 1.0 + number),))
            children = []
            for _ in range(2):
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        for number in range(20):
                            store.put(call(number), "input", (torch.full((5000,), 1.0 + number),))
                        store.close()
                        code = 0 if store.stats.files == 20 and store.stats.complete else 2
                    finally:
                        os._exit(code)
                children.append(child)
            assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
        found = Counter(load(path)["__op_tools__"]["pid"] for path in captures(tmp_path))
        assert found == {os.getpid(): 20, children[0]: 20, children[1]: 20}
        for path in captures(tmp_path):
            values = load(path)["args"][0]
            assert values.unique().item() == 1 + int(path.parent.parent.name)
            assert len(values) == (100_000 if str(os.getpid()) in path.parts else 5000)

    @pytest.mark.parametrize("kind", KINDS)
    def test_ten_thousand_puts_stay_flat(self, memory_folder: Path, kind: str) -> None:
        def state() -> tuple[int, int, float]:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
            return len(os.listdir("/proc/self/fd")), threading.active_count(), resident

        limits = Limits(queue_bytes=8 << 20, queue_items=200)
        with CaptureStore(memory_folder, kind, limits) as store:  # type: ignore[arg-type]
            values = torch.randn(500)
            for number in range(10_000):
                if number == 1000:
                    store.flush()
                    before = state()
                store.put(call(number, signature=number), "input", (values + number, {"k": values}))
            store.flush()
            after = state()
        # At most: threads of an earlier test may end in between.
        assert after[0] <= before[0] and after[1] <= before[1], (before, after)
        assert after[2] - before[2] < 10, (before, after)
        assert store.stats.files == 10_000 and store.stats.complete


def test_a_forgotten_store_writes_at_exit(tmp_path: Path) -> None:
    code = f"""
import torch
from op_tools.storage import CallInfo, CaptureStore, Log
store = CaptureStore({str(tmp_path)!r})
for n in range(200):
    store.put(CallInfo("a", n), "input", (torch.ones(1000),))
log = Log({str(tmp_path)!r}, "rows")
log.append({{"n": 1}})
"""
    run_python("-c", code, check=True, timeout=120)
    assert len(captures(tmp_path)) == 200
    assert len(list(tmp_path.glob("*.oplog"))) == 1
