"""New memory: of known content where torch promises it, and never on another device than the operands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool, torch.complex64]
)
def test_deterministic_algorithms_fill_what_nobody_wrote(dtype: torch.dtype) -> None:
    made = [
        (
            torch.empty(3, dtype=dtype, device=device),
            torch.empty_strided((2, 2), (1, 2), dtype=dtype, device=device),
        )
        for device in ("cpu", "dipu")
    ]
    for cpu, dipu in zip(*made, strict=True):
        torch.testing.assert_close(dipu.cpu(), cpu, equal_nan=True)


@pytest.mark.usefixtures("deterministic")
def test_only_the_new_part_of_a_resized_tensor_is_filled() -> None:
    grown = torch.ones(2, device="dipu").resize_(5)
    assert grown[:2].cpu().tolist() == [1.0, 1.0] and grown[2:].cpu().isnan().all()


def test_a_result_cannot_be_a_number_on_the_cpu() -> None:
    """Operands without dimensions may come from the CPU; what is written may not."""
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.nonzero(torch.ones(3, device="dipu"), out=torch.empty([], dtype=torch.long))
    assert (torch.ones(2, device="dipu") * torch.tensor(3.0)).cpu().tolist() == [3.0, 3.0]


@pytest.mark.parametrize("draw", ["randn", "normal_", "randperm", "bernoulli_"])
def test_a_generator_of_the_cpu_is_refused(draw: str) -> None:
    generator = torch.Generator()
    calls = {
        "randn": lambda: torch.randn(2, device="dipu", generator=generator),
        "normal_": lambda: torch.empty(2, device="dipu").normal_(generator=generator),
        "randperm": lambda: torch.randperm(4, device="dipu", generator=generator),
        "bernoulli_": lambda: torch.empty(2, device="dipu").bernoulli_(0.5, generator=generator),
    }
    with pytest.raises(RuntimeError, match="Expected a 'dipu' device type for generator but found 'cpu'"):
        calls[draw]()


@pytest.mark.parametrize("draw", ["randn", "normal_", "randperm", "bernoulli_", "multinomial", "out"])
def test_a_tensor_of_the_cpu_is_not_drawn_with_a_generator_of_the_device(draw: str) -> None:
    generator = torch.Generator("dipu")
    calls = {
        "randn": lambda: torch.randn(2, generator=generator),
        "normal_": lambda: torch.empty(2).normal_(generator=generator),
        "randperm": lambda: torch.randperm(4, generator=generator),
        "bernoulli_": lambda: torch.empty(2).bernoulli_(0.5, generator=generator),
        "multinomial": lambda: torch.multinomial(torch.ones(3), 2, generator=generator),
        "out": lambda: torch.rand(2, generator=generator, out=torch.empty(2)),
    }
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'dipu'"):
        calls[draw]()
