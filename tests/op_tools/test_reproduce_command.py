"""`op-tools reproduce`: which call is meant, what is written, what is said and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from test_reproduce_calls import names_of, random, spoiled

import op_tools
from op_tools import cli
from op_tools.results import Results
from op_tools.storage import CallInfo, CaptureStore


def command(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, what was printed, and what was complained about."""
    with pytest.raises(SystemExit) as left:
        cli.run(cli.app, ["reproduce", *map(str, words)])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return int(left.value.code or 0), said.out, said.err


@pytest.fixture
def wrong_run(tmp_path: Path) -> Path:
    """A right call (1), two wrong ones (2, 3) and a random one (4)."""
    root = tmp_path / "run"
    x, y = random(4, 8), random(4, 8, seed=1)
    capture(root, torch.mul, (x, y), forward_id=1, call_site="model.py:3 forward: x * y")
    capture(root, torch.mul, (x, y), forward_id=2, change=spoiled, call_site="model.py:4 forward: x * y")
    capture(root, torch.add, (x, y), forward_id=3, change=spoiled, call_site="model.py:5 forward: x + y")
    capture(root, torch.nn.functional.dropout, (x,), forward_id=4)
    return root


def test_writes_a_file_that_passes_here_and_says_how_to_run_it(
    wrong_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command("3", "--run", wrong_run, "-o", tmp_path / "add.py", capsys=capsys)
    assert code == 0
    assert "add.py" in out
    assert "kB): torch.add, captured at" in out
    assert "output: 1 element is off" in out
    assert "passes on the CPU of this machine" in out
    assert f"python {tmp_path}/add.py [--device NAME]" in out
    text = (tmp_path / "add.py").read_text()
    assert "model.py:5 forward: x + y" in text
    assert f"torch {torch.__version__}" in text
    assert "    return torch.add(x[0], x[1])\n" in text
    assert text.index("def call(x, device)") < text.index("DATA = ")
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "add.py"), "--device", "nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "say --device NAME" in done.stderr


