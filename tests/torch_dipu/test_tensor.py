"""Tensors of the device: factories, views, copies, indexing, sparse."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import torch_dipu  # noqa: F401

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.bool,
    torch.complex64,
]


def both(f, *tensors: torch.Tensor) -> None:
    """The same function on CPU and device gives the same bits."""
    expected = f(*tensors)
    got = f(*[t.to("dipu") for t in tensors])
    assert got.device.type == "dipu"
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip_keeps_every_bit(dtype: torch.dtype) -> None:
    x = (torch.randn(5, 7) * 10).to(dtype)
    y = x.to("dipu")
    assert y.device == torch.device("dipu", 0)
    assert y.dtype == dtype
    assert torch.equal(y.cpu(), x)


def test_factories() -> None:
    assert torch.zeros(3, device="dipu").cpu().tolist() == [0, 0, 0]
    assert torch.full((2,), 7, device="dipu:1").device.index == 1
    assert torch.arange(5, device="dipu").cpu().tolist() == [0, 1, 2, 3, 4]
    assert torch.empty(2, 3, device="dipu").shape == (2, 3)
    assert torch.ones_like(torch.zeros(2, device="dipu")).device.type == "dipu"
    assert torch.eye(2, device="dipu").cpu().tolist() == [[1, 0], [0, 1]]
    assert torch.tensor([1.5], device="dipu").item() == 1.5


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[1:, ::2],
        lambda t: t.view(-1),
        lambda t: t.unfold(0, 2, 1),
        lambda t: t.expand(3, *t.shape),
        lambda t: t.as_strided((2, 2), (1, 2), 1),
        lambda t: t.diagonal(),
        lambda t: t.permute(1, 0).reshape(-1),
    ],
)
def test_views_share_memory_and_values(view) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    both(view, x)
    device = x.to("dipu")
    seen = view(device)
    device.add_(1)
    if seen.untyped_storage().data_ptr() == device.untyped_storage().data_ptr():
        assert torch.equal(seen.cpu(), view(x + 1))


@pytest.mark.parametrize("source", ["cpu", "dipu:0", "dipu:1"])
@pytest.mark.parametrize("target", ["cpu", "dipu:0", "dipu:1"])
@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float32), (torch.float32, torch.float16), (torch.int64, torch.float32)]
)
def test_copies_between_places_layouts_and_dtypes(
    source: str, target: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    x = torch.randint(-9, 9, (6, 8)).to(dtypes[0])
    for layout in (lambda t: t, lambda t: t.t(), lambda t: t[::2, 1::3]):
        src = layout(x.to(source))
        dst = layout(torch.zeros(6, 8, dtype=dtypes[1], device=target))
        dst.copy_(src, non_blocking=True)
        torch.accelerator.synchronize()
        assert torch.equal(dst.cpu(), layout(x).to(dtypes[1]))


def test_copy_broadcasts() -> None:
    x = torch.zeros(3, 4, device="dipu")
    x.copy_(torch.arange(4.0))
    assert torch.equal(x.cpu(), torch.arange(4.0).expand(3, 4))


def test_conjugate_views_are_copied_with_their_meaning() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(x.to("dipu").conj().cpu(), x.conj())
    assert torch.equal(x.conj().to("dipu").cpu(), x.conj().resolve_conj())


def test_indexing() -> None:
    x = torch.randn(6, 5)
    rows, mask = torch.tensor([4, 0, 4]), torch.rand(6, 5) > 0.5
    both(lambda t: t[rows.to(t.device)], x)
    both(lambda t: t[rows], x)  # index tensors may stay on the CPU
    both(lambda t: t[mask.to(t.device)], x)
    both(lambda t: t.index_select(1, torch.tensor([1, 1, 0], device=t.device)), x)
    both(lambda t: t.gather(0, torch.zeros(2, 5, dtype=torch.int64, device=t.device)), x)
    both(lambda t: t.clone().index_put_((rows.to(t.device),), torch.ones(3, 5, device=t.device)), x)
    both(lambda t: torch.where(t > 0, t, -t), x)
    both(lambda t: t.masked_fill(t > 0, -7.0), x)


def test_sorting() -> None:
    x = torch.randn(4, 9)
    both(lambda t: t.sort(dim=1, descending=True).values, x)
    both(lambda t: t.argsort(), x)
    both(lambda t: t.topk(3).indices, x)
    both(lambda t: t.unique(), x.round())


def test_in_place_and_out() -> None:
    x = torch.randn(3, 4)
    y = x.to("dipu")
    y.add_(1).mul_(2).t_()
    assert torch.equal(y.cpu(), (x + 1).mul(2).t())
    out = torch.empty(0, device="dipu")
    torch.mm(x.to("dipu"), x.t().to("dipu"), out=out)
    assert torch.equal(out.cpu(), x @ x.t())
    slice_ = torch.zeros(3, 8, device="dipu")
    torch.add(x.to("dipu"), 1, out=slice_[:, ::2])
    assert torch.equal(slice_.cpu()[:, ::2], x + 1)
    assert slice_.cpu()[:, 1::2].abs().sum() == 0


def test_partly_overlapping_in_place_is_refused_as_on_the_cpu() -> None:
    x = torch.arange(6.0, device="dipu")
    with pytest.raises(RuntimeError, match="some elements"):
        x[1:].add_(x[:-1])


def test_overlapping_copies_are_refused_as_on_the_cpu() -> None:
    for device in ("cpu", "dipu"):
        x = torch.arange(6.0, device=device)
        with pytest.raises(RuntimeError, match="some elements"):
            x[1:].copy_(x[:-1])


def test_a_failed_out_leaves_the_tensor_usable() -> None:
    out, wrong = torch.zeros(2, device="dipu"), torch.tensor([7], device="dipu")
    torch.cumprod(out, 0)  # runs by alias
    with pytest.raises((RuntimeError, IndexError)):
        torch.index_select(torch.ones(5, 1000, device="dipu"), 0, wrong, out=out)
    again = torch.zeros(2, device="dipu").fill_(5)
    assert torch.cumprod(again, 0).cpu().tolist() == [5, 25]
    out.resize_(2).fill_(5)
    assert torch.cumprod(out, 0).cpu().tolist() == [5, 25]
    assert out.cpu().tolist() == [5, 5]


def test_operands_of_two_dtypes_over_one_storage_without_aliases() -> None:
    x = torch.randn(6, dtype=torch.complex64)
    torch.dipu.configure(alias=0)
    try:
        both(lambda t: torch.mul(t.imag[:-1], t[1:]), x)
    finally:
        torch.dipu.configure(alias=1)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x**1j,
        lambda x: torch.pow(1j, x),
        lambda x: x == 1j,
        lambda x: x == 2**63,
        lambda x: x.clone().fill_(2**63),
        lambda x: x.sum(0, dtype=torch.int32),
        lambda x: torch.where(x > 0, x, -x),
    ],
)
def test_unusual_numbers_and_dtypes(call) -> None:
    both(call, torch.tensor([1.5, 2.5, -3.5]))


@pytest.mark.parametrize(
    "call", [lambda x: x[:0].max(), lambda x: x[:0].min(), lambda x: torch.add(x, x, alpha=True)]
)
def test_what_the_cpu_refuses_is_refused(call) -> None:
    for device in ("cpu", "dipu"):
        with pytest.raises(RuntimeError):
            call(torch.ones(3, device=device))


def test_memory_formats_are_kept() -> None:
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for call in (
        lambda t: torch.where(t > 0, t, -t),
        lambda t: torch.nn.functional.max_pool2d(t, 2),
        torch.relu,
    ):
        assert call(x.to("dipu")).stride() == call(x).stride()


def test_other_layouts_are_refused_clearly() -> None:
    with pytest.raises(NotImplementedError, match="not supported; move the tensor to the CPU first"):
        torch.ones(2, 2, device="dipu").to_mkldnn()
    with pytest.raises(NotImplementedError, match="quantized"):
        torch.quantize_per_tensor(torch.ones(2, device="dipu"), 0.1, 0, torch.qint8)


def test_a_device_index_does_not_index_a_cpu_tensor() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.arange(4.0)[torch.tensor([1], device="dipu")]


def test_sparse_coo() -> None:
    indices, values = torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3.0, 4.0, 5.0])
    reference = torch.sparse_coo_tensor(indices, values, (2, 3))
    sparse = torch.sparse_coo_tensor(indices.to("dipu"), values.to("dipu"), (2, 3))
    assert sparse.device.type == "dipu"
    assert sparse.layout == torch.sparse_coo
    assert torch.equal(sparse.to_dense().cpu(), reference.to_dense())
    dense = torch.randn(3, 2)
    assert torch.equal((sparse @ dense.to("dipu")).cpu(), reference @ dense)
    assert torch.equal(
        (sparse + sparse).coalesce().values().cpu(), (reference + reference).coalesce().values()
    )
    assert torch.equal(dense.to("dipu").to_sparse().indices().cpu(), dense.to_sparse().indices())
    moved = reference.to("dipu")
    assert torch.equal(moved.cpu().to_dense(), reference.to_dense())


def test_serialisation(tmp_path) -> None:
    x = torch.randn(4, 3).to("dipu:1")
    torch.save({"x": x, "view": x[1:]}, tmp_path / "x.pt")
    back = torch.load(tmp_path / "x.pt", weights_only=True)
    assert back["x"].device == torch.device("dipu:1")
    assert torch.equal(back["x"].cpu(), x.cpu())
    assert back["view"].untyped_storage().data_ptr() == back["x"].untyped_storage().data_ptr()
    assert torch.load(tmp_path / "x.pt", map_location="cpu")["x"].device.type == "cpu"
    for again in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert again.device == x.device
        assert torch.equal(again.cpu(), x.cpu())
        assert again.data_ptr() != x.data_ptr()
    buffer = io.BytesIO()
    torch.save(x.cpu(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, map_location="dipu").device.type == "dipu"


def test_resize_and_set() -> None:
    x = torch.arange(6.0, device="dipu")
    x.resize_(2, 5)
    assert x.flatten()[:6].cpu().tolist() == [0, 1, 2, 3, 4, 5]
    y = torch.empty(0, device="dipu")
    y.set_(x)
    assert y.data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match="out of bounds"):
        y.set_(x.untyped_storage(), 0, (1000,), (1,))


def test_empty_and_scalar_tensors() -> None:
    both(lambda t: t.sum(), torch.zeros(0))
    both(lambda t: t + t, torch.zeros(0, 3))
    both(lambda t: t * 2, torch.tensor(3.0))
    assert torch.zeros(2, 0, device="dipu").cpu().shape == (2, 0)


def test_numpy_needs_the_cpu_first() -> None:
    with pytest.raises(TypeError, match="dipu"):
        torch.zeros(2, device="dipu").numpy()
