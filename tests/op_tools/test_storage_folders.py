"""Every captured call has a folder of its own, and the ids of rows are those of the folders."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from printed import STAMP

import op_tools
from dicore.files import replaced
from op_tools.replay import find_items
from op_tools.runs import open_run
from op_tools.storage import CallInfo, CaptureStore, Log, disk, load, read_log
from op_tools.storage.call_info import host_name
from op_tools.storage.log_reader import find_logs

pytestmark = pytest.mark.unit

Kind = Literal["files", "blobs"]
TIME = "2024-10-09-11-42-15"


def call(number: int, **more: Any) -> CallInfo:
    return CallInfo("torch.Tensor.add", number, time=TIME, **more)


def folders(root: Path) -> list[str]:
    captures = root / "op_capture_results"
    return [item.folder.relative_to(captures).as_posix() for item in find_items(captures)]


def test_calls_of_one_name_id_and_second(tmp_path: Path) -> None:
    with CaptureStore(tmp_path) as first, CaptureStore(tmp_path) as second:
        for number, store in enumerate((first, second, first)):
            info = call(7)
            store.put(info, "input", (number,))
            store.put(info, "output", (number,))
            assert store.folder_of(info) == info.folder
    usual = f"torch.Tensor.add/{os.getpid()}/7/{TIME}"
    assert folders(tmp_path) == [usual, f"{usual}_2", f"{usual}_3"]
    for number, item in enumerate(find_items(tmp_path)):
        for part in ("input", "output"):
            data = load(item.file(part))
            assert data["args"] == (number,)
            assert (data["__op_tools__"]["forward_id"], data["__op_tools__"]["order"] > 0) == (7, True)


def test_the_two_sides_of_a_comparison_stay_together(tmp_path: Path) -> None:
    with CaptureStore(tmp_path) as store:
        for _ in range(2):
            both = call(7, purpose="autocompare")
            store.folder_of(both)
            for side in ("device", "cpu"):
                store.put(dataclasses.replace(both, side=side), "input", (side,))
    usual = f"torch.Tensor.add/{os.getpid()}/autocompare/7/{TIME}"
    assert folders(tmp_path) == [f"{usual}/device", f"{usual}_2/device"]
    assert load(tmp_path / "op_capture_results" / f"{usual}_2" / "cpu" / "input.pth")["args"] == ("cpu",)


@pytest.mark.parametrize("kind", ["files", "blobs"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_containers_with_one_process_number_lose_nothing(tmp_path: Path, kind: Kind, world_size: int) -> None:
    """The same host, process, rank, second and thread, at the same time, in one folder."""
    count, containers = 40, 3
    children, begin = [], os.pipe()
    for container in range(containers):
        child = os.fork()
        if child == 0:
            try:
                os.close(begin[1])
                os.getpid = lambda: 1
                disk.threading = SimpleNamespace(get_ident=lambda: 4711)  # type: ignore[assignment]
                os.read(begin[0], 1)
                with CaptureStore(tmp_path, kind) as store, Log(tmp_path, "rows") as log:
                    for number in range(count):
                        info = call(number, world_size=world_size)
                        values = torch.full((70_000 if number % 10 == 0 else 50,), float(container))
                        store.put(info, "input", (values, container, number))
                        log.append({"folder": store.folder_of(info), "container": container, "n": number})
                with replaced(tmp_path / "page") as temporary:
                    temporary.write_text(f"{container}" * 1000)
                os._exit(0 if store.stats.files == count and store.stats.complete else 2)
            finally:
                os._exit(1)
        children.append(child)
    os.close(begin[0])
    os.close(begin[1])
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * containers
    rows = [row for path in find_logs(tmp_path) for row in read_log(path).rows]
    found = folders(tmp_path)
    assert len(found) == count * containers == len(rows) and {row["folder"] for row in rows} == set(found)
    for row in rows:
        data = load(tmp_path / "op_capture_results" / row["folder"] / "input.pth")
        values, container, number = data["args"]
        assert (container, number) == (row["container"], row["n"])
        assert values.unique().tolist() == [container]
    host = host_name()
    usual = ["1", f"{host}_1", f"{host}_1_2"]
    if world_size > 1:
        usual = [f"rank0_{host}_1", f"rank0_{host}_1_2", f"rank0_{host}_1_3"]
    assert {folder.split("/")[1] for folder in found} == set(usual)
    assert len(set((tmp_path / "page").read_text())) == 1
    assert not list(tmp_path.rglob(".incoming/*"))


def test_a_forked_child_takes_a_name_of_its_own(tmp_path: Path) -> None:
    with CaptureStore(tmp_path) as store:
        store.put(call(1), "input", (1,))
        child = os.fork()
        if child == 0:
            store.put(call(1), "input", (2,))
            store.close()
            os._exit(0)
        os.waitpid(child, 0)
    assert sorted(folders(tmp_path)) == sorted(
        f"torch.Tensor.add/{pid}/1/{TIME}" for pid in (os.getpid(), child)
    )


def test_finishing_processes_do_not_disturb_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends removes the folder for unfinished files: between making it and using it, too."""
    real, removed = os.open, 0

    def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        nonlocal removed
        if ".incoming" in str(path) and removed < 3:
            removed += 1
            os.rmdir(os.path.dirname(path))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", opened)
    with CaptureStore(tmp_path) as store:
        store.put(call(1), "input", (1,))
    assert removed == 3 and store.stats.complete and store.stats.files == 1


def two_kernels() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    w = torch.ones(2, 4, requires_grad=True)
    F.linear(x, w).sum().backward()


def test_rows_and_folders_of_kernels_have_the_same_ids(tmp_path: Path) -> None:
    with op_tools.OpCapture(level="aten", device="cpu", results=str(tmp_path)):
        two_kernels()
    run = open_run(tmp_path)
    rows = list(run.rows("capture"))
    assert sorted(row["folder"] for row in rows) == sorted(folders(tmp_path)) and run.captures is not None
    for row in rows:
        assert re.fullmatch(
            rf"{re.escape(row['name'])}/\d+/{row['forward_id']}/{STAMP}(_\d+)?", row["folder"]
        )
        header = load(run.captures / row["folder"] / "input.pth")["__op_tools__"]
        assert header["forward_id"] == row["forward_id"]


def test_two_failing_kernels_of_one_backward_are_saved_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from op_tools.tools import autocompare
    from op_tools.verdict import Verdict

    def all_wrong(values: Any, *_: Any, **more: Any) -> list[Verdict]:
        return [Verdict.plain("fail", "for this test") for _ in values]

    monkeypatch.setattr(autocompare, "judge_all", all_wrong)
    with op_tools.OpAutoCompare(device="cpu", results=str(tmp_path), save_failures=100):
        two_kernels()
    run = open_run(tmp_path)
    failed = [row for row in run.rows("autocompare") if row["verdict"] == "fail"]
    products = [row for row in failed if row["name"].startswith("aten.mm.default")]
    assert len(products) >= 2 and len({row["forward_id"] for row in products}) == 1
    saved = [folder for folder in folders(tmp_path) if folder.startswith("aten.mm.default/")]
    assert len(saved) == len(products)
    assert all(f"/autocompare/{products[0]['forward_id']}/" in folder for folder in saved)
