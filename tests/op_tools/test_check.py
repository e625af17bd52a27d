"""`op-tools check`: whether a run is worse than a baseline."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import op_tools
from op_tools.cli import app, main
from op_tools.gate import CheckRules, Signature, Summary, compare, read_with_note
from op_tools.storage.log import Log

D = "dipu"
ROOT = Path(__file__).resolve().parent.parent.parent
LINEAR = "(float32[8, 4]@dev:0, float32[4, 4]@dev:0 stride [1, 4])"


def read_summary(path: Path) -> Summary:
    return read_with_note(path)[0]


def timed(name: str, milliseconds: list[float], **more: Any) -> list[dict[str, Any]]:
    plain = {
        "name": name,
        "phase": "forward",
        "level": "api",
        "input": LINEAR,
        "call_site": "train.py:3 f: x",
    }
    return [plain | {"forward_elasped": time} | more for time in milliseconds]


def judged(name: str, verdict: str, error: float = float("nan"), **more: Any) -> dict[str, Any]:
    plain = {"name": f"{name} output", "phase": "forward", "level": "api", "call_site": "train.py:5 f: y"}
    return plain | {"verdict": verdict, "error_over_bound": error} | more


def run(folder: str, rows: list[dict[str, Any]], tool: str = "op_elasped_info", **about: Any) -> str:
    with Log(folder, tool, about=about) as log:
        log.extend(rows)
    return folder


def compared(folder: str, rows: list[dict[str, Any]], **about: Any) -> str:
    return run(folder, rows, "op_autocompare_info", **about)


def check(capfd: Any, *arguments: str, expect: int) -> str:
    with pytest.raises(SystemExit) as raised:
        main(["check", *arguments])
    captured = capfd.readouterr()
    assert (raised.value.code or 0) == expect, captured.out + captured.err
    assert "Traceback" not in captured.err
    return captured.err if expect in {2, 5} else captured.out


def spread(around: float, count: int = 11, width: float = 0.02) -> list[float]:
    return [around * (1 + width * (n - count // 2) / count) for n in range(count)]


# --- what a run is summed up to --------------------------------------------------------------------------


def test_a_signature_is_tensors_by_kind_and_not_values_or_device_numbers() -> None:
    texts = (
        "(float32[8, 4]@dev:0, 0.25, dim=3)",
        "(float32[8, 4]@dev:1, 0.75, dim=3)",
        "(float32[8, 4]@dev:0 stride [1, 8], 0.25)",
        "(float32 torch.sparse_coo Tensor@dev:0, [int64[]@cpu])",
        "(float32[5, 2] torch.sparse_coo@dev:0, 2.0)",
    )
    run("a", [one for text in texts for one in timed("torch.mul", [1.0], input=text)])
    found = {Signature.of_key(key): times.calls for key, times in read_summary(Path("a")).time.items()}
    assert found == {
        Signature("torch.mul", "forward", "api", "float32[8, 4]@dev"): 2,
        Signature("torch.mul", "forward", "api", "float32[8, 4]@dev stride [1, 8]"): 1,
        Signature("torch.mul", "forward", "api", "float32 torch.sparse_coo Tensor@dev, int64[]@cpu"): 1,
        Signature("torch.mul", "forward", "api", "float32[5, 2] torch.sparse_coo@dev"): 1,
    }


def test_medians_of_forward_and_backward_over_all_processes() -> None:
    run("a/rank0", timed("torch.mul", [1.0, 9.0, 2.0], backward_elasped=4.0))
    run("a/rank1", timed("torch.mul", [3.0, float("nan"), 2.5]))
    times = {Signature.of_key(key).phase: one for key, one in read_summary(Path("a")).time.items()}
    assert (times["forward"].calls, times["forward"].median) == (5, 2.5)
    assert times["forward"].mad == statistics.median([1.5, 6.5, 0.5, 0.5, 0])
    assert (times["backward"].calls, times["backward"].median, times["backward"].mad) == (3, 4.0, 0.0)


def test_a_baseline_file_says_what_its_folder_says(capfd: Any) -> None:
    run("a", timed("torch.mul", spread(2.0)))
    compared(
        "a", [judged("torch.mul", "same"), judged("torch.mul", "pass", 0.3), judged("torch.add", "skipped")]
    )
    assert "accuracy of 1 signatures, time of 1" in check(capfd, "--save", "sub/b.json", "a", expect=0)
    saved, folder = read_summary(Path("sub/b.json")), read_summary(Path("a"))
    assert saved.time.keys() == folder.time.keys() and saved.accuracy.keys() == folder.accuracy.keys()
    ((key, one),) = saved.accuracy.items()
    assert key == "torch.mul output | forward | api | "
    assert (one.values, one.verdict, one.error, one.where) == (2, "pass", 0.3, "")
    assert next(iter(saved.time.values())).median == 2.0
    lines = Path("sub/b.json").read_text().splitlines()
    assert sum("torch.mul" in line and '"median"' in line for line in lines) == 1
    assert "train.py" not in "".join(lines)
    assert check(capfd, "sub/b.json", "a", expect=0).startswith(
        "not worse: 1 signatures compared in accuracy, 1 in"
    )


# --- accuracy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            ("same", 0.0),
            ("fail", 12.0),
            "WRONG   torch.mul output forward: same -> fail (error 12 of its bound)",
        ),
        (
            ("pass", 0.2),
            ("lower_precision", 3.0),
            "WORSE   torch.mul output forward: pass (error 0.2 of its bound) ->",
        ),
        (("lower_precision", 3.0), ("fail", 9.0), "WRONG   torch.mul output"),
        (("pass", 0.1), ("pass", 0.6), "WORSE   torch.mul output forward: error 0.1 -> 0.6 of its bound"),
        (None, ("fail", 2.0), "WRONG   torch.mul output forward: new, and fail"),
        (("same", 0.0), ("pass", 0.4), ""),
        (("pass", 0.2), ("pass", 0.7), ""),
        (("fail", 2.0), ("fail", 50.0), ""),
        (("fail", 2.0), ("pass", 0.1), ""),
        (None, ("lower_precision", 2.0), ""),
    ],
)
def test_verdicts_that_became_worse(before: Any, after: Any, said: str, capfd: Any) -> None:
    compared("a", [judged("torch.add", "pass", 0.2)] + ([judged("torch.mul", *before)] if before else []))
    compared(
        "b", [judged("torch.add", "pass", 0.2), judged("torch.mul", "same"), judged("torch.mul", *after)]
    )
    out = check(capfd, "a", "b", expect=1 if said else 0)
    assert (said in out) if said else out.startswith("not worse")
    assert ("train.py:5" in out) == bool(said)
    known = before is not None and before[0] == after[0] == "fail"
    assert ("1 signatures fail as they did" in out) == known


def test_the_ratio_of_errors_can_be_chosen(capfd: Any) -> None:
    compared("a", [judged("torch.mul", "pass", 0.3)])
    compared("b", [judged("torch.mul", "pass", 0.9)])
    check(capfd, "a", "b", expect=0)
    check(capfd, "a", "b", "--accuracy-ratio", "2", expect=1)


def test_runs_that_know_inputs_meet_runs_that_do_not() -> None:
    compared(
        "a",
        [
            judged("torch.mul", "same", input="(float32[2]@dev:0)"),
            judged("torch.mul", "pass", input="(float32[3]@dev:0)"),
        ],
    )
    compared("b", [judged("torch.mul", "fail", 3.0)])
    outcome = compare(read_summary(Path("a")), read_summary(Path("b")), CheckRules())
    assert (outcome.compared_accuracy, [finding.what for finding in outcome.findings]) == (1, ["WRONG"])


def test_a_wrong_shape_is_told_from_a_right_one() -> None:
    compared("a", [judged("torch.mul", "same", input=f"(float32[{n}]@dev:0)") for n in (2, 3)])
    verdicts = {2: "same", 3: "fail"}
    compared("b", [judged("torch.mul", verdicts[n], input=f"(float32[{n}]@dev:1)") for n in verdicts])
    (finding,) = compare(read_summary(Path("a")), read_summary(Path("b")), CheckRules()).findings
    assert finding.signature.inputs == "float32[3]@dev"


# --- time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "options", "slower"),
    [
        (spread(1.0), spread(1.5), [], True),
        (spread(1.0), spread(1.2), [], False),
        (spread(1.0), spread(1.2), ["--time-ratio", "1.1"], True),
        (spread(1.0), spread(0.5), [], False),
        (spread(1.0, 4), spread(2.0, 4), [], False),
        (spread(1.0, 4), spread(2.0, 4), ["--min-calls", "3"], True),
        (spread(0.01), spread(0.03), [], False),
        (spread(0.01), spread(0.03), ["--min-ms", "0.1"], True),
        (spread(1.0, width=1.5), spread(1.5, width=1.5), [], False),  # within the noise of the calls themselves
        ([*spread(1.0), 90.0, 80.0], [*spread(1.0), 900.0], [], False),  # a few slow calls move no median
    ],
)  # fmt: skip
def test_times_that_became_longer(
    before: list[float], after: list[float], options: list[str], slower: bool, capfd: Any
) -> None:
    run("a", timed("torch.mul", before))
    run("b", timed("torch.mul", after))
    for folder in ("a", "b"):
        run(folder, timed("torch.add", spread(1.0)))
    out = check(capfd, "a", "b", *options, expect=int(slower))
    assert ("SLOWER  torch.mul forward: " in out) == slower
    if slower:
        ratio = statistics.median(after) / statistics.median(before)
        assert f"{ratio:.2f} times, {len(after)} calls" in out and "train.py:3  float32[8, 4]@dev" in out


def test_a_slower_machine_is_divided_out_if_asked_for(capfd: Any) -> None:
    names = [f"torch.op{n}" for n in range(8)]
    run("a", [one for name in names for one in timed(name, spread(1.0))])
    slow = {"torch.op3": 6.0}
    run("b", [one for name in names for one in timed(name, spread(slow.get(name, 2.0)))])
    assert check(capfd, "a", "b", expect=1).startswith("8 worse")
    out = check(capfd, "a", "b", "--relative", expect=1)
    assert out.startswith("1 worse") and "torch.op3 forward: 1 -> 3 ms, 3.00 times" in out
    assert "this machine took 2.00 times as long" in out


def test_backward_is_compared_by_itself(capfd: Any) -> None:
    run("a", timed("torch.mul", spread(1.0), backward_elasped=1.0))
    run("b", timed("torch.mul", spread(1.0), backward_elasped=2.0))
    assert "SLOWER  torch.mul backward: 1 -> 2 ms" in check(capfd, "a", "b", expect=1)


def test_what_is_too_short_to_compare_is_not_called_compared(capfd: Any) -> None:
    run("a", timed("torch.mul", [1.0] * 4))
    run("b", timed("torch.mul", [100.0] * 4))
    err = check(capfd, "a", "b", expect=5)
    assert "1 signatures have fewer than 5 calls or less than 1 ms in all" in err and "--min-calls" in err
    check(capfd, "a", "b", "--min-calls", "4", expect=1)
    for folder in ("a", "b"):
        compared(folder, [judged("torch.mul", "same")])
    out = check(capfd, "a", "b", expect=0)
    assert out.startswith("not worse: 1 signatures compared in accuracy, 0 in time\n")
    assert "time not compared: 1 signatures have fewer than 5 calls" in out
    check(capfd, "a", "b", "--strict", expect=5)
    told = json.loads(_json(capfd, "a", "b", "--json"))
    assert (told["compared_time"], told["too_short"], told["absent"]) == (0, 1, [])


def _json(capfd: Any, *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(["check", *arguments])
    return capfd.readouterr().out


@pytest.mark.parametrize("left", [[], [judged("torch.other", "same")]])
def test_a_kind_of_the_baseline_that_is_not_in_the_run_is_nothing_known(left: Any, capfd: Any) -> None:
    for folder in ("a", "b"):
        run(folder, timed("torch.mul", spread(1.0)))
    compared("a", [judged("torch.mul", "same")])
    if left:
        compared("b", left)
    err = check(capfd, "a", "b", expect=5)
    assert "nothing to compare in accuracy" in err and "(--tool autocompare)" in err
    assert json.loads(_json(capfd, "a", "b", "--json"))["absent"] == ["accuracy"]
    check(capfd, "b", "b", expect=0)
    run("b", timed("torch.sin", spread(9.0), input="()"))
    compared("b", [judged("torch.sin", "fail")])
    assert "WRONG   torch.sin" in check(capfd, "a", "b", expect=1), "what is wrong is known all the same"


@pytest.mark.parametrize("count", [1, 3, 7])
def test_few_times_say_nothing_about_the_machine(count: int, capfd: Any) -> None:
    names = [f"torch.op{n}" for n in range(count)]
    run("a", [one for name in names for one in timed(name, spread(1.0))])
    run("b", [one for name in names for one in timed(name, spread(3.0))])
    out = check(capfd, "a", "b", "--relative", expect=1)
    assert out.startswith(f"{count} worse") and "1 -> 3 ms, 3.00 times" in out
    assert f"not divided out: {count} times compared, --relative needs 8" in out


def test_times_of_zero_have_no_part_in_the_speed_of_the_machine(capfd: Any) -> None:
    names = [f"torch.op{n}" for n in range(9)]
    run("a", [one for name in names for one in timed(name, spread(1.0))])
    run("b", [one for name in names for one in timed(name, [0.0] * 11)])
    out = check(capfd, "a", "b", "--relative", "--min-ms", "0", expect=0)
    assert "not divided out: 0 times compared" in out
    run("b", timed("torch.op8", [2.0] * 40))
    run("b", [one for name in names[:8] for one in timed(name, [2.0] * 40)])
    assert "took 2.00 times as long" in check(capfd, "a", "b", "--relative", "--min-ms", "0", expect=0)


def test_rows_with_strange_values_cost_themselves_only(capfd: Any) -> None:
    good = timed("torch.mul", spread(1.0))
    strange = [
        good[0] | {"phase": 5},
        good[0] | {"forward_elasped": 1e305},
        good[0] | {"level": [1], "name": {}},
    ]
    run("a", good + strange)
    found = {Signature.of_key(key): one for key, one in read_summary(Path("a")).time.items()}
    assert {(one.name, one.phase): times.calls for one, times in found.items()} == {
        ("torch.mul", "forward"): 11, ("torch.mul", "5"): 1, ("{}", "forward"): 1,
    }  # fmt: skip
    assert "1 in time" in check(capfd, "a", "a", expect=0)


# --- missing, output, and bad input ----------------------------------------------------------------------


def test_missing_operators_are_told_and_fail_when_strict(capfd: Any) -> None:
    run("a", timed("torch.mul", spread(1.0)) + timed("torch.add", [1.0]))
    run("b", timed("torch.mul", spread(1.0)))
    assert "not in this run: 1 signatures of the baseline: torch.add" in check(capfd, "a", "b", expect=0)
    assert "MISSING torch.add forward: measured in the baseline, not now" in check(
        capfd, "a", "b", "--strict", expect=1
    )


def test_at_most_twenty_lines_of_a_hundred_columns_and_all_as_json(capfd: Any) -> None:
    name = "torch.nn.functional." + "very_long_name_" * 6
    long = "(" + ", ".join(["float32[1024, 1024]@dev:0"] * 9) + ")"
    rows = [timed(f"{name}{n}", spread(1.0 + n), input=long) for n in range(40)]
    run("a", [one for calls in rows for one in calls] + timed("torch.gone", [1.0]))
    run("b", [one | {"forward_elasped": one["forward_elasped"] * 2} for calls in rows for one in calls])
    lines = check(capfd, "a", "b", expect=1).splitlines()
    assert lines[0].startswith("40 worse") and 10 < len(lines) <= 20 and max(map(len, lines)) <= 100
    assert "34 more" in "\n".join(lines)
    told = json.loads(check(capfd, "a", "b", "--json", expect=1))
    assert told["worse"] == 40 and told["compared_time"] == 40 and len(told["findings"]) == 41
    assert told["findings"][0]["name"] == f"{name}39", "the one that costs most comes first"
    assert told["findings"][-1] | {"text": ""} == {
        "kind": "missing", "what": "MISSING", "text": "", "where": "", "fails": False, "name": "torch.gone",
        "phase": "forward", "level": "api", "inputs": "float32[8, 4]@dev, float32[4, 4]@dev stride [1, 4]",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["good"], 2, "expected BASELINE and RUN, got 1 path"),
        (["good", "good", "good"], 2, "got 3 paths"),
        (["baseline.json", "good"], 2, "baseline.json does not exist"),
        (["nowhere", "good"], 2, "nowhere does not exist"),
        (["foreign.json", "good"], 2, "is not a baseline of `op-tools check`"),
        (["list.json", "good"], 2, "is not a baseline of `op-tools check`"),
        (["newer.json", "good"], 2, "version 2"),
        (["strange.json", "good"], 2, "verdict 'excellent' is none of same, pass"),
        (["binary.json", "good"], 2, "is not a baseline of `op-tools check`"),
        (["good", "empty"], 5, "holds no results of op_tools"),
        (["good", "observed"], 5, "has nothing to check"),
        (["good", "another"], 5, "Are they runs of the same program"),
        (["--save", "b.json", "good", "good"], 2, "--save takes one run"),
        (["--save", "foreign.json/b.json", "good"], 2, "cannot be written"),
        (["--save", "b.json", "rowless"], 5, "no rows"),
    ],
)
def test_bad_input_is_said_plainly(arguments: list[str], code: int, said: str, capfd: Any) -> None:
    run("good", timed("torch.mul", [1.0]))
    run("another", timed("torch.sub", [1.0]))
    run("observed", timed("torch.mul", [1.0]), "op_observe_info")
    run("rowless", [{"name": "torch.mul", "error_info": "tool error: ValueError"}])
    Path("empty").mkdir()
    form = {"format": "op_tools check baseline", "version": 1, "time": {}, "accuracy": {}}
    strange = {"torch.mul | forward | api | ": {"values": 1, "verdict": "excellent"}}
    for name, content in (
        ("foreign", {"name": "package", "version": "1"}),
        ("list", [1, 2]),
        ("newer", form | {"version": 2}),
        ("strange", form | {"accuracy": strange}),
    ):
        Path(f"{name}.json").write_text(json.dumps(content))
    Path("binary.json").write_bytes(b"\xff\xfe\x00")
    err = check(capfd, *arguments, expect=code)
    assert said in err and err.startswith("op-tools: ")
    assert not Path("b.json").exists()


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_real_kernel_that_became_wrong(capfd: Any) -> None:
    x = torch.linspace(-3, 3, 64, device=D)
    for folder in ("before", "after"):
        with op_tools.OpAutoCompare(results=folder), op_tools.OpTimeMeasure(results=folder):
            for _ in range(6):
                x.exp()
                x.cos()
    check(capfd, "--save", "baseline.json", "before", expect=0)
    check(capfd, "baseline.json", "after", "--time-ratio", "50", expect=0)
    real = torch.Tensor.exp
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("exp", lambda input: torch.cos(input) + 0.5, "PrivateUse1", allow_override=True)
        assert float(real(x)[0]) == pytest.approx(float(torch.cos(x[:1])) + 0.5)
        with op_tools.OpAutoCompare(results="wrong"):
            x.exp()
            x.cos()
    finally:
        library._destroy()
    assert float(x.exp()[0]) == pytest.approx(math.exp(-3)), "the device's own kernel is back"
    out = check(capfd, "baseline.json", "wrong", expect=1)
    assert "1 worse: 2 signatures compared in accuracy, 0 in time" in out
    assert "WRONG   torch.Tensor.exp output forward: same -> fail" in out and "test_check.py:" in out


def test_a_right_run_after_a_wrong_one_in_the_same_folder(capfd: Any) -> None:
    compared("good", [judged("torch.mul", "same")])
    compared("a", [judged("torch.mul", "fail", 9.0)], run_id="first")
    assert "WRONG" in check(capfd, "good", "a", expect=1)
    compared("a", [judged("torch.mul", "same")], run_id="second")
    out = check(capfd, "good", "a", expect=0)
    assert "1 log of an older run left out, the newest run of each tool counts: a" in out
    assert "left out" in check(capfd, "--save", "b.json", "a", expect=0)
    assert "left out" not in check(capfd, "good", "good", expect=0)


@pytest.mark.parametrize("target", ["{long}", "{long}.json", "locked/inner", "locked/inner.json"])
def test_paths_that_cannot_be_looked_at(target: str, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run("good", timed("torch.mul", spread(1.0)))
    real = os.stat

    def refuse(path: Any, *rest: Any, **more: Any) -> Any:
        if "locked" in str(path):  # root may look everywhere
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "stat", refuse)
    path = target.format(long="n" * 300)
    for arguments in ((path, "good"), ("good", path), ("--save", "b.json", path)):
        err = check(capfd, *arguments, expect=2)
        assert "cannot be read: " in err and path in err and err.startswith("op-tools: ")


# --- the example -----------------------------------------------------------------------------------------


def test_the_example_workflow_calls_commands_that_exist(run_python: Any) -> None:
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "examples" / "op_tools_gate.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    steps = workflow["jobs"]["gate"]["steps"]
    lines = [line for step in steps for line in step.get("run", "").splitlines()]
    commented = [line[4:] for line in text.splitlines() if re.match(r"#   (ditorch|op-tools) ", line)]
    import typer

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    used = set()
    for words in (line.split() for line in lines + commented):
        assert words[0] in {"op-tools", "ditorch", "pip"}
        if words[0] == "op-tools":
            assert words[1] in commands, f"op-tools has no command {words[1]}"
            options = {option for parameter in commands[words[1]].params for option in parameter.opts}
            assert {word for word in words[2:] if word.startswith("-")} <= options
        used |= {" ".join(words[:2])} if words[0] != "pip" else set()
    assert used == {"ditorch run", "op-tools check", "op-tools report", "op-tools trace"}
    help_text = run_python("from _ditorch.cli import app; app(['--help'])")
    assert re.search(r"\brun\b", help_text.split("Commands")[1])
    upload = next(step for step in steps if step.get("uses", "").startswith("actions/upload-artifact@"))
    assert "report.html" in upload["with"]["path"] and upload["if"] == "always()"
    assert sys.version_info >= tuple(map(int, steps[1]["with"]["python-version"].split(".")))
