"""Nothing that a capture says makes replay run code, ask for absurd memory, or stop."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from captures import ON_HOST, capture, nothing, one, verdicts

from op_tools.diff.sequence import of_captures
from op_tools.replay import Options, find_items, replay, summary
from op_tools.replay.printing import report_line
from op_tools.storage import load

pytestmark = pytest.mark.unit


# --- what is not run --------------------------------------------------------------------------------------


def test_a_hostile_name_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    folder = capture(tmp_path, lambda *_: None, (f"touch {marker}",), name="os.system", outputs=False)
    report = one(folder)
    assert report.status == "refused"
    assert "os.system" in report.reason
    assert not marker.exists()


HUGE = {
    "repeat": ("torch.Tensor.repeat", lambda: (torch.ones(10), 10**6, 10**6)),
    "expanded": ("torch.Tensor.contiguous", lambda: (torch.ones(1).expand(10**12),)),
    "factory": ("torch.Tensor.new_zeros", lambda: (torch.ones(1), (10**6, 10**6))),
    "expanding": ("torch.Tensor.expand", lambda: (torch.ones(1), 10**12)),
    "expanding below": ("aten.expand.default", lambda: (torch.ones(1), [10**12])),
    "many that show much": ("torch.broadcast_tensors", lambda: (torch.ones(30_000, 1), torch.ones(30_000))),
    "windows": ("torch.Tensor.unfold", lambda: (torch.ones(100_000), 0, 50_000, 1)),
    "windows below": ("aten.as_strided.default", lambda: (torch.ones(9), [10**12], [0])),
    "sum of what was expanded": ("torch.sum", lambda: (torch.ones(1).expand(10**12),)),
    "from nothing": ("torch.ones", lambda: (10**12,)),
    "from nothing below": ("aten.eye.default", lambda: (10**7,)),
    "counted": ("torch.bincount", lambda: (torch.tensor([10**12]),)),
    "one hot": ("torch.nn.functional.one_hot", lambda: (torch.tensor([10**12]),)),
    "repeated": ("torch.repeat_interleave", lambda: (torch.ones(1), torch.tensor([10**12]))),
    "repeated indices": ("aten.repeat_interleave.Tensor", lambda: (torch.tensor([10**12]),)),
    "chosen by values": ("torch.combinations", lambda: (torch.ones(100_000), 2)),
    "inside": ("torch.kron", lambda: (torch.ones(200_000), torch.ones(200_000))),
    "aten": ("aten.constant_pad_nd.default", lambda: (torch.ones(3), [0, 10**12])),
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_call_that_asks_for_more_memory_than_its_capture_explains_is_refused(
    tmp_path: Path, kind: str
) -> None:
    name, make = HUGE[kind]
    report = one(capture(tmp_path, nothing, make(), name=name, outputs=False))
    assert report.status == "refused"
    assert "bytes" in report.reason or "elements" in report.reason


def test_what_a_view_shows_counts_against_the_limit(tmp_path: Path) -> None:
    folder = capture(tmp_path, torch.Tensor.expand, (torch.ones(1), 1000))
    assert one(folder).status == "same"
    for limit, status in ((4000, "same"), (3999, "refused")):
        assert one(folder, Options(device="cpu", verbose=False, memory_limit=limit)).status == status
    shown = capture(tmp_path / "2", torch.sum, (torch.ones(1).expand(1000),))
    assert one(shown, Options(device="cpu", verbose=False, memory_limit=3000)).status == "refused"
    assert one(shown).status in ("same", "pass")


def test_the_memory_limit_can_be_set(tmp_path: Path) -> None:
    folder = capture(tmp_path, torch.outer, (torch.ones(300), torch.ones(300)))
    assert one(folder).status == "same"
    assert one(folder, Options(device="cpu", memory_limit=1000)).status == "refused"


def test_texts_of_a_capture_do_not_reach_the_terminal_as_commands(tmp_path: Path) -> None:
    attack = "\x1b[2J\x1b]0;title\x07\nsecond line"
    folder = capture(tmp_path, torch.einsum, ("i,i->i", torch.ones(2), torch.ones(2)), call_site=attack)
    report = one(folder, Options(device="cpu"))
    assert "second line" in report.text
    assert "\x1b" not in report.text and "\x07" not in report.text
    refused = one(capture(tmp_path / "2", nothing, (), name=f"torch.{attack}", outputs=False))
    assert refused.status == "refused"
    assert report_line(refused).isprintable()


def test_values_that_were_only_described_make_a_call_not_replayable(tmp_path: Path) -> None:
    class Group:
        pass

    report = one(capture(tmp_path, nothing, (torch.ones(2), Group()), name="torch.add", outputs=False))
    assert report.status == "not replayable"
    assert "Group" in report.reason


def test_a_failing_call_is_a_row_and_the_next_one_runs(tmp_path: Path) -> None:
    capture(tmp_path, nothing, (torch.ones(10), 3, 4), name="torch.Tensor.view", outputs=False)
    damaged = capture(tmp_path, torch.exp, (torch.ones(4),), forward_id=2)
    (damaged / "input.pth").write_bytes((damaged / "input.pth").read_bytes()[:200])
    capture(tmp_path, torch.sin, (torch.ones(4),), forward_id=3)
    reports = [report for _, report in replay(find_items(tmp_path), ON_HOST)]
    assert [report.status for report in reports] == ["error", "error", "same"]
    assert "shape '[3, 4]' is invalid" in reports[0].reason
    assert "input.pth" in reports[1].reason


def test_a_damaged_output_is_said_and_the_reference_still_judges(tmp_path: Path) -> None:
    folder = capture(tmp_path, torch.exp, (torch.ones(4),))
    (folder / "output.pth").write_bytes(b"PK garbage")
    report = one(folder)
    assert report.status == "error"
    assert "output.pth" in report.reason
    assert verdicts(report) == {"input": "same", "output": "same", "captured output": "error"}


# --- processes --------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    home = tmp_path / "home"
    (home / "broken_ops_for_test").mkdir(parents=True)
    (home / "broken_ops_for_test" / "__init__.py").write_text(
        textwrap.dedent(
            """
            import os
            import time

            def crash(x):
                os.abort() if x.device.type != "meta" else None
                return x

            def hang(x):
                time.sleep(3600) if x.device.type != "meta" else None
                return x

            def shout(x):
                os.write(1, b"not an answer\\n")
                return x + 1
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(home))
    yield "broken_ops_for_test"


