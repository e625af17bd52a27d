"""Capability: tensors handed to others (DLPack, numpy, processes, nested tensors, compilers), or refused in one sentence."""

from __future__ import annotations

import copy
import multiprocessing.reduction
import pickle

import numpy
import pytest
import torch
from forked_python import run_python
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import torch_dipu  # noqa: F401

EXTENSION_DEVICE = 12  # kDLExtDev


class Foreign:
    """A tensor of another library that is on the device: all it offers is a capsule."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: object) -> object:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return EXTENSION_DEVICE, self._tensor.device.index


def test_dlpack_needs_no_mapping_of_cuda() -> None:
    code = "import torch; x = torch.ones(3, device='dipu:1'); print(torch.from_dlpack(x).device, x.__dlpack_device__()[1])"
    done = run_python("-c", code, timeout=60)
    assert done.stdout.split() == ["dipu:1", "1"], done.stderr


@pytest.mark.parametrize("device", ["dipu:0", "dipu:1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_dlpack_there_and_back_shares_the_memory(device: str, dtype: torch.dtype) -> None:
    if int(device[-1]) >= torch.dipu.device_count():
        pytest.skip("there is one device")
    x = torch.arange(12).to(dtype).to(device).view(3, 4).t()[1:]
    assert x.__dlpack_device__() == (EXTENSION_DEVICE, int(device[-1]))
    for back in (
        torch.from_dlpack(x),
        torch.from_dlpack(Foreign(x)),
        torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
    ):
        assert back.device == x.device and back.dtype == dtype and back.stride() == x.stride()
        assert back.data_ptr() == x.data_ptr()
        assert torch.equal(back.cpu(), x.cpu())
    back.zero_()
    assert not x.any()
    del x
    assert (back + 1).cpu().sum().item() == back.numel()


def test_dlpack_refuses_what_it_does_for_other_devices() -> None:
    x = torch.ones(3, device="dipu")
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(x.clone().requires_grad_())
    with pytest.raises(BufferError, match="conjugate bit"):
        torch.from_dlpack((x + 1j).conj())


def test_numpy_is_refused_as_by_torch_cuda() -> None:
    x = torch.ones(3, device="dipu")
    for convert in (x.numpy, lambda: numpy.asarray(x)):
        with pytest.raises(
            TypeError, match=r"can't convert dipu:0 device type tensor to numpy. Use Tensor.cpu\(\)"
        ):
            convert()
    with pytest.raises((RuntimeError, BufferError), match=r"(?i)unsupported device"):
        numpy.from_dlpack(x)
    assert x.numpy(force=True).tolist() == [1, 1, 1]
    assert torch.from_dlpack(numpy.arange(3.0)).to("dipu").tolist() == [0, 1, 2]


def test_sharing_between_processes_is_refused() -> None:
    x = torch.ones(3, device="dipu")
    sentence = (
        r"dipu: .*process(es)?\. Share tensor\.cpu\(\) and move it to the device in the other process\."
    )
    for share in (
        x.share_memory_,
        torch.nn.Linear(2, 2, device="dipu").share_memory,
        lambda: multiprocessing.reduction.ForkingPickler.dumps(x),
        lambda: multiprocessing.reduction.ForkingPickler.dumps(torch.nn.Parameter(x)),
    ):
        with pytest.raises(NotImplementedError, match=sentence):
            share()
    host = x.cpu().share_memory_()
    assert host.is_shared() and host.tolist() == [1, 1, 1]
    sent = multiprocessing.reduction.ForkingPickler.dumps(host)
    assert torch.equal(pickle.loads(sent), host)
    assert torch.equal(pickle.loads(pickle.dumps(x)), x)  # by value, as to a file
    assert torch.equal(copy.deepcopy(x), x)


def test_nested_tensors_of_the_jagged_layout_work() -> None:
    parts = [torch.arange(6.0, device="dipu").view(2, 3), torch.ones(4, 3, device="dipu")]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    layer = torch.nn.Linear(3, 2, bias=False, device="dipu")
    result = (layer(nested) * 2).to_padded_tensor(0.0)
    expected = torch.stack(
        [torch.nn.functional.pad(layer(part) * 2, (0, 0, 0, 4 - len(part))) for part in parts]
    )
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    torch.testing.assert_close(nested.grad.values(), (2 * layer.weight.sum(0)).expand(6, 3))


def test_nested_tensors_of_the_strided_layout_are_refused() -> None:
    on_cpu = [torch.ones(2, 3), torch.ones(4, 3)]
    on_device = [part.to("dipu") for part in on_cpu]
    sentence = (
        "dipu: nested tensors of layout torch.strided are not supported; make them with layout=torch.jagged"
    )
    for make in (
        lambda: torch.nested.nested_tensor(on_device),
        lambda: torch.nested.as_nested_tensor(on_device),
        lambda: torch.nested.nested_tensor(on_cpu).to("dipu"),
        lambda: torch.nested.nested_tensor(on_cpu, device="dipu") + 1,
        lambda: torch.nested.nested_tensor(on_cpu, device="dipu").to_padded_tensor(0.0),
    ):
        with pytest.raises(NotImplementedError, match=sentence):
            make()


def test_inductor_is_refused_and_other_backends_are_not() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    def fresh() -> torch.Tensor:
        return torch.ones(3, device="dipu") * 2

    x = torch.arange(3.0, device="dipu")
    for call in (lambda: torch.compile(function)(x), lambda: torch.compile(fresh, backend="inductor")()):
        torch.compiler.reset()
        with pytest.raises(
            Exception, match=r"dipu: torch's inductor generates no code for this device\. .*dicp"
        ):
            call()
    torch.compiler.reset()
    assert torch.compile(function, backend="aot_eager", fullgraph=True)(x).tolist() == [1, 3, 5]


def test_flex_attention_is_refused() -> None:
    q = torch.randn(1, 2, 8, 16, device="dipu")
    for function in (flex_attention, torch.compile(flex_attention, backend="eager")):
        with pytest.raises(Exception, match=r"dipu: flex_attention .* dicp"):
            function(q, q, q)
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 8, 8, device="dipu")
    assert mask.shape == (1, 1, 8, 8)
