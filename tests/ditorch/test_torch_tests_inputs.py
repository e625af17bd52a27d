"""Samples must reach the device as they are, and values be held against the right tolerance."""

from __future__ import annotations

import pytest
import torch

from _ditorch.torch_tests.opinfo.compare import Mismatch, Tolerance, check_values
from _ditorch.torch_tests.opinfo.inputs import Transfer

DEVICES = ["cpu", pytest.param("dipu", marks=pytest.mark.device)]


# values


def test_tolerance_is_torchs_own_unless_the_operator_declares_more() -> None:
    one = torch.ones(3)
    check_values(one, one * (1 + 1e-6), Tolerance(), "x")
    with pytest.raises(Mismatch, match=r"3 of 3 elements differ, max abs 0.0001.*first \[0\]: 1.0001"):
        check_values(one, one + 1e-4, Tolerance(), "x")
    check_values(one, one + 1e-4, Tolerance(atol=1e-3), "x")


def test_nan_inf_and_exact_dtypes() -> None:
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    check_values(odd, odd.clone(), Tolerance(), "x")
    with pytest.raises(Mismatch, match="1 of 3 elements"):
        check_values(odd, torch.tensor([0.0, float("inf"), 1.0]), Tolerance(), "x")
    big = torch.tensor([2**62])
    with pytest.raises(Mismatch):
        check_values(big, big + 1, Tolerance(1.0, 1.0), "x")
    half = torch.tensor([1 + 2j]).to(torch.complex32)
    check_values(half, half.clone(), Tolerance(), "x")


# transfer


@pytest.mark.parametrize("device", DEVICES)
def test_transfer_keeps_strides_offset_and_the_bytes_around_a_view(device: str) -> None:
    base = torch.arange(24.0)
    view = base.view(4, 6).t()[2:, 1:]
    copy = Transfer(device)(view)
    assert (copy.device.type, copy.stride(), copy.storage_offset()) == (
        device,
        view.stride(),
        view.storage_offset(),
    )
    assert torch.equal(copy.cpu(), view)
    assert torch.equal(copy.as_strided((24,), (1,), 0).cpu(), base)


@pytest.mark.parametrize("device", DEVICES)
def test_transfer_keeps_aliasing_and_leaves_the_source_alone(device: str) -> None:
    base = torch.zeros(4)
    transfer = Transfer(device)
    left, right, again = transfer((base[:3], base[1:], base[:3]))
    left.fill_(5)
    assert right.tolist() == [*again.tolist()[1:], 0] == [5, 5, 0]
    assert base.tolist() == [0, 0, 0, 0]
    assert transfer((base,))[0].tolist() == [5, 5, 5, 0]
    assert len(transfer.device_storages) == len(transfer.source_storages) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_transfer_keeps_conjugate_and_negative_bits(device: str) -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    for source in (z.conj(), z.conj().imag, torch._neg_view(z.conj())):
        copy = Transfer(device)(source)
        assert (copy.is_conj(), copy.is_neg()) == (source.is_conj(), source.is_neg())
        assert copy.tolist() == source.tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_transfer_of_sparse_tensors(device: str) -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    loose = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.ones(2), (2, 2))
    for source in (dense.to_sparse(), loose):
        copy = Transfer(device)(source)
        assert (copy.device.type, copy.is_coalesced()) == (device, source.is_coalesced())
        assert copy._values().tolist() == source._values().tolist()
    if device == "cpu":
        assert Transfer(device)(dense.to_sparse_csc()).to_dense().tolist() == dense.tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_transfer_makes_leaves_and_moves_device_arguments(device: str) -> None:
    source = torch.ones(2, requires_grad=True) * 2
    copy, named, place, other = Transfer(device)([source, "cpu", torch.device("cpu"), "mean"])
    assert copy.is_leaf and copy.requires_grad
    assert (named, place.type, other) == (device, device, "mean")
    assert Transfer(device)({"x": torch.ones(1, device="meta")})["x"].device.type == "meta"
