"""Captures of the published tools, of the capture tool itself and of other devices; and how long calls take."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import ON_HOST, Faulty, capture, nothing, one, published, verdicts, with_fault

from op_tools.captured.load import read_item
from op_tools.replay import Options, find_items, replay_item

pytestmark = pytest.mark.unit


# --- captures of the published tools ----------------------------------------------------------------------


def test_published_captures_are_read(tmp_path: Path) -> None:
    x, y = torch.randn(10, 20, requires_grad=True), torch.rand(10, 20) + 1
    z = torch.Tensor.div(x, y)
    grad = torch.randn(10, 20)
    folder = published(
        tmp_path / "op_capture_result/torch.Tensor.div/2334011/5",
        "torch.Tensor.div",
        input=((x, y), {}),
        output=((z.detach(),), {}),
        grad_inputs=((grad / y, None), {}),
        grad_outputs=((grad,), {}),
    )
    report = one(folder)
    assert report.status == "same", report.reason
    assert verdicts(report)["captured output"] == verdicts(report)["captured grad"] == "same"


def test_published_captures_with_named_results_and_settings(tmp_path: Path) -> None:
    x = torch.randn(10, 20)
    published(
        tmp_path / "torch.Tensor.sort/3834328/59/2024-10-09-11-40-14",
        "torch.Tensor.sort",
        input=((x,), {"dim": 0, "descending": True}),
        output=((tuple(x.sort(dim=0, descending=True)),), {}),
    )
    published(
        tmp_path / "torch.Tensor.to/3834328/60",
        "torch.Tensor.to",
        input=((x, torch.bfloat16), {}),
        output=((x.bfloat16(),), {}),
    )
    statuses = [replay_item(item, ON_HOST).status for item in find_items(tmp_path)]
    assert statuses == ["same", "same"]


def test_the_oldest_published_form_has_the_side_in_the_file_name(tmp_path: Path) -> None:
    x = torch.randn(3)
    folder = tmp_path / "2024-08-02--16-31/1915529/torch.functional.norm"
    for prefix in ("device_", "cpu_"):
        published(folder, "torch.functional.norm", prefix, input=((x,), {"p": 2.0}), output=((x.norm(),), {}))
    report = one(tmp_path)
    assert (report.status, report.name) == ("same", "torch.functional.norm")


def test_the_description_names_the_operator_where_no_folder_does(tmp_path: Path) -> None:
    x = torch.randn(3)
    folder = published(tmp_path / "moved", "torch.exp", input=((x,), {}), output=((x.exp(),), {}))
    assert one(folder).name == "torch.exp"
    (folder / "input.pth.json").unlink()
    report = one(folder)
    assert report.status == "not replayable"
    assert "which operator" in report.reason


def test_what_a_call_wrote_is_read_with_its_outputs(tmp_path: Path) -> None:
    x = torch.randn(3)
    files = {
        "none": {},
        "kept": {"written": (x, x + 1)},
        "foreign": {"written": "x"},
        "mixed": {"written": [x, 1]},
    }
    read = {}
    for name, kwargs in files.items():
        folder = published(tmp_path / name, "torch.exp", input=((x,), {}), output=((x.exp(),), kwargs))
        captured = read_item(*find_items(folder))
        assert torch.equal((captured.outputs or ())[0], x.exp())
        read[name] = [value.tolist() for value in captured.written]
    assert read == {"none": [], "kept": [x.tolist(), (x + 1).tolist()], "foreign": [], "mixed": []}


def test_a_published_capture_with_code_in_it_is_refused(tmp_path: Path) -> None:
    marker = tmp_path / "made"

    class Code:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {marker}",)

    folder = tmp_path / "torch.exp/1/2"
    folder.mkdir(parents=True)
    torch.save({"name": "torch.exp", "args": (Code(),), "kwargs": {}}, folder / "input.pth")
    assert one(folder).status == "refused"
    assert not marker.exists()


# --- times ------------------------------------------------------------------------------------------------


def test_every_run_is_measured(tmp_path: Path) -> None:
    x = torch.randn(50, 50, requires_grad=True)
    folder = capture(tmp_path, torch.mm, (x, x))
    options = Options(device="cpu", acc_check=False, run_times=3, sync_time_measure=True, documented=True)
    report = one(folder, options)
    assert report.status == "not compared" and report.rows == []
    assert [row["forward_id"] for row in report.times] == [1, 1, 1]
    assert all(row["forward_elasped"] > 0 and row["backward_elasped"] > 0 for row in report.times)
    assert {row["unit"] for row in report.times} == {"ms"}
    assert report.text.count("grad_outputs [0][0]") == 3
    forward = one(folder, Options(device="cpu", acc_check=False, only_run_forward=True))
    assert "backward_elasped" not in forward.times[0]


def test_a_slow_call_takes_as_long_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return x.exp()

    folder = capture(tmp_path, torch.exp, (torch.ones(3),))
    with_fault(monkeypatch, Faulty(torch.exp, slow))
    report = one(folder, Options(device="cpu", acc_check=False))
    assert 50 <= report.times[0]["forward_elasped"] < 5000


# --- on a device ------------------------------------------------------------------------------------------


def has_device() -> bool:
    with contextlib.suppress(Exception):
        return torch.accelerator.is_available()
    return False


needs_device = pytest.mark.skipif(not has_device(), reason="no accelerator")
KIND = torch.accelerator.current_accelerator().type if has_device() else "none"  # type: ignore[union-attr]


def _written_device() -> str:
    """The device as it is written down: by its own name, also where a program sees the name of cuda."""
    return str(torch.empty(0, device=KIND).device)


@pytest.mark.device
@needs_device
def test_the_accelerator_is_used_by_default_and_device_arguments_follow(tmp_path: Path) -> None:
    x = torch.randn(3, requires_grad=True)
    capture(tmp_path, nothing, (x, "farchip:3"), name="torch.Tensor.to", outputs=False, device="farchip:3")
    capture(
        tmp_path, nothing, (x,), name="torch.Tensor.farchip", outputs=False, device="farchip:3", forward_id=2
    )
    capture(tmp_path, torch.exp, (x,), grads=[torch.ones(3)], forward_id=3)
    capture(
        tmp_path, nothing, (x, "cpu"), name="torch.Tensor.to", outputs=False, device="farchip:3", forward_id=4
    )
    reports = [replay_item(item, Options(verbose=False)) for item in find_items(tmp_path)]
    outputs = {
        report.item.split("/")[-2]: report.times[0]["output"]["args"][0]["device"] for report in reports
    }
    here = _written_device()
    assert outputs == {"1": here, "2": here, "3": here, "4": "cpu"}
    assert [report.status for report in reports] == ["same"] * 4


@pytest.mark.device
@needs_device
def test_tensors_that_were_on_the_host_stay_there(tmp_path: Path) -> None:
    from op_tools.storage import CallInfo, CaptureStore

    x = torch.randn(2, 3, device=KIND)
    call = CallInfo("torch.Tensor.__getitem__", 2, device=f"{KIND}:0")
    with CaptureStore(tmp_path) as store:
        store.put(call, "input", (x, torch.tensor([1])), {})
    report = one(tmp_path, Options(verbose=False))
    assert [value["device"] for value in report.times[0]["input"]["args"]] == [_written_device(), "cpu"]
    assert report.status == "same", report.reason


@pytest.mark.device
@needs_device
def test_what_the_capture_tool_saved_is_replayed(tmp_path: Path) -> None:
    import op_tools

    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU()).to(KIND)
    x = torch.randn(4, 8).to(KIND)
    with op_tools.OpCapture(results=str(tmp_path)):
        layer(x).square().mean().backward()
    items = find_items(tmp_path)
    reports = [replay_item(item, Options(verbose=False)) for item in items]
    assert {report.name for report in reports} >= {
        "torch.nn.functional.linear",
        "torch.nn.functional.layer_norm",
        "torch.nn.functional.gelu",
    }
    assert [(report.name, report.reason) for report in reports if report.status != "same"] == []
    compared = [row["name"] for report in reports for row in report.rows]
    assert any("captured grad" in name for name in compared)
