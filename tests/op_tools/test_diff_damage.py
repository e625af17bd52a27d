"""Two runs compared where something is missing, damaged or hostile: what cannot be judged is never taken for right."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import op_tools
from op_tools.cli import app, run
from op_tools.diff.compare import compare_captures, open_either
from op_tools.diff.judging import _alike, judge_call
from op_tools.diff.layers import compare_layers
from op_tools.diff.printing import headline, next_step
from op_tools.diff.report import Report
from op_tools.results import Results
from op_tools.runs import BadInput, open_run
from op_tools.verdict.closeness import identical

pytestmark = pytest.mark.unit

SILU = "torch.nn.functional.silu"


def program() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 16, requires_grad=True)
    F.silu(F.linear(x, torch.eye(16))).exp().sum().backward()


def recorded(folder: Path, what: Any = program, **settings: Any) -> Path:
    with op_tools.OpCapture(results=str(folder), device="cpu", **settings):
        what()
    return folder


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("right") / "run")


@pytest.fixture
def pair(right: Path, tmp_path: Path) -> tuple[Path, Path]:
    return right, Path(shutil.copytree(right, tmp_path / "B"))


def part_of(results: Path, name: str, part: str = "output") -> Path:
    row = next(row for row in open_run(results).rows("capture") if row["name"] == name)
    return results / "op_capture_results" / row["folder"] / f"{part}.pth"


def changed(path: Path, **parts: Any) -> None:
    torch.save({**op_tools.load(path), **parts}, path)


def compared(a: Path, b: Path, **options: Any) -> Report:
    return compare_captures((a, b), open_either(a)[1], open_either(b)[1], **options)


def entry_of(report: Report, name: str, phase: str = "forward") -> Any:
    return next(e for e in report.entries if (e.call.name, e.call.phase) == (name, phase))


# --- what cannot be read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_side_that_cannot_be_read_is_not_right(
    pair: tuple[Path, Path], side: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a, b = pair if side == "B" else pair[::-1]
    part_of(pair[1], SILU).write_bytes(b"short")
    report = compared(a, b)
    forward, backward = entry_of(report, SILU), entry_of(report, SILU, "backward")
    assert forward.status == backward.status == "not judged" and report.lost == 2
    assert forward.reason.startswith(f"in {side}: its capture cannot be read")
    assert report.exit_code == 5 and report.first is None
    assert "No call that was judged is wrong. 2 calls could not be judged in both runs" in headline(report)
    assert "All values of the 6 calls that were compared are equal; 2 were not" in headline(report)
    assert any("could not be judged in both runs: 2." in note and SILU in note for note in report.notes)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run(app, ["diff", str(a), str(b), "--out", str(tmp_path / "rows")])
    assert ended.value.code == 5 and "could not be judged" in capsys.readouterr().out


def test_a_wrong_call_is_found_beside_one_that_cannot_be_read(pair: tuple[Path, Path]) -> None:
    a, b = pair
    part_of(b, "torch.nn.functional.linear").write_bytes(b"")
    changed(part_of(b, SILU), args=(torch.ones(8, 16),))
    report = compared(a, b)
    assert report.exit_code == 1 and report.first is entry_of(report, SILU) and report.first.side == "B"


@pytest.mark.parametrize("args", [(), (torch.ones(8, 16), torch.ones(8, 16))])
def test_a_wrong_number_of_values_is_not_right(pair: tuple[Path, Path], args: Any) -> None:
    changed(part_of(pair[1], SILU), args=args)
    report = compared(*pair)
    found = entry_of(report, SILU)
    assert found.status == "not judged" and f"in B: {len(args)} values were captured" in found.reason
    assert report.exit_code == 5


def test_a_failure_of_a_worker_is_not_right(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(payload: dict[str, Any]) -> dict[str, Any]:
        return {"error": "killed"} if payload["name"] == SILU else judge_call(payload)

    monkeypatch.setattr("op_tools.diff.compare.judge_call", fails)
    report = compared(*pair)
    assert report.exit_code == 5 and report.lost == 2 and entry_of(report, SILU).reason == "killed"


def test_captures_that_do_not_say_what_they_are_are_not_right(right: Path, tmp_path: Path) -> None:
    both = [Path(shutil.copytree(right / "op_capture_results", tmp_path / name)) for name in "AB"]
    for folder in both:
        for log in folder.rglob("*.oplog"):
            log.unlink()
    assert compared(*both).exit_code == 0
    for folder in both:
        next(folder.glob(f"{SILU}/**/input.pth")).write_bytes(b"")
    report = compared(*both)
    assert report.exit_code == 5 and report.lost == 2 and report.counts()["wrong"] == 0


def test_calls_made_inside_backward_are_judged_as_calls(tmp_path: Path) -> None:
    """Their rows have the phase backward, and no gradients."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return torch.atan(grad)

    def inside() -> None:
        x = torch.linspace(0, 1, 50, requires_grad=True)
        (Doubled.apply(x) * 3.0).cos().sum().backward()

    a, b = (recorded(tmp_path / name, inside) for name in "AB")
    report = compared(a, b)
    assert entry_of(report, "torch.atan", "backward").status == "same" and report.exit_code == 0
    changed(part_of(b, "torch.atan"), args=(torch.ones(50),))
    first = compared(a, b).first
    assert first is not None and (first.call.name, first.call.phase) == ("torch.atan", "backward")