def test_a_folder_a_name_and_first_are_found(
    wrong_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = (wrong_run / "op_capture_results").glob("torch.mul/*/2/*")
    relative = folder.relative_to(wrong_run / "op_capture_results")
    for identity, expected in (
        (folder, "mul"),
        (relative, "mul"),
        ("torch.add", "add"),
        ("torch.mul", "mul"),
    ):
        words = (identity, "--run", wrong_run, "--no-verify", "--json", "-o", tmp_path / "r.py")
        code, out, _ = command(*words, capsys=capsys)
        said = json.loads(out)
        assert (code, said["operator"]) == (0, f"torch.{expected}")
        assert said["capture"].split("/")[-2] == ("2" if expected == "mul" else "3")
        assert said["bytes"] == (tmp_path / "r.py").stat().st_size
    code, out, _ = command(
        "first", "--run", wrong_run, "--no-verify", "--json", "-o", tmp_path / "r.py", capsys=capsys
    )
    assert json.loads(out)["wrong"][0].startswith("output: 1 element is off")


def test_first_follows_the_comparison(
    wrong_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log of autocompare, and before it that of diff."""
    logged(wrong_run, "op_autocompare_info", {"forward_id": 3, "name": "torch.add output", "verdict": "fail"})
    words = ("first", "--run", wrong_run, "--no-verify", "--json", "-o", tmp_path / "r.py")
    assert json.loads(command(*words, capsys=capsys)[1])["operator"] == "torch.add"
    (folder,) = (wrong_run / "op_capture_results").glob("torch.mul/*/2/*")
    row = {
        "forward_id": 7,
        "name": "torch.mul",
        "verdict": "fail",
        "side": "B",
        "folder_b": f"elsewhere/{folder}",
    }
    logged(wrong_run, "op_diff_info", row)
    assert json.loads(command(*words, capsys=capsys)[1])["operator"] == "torch.mul"


def test_first_follows_the_newest_diff_and_this_run(
    wrong_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    capture(other, torch.sub, (random(4), 1.0), forward_id=9, change=spoiled)
    captures = wrong_run / "op_capture_results"
    (mul,), (add,) = captures.glob("torch.mul/*/2/*"), captures.glob("torch.add/*/3/*")
    (sub,) = other.glob("op_capture_results/torch.sub/*/9/*")
    words = ("first", "--run", wrong_run, "--no-verify", "--json", "-o", tmp_path / "r.py")

    def compared(clock: str, *rows: dict[str, Any]) -> str:
        logged(wrong_run, "op_diff_info", *({"verdict": "fail", **row} for row in rows))
        for path in (wrong_run / "logs").glob("op_diff_info*"):
            if "--" not in path.name:  # a log's name ends in when it was made
                path.rename(path.with_name(f"op_diff_info_pid1_{clock}--{path.suffix}"))
        return str(json.loads(command(*words, capsys=capsys)[1])["operator"])

    in_a = {"side": "A", "folder_a": str(sub), "folder_b": str(mul)}
    assert compared("2026-01-01", {"side": "B", "folder_b": str(mul)}) == "torch.mul"
    assert compared("2026-01-02", in_a) == "torch.sub"
    assert compared("2026-01-03", in_a, {"side": "B", "folder_b": str(add)}) == "torch.add"
    # The other run is gone: the call of this run with the same number is not the wrong one.
    gone = {
        "side": "A",
        "folder_a": f"{sub}/gone",
        "folder_b": str(mul),
        "forward_id": 1,
        "name": "torch.mul",
    }
    assert compared("2026-01-04", gone, {"side": "B", "folder_b": str(add)}) == "torch.add"


def logged(run: Path, name: str, *rows: dict[str, Any]) -> None:
    results = Results(str(run / "logs"), name, list(rows[0]))
    results.append({"forward_id": 1, "name": "torch.mul output", "verdict": "same"})
    results.extend(rows)
    results.close()


def test_what_autocompare_saved_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl(
        "silu", lambda x: (torch.ops.aten.silu(x.cpu()) * 1.01).to("dipu"), "PrivateUse1", allow_override=True
    )
    with op_tools.OpAutoCompare(results=str(tmp_path / "run")):
        torch.nn.functional.silu(random(4, 8).to("dipu"))
    library._destroy()
    words = ("first", "--run", tmp_path / "run", "--no-verify", "--json", "-o", tmp_path / "r.py")
    code, out, _ = command(*words, capsys=capsys)
    said = json.loads(out[out.index("{") :])
    assert (code, said["operator"]) == (0, "torch.nn.functional.silu")
    assert "autocompare" in said["capture"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("1",), 1, "is not wrong (output same). No file was written"),
        (("9",), 2, "has the number 9"),
        (("torch.mull",), 2, "Did you mean 'torch.mul'"),
        (("torch.nn.functional.dropout",), 1, "nothing is wrong: 1 captured call"),
        (("4",), 1, "is not wrong (output pass)"),
        (("3", "--limit", "many"), 2, "expected a number of bytes"),
        (("3", "-o", "repro.txt"), 2, "ends in .py"),
        (("3", "--device", "nowhere"), 2, "is not a device of this machine"),
        (("3", "-o", "/dev/null/x/repro.py"), 2, "cannot be written"),
    ],
)
def test_bad_input_is_said_and_not_raised(
    words: tuple[str, ...], code: int, told: str, wrong_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _, errors = command(*words, "--run", wrong_run, "--no-verify", capsys=capsys)
    assert (found, errors.startswith("op-tools: ")) == (code, True)
    assert told in errors
    assert not Path("repro.py").exists()


def test_nothing_captured_says_how_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = command("first", "--run", tmp_path / "none", capsys=capsys)
    assert (code, "does not exist" in errors) == (2, True)
    logged(
        tmp_path / "run",
        "op_autocompare_info",
        {"forward_id": 3, "name": "torch.add output", "verdict": "fail"},
    )
    code, _, errors = command("first", "--run", tmp_path / "run", capsys=capsys)
    assert (code, "op_tools.OpCapture(" in errors) == (2, True)


def test_an_ambiguous_number_lists_operators_and_places(
    wrong_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = wrong_run / "op_capture_results" / "torch.mul"
    (pid,) = other.iterdir()
    (folder,) = (wrong_run / "op_capture_results" / "torch.add").glob("*/3")
    (wrong_run / "op_capture_results" / "torch.sub" / pid.name).mkdir(parents=True)
    folder.rename(wrong_run / "op_capture_results" / "torch.sub" / pid.name / "2")
    code, _, errors = command("2", "--run", wrong_run, capsys=capsys)
    assert code == 2
    assert "number 2 stands for 2 captured calls" in errors
    assert "torch.mul" in errors
    assert "model.py:4 forward: x * y" in errors
    assert "model.py:5 forward: x + y" in errors


def test_the_command_to_run_fits_a_shell(
    wrong_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my files" / "r.py"
    code, out, _ = command("3", "--run", wrong_run, "--no-verify", "-o", path, capsys=capsys)
    assert (code, f"run: python '{path}' [--device" in out) == (0, True)


def test_a_file_that_cannot_be_put_in_place_leaves_nothing_behind(
    wrong_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "files"
    (folder / "d.py").mkdir(parents=True)
    capture(wrong_run, torch.sum, (random(200, 200), 0), forward_id=5, change=spoiled)
    for words in (("3",), ("5", "--limit", "50K")):
        code, _, errors = command(
            *words, "--run", wrong_run, "--no-verify", "-o", folder / "d.py", capsys=capsys
        )
        assert (code, "cannot be written" in errors) == (2, True)
        assert sorted(path.name for path in folder.iterdir()) == ["d.py"]


def test_force_writes_a_file_of_a_right_call(wrong_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command("1", "--run", wrong_run, "--force", "--no-verify", capsys=capsys)
    assert (code, "repro.py" in out) == (0, True)
    assert "torch.mul was not found wrong on cpu." in Path("repro.py").read_text()


def test_what_was_not_captured_is_run_on_the_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`x[0] = v` returns nothing: where what it wrote was not saved, only the device shows whether it is right."""
    info = CallInfo("torch.Tensor.__setitem__", 1, device="dipu:0")
    with CaptureStore(tmp_path / "run") as store:
        store.put(info, "input", (random(4, 8), slice(1, 3), 2.0))
        store.put(info, "output", (None,))
    (folder,) = (tmp_path / "run" / "op_capture_results").glob("*/*/*/*")
    code, _, errors = command(folder, "--no-verify", capsys=capsys)
    assert (code, "--device NAME" in errors, "ATen" in errors) == (2, True, False)
    code, _, errors = command(folder, "--device", "dipu", "--no-verify", capsys=capsys)
    assert (code, "(written) same" in errors) == (1, True)


def test_a_large_call_is_cut_where_rows_do_not_meet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def off(value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        value[150, 3] += 1
        return value

    x, weight = random(200, 256), random(8, 256)
    capture(tmp_path / "run", torch.nn.functional.linear, (x, weight), change=off)
    words = ("1", "--run", tmp_path / "run", "--limit", "100K", "--json", "-o", tmp_path / "r.py")
    code, out, _ = command(*words, capsys=capsys)
    said = json.loads(out)
    assert (code, said["beside"], said["passes_on_cpu"]) == (0, None, True)
    assert said["bytes"] <= 100 << 10
    assert "of 200 of the first dimension" in said["cut"]
    names = names_of(tmp_path / "r.py")
    rows = names["CASE"].inputs[0].shape[0]
    assert 10 < rows < 100
    kept = names["read"](names["CASE"].inputs[0], names["unpacked"](names["DATA"]))
    assert any(torch.equal(row, x[150]) for row in kept)


def test_a_large_call_that_cannot_be_cut_has_its_tensors_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture(tmp_path / "run", torch.sum, (random(200, 200), 0), change=spoiled)
    words = ("1", "--run", tmp_path / "run", "--limit", "50K", "-o", tmp_path / "r.py")
    code, out, _ = command(*words, capsys=capsys)
    assert (code, "send" in out, "r.pt along with it" in out) == (0, True, True)
    assert (tmp_path / "r.py").stat().st_size < 50 << 10
    saved = torch.load(tmp_path / "r.pt", weights_only=True)
    assert (saved.dtype, saved.numel() >= 160_000) == (torch.uint8, True)


def test_text_from_a_capture_cannot_become_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = '"""\nraise SystemExit(77)\n"""\\'
    x = random(4, 8)
    folder = capture(
        tmp_path / "run", torch.mul, (x, 2.0), change=spoiled, call_site=hostile, extra={"module": hostile}
    )
    code, _, _ = command(folder, "-o", tmp_path / "r.py", capsys=capsys)
    assert code == 0
    assert "raise SystemExit(77)" in names_of(tmp_path / "r.py")["__doc__"]
    info = CallInfo("torch.mul", 5, device='cuda"); raise SystemExit(78) #')
    with CaptureStore(tmp_path / "other") as store:
        store.put(info, "input", (x, 2.0), {"other=1) or exit(79) or dict(a": 1})
        store.put(info, "output", (x,))
    code, _, errors = command("5", "--run", tmp_path / "other", "-o", tmp_path / "s.py", capsys=capsys)
    assert code == 2, errors
    assert not (tmp_path / "s.py").exists()
