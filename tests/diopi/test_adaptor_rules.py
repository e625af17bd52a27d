"""Rules as they are written, what they mean, and what is said about wrong ones."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from forked_python import run_python

from diopi.adaptor import (
    COMPOSITES,
    AdaptorRules,
    ArgumentRule,
    Cost,
    RulesError,
    merged,
    read_costs,
    read_rules,
)
from diopi.adaptor.costs import append_costs
from diopi.adaptor.rules import adaptable
from diopi.cli import main
from diopi.generate.interface import adaptor_operators
from diopi.table import load

PUBLISHED = """\
- common_config:
    dtype: (int64)->int32, (float64)->float32      # for every operator
    layout: NHWC
- diopiAdd:
    dtype: (int64)->int16
    tensor_dtype:
        input: (float64)->float16
        out: (float64)->float64
    layout: NCHW, input(NHWC)
    contiguous: input, other
    supportComposite: true
"""


def _read(tmp_path: Path, text: str) -> AdaptorRules:
    (tmp_path / "rules.yaml").write_text(text, encoding="utf-8")
    return read_rules(tmp_path / "rules.yaml")


def test_the_published_form(tmp_path: Path) -> None:
    rules = _read(tmp_path, PUBLISHED)
    assert rules.operators["diopiAdd"] == {
        1: ArgumentRule({"int64": "int16"}, ("NCHW",), False),
        2: ArgumentRule({"int64": "int16", "float64": "float16"}, ("NHWC",), True),
        3: ArgumentRule({"int64": "int16", "float64": "float32"}, ("NCHW",), True),
    }
    everywhere = ArgumentRule({"int64": "int32", "float64": "float32"}, ("NHWC",), False)
    assert rules.operators["diopiMul"] == {1: everywhere, 2: everywhere, 3: everywhere}
    without_tensors = set(adaptable()) - set(rules.operators)
    assert len(adaptable()) == 423 and without_tensors == {"diopiTensorDestructionHook"}
    assert rules.composites == {"diopiAdd"}


def test_the_compact_form(tmp_path: Path) -> None:
    text = (
        "- diopiAdd:\n    tensor_dtype: {input: '(int64, bool)->int32'}\n    layout: [NHWC, NDHWC, out(ND)]\n"
        "    supportComposite: yes\n"
    )
    with pytest.raises(RulesError, match="supportComposite is true or false"):
        _read(tmp_path, text)
    rules = _read(tmp_path, text.replace("yes", "TRUE") + "    contiguous: [other]\n")
    assert rules.compact() == (
        "diopiAdd composite\ndiopiAdd 2 in 6:4,11:4 NHWC,NDHWC -\ndiopiAdd 3 in - NHWC,NDHWC contiguous\n"
    )


def test_common_rules_for_one_tensor_and_their_end(tmp_path: Path) -> None:
    rules = _read(
        tmp_path,
        "- common_config:\n    layout: NCHW, weight(NHWC)\n    tensor_dtype:\n        indices: (int64)->int32\n"
        "    contiguous: true\n    supportComposite: true\n"
        "- diopiConvolution2d:\n    contiguous: false\n    supportComposite: false\n"
        "- diopiMm:\n    layout: ND\n    contiguous: false\n",
    )
    convolution = rules.operators["diopiConvolution2d"]
    assert [convolution[i].layouts for i in (1, 2, 3, 4)] == [("NCHW",), ("NCHW",), ("NHWC",), ("NCHW",)]
    assert not any(rule.contiguous for rule in convolution.values())
    assert rules.operators["diopiMaxPool2dWithIndices"][2].dtypes == {"int64": "int32"}
    assert "diopiMm" not in rules.operators
    assert rules.composites == set(adaptable()) - {"diopiConvolution2d"}


WRONG = {
    "operator": ("- diopiAd:\n    contiguous: true\n", "1:3: unknown operator 'diopiAd'; did you mean diopiAdd"),
    "family": ("- diopiSpMM:\n    contiguous: true\n", "1:3: diopiSpMM cannot be adapted: only operators of"),
    "key": ("- diopiAdd:\n    dtypes: (int64)->int32\n", "2:5: unknown key 'dtypes'; did you mean dtype"),
    "dtype": ("- diopiAdd:\n    dtype: (int64)->in32\n", "2:21: unknown dtype 'in32'; did you mean int32"),
    "source": ("- diopiAdd:\n    dtype: (int64)->int32, (flaot64)->float32\n", "2:29: unknown dtype 'flaot64'; did you"),
    "arrow": ("- diopiAdd:\n    dtype: int64->int32\n", "2:12: 'int64->int32' is no conversion; expected (int64)->int32"),
    "complex": ("- diopiAdd:\n    dtype: (complex64)->float32\n", "2:12: complex64 cannot become float32"),
    "quoted": ('- diopiAdd:\n    dtype: "(int64)->in32"\n', "2:22: unknown dtype 'in32'"),
    "layout": ("- diopiAdd:\n    layout: NCHW, input(NHCW)\n", "2:25: unknown layout 'NHCW'; expected one of NCHW, NHWC"),
    "tensor": ("- diopiAdd:\n    layout: NCHW, inputs(NHWC)\n", "2:19: diopiAdd has no tensor 'inputs'; did you mean input"),
    "attribute": ("- diopiAdd:\n    contiguous: alpha\n", "2:17: diopiAdd has no tensor 'alpha'"),
    "tensor dtype": ("- diopiAdd:\n    tensor_dtype:\n        inpt: (int64)->int32\n", "3:9: diopiAdd has no tensor 'inpt'"),
    "common": ("- common_config:\n    contiguous: inptu\n", "2:17: no operator has a tensor 'inptu'; did you mean input"),
    "no keys": ("- diopiAdd: (int64)->int32\n", "1:13: the rules of diopiAdd are a single value; expected keys"),
    "no operator": ("- diopiAdd\n", "1:3: this is a single value; expected the name of an operator"),
    "twice": ("- diopiAdd:\n    contiguous: true\n- diopiAdd:\n    layout: ND\n", "3:3: diopiAdd has rules in line 1 already"),
    "key twice": ("- diopiAdd:\n    layout: ND\n    layout: ND\n", "3:5: layout is given twice for diopiAdd"),
    "no text": ("- diopiAdd:\n    dtype:\n", "2:11: there is nothing here"),
    "empty": ("", ": the file is empty; expected a list"),
    "yaml": ("- diopiAdd: [\n", "2:1: this is not YAML"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_have_a_place_and_an_expectation(mistake: str, tmp_path: Path) -> None:
    text, said = WRONG[mistake]
    with pytest.raises(RulesError, match=re.escape(f"rules.yaml{'' if said[0] == ':' else ':'}{said}")):
        _read(tmp_path, text)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(RulesError) as error:
        _read(tmp_path, "- diopiAd:\n    x: 1\n- diopiMul:\n    dtype: int\n    layout: ABC\n")
    head, *lines = str(error.value).splitlines()
    assert head == f"3 mistakes in {tmp_path / 'rules.yaml'}:"
    assert [line.split("yaml:")[1][:4] for line in lines] == ["1:3:", "4:12", "5:13"]


def test_all_mistakes_of_one_value_are_told(tmp_path: Path) -> None:
    text = (
        "- diopiAdd:\n    dtype: (int64)->in33, (flot64, Float16)->float32, x, ()->int8, (complex64)->float32\n"
        "    layout: NHCW, inpt(NHWC, XX), input(), other(YY)\n    contiguous: [inputs, other, othr]\n"
    )
    with pytest.raises(RulesError) as error:
        _read(tmp_path, text)
    found = [line.partition("rules.yaml:")[2].split(":")[:2] for line in str(error.value).splitlines()[1:]]
    columns = {"2": [21, 28, 36, 55, 58, 68], "3": [13, 30, 19, 41, 50], "4": [18, 33]}
    assert found == [[line, str(column)] for line, each in columns.items() for column in each], error.value
    assert "unknown dtype 'Float16'; did you mean float16" in str(error.value)


def test_without_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(RulesError, match=re.escape("pip install ditorch[adaptor]")):
        _read(tmp_path, PUBLISHED)
    with pytest.raises(RulesError, match="cannot be read: No such file"):
        monkeypatch.undo()
        read_rules(tmp_path / "absent.yaml")


def test_every_operator_of_the_interface_is_known_to_the_adaptor() -> None:
    rows = re.findall(r'^OPERATOR\((\w+), "(.*)"\)$', adaptor_operators(load()), re.MULTILINE)
    assert len(rows) == 423 and set(COMPOSITES) < {name for name, _ in rows}
    for name, arguments in rows:
        assert arguments.split() == [a.name for a in load().functions[name].arguments]
    assert [name for name, _ in rows] == [f.name for f in load().functions.values() if f.name in adaptable()]


def test_every_tensor_of_every_operator_is_converted(tmp_path: Path) -> None:
    """Between what the table says of an argument and what the adaptor is told nothing is lost or exchanged."""
    rules = _read(tmp_path, "- common_config:\n    contiguous: true\n").compact().splitlines()
    told = {(name, int(position)): role for name, position, role, *_ in map(str.split, rules)}
    plain = {"ins": "in", "outs": "out", "updates": "update"}
    exceptions = {}
    for name, entry in adaptable().items():
        for position, argument in enumerate(entry.function.arguments):
            role = entry.role(argument)
            expected = None if role == "value" else plain.get(role or "", role)
            if (found := told.pop((name, position), None)) != expected:
                exceptions[f"{name}.{argument.name}"] = (expected, found)
    assert not told
    overwritten = [
        "diopiCopyInp.dest", "diopiFill.input", "diopiNormalInp.inout", "diopiRandomInp.inout", "diopiUniformInp.inout",
        "diopiZeroInp.self",
    ]  # fmt: skip
    attention = ("diopiCustomizedFlashAttention", "diopiCustomizedFlashAttentionVarLen")
    made = {f"{name}.softmax_out": "made:7" for name in attention}
    made |= {
        f"{name}.{own}": None for name in attention for own in ("dropout_mask", "softmax_max", "softmax_sum")
    }
    made |= {f"diopi{name}": "made:counts" for name in ("Nonzero.out", "Unique.counts", "Nms.out")}
    made |= {
        f"diopi{name}.out": "made:2"
        for name in ("Contiguous", "NativeMemoryFormatCast", "MaskedSelect", "Index", "Unique")
    }
    assert exceptions == {name: ("update", "out") for name in overwritten} | {
        name: ("made", word) for name, word in made.items()
    }


def test_every_list_of_tensors_is_followed_by_its_length() -> None:
    """The adaptor takes the first whole number behind a list for its length."""
    for name, entry in adaptable().items():
        arguments = entry.function.arguments
        for position, argument in enumerate(arguments):
            if entry.role(argument) in ("ins", "outs", "updates"):
                after = [a.ctype.removeprefix("const ") for a in arguments[position + 1 :]]
                assert "int64_t" in after, f"{name}: {argument.name}"


def test_costs_add_up_and_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "costs.jsonl"
    append_costs(file, [Cost("diopiAdd", calls=2, conversions=6, bytes=2_500_000, nanoseconds=3_000_000)])
    append_costs(file, [Cost("diopiMul", calls=1, nanoseconds=5_000_000, call_nanoseconds=5_000_000)])
    append_costs(file, [Cost("diopiAdd", calls=1, conversions=3, nanoseconds=4_000_000, errors=1)])
    assert merged(read_costs(file))[0] == Cost("diopiAdd", 3, 0, 9, 0, 2_500_000, 7_000_000, 0, 1)
    main_exit(["adaptor", "report", str(file)], 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["diopiAdd", "3", "0", "9", "0", "2.50", "7.00", "100%", "1"]
    assert lines[2].split()[0] == "diopiMul" and lines[2].split()[-2] == "50%"
    file.write_text("no costs\n")
    main_exit(["adaptor", "report", str(file)], 2)
    assert "costs.jsonl:1: this is no line of costs" in capsys.readouterr().err
    main_exit(["adaptor", "report", str(tmp_path / "nothing")], 2)
    assert (
        capsys.readouterr().err
        == f"diopi: {tmp_path / 'nothing'} cannot be read: No such file or directory\n"
    )


def test_check_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "convert_config.yaml"
    file.write_text(PUBLISHED)
    main_exit(["adaptor", "check", str(file), "--operator", "diopiAdd"], 0)
    out = capsys.readouterr().out
    assert "is right: rules for 422 of 423 operators, 0 may be composed" in out
    assert re.search(r"input +int64 becomes int16, float64 becomes float16, layout NHWC, contiguous", out)
    assert re.search(r"supportComposite +no composite of it is known", out)
    file.write_text("- diopiAd:\n    contiguous: true\n")
    main_exit(["adaptor", "check", str(file)], 2)
    assert "convert_config.yaml:1:3: unknown operator 'diopiAd'" in capsys.readouterr().err


def test_conformance_runs_behind_the_adaptor(tmp_path: Path) -> None:
    rules = tmp_path / "convert_config.yaml"
    rules.write_text("- common_config:\n    dtype: (float64)->float32\n")
    options = ["--vendor", "host", "-f", "diopiExp", "--source", "own", "--quick", "--workers", "1"]
    command = ["-m", "diopi", "conformance", *options, "--adaptor", str(rules)]
    in_double = run_python(*command, "--dtype", "float64")
    assert in_double.returncode == 1, in_double.stderr
    assert "diopiExp" in in_double.stdout and f"--adaptor {rules}" in in_double.stdout
    in_single = run_python(*command, "--dtype", "float32")
    assert in_single.returncode == 0, in_single.stdout


def test_costs_that_cannot_be_written_stop_a_run_before_it_begins(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("- diopiAdd:\n    contiguous: true\n")
    options = ["--vendor", "host", "--adaptor", str(rules), "--case", "own:diopiAdd:0"]
    told = run_python(
        "-m",
        "diopi",
        "conformance",
        *options,
        env={**os.environ, "DIOPI_ADAPTOR_REPORT": "/nowhere/costs.jsonl"},
    )
    assert told.returncode == 2 and told.stdout == ""
    expected = "DIOPI_ADAPTOR_REPORT=/nowhere/costs.jsonl cannot be written: No such file or directory"
    assert told.stderr.strip() == f"diopi conformance: {expected}"


def main_exit(arguments: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert (ended.value.code or 0) == code