# --- what a call wrote and did not return -------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["api", "aten"])
def test_wrong_running_statistics_are_found(tmp_path: Path, level: str) -> None:
    def normalises() -> None:
        torch.manual_seed(0)
        layer = torch.nn.BatchNorm1d(4)
        layer(torch.randn(10, 4))

    name = {"api": "torch.nn.functional.batch_norm", "aten": "aten.native_batch_norm.default"}[level]
    a, b = (recorded(tmp_path / folder, normalises, level=level) for folder in "AB")
    assert compared(a, b).exit_code == 0 and entry_of(compared(a, b), name).status == "same"
    path = part_of(b, name)
    mean, variance = op_tools.load(path)["kwargs"]["written"]
    changed(path, kwargs={"written": (mean, variance * 1.01)})
    first = compared(a, b).first
    assert first is not None and (first.call.name, first.side) == (name, "B")
    # What does not fit is not dropped.
    changed(path, kwargs={"written": (mean,)})
    report = compared(a, b)
    assert report.exit_code == 5 and "writes to 2 tensors" in entry_of(report, name).reason


# --- values that differ --------------------------------------------------------------------------------------------


def test_arguments_are_compared_by_value_and_devices_are_not() -> None:
    assert _alike(("sum", torch.float32), ("sum", torch.float32)) is True
    assert _alike({"reduction": "sum"}, {"reduction": "mean"}) is False
    assert _alike((torch.float32,), (torch.bfloat16,)) is False
    assert _alike((None,), (1,)) is False and _alike((None,), (None,)) is True
    assert _alike((slice(1, 2),), (slice(1, 3),)) is False and _alike((slice(1, 2),), (slice(1, 2),)) is True
    assert _alike((torch.channels_last,), (torch.contiguous_format,)) is False
    assert _alike((torch.device("cpu"), "cuda:0"), ("meta", "cpu")) is True
    assert _alike(("cpu",), ("sum",)) is False


def test_sparse_tensors_are_compared_by_indices_and_values() -> None:
    def sparse(values: list[float], places: list[int], size: int = 10**15) -> torch.Tensor:
        return torch.sparse_coo_tensor(torch.tensor([places]), torch.tensor(values), (size,))

    nan = float("nan")
    assert identical(sparse([1.0, nan], [3, 7]), sparse([1.0, nan], [3, 7]))
    assert identical(sparse([1.0, 2.0], [3, 7]), sparse([2.0, 1.0], [7, 3]))
    assert identical(sparse([1.0, 2.0, 2.0], [3, 7, 7]), sparse([1.0, 4.0], [3, 7]))
    assert not identical(sparse([1.0, 2.0], [3, 7]), sparse([1.0, 2.5], [3, 7]))
    assert not identical(sparse([1.0, 2.0], [3, 7]), sparse([1.0, 2.0], [3, 8]))
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    for layout in (torch.sparse_csr, torch.sparse_csc):
        assert identical(dense.to_sparse(layout=layout), dense.to_sparse(layout=layout))
        assert not identical(dense.to_sparse(layout=layout), (dense * 2).to_sparse(layout=layout))