def test_a_crash_and_a_hang_cost_only_themselves(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = tmp_path / "captures"
    captures.mkdir()
    (captures / "json.py").write_text(f"open({str(tmp_path / 'made')!r}, 'w')")
    monkeypatch.chdir(captures)
    for number, name in enumerate(("crash", "hang", "shout"), 1):
        capture(
            captures, nothing, (torch.ones(2),), name=f"{package}.{name}", forward_id=number, outputs=False
        )
    for number in range(4, 8):
        capture(captures, torch.exp, (torch.rand(20),), forward_id=number)
    items = find_items(captures)
    options = Options(device="cpu", verbose=False, allow=(package,))
    found = dict(replay(items, options, workers=2, timeout=8.0))
    reports = {Path(items[index].folder).parent.name: found[index] for index in found}
    assert sorted(reports) == [str(number) for number in range(1, 8)]
    assert (reports["1"].status, reports["2"].status) == ("error", "error")
    assert "SIGABRT" in reports["1"].reason
    assert "8 s" in reports["2"].reason
    assert [reports[str(number)].status for number in range(3, 8)] == ["same"] * 5
    assert not (tmp_path / "made").exists()


NUMBERS = {"huge": 10**30, "below": -(10**30), "yes": True, "text": "7", "fraction": 1.5, "none": None}


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
def test_a_number_that_no_log_can_hold_is_none(tmp_path: Path, number: object) -> None:
    """A header may say anything; what is printed, logged and put into tables is a number of ordinary size."""
    folder = capture(tmp_path, torch.exp, (torch.rand(3),), forward_id=4)
    for part in ("input", "output"):
        data = load(folder / f"{part}.pth")
        data["__op_tools__"] |= {"forward_id": number, "step": number, "rank": number, "order": number}
        torch.save(data, folder / f"{part}.pth")
    report = one(folder, Options(device="cpu"))
    assert report.status == "same" and {row["forward_id"] for row in report.rows} == {4}
    summary.write_comparisons(str(tmp_path / "out"), [report])
    log = summary.ReplayLog(str(tmp_path / "out"), times=True)
    log.add(report)
    log.close()
    ((call,),) = of_captures(tmp_path).by_rank.values()
    assert (call.row["forward_id"], call.row["step"], call.row["rank"]) == (4, 0, 0)
