"""No exception crosses the C interface of the adaptor: each allocation of a call fails once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Calls an operator over and over; in call n its n-th allocation fails. Ends when a call needs fewer.
PROGRAM = """
import ctypes, json, sys
from diopi.library import Library, Tensor

new = ctypes.CDLL(None)
new.fail_allocation.argtypes = [ctypes.c_long]
library = Library.open(sys.argv[1], adaptor="convert_config.yaml")
memory = (ctypes.c_int64 * 32)(*range(32))
a, b, c = (Tensor(ctypes.addressof(memory) + 64 * i, [8], [1], "int64") for i in range(3))
values = {"out": c, "input": a, "other": b, "alpha": 1}
composed = {"out": c, "input": a, "tensor1": b, "tensor2": b, "value": 1}
seen = {}
for name, arguments in (("diopiAdd", values), ("diopiAddcmul", composed)):
    library.call(name, arguments).close()  # what is made once is made now
    answers = []
    for number in range(1000):
        memory[16] = -1
        new.fail_allocation(number)
        with library.call(name, arguments) as answer:
            reached = new.stop_failing()
        answers.append((bool(reached), answer.ok, answer.error, memory[16] if answer.ok else None))
        if not reached:
            break
    seen[name] = answers
print(json.dumps(seen))
"""


@pytest.mark.parametrize("operator", ["diopiAdd", "diopiAddcmul"])
def test_every_failed_allocation_is_an_error_code(tmp_path: Path, operator: str) -> None:
    vendor, failing = tmp_path / "libnarrow.so", tmp_path / "libfailing.so"
    include = f"-I{ROOT / 'include'}"
    chip = ROOT / "tests" / "diopi" / "narrow_vendor.c"
    command = ["gcc", "-std=gnu11", "-shared", "-fPIC", include, "-o", str(vendor), str(chip)]
    subprocess.run(command, check=True)
    source = str(Path(__file__).with_name("failing_new.cpp"))
    subprocess.run(["g++", "-shared", "-fPIC", "-O1", "-o", str(failing), source], check=True)
    (tmp_path / "convert_config.yaml").write_text(
        "- common_config:\n    dtype: (int64)->int32\n    contiguous: true\n    supportComposite: true\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(vendor)],
        cwd=tmp_path,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "LD_PRELOAD": str(failing)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    *failed, last = json.loads(done.stdout)[operator]
    right = 8 + 0 if operator == "diopiAdd" else 0 + 1 * 8 * 8
    assert last == [False, True, "", right], last  # with all its memory the call is right
    assert len(failed) >= 5
    for reached, ok, error, value in failed:
        assert reached
        # a conversion may do without what it only tries; everything else is told
        assert (ok and value == right) or "memory" in error, (error, value)
    assert any(not ok and "the adaptor has not enough host memory" in error for _, ok, error, _ in failed)
