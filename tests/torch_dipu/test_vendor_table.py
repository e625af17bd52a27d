"""Capability: a vendor's table of an earlier version loads; what its end lacks is refused by name or done without."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

from built import library
from forked_python import run_python

from diopi.vendors import installed


def test_a_table_of_version_1_0_trains_and_lacks_what_came_later(tmp_path: Path) -> None:
    code = """
        import torch, torch_dipu
        from torch_dipu import kernels
        facts = torch_dipu.dipu.vendor()
        print(facts["name"], facts["abi"], facts["operators"] > 400, facts["options"] == {} or "numerics" in facts["options"])
        torch.manual_seed(0)
        x = torch.randn(8, 4)
        losses = []
        for device in ("cpu", "dipu"):
            torch.manual_seed(1)
            layer = torch.nn.Linear(4, 2).to(device)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                loss = layer(x.to(device)).square().mean()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        print("equal", abs(losses[0] - losses[1]) < 1e-6)
        print("range", torch.dipu.Stream.priority_range(), torch.dipu.Stream(priority=-1).priority)
        start, end = (torch.dipu.Event(enable_timing=True, blocking=True) for _ in range(2))
        start.record(); end.record(); end.synchronize()
        print("timed", start.elapsed_time(end) >= 0, torch.dipu.Event().query())
        print("kernels", kernels.available())
        try:
            kernels.Module("libnothing.so")
        except NotImplementedError as error:
            print(error)
    """
    full = installed()["host"].library
    environment = {
        **os.environ,
        "FULL_VENDOR": str(full),
        "DIPU_DEVICE": str(library("vendor_1_0.c", tmp_path)),
    }
    done = run_python("-c", textwrap.dedent(code), timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-6:] == [
        "old 1.0 True True",
        "equal True",
        "range (0, 0) 0",
        "timed True True",
        "kernels False",
        "dipu: the vendor old loads no kernels that others compiled (module_load in include/dipu/vendor.h)",
    ]
