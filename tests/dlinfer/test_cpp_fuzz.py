"""Random calls of cpp's kernels, calls from several threads at once, and what the program that makes them would find."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dlinfer_fuzz
import pytest
import torch
from dlinfer_calls import CALLS, random_case
from torch import Tensor

from dlinfer.reference import KERNELS
from dlinfer.vendors import Vendor, using

_cpp: Any = pytest.importorskip("dlinfer._cpp")
pytestmark = pytest.mark.unit

# Declared, but not computed: it gives the length of a tensor. Or without a kernel of cpp.
NOT_FUZZED = {"get_cache_len"}


@pytest.fixture(scope="module", autouse=True)
def _vendor() -> Iterator[None]:
    with using("cpp"):
        yield


def test_every_kernel_has_random_calls() -> None:
    from dlinfer.vendors.cpp import VENDOR

    assert set(CALLS) == set(VENDOR.kernels) - NOT_FUZZED


@pytest.mark.parametrize("operator", CALLS)
def test_random_calls(operator: str) -> None:
    """Right, bad numbers stay where they are, and threads change nothing; `tests/dlinfer/dlinfer_fuzz.py` goes on for longer."""
    for case in dlinfer_fuzz.cases([operator], seed=3, seconds=0, rounds=12):
        assert not (problem := dlinfer_fuzz.problem_of(case, "cpp", "cpu")), f"{case.id}: {problem}"


# ---- what it would find ----


def _mixes_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Right for numbers; what is no number is in every row."""
    return KERNELS["linear"](x, weight, bias) + x.sum() * 0


def _reads_behind_the_last_key(*given: Any) -> None:
    KERNELS["paged_decode_attention"](*given)
    if given[1].shape[0]:
        given[6].add_((given[2].float().sum() * 0).to(given[6].dtype))


def _depends_on_threads(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return KERNELS["rms_norm"](hidden, weight, epsilon if torch.get_num_threads() == 1 else epsilon * 1.3)


@pytest.mark.parametrize(
    ("operator", "kernel", "words"),
    [
        ("linear", _mixes_rows, "bad row: it changed results of others"),
        ("paged_decode_attention", _reads_behind_the_last_key, "attn_output"),
        ("rms_norm", _depends_on_threads, "4 threads gave other bits than one"),
    ],
)
def test_mistakes_are_found(operator: str, kernel: Callable[..., Any], words: str) -> None:
    torch.set_num_threads(1)
    with using(Vendor("faulty", "1", {**KERNELS, operator: kernel})):
        found = [
            dlinfer_fuzz.problem_of(case, "faulty", "cpu")
            for case in dlinfer_fuzz.cases([operator], 3, 0, 12)
        ]
    assert any(words in problem for problem in found)


def _adds_up_otherwise(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What libraries do on some processors where a row holds no number: as right, with other bits."""
    if bool(x.isfinite().all()):
        return KERNELS["linear"](x, weight, bias)
    return KERNELS["linear"](x.flip(-1), weight.flip(-1), bias)


def _adds_up_wrongly(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result = KERNELS["linear"](x, weight, bias)
    return result if bool(x.isfinite().all()) else result * 1.1


@pytest.mark.parametrize(
    ("kernel", "right"), [(_adds_up_otherwise, True), (_adds_up_wrongly, False), (_mixes_rows, False)]
)
def test_rows_of_a_library_may_have_other_bits_but_must_be_right(
    kernel: Callable[..., Any], right: bool
) -> None:
    with using(Vendor("changed", "1", {**KERNELS, "linear": kernel})):
        many = [
            case
            for case in dlinfer_fuzz.cases(["linear"], 3, 0, 40)
            if case.arguments["x"].shape[:-1].numel() > 12
        ]
        found = [dlinfer_fuzz.problem_of(case, "changed", "cpu") for case in many]
    assert len(many) > 10
    assert any("bad row" in problem for problem in found) != right


# ---- several Python threads ----


def test_threads_of_python_get_their_own_answers() -> None:
    """Kernels that release the GIL and share torch's threads, called at once: each gets the bits that it gets alone."""
    names = (
        "paged_decode_attention",
        "prefill_attention",
        "linear",
        "weight_quant_matmul",
        "fused_moe",
        "rms_norm",
    )
    calls = [random_case(name, number, 9) for number in range(6) for name in names]
    alone = [dlinfer_fuzz.results_of(case, "cpu") for case in calls]
    together = threading.Barrier(4)

    def worker(first: int) -> list[tuple[int, list[Tensor]]]:
        together.wait()
        order = [*range(first, len(calls)), *range(first)]
        return [(index, dlinfer_fuzz.results_of(calls[index], "cpu")) for index in order]

    with ThreadPoolExecutor(4) as pool:
        for answers in pool.map(worker, range(0, len(calls), len(calls) // 4)):
            for index, results in answers:
                for one, other in zip(alone[index], results, strict=True):
                    assert torch.equal(one.nan_to_num(7), other.nan_to_num(7)), calls[index].id


def _leaves_the_interpreter(call: Callable[[], Any]) -> bool:
    """Whether another thread of Python can run while this one is in a call."""
    may_run, has_run = threading.Lock(), threading.Event()
    may_run.acquire()

    def other() -> None:
        with may_run:
            has_run.set()

    thread = threading.Thread(target=other)
    thread.start()
    before = sys.getswitchinterval()
    # From now on the other thread runs only if this one lets it.
    sys.setswitchinterval(1000)
    try:
        may_run.release()
        call()
        return has_run.is_set()
    finally:
        sys.setswitchinterval(before)
        thread.join()


@pytest.mark.parametrize(("tokens", "released"), [(2000, True), (3, False)])
def test_long_attention_leaves_the_interpreter_to_others(tokens: int, released: bool) -> None:
    """Short calls keep it: handing it over takes longer than they do."""
    query, lengths, output = torch.randn(tokens, 8, 64), torch.tensor([tokens]), torch.empty(tokens, 8, 64)
    given = query, query, query, torch.tensor([0, tokens]), lengths, tokens, output, 0.125
    assert _leaves_the_interpreter(lambda: _cpp.prefill_attention(*given)) == released
