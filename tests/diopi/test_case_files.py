"""Case files that users write, in the published form."""

import json
from pathlib import Path

import pytest
import torch

from dicore.conformance.cases import DecidedCase
from diopi.conformance.case_files import CaseFileError, expanded, read
from diopi.conformance.case_files_source import CaseFileSource, c_function, case_file_sources
from diopi.conformance.references import evaluate
from diopi.table import load

PUBLISHED = """
import numpy as np
from .config import Genfunc
from conformance.dtype import Dtype

configs = {
    'pointwise': dict(
        name=['exp', 'abs'], interface=['torch'], is_inplace=True, dtype=[np.float32, np.float16], atol=1e-3,
        tensor_para=dict(gen_fn='Genfunc.randn', args=[{"ins": ['input'], "shape": ((), (4,), (0,))}]),
    ),
    'conv': dict(
        name=['conv2d'], dtype=[Dtype.float32], para=dict(stride=[2, 1], padding=[0, (1, 0)]),
        tensor_para=dict(args=[
            {"ins": ["input"], "requires_grad": [True], "shape": ((2, 4, 8, 8), (1, 4, 5, 5)), "gen_fn": Genfunc.randn},
            {"ins": ["weight"], "requires_grad": [True], "shape": ((6, 4, 3, 3), (2, 4, 3, 3))},
            {"ins": ["bias"], "shape": ((6,), None)},
        ]),
    ),
}
"""


def _written(tmp_path: Path, text: str, name: str = "cases.py") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def _cases(path: Path) -> dict[str, list]:
    source = CaseFileSource(path)
    return {group: list(source.cases(group)) for group in source.groups(None)}


def test_a_published_file_gives_the_calls_of_its_functions(tmp_path):
    found = _cases(_written(tmp_path, PUBLISHED))
    assert list(found) == ["pointwise::exp", "pointwise::abs", "conv::conv2d"]
    functions = [(c.function, c.dtype, tuple(c.arguments["input"].shape)) for c in found["pointwise::exp"]]
    shapes = [(), (4,), (0,)]
    expected = [
        (f, d, s) for d in ("float32", "float16") for s in shapes for f in ("diopiExp", "diopiExpInp")
    ]
    assert functions == expected
    convolutions = found["conv::conv2d"]
    names = [case.function for case in convolutions]
    assert names.count("diopiConvolution2d") == 2 and names.count("diopiConvolution2dBackward") == 2
    second = [c for c in convolutions if c.function == "diopiConvolution2d"][1].arguments
    assert second["stride"] == [1, 1] and second["padding"] == [1, 0] and second["bias"] is None
    assert evaluate(load().entries["diopiConvolution2d"], second)[0].shape == (1, 2, 5, 3)
    assert convolutions[0].id == "file:conv::conv2d:0"


def test_values_strides_lists_and_generators(tmp_path):
    text = """
entries = {
    "given": dict(name=["add"], interface=["torch"], para=dict(alpha=[3]), tensor_para=dict(args=[
        {"ins": ["input"], "value": [[1.0, 2.0]]}, {"ins": ["other"], "value": [[10.0, 20.0]]}])),
    "strided": dict(name=["abs"], interface=["torch"], tensor_para=dict(args=[
        {"ins": ["input"], "shape": [(2, 3)], "stride": [(1, 4)], "dtype": ["float64"]}])),
    "turned": dict(name=["abs"], interface=["torch"], tensor_para=dict(args=[
        {"ins": ["input"], "shape": [(2, 3)], "no_contiguous": True}])),
    "joined": dict(name=["cat"], interface=["torch"], para=dict(dim=[1]), tensor_para=dict(args=[
        {"ins": ["tensors"], "shape": [(2, 3)], "dtype": ["int64"], "gen_num_range": [3, 3],
         "gen_fn": dict(fn="Genfunc.randint", low=5, high=6), "gen_policy": "gen_tensor_list"}])),
}
"""
    found = _cases(_written(tmp_path, text))
    (given,) = found["given::add"]
    assert evaluate(load().entries["diopiAdd"], given.arguments)[0].tolist() == [31, 62]
    assert found["strided::abs"][0].arguments["input"].stride() == (1, 4)
    assert found["strided::abs"][0].dtype == "float64"
    assert found["turned::abs"][0].arguments["input"].stride() == (1, 2)
    tensors = found["joined::cat"][0].arguments["tensors"]
    assert len(tensors) == 3 and all(t.unique().tolist() == [5] and t.dtype == torch.int64 for t in tensors)


def test_an_entry_may_name_the_c_function_itself(tmp_path):
    entry = {"name": ["diopiRelu"], "tensor_para": {"args": [{"ins": ["input"], "value": [[1.0, -2.0]]}]}}
    path = _written(tmp_path, json.dumps({"raw": entry}), "cases.json")
    (case,) = _cases(path)["raw::diopiRelu"]
    assert case.function == "diopiRelu" and case.arguments["input"].tolist() == [1.0, -2.0]
    assert c_function("batch_norm") == "diopiBatchNorm" and c_function("conv2d") == "diopiConvolution2d"