def test_memory_is_checked_before_values_are_looked_at(right: Path, tmp_path: Path) -> None:
    value = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (10**13,))
    both = [Path(shutil.copytree(right, tmp_path / name)) for name in "AB"]
    for results in both:
        changed(part_of(results, "torch.Tensor.exp", "input"), args=(value,))
    found = entry_of(compared(*both), "torch.Tensor.exp")
    assert found.status == "not judged" and found.same_inputs is None
    assert "a tensor of [10000000000000] stands for more than the 12 bytes" in found.reason


def test_an_expanded_tensor_is_not_compared_element_by_element() -> None:
    assert _alike((torch.ones(1).expand(10**13),), (torch.ones(1).expand(10**13),)) is None
    assert _alike((torch.ones(1).expand(100),), (torch.ones(1).expand(100),)) is True


# --- what to type next -----------------------------------------------------------------------------------------------


def test_the_next_command_is_quoted_for_the_shell(right: Path, tmp_path: Path) -> None:
    b = Path(shutil.copytree(right, tmp_path / "run b; echo $HOME"))
    path = part_of(b, SILU)
    changed(path, args=(torch.ones(8, 16),))
    words = shlex.split(next_step(compared(right, b)))
    assert words == ["next:", "op-tools", "reproduce", str(path.parent)]


# --- damaged recordings of layers -----------------------------------------------------------------------------------


def layers(folder: Path, *calls: tuple[Any, Any], **header: Any) -> Any:
    """A recording of calls (number, number of the call around it)."""
    rows = [
        {"forward_id": number, "name": f"m{number}", "class": "L", "call": 0, "model": "m", "parent": parent,
         "step": 0, "rank": 0, "folder": f"m{number}", "call_site": ""}
        for number, parent in calls
    ]  # fmt: skip
    results = Results(str(folder / "op_layer_result"), "op_layer_info", list(rows[0]))
    results.extend(rows)
    results.close()
    for row in rows:
        place = folder / "op_layer_result" / "op_capture_results" / str(row["folder"])
        place.mkdir(parents=True)
        for part in ("input", "output"):
            data = {"args": (torch.ones(2),), "kwargs": {}, "__op_tools__": {"extra": header}}
            torch.save(data, place / f"{part}.pth")
    return open_run(folder)


@pytest.mark.parametrize(
    ("a", "b"), [([(1, 2), (2, 1)],) * 2, ([(1, 2), (2, 3), (3, 2)], [(1, 2)]), ([(0, 0), (1, 0)], [(1, 0)])]
)
def test_calls_that_are_inside_each_other_end(tmp_path: Path, a: Any, b: Any) -> None:
    report = compare_layers(layers(tmp_path / "A", *a), layers(tmp_path / "B", *b))
    assert report.compared == len(b) and report.exit_code in (0, 1) and not report.findings


def test_rows_whose_numbers_are_none_are_left_out(tmp_path: Path) -> None:
    run_a = layers(tmp_path / "A", (1, 0), ("x", 0), (3, "y"), (4, 1.5), (5, [1]))
    assert compare_layers(run_a, layers(tmp_path / "B", (1, 0))).compared == 1
    with pytest.raises(BadInput, match="no module call"):
        compare_layers(layers(tmp_path / "C", ("x", 0)), run_a)


@pytest.mark.parametrize("autocast", [(True, "bfloat16"), (True, torch.int32), [1, None], "ab"])
def test_a_foreign_autocast_state_is_none(tmp_path: Path, autocast: Any) -> None:
    a, b = (layers(tmp_path / name, (1, 0), autocast=autocast) for name in "AB")
    assert compare_layers(a, b).exit_code == 0
