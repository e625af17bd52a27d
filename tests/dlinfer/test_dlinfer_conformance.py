"""The suite finds nothing in the reference, and each of ten mistakes where it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from dicore.conformance.case_filter import QUICK_CASES, CaseFilter, SelectionError
from dicore.conformance.report_files import read_json
from dicore.conformance.results import RunReport
from dicore.conformance.runner import RunOptions, run_suite
from dlinfer.cli import app, main
from dlinfer.conformance.calls import DeviceArguments
from dlinfer.conformance.judging import check
from dlinfer.conformance.samples import SAMPLES, count_of, make
from dlinfer.conformance.suite import DlinferSuite
from dlinfer.errors import DlinferArgumentError
from dlinfer.interface import OPERATORS
from dlinfer.reference import KERNELS
from dlinfer.vendors import Vendor, using
from dlinfer.vendors.ref import VENDOR as REF

pytestmark = pytest.mark.unit


# ---- a vendor with ten mistakes, each of another kind ----


def _no_epsilon(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return KERNELS["rms_norm"](hidden_states, weight, epsilon * 0.5)


def _writes_its_input(hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> Any:
    result = KERNELS["add_rms_norm"](hidden_states, residual, weight, epsilon)
    if residual.numel():
        residual.view(-1)[0] += 1
    return result


def _wrong_half(input_tensor: Tensor, dim: int = -1) -> Tensor:
    gate, up = input_tensor.chunk(2, dim)
    return KERNELS["silu_and_mul"](torch.cat((up, gate), dim), dim)


def _truncates(x: Tensor, quant_dtype: torch.dtype, quant_granularity: str = "PER_TOKEN") -> Any:
    number, scale = KERNELS["dynamic_quant"](x, quant_dtype, quant_granularity)
    if quant_dtype != torch.int8:
        return number, scale
    scaled = x.float() / (scale if quant_granularity == "PER_TENSOR" else scale.unsqueeze(-1))
    return scaled.trunc().to(torch.int8), scale


def _off_by_one_window(*args: Any, **kwargs: Any) -> None:
    given = OPERATORS["paged_decode_attention"].bound(args, kwargs)
    if given["window_left"] >= 0:
        given["window_left"] += 1
    KERNELS["paged_decode_attention"](**given)


def _forgets_the_last_token(*args: Any, **kwargs: Any) -> None:
    given = OPERATORS["prefill_attention"].bound(args, kwargs)
    last = given["attn_output"][-1:].clone()
    KERNELS["prefill_attention"](**given)
    given["attn_output"][-1:] = last


def _writes_beside_the_slot(*args: Any, **kwargs: Any) -> None:
    given = OPERATORS["fill_kv_cache"].bound(args, kwargs)
    KERNELS["fill_kv_cache"](**given)
    slots = given["kv_indices"][given["kv_indices"] >= 0]
    if slots.numel():
        size = given["key_cache"].shape[1]
        beside = (int(slots[-1]) + 1) % (given["key_cache"].shape[0] * size)
        given["key_cache"][beside // size, beside % size] = 1


def _takes_the_next_best(
    router_logits: Tensor, topk: int, n_groups: int = -1, renormalize: bool = False
) -> Any:
    weights, ids = KERNELS["moe_gating_topk_softmax"](router_logits, topk, n_groups, renormalize)
    return weights, ids.roll(1, -1)


def _half_sums(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    total = torch.zeros(*x.shape[:-1], weight.shape[0], dtype=torch.bfloat16)
    for index in range(x.shape[-1]):
        total += (x[..., index : index + 1].float() * weight[:, index].float()).bfloat16()
    result = total.to(x.dtype) * 1.01
    return result if bias is None else result + bias


def _float32_whatever_is_asked(*args: Any, **kwargs: Any) -> Tensor:
    return KERNELS["linear_w8a8"](*args, **kwargs).float()


MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "rms_norm": (_no_epsilon, "elements are off"),
    "add_rms_norm": (_writes_its_input, "residual: changed where nothing may be written"),
    "silu_and_mul": (_wrong_half, "elements are off"),
    "dynamic_quant": (_truncates, "quantised elements differ where no tie explains it"),
    "paged_decode_attention": (_off_by_one_window, "elements are off"),
    "prefill_attention": (_forgets_the_last_token, "attn_output"),
    "fill_kv_cache": (_writes_beside_the_slot, "key_cache"),
    "moe_gating_topk_softmax": (_takes_the_next_best, "an expert was chosen before one of larger weight"),
    "linear": (_half_sums, "result"),
    "linear_w8a8": (_float32_whatever_is_asked, "expected torch.bfloat16"),
}


def run(vendor: str, wanted: CaseFilter | None = None, device: str = "cpu", **options: Any) -> RunReport:
    """In this process, which knows vendors that are not installed."""
    suite = DlinferSuite(vendor, device)
    return run_suite(suite, RunOptions(wanted or CaseFilter(), in_process=True, **options))


@pytest.fixture
def faulty() -> Iterator[str]:
    kernels = {**KERNELS, **{name: kernel for name, (kernel, _) in MISTAKES.items()}}
    with using(Vendor("faulty", "1", kernels)):
        yield "faulty"


def test_every_mistake_is_found_where_it_is_and_nothing_else(faulty: str) -> None:
    # float32 and bfloat16, every label once or twice: what fails is confirmed at length, so not all of them.
    failures = []
    for name, samples in SAMPLES.items():
        if name in MISTAKES:
            numbers = [n for n in range(min(samples.count, 40)) if n % 3 < 2]
            results = [check(make(name, number), faulty, "cpu") for number in numbers]
            failures += [result for result in results if result.status == "fail"]
    assert {result.function for result in failures} == set(MISTAKES)
    for name, (_, words) in MISTAKES.items():
        reasons = [r.reason for r in failures if r.function == name]
        assert any(words in reason for reason in reasons), (name, reasons[:3])
    windows = {r.label for r in failures if r.function == "paged_decode_attention"}
    assert windows and all("window" in label for label in windows), "only the cases that use it"


def test_the_others_are_not_accused(faulty: str) -> None:
    report = run(faulty, CaseFilter(frozenset(OPERATORS) - set(MISTAKES), quick=QUICK_CASES))
    assert (
        report.failures() == [] and report.counts()["pass"] == (len(OPERATORS) - len(MISTAKES)) * QUICK_CASES
    )


def test_a_failure_can_be_run_again_alone(faulty: str) -> None:
    first = run(faulty, CaseFilter(frozenset({"silu_and_mul"})), fail_fast=True).failures()[0]
    again = run(faulty, CaseFilter(case=first.id)).results
    assert [(r.id, r.reason) for r in again] == [(first.id, first.reason)]
    assert first.wrong[0].worst and first.arguments[0].startswith("input_tensor = ")


# ---- a vendor that crashes, refuses or has no kernel ----


def test_statuses_of_an_unfinished_vendor() -> None:
    def not_yet(*args: Any) -> None:
        raise NotImplementedError("no float16 yet")

    def breaks(*args: Any) -> None:
        raise RuntimeError("the chip is on fire")

    with using(Vendor("unfinished", "1", {"rms_norm": not_yet, "linear": breaks})):
        report = run(
            "unfinished", CaseFilter(frozenset({"rms_norm", "linear", "silu_and_mul"}), quick=QUICK_CASES)
        )
    seen = {(r.function, r.status, r.reason) for r in report.results}
    assert seen == {
        ("rms_norm", "unsupported", "no float16 yet"),
        ("linear", "fail", "raised RuntimeError: the chip is on fire"),
        ("silu_and_mul", "unsupported", "unfinished has no kernel for it on cpu: it falls to ref"),
    }


def test_a_vendor_that_says_it_checks_values_must_do_so() -> None:
    def careful(*args: Any, **kwargs: Any) -> None:
        OPERATORS["fill_kv_cache"].values(*args, **kwargs)
        KERNELS["fill_kv_cache"](*args, **kwargs)

    def careless(*args: Any, **kwargs: Any) -> None:
        given = OPERATORS["fill_kv_cache"].bound(args, kwargs)
        slots = given["key_cache"].shape[0] * given["key_cache"].shape[1]
        KERNELS["fill_kv_cache"](**{**given, "kv_indices": given["kv_indices"].clamp(-1, slots - 1)})

    for kernel, failures in ((careful, []), (careless, ["accepted a bad kv_indices"] * 2)):
        with using(Vendor("own", "1", {"fill_kv_cache": kernel}, values="own")):
            report = run("own", CaseFilter(frozenset({"fill_kv_cache"})))
        assert [r.reason for r in report.failures()] == failures


# ---- the samples ----


def test_there_are_enough_cases_of_every_operator() -> None:
    assert set(SAMPLES) == set(OPERATORS)
    assert sum(count_of(name) for name in SAMPLES) >= 2000
    for name, samples in SAMPLES.items():
        # Every label meets every dtype.
        assert samples.count >= len(samples.labels) * len(samples.dtypes), name


@pytest.mark.parametrize("name", ["paged_decode_attention", "fill_kv_cache", "fused_moe_w8a8"])
def test_a_case_is_the_same_every_time(name: str) -> None:
    for number in (0, 11, 40):
        one, other, seeded = make(name, number), make(name, number), make(name, number, seed=1)
        tensors = [k for k, v in one.arguments.items() if isinstance(v, Tensor)]
        assert all(
            torch.equal(torch.nan_to_num(one.arguments[k]), torch.nan_to_num(other.arguments[k]))
            for k in tensors
        )
        assert not all(
            one.arguments[k].shape == seeded.arguments[k].shape
            and torch.equal(torch.nan_to_num(one.arguments[k]), torch.nan_to_num(seeded.arguments[k]))
            for k in tensors
        )


def test_memory_is_placed_as_it_lies_and_watched() -> None:
    whole = torch.arange(12.0).view(3, 4)
    call = DeviceArguments({"x": whole[:, :2], "y": whole[1], "z": torch.ones(2)}, "cpu")
    assert call.arguments["x"].stride() == (4, 1)
    call.arguments["y"][0] = -1.0
    assert call.arguments["x"][1, 0] == -1.0, "what shares memory shares it there too"
    assert call.damaged(["y"]) == [] and call.damaged(["z"]) == ["x and y"]
    call.arguments["x"].as_strided((1,), (1,), 3).fill_(0.5)
    assert call.damaged(["x", "y"]) == ["x and y"], "a gap belongs to somebody else"
    assert whole[0, 3] == 3.0


# ---- the program ----


def test_the_reference_passes_quickly_and_all_reports_are_written(tmp_path: Path) -> None:
    files = [f"--{kind}={tmp_path / kind}" for kind in ("json", "junit", "html")]
    result = CliRunner().invoke(app, ["conformance", "--vendor", "ref", "--quick", *files])
    assert result.exit_code == 0, result.output
    assert "26 functions" in result.output
    report = read_json(tmp_path / "json")
    assert report.vendor == "ref" and report.counts()["pass"] == len(report.results) == 26 * QUICK_CASES
    assert report.suite == "dlinfer"
    root = ElementTree.parse(tmp_path / "junit").getroot()
    assert root.get("failures") == "0" and root.get("name") == "dlinfer conformance"
    assert {case.get("classname") for case in root.iter("testcase")} == {
        f"dlinfer.{name}" for name in OPERATORS
    }
    assert "paged_decode_attention" in (tmp_path / "html").read_text()


def test_a_report_that_cannot_be_written_is_said_and_the_others_are_there(tmp_path: Path) -> None:
    files = ["--json=/dev/full", f"--junit={tmp_path / 'junit'}"]
    result = CliRunner().invoke(app, ["conformance", "--vendor", "ref", "--case", "own:rms_norm:0", *files])
    assert result.exit_code == 2
    assert "dlinfer conformance: /dev/full cannot be written: No space left" in result.output
    assert ElementTree.parse(tmp_path / "junit").getroot().get("tests") == "1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vendor", "nobody"], "names no installed vendor of dlinfer: 'nobody'; installed are"),
        (["--operators", "paged_thing"], "no function of the interface is called 'paged_thing'"),
        (["--case", "own:rms_norm:9999"], "rms_norm has numbers from 0 to"),
        (["--case", "rms_norm"], "cases look like own:rms_norm:12"),
        (["--dtype", "float3"], "'float3' is no dtype"),
        (["--device", "toaster"], "the device 'toaster' cannot be used"),
    ],
)
def test_bad_usage_is_said_and_is_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["conformance", *arguments])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_table_shows_one_operator_or_lists_many() -> None:
    one = CliRunner().invoke(app, ["table", "rms_norm"]).output
    assert one.startswith("rms_norm(Tensor hidden_states, Tensor weight, float epsilon) -> Tensor")
    assert "declared in      dlinfer/interface/layers.py:" in one
    assert "kernel of ref    dlinfer/reference/layers.py:" in one
    many = CliRunner().invoke(app, ["table", "paged_*", "*norm*"]).output
    assert "6 operators" in many


def test_the_suite_refuses_a_device_that_is_not_there() -> None:
    with pytest.raises(SelectionError, match="cannot be used"):
        run("ref", device="meta:x")


@pytest.mark.device
def test_the_reference_passes_on_dipu() -> None:
    pytest.importorskip("torch_dipu")
    report = run("ref", CaseFilter(quick=QUICK_CASES), device="dipu")
    assert report.failures() == [] and report.counts()["pass"] == 26 * QUICK_CASES
    assert report.subject == "dlinfer on dipu"


@pytest.mark.device
def test_bad_values_on_dipu_are_refused() -> None:
    pytest.importorskip("torch_dipu")
    cache = torch.zeros(2, 2, 1, 4, device="dipu")
    states = torch.zeros(1, 1, 4, device="dipu")
    with pytest.raises(DlinferArgumentError, match="kv_indices"):
        torch.ops.dlinfer.fill_kv_cache(states, cache, None, None, torch.tensor([99], device="dipu"))


def test_the_reference_is_a_vendor_like_any_other() -> None:
    assert REF.kernels is KERNELS and REF.serves("anything")