def test_toml_and_yaml_are_read_too(tmp_path):
    toml = '[tanh]\nname = ["tanh"]\ntensor_para.args = [{ins = ["input"], shape = [[2], [3, 1]]}]\n'
    assert len(_cases(_written(tmp_path, toml, "a.toml"))["tanh::tanh"]) == 2
    pytest.importorskip("yaml")
    yaml = "tanh:\n  name: [tanh]\n  tensor_para:\n    args:\n      - {ins: [input], shape: [[2], [3, 1]]}\n"
    assert len(_cases(_written(tmp_path, yaml, "a.yaml"))["tanh::tanh"]) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "a = dict(name=['exp'], tensor_par=dict())",
            r"a: unknown key 'tensor_par'; did you mean tensor_para",
        ),
        (
            "a = dict(name=['exp'], tensor_para=dict(args=[dict(ins=['x'], shap=[])]))",
            r"args\[0\]: unknown key 'shap'",
        ),
        ("a = {'e': dict(dtype=[])}", "e: `name` is missing"),
        (
            "a = dict(name=['expp'], tensor_para=dict(args=[dict(ins=['input'], shape=[(2,)])]))",
            "'expp' is neither",
        ),
        (
            "a = dict(name=['exp'], para=dict(q=[1, 2]), tensor_para=dict(args=[dict(ins=['input'], shape=[(1,)] * 3)]))",
            "different lengths: para.q has 2, input.shape has 3",
        ),
        (
            "a = dict(name=['exp'], dtype=['float33'], tensor_para=dict(args=[dict(ins=['i'], shape=[(1,)])]))",
            "float33",
        ),
        (
            "a = dict(name=['exp'], tensor_para=dict(args=[dict(ins=['i'], shape=[(1,)], sparse=[True])]))",
            "sparse",
        ),
        (
            "a = dict(name=['exp'], tensor_para=dict(args=[dict(ins=['i'], shape=[(1,)], gen_fn='randm')]))",
            "randm",
        ),
        ("a = 1 / 0", "ZeroDivisionError"),
        ("a = 1", "holds no entry"),
    ],
)
def test_a_wrong_file_is_told_with_place_and_hint(tmp_path, text, told):
    path = _written(tmp_path, text)
    with pytest.raises(CaseFileError, match=told) as caught:
        CaseFileSource(path)
    assert "cases.py" in str(caught.value)


def test_a_wrong_c_argument_is_told(tmp_path):
    text = "a = dict(name=['diopiRelu'], tensor_para=dict(args=[dict(ins=['inputs'], shape=[(2,)])]))"
    source = CaseFileSource(_written(tmp_path, text))
    with pytest.raises(CaseFileError, match="diopiRelu has no argument 'inputs'; did you mean input"):
        list(source.cases("a::diopiRelu"))


def test_missing_and_unknown_files():
    with pytest.raises(CaseFileError, match="no such file"):
        read(Path("nowhere.py"))
    with pytest.raises(CaseFileError, match=r"\.py, \.json, \.toml or \.yaml"):
        read(Path(__file__).parent / "tiny_vendor.c")


def test_calls_are_expanded_function_by_dtype_by_place():
    entry = {
        "name": ["a", "b"],
        "dtype": ["float32", "float16"],
        "para": {"k": [1, 2, 3]},
        "tensor_para": {"args": [{"ins": ["x", "y"], "shape": [(1,), (2,), (3,)]}]},
    }
    calls = expanded(Path("f"), "e", entry)
    assert len(calls) == 2 * 2 * 3
    assert [(c.function, c.tensors[1].dtype, c.tensors[1].shape, c.parameters["k"]) for c in calls][4] == (
        "a",
        "float16",
        (2,),
        2,
    )


def test_several_files_have_ids_of_their_own(tmp_path):
    text = "a = dict(name=['diopiRelu'], tensor_para=dict(args=[dict(ins=['input'], shape=[(2,)])]))"
    paths = [tmp_path / "one" / "cases.py", tmp_path / "two" / "cases.py", tmp_path / "other.py"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    sources = case_file_sources(paths)
    ids = [case.id for source in sources for group in source.groups(None) for case in source.cases(group)]
    names = ["file-cases", "file-cases-2", "file-other"]
    assert ids == [f"{name}:a::diopiRelu:0" for name in names] and [s.name for s in sources] == names
    assert [source.name for source in case_file_sources(paths[:1])] == ["file"]
    with pytest.raises(CaseFileError, match="is given twice"):
        case_file_sources([paths[0], paths[0]])


def test_misspelt_functions_are_found_in_any_case(tmp_path):
    text = "a = dict(name=['{}'], tensor_para=dict(args=[dict(ins=['input'], shape=[(2,)])]))"
    for name, near in (("diopirelux", "diopiRelu"), ("LeakyRelux", "diopiLeakyRelu"), ("softmx", "softmax")):
        path = _written(tmp_path, text.format(name), f"{name}.py")
        with pytest.raises(CaseFileError, match=rf"near are .*{near}"):
            CaseFileSource(path)


def test_what_torch_refuses_is_a_skipped_case(tmp_path):
    text = "a = dict(name=['mm'], interface=['torch'], tensor_para=dict(args=[dict(ins=['input', 'mat2'], shape=[(2, 3)])]))"
    source = CaseFileSource(_written(tmp_path, text))
    (case,) = source.cases("a::mm")
    assert isinstance(case, DecidedCase) and (case.id, case.function) == ("file:a::mm:0", "diopiMm")
    assert "shapes cannot be multiplied" in case.reason
