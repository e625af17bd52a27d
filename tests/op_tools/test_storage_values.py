"""What goes into a capture comes out of it: values, tensors, both stores, and torch's own safe loader."""

from __future__ import annotations

import collections
import enum
import json
import math
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

from op_tools.storage import CallInfo, CaptureStore, Opaque, container, export, load, plain, restore, snapshot
from op_tools.storage.snapshot import NotStorable, dense_stride

pytestmark = pytest.mark.unit

Point = collections.namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


class Unfriendly:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.fixture(params=["files", "blobs"])
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Saves args and kwargs as an input and gives the path of the file."""

    def saved(*args: Any, **kwargs: Any) -> Path:
        paths: list[str] = []
        with CaptureStore(tmp_path, request.param, on_saved=paths.append) as store:
            assert store.put(CallInfo("torch.Tensor.add", 7), "input", args, kwargs)
        assert store.stats.complete, store.stats.reason
        return Path(paths[0])

    return saved


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    bits = (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
    a, b = a.detach().contiguous().view(-1), b.detach().contiguous().view(-1)
    return bits and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


PLAIN_VALUES: list[Any] = [
    None,
    True,
    3,
    -(1 << 70),
    2.5,
    float("inf"),
    1 + 2j,
    "text",
    "文字",
    b"bytes\0",
    [1, [2, (3,)]],
    {"a": {"b": 1}},
    {1: 2, (3, 4): "x"},
    {"__op_tools__": "slice"},
    torch.float16,
    torch.device("cpu"),
    torch.Size([2, 3]),
    slice(1, None, 2),
    Ellipsis,
    {1, 2},
    frozenset({7}),
    range(2, 9, 3),
    torch.channels_last,
    torch.preserve_format,
    torch.strided,
    torch.sparse_csr,
    torch.per_tensor_affine,
]


@pytest.mark.parametrize("value", PLAIN_VALUES, ids=lambda value: repr(value)[:30])
def test_values_come_back(save: Callable[..., Path], value: Any) -> None:
    path = save(value, key=value)
    found = load(path)
    assert found["args"] == (value,)
    assert type(found["args"][0]) is type(value)
    assert found["kwargs"] == {"key": value}


def test_torch_reads_the_files_itself(save: Callable[..., Path]) -> None:
    path = save(*PLAIN_VALUES, torch.arange(3))
    found = torch.load(path, weights_only=True)
    assert found["args"][:3] == (None, True, 3)
    assert found["__op_tools__"]["operator"] == "torch.Tensor.add"
    assert zipfile.ZipFile(path).testzip() is None


def test_named_tuples_and_return_types(save: Callable[..., Path]) -> None:
    found = load(save(torch.tensor([2.0, 1.0]).sort(), Point(1, torch.ones(2))))["args"]
    assert isinstance(found[0], torch.return_types.sort)
    assert found[0].indices.tolist() == [1, 0]
    assert (type(found[1]).__name__, found[1]._fields, found[1].x) == ("Point", ("x", "y"), 1)
    assert found[1].y.tolist() == [1.0, 1.0]


def test_generators_keep_their_state(save: Callable[..., Path]) -> None:
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    path = save(generator=generator)
    expected = torch.rand(4, generator=generator)
    assert torch.equal(torch.rand(4, generator=load(path)["kwargs"]["generator"]), expected)


def test_numbers_of_numpy(save: Callable[..., Path]) -> None:
    found = load(save(np.float32(0.5), np.int64(3), np.arange(4, dtype=np.int16)))["args"]
    assert found[:2] == (0.5, 3)
    assert found[2].dtype == np.int16 and found[2].tolist() == [0, 1, 2, 3]


def test_what_cannot_be_saved_is_opaque(save: Callable[..., Path]) -> None:
    endless: list[Any] = []
    endless.append(endless)
    found = load(save(object(), Unfriendly(), torch.nn.functional.relu, Colour.RED, endless))["args"]
    assert isinstance(found[0], Opaque) and found[0].type_name == "builtins.object"
    assert found[1] == Opaque(f"{__name__}.Unfriendly", "unreadable")
    assert found[2].text == "torch.nn.functional.relu"
    assert found[3] == Opaque(f"{__name__}.Colour", "RED")
    assert "nested too deeply" in repr(found[4])


def test_only_enums_of_torch_come_back() -> None:
    from torch.serialization import LoadEndianness

    tree = plain([LoadEndianness.LITTLE, Colour.RED], tensor=lambda tensor: tensor)
    assert all(type(item) is dict for item in tree)
    found = restore(tree)
    assert found[1] == Opaque(f"{__name__}.Colour", "RED")
    assert found[0] is LoadEndianness.LITTLE


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(save: Callable[..., Path], dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    large = torch.ones(70_000).to(dtype)  # more than a page, and not a whole number of them
    path = save(values, large)
    found = load(path)["args"]
    assert same(found[0], values) and same(found[1], large)


def test_values_are_those_at_the_time_of_put(tmp_path: Path) -> None:
    x = torch.zeros(400_000)
    paths: list[str] = []
    with CaptureStore(tmp_path / "late", on_saved=paths.append) as store:
        for n in range(8):
            store.put(CallInfo("torch.add", n), "input", (x,))
            x.add_(1)
    assert [load(path)["args"][0].unique().tolist() for path in paths] == [[float(n)] for n in range(8)]


def layouts() -> dict[str, tuple[torch.Tensor, tuple[int, ...], int]]:
    """name -> a tensor, the stride it should come back with, and the elements that should be stored."""
    base = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "contiguous": (base, (12, 4, 1), 24),
        "permuted": (base.permute(2, 0, 1), (1, 12, 4), 24),
        "slice": (base[:, ::2, 1:3], (4, 2, 1), 8),
        "permuted slice": (base[..., 1:3].permute(2, 1, 0), (1, 2, 6), 12),
        "expanded": (torch.arange(3.0).reshape(1, 3, 1).expand(5, 3, 7), (0, 1, 0), 3),
        "expanded slice": (base[:, :1, ::2].expand(2, 9, 2), (2, 0, 1), 4),
        "overlapping": (torch.arange(5.0).as_strided((3, 3), (1, 1)), (3, 1), 9),
        "scalar": (torch.tensor(3.0), (), 1),
        "empty": (torch.empty(0, 3), (3, 1), 0),
        "offset": (base[1], (4, 1), 12),
    }


@pytest.mark.parametrize("name", layouts())
def test_a_view_is_saved_as_what_it_shows(save: Callable[..., Path], name: str) -> None:
    tensor, stride, stored = layouts()[name]
    path = save(tensor)
    found = load(path)["args"][0]
    assert same(found, tensor)
    if name != "overlapping":  # its strides tie: either order of them shows the same
        assert found.stride() == stride
    described = json.loads(path.with_suffix(".pth.json").read_text())["args"][0]
    assert described["stride"] == list(tensor.stride()) and described["shape"] == list(tensor.shape)
    assert snapshot(tensor).nbytes == 4 * stored


def test_a_small_view_does_not_save_its_base(save: Callable[..., Path]) -> None:
    assert save(torch.zeros(1 << 20)[:1024]).stat().st_size < 16 << 10


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 5), (4, 1, 1), ()])
def test_dense_stride_keeps_dense_tensors_as_they_are(shape: tuple[int, ...]) -> None:
    tensor = torch.empty(shape)
    for tensor_ in (tensor, tensor.permute(list(reversed(range(tensor.dim()))))):
        stride, stored = dense_stride(tensor_.shape, tensor_.stride())
        assert stored == tensor.numel()
        assert all(a == b for a, b, n in zip(stride, tensor_.stride(), tensor_.shape, strict=True) if n > 1)


def test_conjugates_and_negatives_are_resolved(save: Callable[..., Path]) -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    found = load(save(z.conj(), z.conj().imag))["args"]
    assert found[0].tolist() == [1 - 2j, 3 + 1j] and found[1].tolist() == [-2.0, 1.0]


def test_gradients_and_parameters(save: Callable[..., Path]) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    path = save(weight, weight * 2, weight.detach())
    assert [tensor.requires_grad for tensor in load(path)["args"]] == [True, True, False]
    assert json.loads(path.with_suffix(".pth.json").read_text())["args"][0]["class"] == "Parameter"


def test_a_tensor_given_twice_stays_one_tensor(save: Callable[..., Path]) -> None:
    x = torch.ones(3)
    path = save(x, [x], out=x)
    found = load(path)
    assert found["args"][0] is found["args"][1][0] is found["kwargs"]["out"]
    assert found["__op_tools__"]["devices"] == ("cpu",)


SPARSE = {
    "coo": lambda: torch.eye(3).to_sparse(),
    "coo uncoalesced": lambda: torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (4,)),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "csc": lambda: torch.eye(3).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_by_components(save: Callable[..., Path], name: str) -> None:
    tensor = SPARSE[name]()
    path = save(tensor)
    found = load(path)["args"][0]
    assert found.layout is tensor.layout and torch.equal(found.to_dense(), tensor.to_dense())
    if tensor.layout is torch.sparse_coo:
        assert found.is_coalesced() == tensor.is_coalesced()
        assert torch.equal(found._indices(), tensor._indices())
    torch.load(path, weights_only=True)


@pytest.mark.filterwarnings("ignore:.*nested", "ignore:.*quant")
def test_tensors_without_readable_values_are_described(save: Callable[..., Path]) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = torch.empty(2, 3)
    del mode
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    found = load(save(torch.empty(2, 3, device="meta"), fake, nested))["args"]
    assert all(isinstance(value, Opaque) for value in found)
    assert found[0].details["shape"] == (2, 3) and found[0].details["device"] == "meta"
    assert "fake" in found[1].text and "nested" in found[2].text
    with pytest.raises(NotStorable):
        snapshot(torch.empty(1, device="meta"))


def test_subclasses_are_read_like_their_base(save: Callable[..., Path]) -> None:
    class Named(torch.Tensor):
        pass

    found = load(save(torch.ones(2).as_subclass(Named)))["args"][0]
    assert type(found) is torch.Tensor and found.tolist() == [1.0, 1.0]


def test_inference_mode_and_back(tmp_path: Path) -> None:
    paths: list[str] = []
    with CaptureStore(tmp_path, on_saved=paths.append) as store:
        with torch.inference_mode():
            store.put(CallInfo("a", 1), "input", (torch.ones(5),))
            store.flush()
        store.put(CallInfo("a", 2), "input", (torch.full((5,), 2.0, requires_grad=True),))
    assert [load(path)["args"][0].tolist() for path in paths] == [[1.0] * 5, [2.0] * 5]


def same_tree(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and same(a, b)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same_tree, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_tree(a[key], b[key]) for key in a)
    return type(a) is type(b) and (a == b or math.isnan(a))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.binary(),
)
TENSORS = st.builds(
    lambda shape, dtype, flip: (
        torch.arange(math.prod(shape))
        .reshape(shape)
        .to(dtype)
        .permute(tuple(reversed(range(len(shape)))) if flip else tuple(range(len(shape))))
    ),
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from(DTYPES),
    st.booleans(),
)
TREES = st.recursive(
    st.one_of(SCALARS, TENSORS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(args=st.lists(TREES, max_size=3), kind=st.sampled_from(["files", "blobs"]))
def test_any_tree_comes_back(args: list[Any], kind: Any) -> None:
    paths: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        with CaptureStore(folder, kind, on_saved=paths.append) as store:
            assert store.put(CallInfo("x", 1), "input", args)
        found = load(paths[0])
        torch.load(paths[0], weights_only=True)
        json.loads(Path(f"{paths[0]}.json").read_bytes())
    assert same_tree(tuple(args), found["args"])


def test_exported_files_are_complete(tmp_path: Path) -> None:
    source, paths = tmp_path / "in", []
    x = torch.randn(300_000, requires_grad=True)
    with CaptureStore(source, "blobs", on_saved=paths.append) as store:
        call = CallInfo("torch.Tensor.sort", 3)
        store.put(call, "input", (x, slice(None), torch.eye(2).to_sparse()), {"k": x})
        store.put(call, "output", (x.sort(),))
    assert export(source / "op_capture_results", tmp_path / "out") == 2
    complete = sorted((tmp_path / "out").rglob("*.pth"))
    assert [path.name for path in complete] == ["input.pth", "output.pth"]
    assert not list((tmp_path / "out").rglob("blobs")) and not list((tmp_path / "out").rglob(".incoming"))
    raw = torch.load(complete[0], weights_only=True)
    assert same(raw["args"][0], x) and raw["args"][0] is raw["kwargs"]["k"]
    assert raw["__op_tools__"]["store"] == "files"
    found = load(complete[1])["args"][0]
    assert isinstance(found, torch.return_types.sort) and torch.equal(found.values, x.sort().values)
    assert complete[0].with_suffix(".pth.json").exists()


def test_large_files_use_64_bit_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "ZIP64_FROM", 3000)  # instead of 4 GiB
    x, paths = torch.arange(2000.0), []
    with CaptureStore(tmp_path, on_saved=paths.append) as store:
        store.put(CallInfo("a", 1), "input", (x, x + 1))
    assert torch.equal(torch.load(paths[0], weights_only=True)["args"][1], x + 1)
    assert zipfile.ZipFile(paths[0]).testzip() is None
    assert torch.equal(load(paths[0])["args"][1], x + 1)


def test_foreign_captures(tmp_path: Path) -> None:
    """What other tools write with torch.save: no header, Parameters, OrderedDicts, views with their whole base."""
    path = tmp_path / "input.pth"
    base = torch.arange(10.0)
    tree = {
        "args": [
            base[2:5],
            torch.nn.Parameter(torch.ones(2)),
            collections.OrderedDict(a=1),
            slice(0, 2),
            ...,
        ],
        "kwargs": {"dtype": torch.float16, "s": torch.eye(2).to_sparse()},
    }
    torch.save(tree, path)
    found = load(path)
    assert found["__op_tools__"] == {}
    assert found["args"][0].tolist() == [2.0, 3.0, 4.0] and found["args"][1].requires_grad
    assert found["args"][2:] == ({"a": 1}, slice(0, 2), ...)
    assert found["kwargs"]["dtype"] is torch.float16
    assert torch.equal(found["kwargs"]["s"].to_dense(), torch.eye(2))
    torch.save((base, 3), path)
    assert load(path)["args"][1] == 3
