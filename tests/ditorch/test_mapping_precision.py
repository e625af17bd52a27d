"""autocast and GradScaler under the mapping."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("mapped")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    a, b = torch.eye(4, device="cuda"), torch.ones(4, 4, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        assert (a @ b).dtype == dtype
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert torch.is_autocast_enabled("dipu")
        assert torch.get_autocast_dtype("cuda") == torch.get_autocast_gpu_dtype() == dtype
        with torch.autocast(device_type="cuda", enabled=False):
            assert (a @ b).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")
    assert torch.amp.is_autocast_available("cuda")
    assert (a @ b).dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp")
def test_old_names() -> None:
    a = torch.eye(4, device="cuda")
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
    assert torch.cuda.amp.GradScaler().is_enabled()

    class Cast(torch.autograd.Function):
        @staticmethod
        @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.autocast_was_on = torch.is_autocast_enabled("cuda")
            Cast.dtype, Cast.autocast_was_on = x.dtype, torch.is_autocast_enabled("cuda")
            return x * 2

        @staticmethod
        @torch.cuda.amp.custom_bwd
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(3, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        Cast.apply(x).sum().backward()
    assert (Cast.dtype, Cast.autocast_was_on) == (torch.float32, False)
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_gpu_dtype_can_be_set() -> None:
    before = torch.get_autocast_gpu_dtype()
    torch.set_autocast_gpu_dtype(torch.bfloat16)
    try:
        assert torch.get_autocast_dtype("dipu") == torch.bfloat16
    finally:
        torch.set_autocast_gpu_dtype(before)


def test_grad_scaler_scales_and_skips_infinities() -> None:
    for scaler in (torch.amp.GradScaler("cuda", init_scale=8.0), torch.amp.GradScaler(init_scale=8.0)):
        assert scaler.is_enabled()
        weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        scaler.scale((weight * 3).sum()).backward()
        assert weight.grad.tolist() == [24.0, 24.0]
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [-0.5, -0.5]
        weight.grad = torch.full_like(weight, float("inf"))
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [-0.5, -0.5]
        assert scaler.get_scale() == 4.0


def test_names_of_arguments_are_those_of_torch() -> None:
    assert torch.is_autocast_enabled(device_type="cuda") is False
    torch.set_autocast_enabled(device_type="cuda", enabled=True)
    assert torch.is_autocast_enabled("cuda") and torch.is_autocast_enabled("dipu")
    torch.set_autocast_enabled(enabled=False)
    assert not torch.is_autocast_enabled()
    assert torch.is_autocast_enabled(device_type="cpu") is False
