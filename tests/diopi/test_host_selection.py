"""The host's kernels of movement, selection and random numbers: values by hand, torch's numbers, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fresh_process import fresh
from host_calls import library, run, values

from diopi.conformance.buffers import GuardedBuffer

SEED = 17


def _torch_generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


@fresh
def test_absent_indices_take_whole_dimensions() -> None:
    x = torch.zeros(2, 3)
    put = {"input": x, "values": torch.tensor([1.0, 2.0]), "indices": [None, torch.tensor([2, 0])]}
    got = values("diopiIndexPutInp", put | {"indices_counts": 2, "accumulate": False})["input"]
    assert got.tolist() == [[2.0, 0.0, 1.0], [2.0, 0.0, 1.0]]
    picked = {"input": got, "indices": [None, torch.tensor([False, True, True])], "nums": 2}
    assert values("diopiIndex", picked)["out"].tolist() == [[0.0, 1.0], [0.0, 1.0]]


@fresh
def test_gradients_that_meet_add_up() -> None:
    arguments = {
        "grad_input": torch.empty(1, 3),
        "grad_output": torch.tensor([[1.0, 2.0, 4.0]]),
        "input": torch.empty(1, 3),
        "dim": 1,
        "index": torch.tensor([[2, 0, 2]]),
    }
    assert values("diopiGatherBackward", arguments)["grad_input"].tolist() == [[2.0, 0.0, 5.0]]


@fresh
def test_the_gradient_of_a_reduced_sort_gets_its_dimension_back() -> None:
    arguments = {
        "grad_input": torch.empty(2, 3),
        "grad_output": torch.tensor([5.0, 7.0]),
        "dim": 1,
        "indices": torch.tensor([2, 0]),
        "sizes": [2, 3],
        "keepdim": False,
    }
    assert values("diopiSortBackward", arguments)["grad_input"].tolist() == [[0, 0, 5], [7, 0, 0]]


@fresh
@pytest.mark.parametrize(("reduce", "wanted"), [("", [7, 9]), ("add", [17, 29]), ("multiply", [70, 180])])
def test_scatter_reduces_as_it_is_told(reduce: str, wanted: list[float]) -> None:
    arguments = {"input": torch.tensor([10.0, 20.0]), "dim": 0, "src": torch.tensor([7.0, 9.0])}
    arguments |= {"index": torch.tensor([0, 1]), "reduce": reduce}
    assert values("diopiScatterInp", arguments)["input"].tolist() == wanted


@fresh
def test_unique_gives_inverse_and_counts() -> None:
    arguments = {"input": torch.tensor([3, 1, 3]), "sorted": True, "return_counts": True}
    got = values("diopiUnique", arguments | {"indices": torch.empty(3, dtype=torch.int64)})
    assert [got[name].tolist() for name in ("out", "indices", "counts")] == [[1, 3], [1, 0, 1], [1, 2]]
    got = values("diopiUnique", arguments | {"return_counts": False})
    assert got["out"].tolist() == [1, 3] and got["indices"] is None and got["counts"] is None


@fresh
def test_contiguous_makes_the_memory_format() -> None:
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    answer = library().call("diopiContiguous", {"input": _on_device(x), "memoryFormat": 1})
    try:
        assert answer.ok, answer.error
        assert list(answer.made["out"].stride) == [24, 1, 8, 2]
    finally:
        answer.close()
    assert torch.equal(values("diopiContiguous", {"input": x, "memoryFormat": 1})["out"], x)


def _on_device(tensor: torch.Tensor) -> Any:
    return GuardedBuffer(library().memory, tensor).handle()


@fresh
def test_the_same_seed_gives_the_numbers_of_torch() -> None:
    x, weights = torch.empty(50), torch.tensor([0.1, 0.2, 0.3, 0.4])
    seeded = {"generator": SEED}
    got = values("diopiUniformInp", {"inout": x, "from": -1.0, "to": 2.0} | seeded)["inout"]
    assert torch.equal(got, torch.empty(50).uniform_(-1.0, 2.0, generator=_torch_generator()))
    got = values("diopiRandperm", {"out": torch.empty(20, dtype=torch.int64), "n": 20} | seeded)["out"]
    assert torch.equal(got, torch.randperm(20, generator=_torch_generator()))
    picks = {"out": torch.empty(30, dtype=torch.int64), "input": weights, "num_samples": 30}
    got = values("diopiMultinomial", picks | {"replacement": True} | seeded)["out"]
    assert torch.equal(got, torch.multinomial(weights, 30, True, generator=_torch_generator()))
    got = values("diopiBernoulli", {"out": torch.empty(4), "input": weights} | seeded)["out"]
    assert torch.equal(got, torch.bernoulli(weights, generator=_torch_generator()))


@fresh
def test_a_small_mask_drops_whole_channels() -> None:
    arguments = {"out": torch.empty(8, 16, 3, 2), "mask": torch.empty(8, 16, 1, 1, dtype=torch.bool)}
    arguments |= {"input": torch.ones(8, 16, 3, 2), "p": 0.5, "train": True, "generator": SEED}
    got = values("diopiDropout", arguments)
    assert torch.equal(got["out"], 2.0 * got["mask"].expand(8, 16, 3, 2))
    assert 0 < int(got["mask"].sum()) < 128


def _out_of_range() -> list[tuple[str, dict[str, Any]]]:
    x, far = torch.zeros(3, 2), torch.tensor([3])
    table = {"grad": torch.zeros(1, 2), "indices": far, "num_weights": 3, "padding_idx": -1}
    return [
        ("diopiIndex", {"input": x, "indices": [far], "nums": 1}),
        ("diopiIndexSelect", {"out": torch.empty(1, 2), "input": x, "dim": 0, "index": far}),
        ("diopiIndexFillInpScalar", {"input": x, "dim": 0, "index": far, "value": 1}),
        ("diopiGather", {"out": torch.empty(1, 1), "input": x, "dim": 0, "index": far.reshape(1, 1)}),
        ("diopiOneHot", {"out": torch.empty(1, 3), "input": far, "num_classes": 3}),
        (
            "diopiEmbeddingBackward",
            {"out": torch.empty(3, 2), **table, "scale_grad_byfreq": True, "sparse": False},
        ),
        ("diopiEmbeddingRenorm_", {"inout": x, "indices": far, "max_norm": 1.0, "norm_type": 2.0}),
        ("diopiSelect", {"out": torch.empty(2), "input": x, "dim": 0, "index": 3}),
    ]


@fresh
@pytest.mark.parametrize("number", range(len(_out_of_range())))
def test_an_index_out_of_range_is_an_error(number: int) -> None:
    function, arguments = _out_of_range()[number]
    ran = run(function, arguments)
    assert ran.code == 1 and function in ran.error


@fresh
def test_a_result_is_not_repeated_into_a_larger_output() -> None:
    x = torch.zeros(1, 3)
    for function, attributes in (
        ("diopiTranspose", {"dim0": 0, "dim1": 0}),
        ("diopiFlip", {"dims": [0]}),
        ("diopiCastDtype", {}),
        ("diopiRepeat", {"repeats_size": [1, 1]}),
    ):
        ran = run(function, {"out": torch.empty(2, 3), "input": x, **attributes})
        assert ran.code == 1 and "shape" in ran.error, function


@fresh
def test_absent_tensors_and_generators_are_errors() -> None:
    seeded = {"generator": SEED}
    for function, arguments, text in (
        ("diopiUniformInp", {"from": 0.0, "to": 1.0} | seeded, "tensor is NULL"),
        ("diopiUniformInp", {"inout": torch.empty(3), "from": 0.0, "to": 1.0}, "generator is NULL"),
        ("diopiDropout", {"out": torch.empty(3), "p": 0.5, "train": True} | seeded, "tensor is NULL"),
        ("diopiRandperm", {"n": 3} | seeded, "tensor is NULL"),
        ("diopiCat", {"out": torch.empty(3), "tensors": [None], "num_inputs": 1, "dim": 0}, "is NULL"),
    ):
        ran = run(function, arguments)
        assert ran.code == 1 and text in ran.error, (function, ran.error)
