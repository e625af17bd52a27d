"""The programs that the product's documents show."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.device


def test_arithmetic_after_cuda(run_python) -> None:
    result = run_python(
        """
        import torch
        import torch_dipu
        x = torch.randn(3, 4).cuda()
        c = x.cpu()
        for y, expected in ((x + x, c * 2), (x + 3, c + 3), (x * 3, c * 3), (x / 3, c / 3)):
            torch.testing.assert_close(y.cpu(), expected)
        z = torch.randn(4, 5, 5).cuda()
        print(y.is_cuda, (z + z).shape)
        """
    )
    assert "True torch.Size([4, 5, 5])" in result.stdout


@pytest.mark.parametrize(("mock", "expected"), [("True", "cuda:0"), ("false", "dipu:0")])
def test_a_program_that_asks_which_device_to_use(run_python, mock: str, expected: str) -> None:
    result = run_python(
        """
        import os
        import torch
        import torch_dipu

        def get_device():
            if os.environ.get("DIPU_MOCK_CUDA") == "True":
                device_name = "cuda"
            else:
                device_name = torch_dipu.dipu.device.__dipu__
            device_index = "0"
            return f"{device_name}:{device_index}"

        def foo(a, b, c):
            return torch.ops.aten.addmm.default(a, b, c)

        device = get_device()
        inputs = [torch.randn(size=size, dtype=torch.float32) for size in ((5, 3), (5, 2), (2, 3))]
        output = foo(*[x.to(device) for x in inputs])
        torch.testing.assert_close(output.cpu(), torch.addmm(*inputs))
        print(device, output.device)
        """,
        DIPU_MOCK_CUDA=mock,
    )
    assert result.stdout.endswith(f"{expected} dipu:0\n")


def test_a_training_script_written_for_cuda(run_python) -> None:
    result = run_python(
        """
        import torch
        import ditorch
        torch.manual_seed(0)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True
        layers = torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        model = torch.nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cuda")
        x = torch.randn(64, 8, pin_memory=True)
        y = x.sum(1, keepdim=True)
        losses = []
        for step in range(60):
            with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
                prediction = model(x.cuda(non_blocking=True))
                loss = torch.nn.functional.mse_loss(prediction.float(), y.cuda(non_blocking=True))
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        torch.cuda.synchronize()
        print(device, losses[-1] < losses[0] / 5, torch.cuda.max_memory_allocated() > 0)
        """
    )
    assert result.stdout.endswith("dipu True True\n")
