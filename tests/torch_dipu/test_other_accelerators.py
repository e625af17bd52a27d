"""With the device and another accelerator in one process: the device trains, the other's backward is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.device

PROGRAM = """
import ctypes, sys
import torch, torch_dipu
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_dipu.other_accelerators import explain_backward

ctypes.CDLL(sys.argv[1])
explain_backward()

def trained(device):
    x = torch.ones(3, device=device, requires_grad=True)
    (x * 2).sum().backward()
    return x.grad

def differentiated(device):
    x = torch.ones(3, device=device, requires_grad=True)
    return torch.autograd.grad((x * 2).sum(), x)

print(trained("dipu").tolist())
with FakeTensorMode(allow_non_fake_inputs=True):
    forward = (torch.ones(3, device="cuda") * 2).sum()
    print(forward.device)
    for call in trained, differentiated:
        try:
            call("cuda")
        except RuntimeError as error:
            print(type(error).__name__, error, type(error.__cause__).__name__)
print(trained("dipu").tolist(), trained("cpu").tolist())
try:
    torch.ones(2, requires_grad=True).backward()
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(
    torch.version.cuda is not None, reason="the stand-in takes the place of a cuda that this torch has"
)
def test_the_backward_of_another_accelerator_is_refused_by_name(tmp_path: Path) -> None:
    library, folder = tmp_path / "libanother.so", Path(torch.__file__).parent
    source = Path(__file__).with_name("another_accelerator.cpp")
    flags = ["-std=c++17", "-w", "-shared", "-fPIC", f"-I{folder / 'include'}", f"-L{folder / 'lib'}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(library), "-lc10"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library)],
        env={**os.environ, "DIPU_MOCK_CUDA": "0", "DIPU_DEVICE": "host"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "[2.0, 2.0, 2.0]"
    assert lines[1] == "cuda:0"
    for line in lines[2:4]:
        assert line.startswith(
            "RuntimeError dipu: a backward pass over tensors of cuda:0 is refused: torch_dipu is in"
        )
        assert line.endswith("(TORCH_DEVICE_BACKEND_AUTOLOAD=0, and no import of torch_dipu). RuntimeError")
    assert lines[-2] == "[2.0, 2.0, 2.0] [2.0, 2.0, 2.0]"
    assert "scalar outputs" in lines[-1] and "dipu" not in lines[-1]
