"""What the disk can do to a capture: be full, refuse, take less than it was given. The training goes on."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_python import run_python

from op_tools.storage import CallInfo, CaptureStore, load
from op_tools.storage import files as files_module

pytestmark = pytest.mark.unit

KINDS = ("files", "blobs")


def captures(root: Path) -> list[Path]:
    return sorted(root.rglob("*.pth"))


def call(number: int = 1) -> CallInfo:
    return CallInfo("torch.Tensor.add", number, time="2024-10-09-11-42-15")


def limited_file_size(root: str, kind: str) -> None:
    """Run in a child: every file that grows beyond 64 KiB fails, as on a full disk."""
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    said: list[str] = []
    saved: list[str] = []
    store = CaptureStore(root, kind, on_saved=saved.append, on_problem=said.append)  # type: ignore[arg-type]
    store.put(call(1), "input", (torch.ones(100),))
    total = torch.zeros(())
    for number in range(2, 20):
        x = torch.randn(50_000) if number > 4 else torch.randn(100)
        store.put(call(number), "input", (x,))
        total = total + x.sum()
    store.close()
    print(
        json.dumps(
            {"said": said, "saved": saved, "complete": store.stats.complete, "reason": store.stats.reason}
        )
    )


class TestDisk:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_file_that_cannot_grow_stops_the_capture_only(self, tmp_path: Path, kind: str) -> None:
        code = f"import test_storage_disk as t; t.limited_file_size({str(tmp_path)!r}, {kind!r})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        result = run_python("-c", code, env=environment, timeout=120, check=True)
        found = json.loads(result.stdout.splitlines()[-1])
        assert len(found["said"]) == 1 and "capture stopped" in found["said"][0]
        assert not found["complete"] and "File too large" in found["reason"]
        assert len(found["saved"]) == 4
        assert [str(path) for path in captures(tmp_path)] == sorted(found["saved"])
        for path in found["saved"]:
            load(path)

    @pytest.mark.parametrize("kind", KINDS)
    def test_full_disk(self, tmp_path: Path, kind: str) -> None:
        small = tmp_path / "small"
        small.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], capture_output=True, check=False
        )
        if mounted.returncode:
            pytest.skip("mounting a small tmpfs needs permissions that this process does not have")
        try:
            said: list[str] = []
            with CaptureStore(small, kind, on_problem=said.append) as store:
                for number in range(20):
                    store.put(call(number), "input", (torch.randn(80_000),))
            assert len(said) == 1 and "No space left" in said[0] and "training goes on" in said[0]
            assert not store.stats.complete and store.stats.dropped > 0
            assert 3 <= store.stats.files == len(captures(small)) < 20
            for path in captures(small):
                load(path)
            assert not list(small.rglob(".incoming/*"))
        finally:
            subprocess.run(["umount", str(small)], check=True)

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[str] = []
        (tmp_path / "op_capture_results").write_text("a file where a folder should be")
        with CaptureStore(tmp_path, on_problem=said.append) as store:
            for number in range(5):
                store.put(call(number), "input", (1,))
        assert len(said) == 1 and "Not a directory" in said[0]
        assert store.stats.dropped == 5 and not store.stats.complete

    def test_one_value_that_cannot_be_encoded_costs_one_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = files_module.container

        def fails_once(tree: dict[str, Any]) -> Any:
            if tree["args"] == ("bad",):
                raise ValueError("not today")
            return real(tree)

        monkeypatch.setattr(files_module, "container", fails_once)
        said: list[str] = []
        with CaptureStore(tmp_path, on_problem=said.append) as store:
            for number, value in enumerate(["good", "bad", "bad", "fine"]):
                store.put(call(number), "input", (value,))
        assert [load(path)["args"][0] for path in captures(tmp_path)] == ["good", "fine"]
        assert len(said) == 1 and "not today" in said[0] and store.stats.dropped == 2

    def test_listeners_may_fail(self, tmp_path: Path) -> None:
        def bad(_: str) -> None:
            raise RuntimeError("listener")

        with CaptureStore(tmp_path, on_saved=bad, on_problem=bad) as store:
            for number in range(3):
                assert store.put(call(number), "input", (1,))
        assert store.stats.files == 3 and store.stats.complete

    def test_kernel_may_take_less_than_it_was_given(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.writev

        def slowly(descriptor: int, pieces: Any) -> int:
            return real(descriptor, [memoryview(pieces[0])[:777]] if len(pieces[0]) else pieces)

        monkeypatch.setattr(os, "writev", slowly)
        x = torch.randn(3000)
        with CaptureStore(tmp_path) as store:
            store.put(call(), "input", (x, x[:7]))
        (path,) = captures(tmp_path)
        assert torch.equal(torch.load(path, weights_only=True)["args"][0], x)

    @pytest.mark.parametrize("numel", [65_536, 65_537, 100_000, 262_144])
    def test_direct_writes(self, tmp_path: Path, numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
        x = torch.randn(numel)
        refuse = []
        real = os.writev

        def writev(descriptor: int, pieces: Any) -> int:
            if refuse and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(descriptor, pieces)

        monkeypatch.setattr(os, "writev", writev)
        with CaptureStore(tmp_path) as store:
            store.put(call(1), "input", (x, x + 1))
            store.flush()
            refuse.append(True)  # a file system that says it can and cannot
            store.put(call(2), "input", (x, x + 1))
        for path in captures(tmp_path):
            found = torch.load(path, weights_only=True)["args"]
            assert torch.equal(found[0], x) and torch.equal(found[1], x + 1)

    def test_put_after_close(self, tmp_path: Path) -> None:
        store = CaptureStore(tmp_path)
        store.close()
        assert not store.put(call(), "input", (1,))
        assert not store.stats.complete and "close" in store.stats.reason

    def test_unknown_kind_and_part(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="'files', 'blobs'"):
            CaptureStore(tmp_path, "zip")  # type: ignore[arg-type]
        said: list[str] = []
        with CaptureStore(tmp_path, on_problem=said.append) as store:
            assert not store.put(call(), "inputs", ())  # type: ignore[arg-type]
        assert "grad_outputs" in said[0]
