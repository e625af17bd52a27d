"""The vendor triton as the interface sees it, with or without triton."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
from forked_python import run_python

from dlinfer.vendors import installed
from dlinfer.vendors.triton import VENDOR

pytestmark = pytest.mark.unit
HERE = find_spec("triton") is not None


def test_it_is_known_and_never_breaks_the_others() -> None:
    found = installed()["triton"]
    assert found.vendor is VENDOR
    assert found.problem == VENDOR.problem()


@pytest.mark.skipif(HERE, reason="triton is installed")
def test_without_triton_it_says_what_to_install() -> None:
    problem = VENDOR.problem()
    assert problem is not None
    assert "pip install triton" in problem
    assert dict(VENDOR.kernels) == {}


@pytest.mark.skipif(not HERE, reason="triton is not installed")
def test_without_a_gpu_it_says_so() -> None:
    code = "from dlinfer.vendors.triton import VENDOR; print(VENDOR.problem(), VENDOR.devices)"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
    out = run_python("-c", code, env=environment, check=True)
    assert "no CUDA device" in out.stdout
    assert "('cuda',)" in out.stdout


@pytest.mark.skipif(not HERE, reason="triton is not installed: test_triton_isolated.py runs this")
@pytest.mark.parametrize("size", [1, 8, 16, 24, 64, 72, 80, 96, 128, 192, 256, 576])
@pytest.mark.parametrize("bits", [0, 4, 8])
def test_the_parts_of_a_head_cover_it(size: int, bits: int) -> None:
    from dlinfer.vendors.triton.attention_tiles import parts

    first, second = parts(size, bits)
    assert all(width in (0, *(2**n for n in range(4, 11))) for width in (first, second))
    if bits == 4:
        assert first == second >= size // 2
    else:
        assert first + second >= size
        assert not second or first < size
