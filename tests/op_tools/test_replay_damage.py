"""A capture of which something is damaged or missing is never "same": replay says what, and the exit code is not 0."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from captures import ON_HOST, capture, one, verdicts

from op_tools.replay import Options, find_items, replay_item, summary
from op_tools.storage import CallInfo, CaptureError, CaptureStore, load

pytestmark = pytest.mark.unit

Kind = Literal["files", "blobs"]
PARTS = ("output", "grad_outputs", "grad_inputs")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    """One bit of a tensor; where the tensors are blobs, of the pickle that refers to them."""
    content = bytearray(path.read_bytes())
    content[content.index(b"archive/data") + 140] ^= 4
    path.write_bytes(content)


def of_another_shape(path: Path) -> None:
    data = load(path)
    args = tuple(None if value is None else value[:2].clone() for value in data["args"])
    torch.save({"args": args, "kwargs": data["kwargs"], "__op_tools__": data["__op_tools__"]}, path)


def missing(path: Path) -> None:
    path.unlink()


def missing_with_its_description(path: Path) -> None:
    path.unlink()
    path.with_name(path.name + ".json").unlink()


def a_link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    os.symlink(elsewhere, path)


DAMAGES = [cut, emptied, flipped, of_another_shape, missing, missing_with_its_description, a_link]


def captured(root: Path, kind: Kind = "files") -> Path:
    torch.manual_seed(0)
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(16, 8, requires_grad=True)
    grads = [torch.randn(4, 16)]
    return capture(root, F.linear, (x, w, torch.randn(16)), grads=grads, kind=kind, parts=("input", "output"))


@pytest.mark.parametrize("kind", ["files", "blobs"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_reported(
    tmp_path: Path, damage: Callable[[Path], None], part: str, kind: Kind
) -> None:
    folder = captured(tmp_path, kind)
    assert one(folder).status == "same"
    damage(folder / f"{part}.pth")
    report = one(folder)
    assert report.status in ("error", "fail")
    assert {row["verdict"] for row in report.rows if "captured" not in row["name"]} == {"same"}
    assert "captured" in report.reason
    assert summary.exit_code([report], compared=True) == summary.DIFFERS


@pytest.mark.parametrize("damage", [cut, emptied, flipped, missing])
def test_a_damaged_pack_of_blobs_is_reported(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = captured(tmp_path, "blobs")
    (pack,) = tmp_path.rglob("*.pack")
    if damage is flipped:
        content = bytearray(pack.read_bytes())
        content[-1] ^= 1  # of what was written last, a gradient
        pack.write_bytes(content)
    else:
        damage(pack)
    report = one(folder)
    assert report.status == "error"
    assert pack.name in report.reason


def test_a_damaged_gradient_does_not_matter_to_the_forward(tmp_path: Path) -> None:
    folder = captured(tmp_path)
    cut(folder / "grad_inputs.pth")
    assert one(folder, Options(device="cpu", verbose=False, only_run_forward=True)).status == "same"


def test_a_missing_output_is_told_by_what_was_meant_to_be_saved(tmp_path: Path) -> None:
    folder = capture(tmp_path, torch.exp, (torch.ones(4),), parts=("input", "output"))
    missing_with_its_description(folder / "output.pth")
    report = one(folder)
    assert (report.status, verdicts(report)["captured output"]) == ("error", "error")
    assert "output.pth is missing" in report.reason


def test_random_results_of_another_shape_than_captured_fail(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = capture(tmp_path, F.dropout, (torch.randn(1000), 0.5))
    of_another_shape(folder / "output.pth")
    report = one(folder)
    assert report.status == "fail"
    assert "float32[2]@cpu was captured, the call now gives float32[1000]@cpu" in report.reason


def test_gradients_of_detached_inputs_are_replayed(tmp_path: Path) -> None:
    """As a comparison saves a wrong backward: copies of the inputs, and only the gradients that there were."""
    x, w = torch.randn(4, 8), torch.randn(16, 8)
    grad = torch.randn(4, 16)
    for number, factor in enumerate((1.0, 2.0), 1):
        call = CallInfo("torch.nn.functional.linear", number, device="cpu")
        with CaptureStore(tmp_path) as store:
            store.put(call, "input", (x, w))
            store.put(call, "grad_outputs", (grad,))
            store.put(call, "grad_inputs", (grad @ w, factor * grad.T @ x))
    right, wrong = (replay_item(item, ON_HOST) for item in find_items(tmp_path))
    assert verdicts(right)["grad[1]"] in ("same", "pass") and right.status in ("same", "pass")
    assert verdicts(wrong)["captured grad[1]"] == wrong.status == "fail"


def test_a_flipped_bit_is_found_wherever_it_says_something(tmp_path: Path) -> None:
    """Only bytes that no reader looks at (who made the archive, modes of files) may differ."""
    values = (torch.randn(5, 7), torch.arange(3))
    with CaptureStore(tmp_path) as store:
        store.put(CallInfo("torch.add", 1), "output", values)
    (path,) = tmp_path.rglob("*.pth")
    content = path.read_bytes()
    draw = random.Random(0)
    unseen = 0
    for place in draw.sample(range(len(content)), 600):
        changed = bytearray(content)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        try:
            found = load(path)["args"]
        except CaptureError:
            continue
        unseen += 1
        assert all(map(torch.equal, found, values))
    assert unseen <= 30
