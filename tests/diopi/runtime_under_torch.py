"""Run as a program: lets torch_dipu call the caller library (its path is DIPU_DEVICE) and prints the reports as JSON."""

from __future__ import annotations

import ctypes
import json
import os


def main() -> None:
    import torch

    x = torch.zeros(3, 4, device="dipu")  # loads the library, and before it what it calls
    caller = ctypes.CDLL(os.environ["DIPU_DEVICE"])
    caller.caller_report.restype = ctypes.c_char_p
    reports = {}

    def ask(name: str, mode: str, tensor: torch.Tensor) -> None:
        caller.caller_mode(mode.encode())
        with torch.no_grad():
            torch.exp(tensor)
        reports[name] = caller.caller_report().decode()

    ask("plain", "describe", x)
    ask("transposed", "describe", x.t())
    ask("offset", "describe", x[1:, 1::2])
    ask("expanded", "describe", x[:, :1].expand(3, 5))
    ask("scalar", "describe", x[1, 1])
    ask("empty", "describe", x[:0])
    ask("bfloat16", "describe", x.to(torch.bfloat16))
    ask("float64", "describe", torch.zeros(2, dtype=torch.float64, device="dipu"))
    for mode in ("require", "many", "without", "environment"):
        ask(mode, mode, x)
    before = torch.dipu.memory_allocated()
    ask("workspace", "workspace", x)
    reports["left"] = torch.dipu.memory_allocated() - before
    generator = torch.Generator(device="dipu").manual_seed(77)
    x.uniform_(generator=generator)
    reports["generator"] = caller.caller_report().decode()
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
