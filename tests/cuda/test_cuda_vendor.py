"""The vendor `cuda` on a card, beside torch.cuda in the same process: run with DIPU_DEVICE=cuda where there is one."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.skipif(
    os.environ.get("DIPU_DEVICE") != "cuda" or not torch.cuda.is_available(),
    reason="needs an NVIDIA card and DIPU_DEVICE=cuda",
)


def on_both(make: Callable[[str], torch.Tensor]) -> list[torch.Tensor]:
    """The same drawn with the same seed on either device, on the CPU."""
    drawn = []
    for device in ("cuda", "dipu"):
        torch.manual_seed(7)
        torch.cuda.manual_seed(7)
        torch.dipu.manual_seed(7)
        drawn.append(make(device).cpu())
    return drawn


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.rand(1000, device=d),
        lambda d: torch.randn(33, 7, device=d),
        lambda d: torch.randperm(500, device=d),
        lambda d: torch.randint(0, 9, (400,), device=d),
        lambda d: F.dropout(torch.ones(4096, device=d), 0.3),
        lambda d: torch.cat([torch.rand(5, device=d), torch.rand(5, device=d)]),
        lambda d: torch.bernoulli(torch.full((64,), 0.4, device=d)),
        lambda d: torch.multinomial(torch.rand(20, device=d), 5),
    ],
    ids=["rand", "randn", "randperm", "randint", "dropout", "twice", "bernoulli", "multinomial"],
)
def test_the_same_seed_gives_the_numbers_of_torch_cuda(make: Callable[[str], torch.Tensor]) -> None:
    cuda, dipu = on_both(make)
    assert torch.equal(cuda, dipu)


def test_a_generator_has_torch_cudas_state() -> None:
    generators = {d: torch.Generator(d).manual_seed(11) for d in ("cuda", "dipu")}
    for device, generator in generators.items():
        torch.rand(100, device=device, generator=generator)
    assert torch.equal(generators["cuda"].get_state(), generators["dipu"].get_state())
    assert generators["cuda"].get_offset() == generators["dipu"].get_offset()
    fresh = torch.Generator("dipu")
    fresh.set_state(generators["dipu"].get_state())
    expected = torch.rand(10, device="cuda", generator=generators["cuda"]).cpu()
    assert torch.equal(torch.rand(10, device="dipu", generator=fresh).cpu(), expected)


def test_results_are_those_of_torch_cuda_bit_for_bit() -> None:
    x, y = torch.randn(64, 96), torch.randn(96, 32)
    for compute in (
        lambda a, b: a @ b,
        lambda a, b: F.gelu(a),
        lambda a, b: a.softmax(-1),
        lambda a, b: F.layer_norm(a, (96,)),
        lambda a, b: a.sum(0),
        lambda a, b: a.bfloat16() @ b.bfloat16(),
    ):
        assert torch.equal(compute(x.cuda(), y.cuda()).cpu(), compute(x.to("dipu"), y.to("dipu")).cpu())


@pytest.mark.parametrize("causal", [True, False])
def test_attention_goes_to_the_fused_kernel(causal: bool) -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        q, k, v = (torch.randn(2, 4, 128, 64).to(device, torch.bfloat16).requires_grad_() for _ in range(3))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out.backward(torch.ones_like(out))
        return [t.detach().float().cpu() for t in (out, q.grad, k.grad, v.grad) if t is not None]

    torch.dipu.reset_op_counts()
    ours = run("dipu")
    counts = torch.dipu.op_counts()
    assert counts["_scaled_dot_product_fused_attention_overrideable"]["diopi"] == 1
    assert counts["_scaled_dot_product_fused_attention_overrideable_backward"]["diopi"] == 1
    exact = [
        F.scaled_dot_product_attention(
            *(torch.randn(2, 4, 128, 64, generator=g).bfloat16().float() for _ in range(3)), is_causal=causal
        )
        for g in [torch.Generator().manual_seed(3)]
    ]
    assert torch.allclose(ours[0], exact[0], atol=0.02)
    assert all(torch.isfinite(t).all() for t in ours)


def test_temporaries_come_from_the_devices_pool() -> None:
    x = torch.rand(1 << 20, device="dipu")
    torch.dipu.synchronize()
    before = torch.cuda.memory_reserved()
    torch.dipu.reset_peak_memory_stats()
    held = torch.dipu.memory_allocated()
    x.sort()
    assert torch.dipu.max_memory_allocated() > held + 3 * x.nbytes  # values, indices, and what sorting needs
    assert torch.cuda.memory_reserved() == before


def test_streams_and_events_order_work() -> None:
    first, second = torch.dipu.Stream(), torch.dipu.Stream(priority=-1)
    with torch.dipu.stream(first):
        x = torch.ones(1 << 22, device="dipu")
        for _ in range(50):
            x = x * 1.0 + 1.0
    done = first.record_event()
    with torch.dipu.stream(second):
        second.wait_event(done)
        total = x.mean()
    second.synchronize()
    assert total.item() == 51 and done.query()
    begin, end = (torch.dipu.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.rand(1 << 22, device="dipu").sum()
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) > 0


PTX = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry scale(.param .u64 x, .param .f32 factor) {
  .reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .f32 %f<4>;
  ld.param.u64 %rd1, [x]; ld.param.f32 %f1, [factor];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
  ld.global.f32 %f2, [%rd3]; mul.f32 %f3, %f2, %f1; st.global.f32 [%rd3], %f3;
  ret;
}
"""


def test_a_kernel_that_others_compiled_runs_on_the_stream() -> None:
    from torch_dipu import kernels

    x = torch.arange(6.0, device="dipu")
    kernel = kernels.Module(PTX).kernel("scale")
    kernel.launch((x, ctypes.c_float(2.5)), grid=(6,))
    assert x.tolist() == [0.0, 2.5, 5.0, 7.5, 10.0, 12.5]


def test_out_of_memory_is_the_devices_own_error() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(1 << 60, dtype=torch.uint8, device="dipu")
    assert torch.ones(2, device="dipu").sum().item() == 2


def test_a_device_assertion_is_an_exception_with_cudas_text() -> None:
    program = (
        "import torch, torch_dipu\n"
        "x = torch.zeros(4, device='dipu')\n"
        "try:\n    x[torch.tensor([9], device='dipu')] = 1.0\n    torch.dipu.synchronize()\n"
        "except RuntimeError as error:\n    print('told:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert "told:" in done.stdout and "assert" in done.stdout, done.stdout + done.stderr


def test_training_is_that_of_torch_cuda() -> None:
    def losses(device: str) -> list[float]:
        torch.manual_seed(5)
        model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
        )
        data, target = torch.randn(128, 32).to(device), torch.randint(0, 8, (128,)).to(device)
        model = model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        seen = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    source = textwrap.dedent(inspect.getsource(losses))
    program = (
        f"import torch, json; import torch.nn.functional as F\n{source}\nprint(json.dumps(losses('cuda')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert losses("dipu") == pytest.approx(json.loads(done.stdout), rel=1e-5)
