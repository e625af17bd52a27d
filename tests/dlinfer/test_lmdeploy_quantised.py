"""Quantised checkpoints and caches of 8 bits through LMDeploy as it is published, and refusals of what it cannot serve here.

Tokens are those of transformers with the same arithmetic in plain torch (lmdeploy_quantised_models.py), up to the first that was
nearly another. Checkpoints have nothing but the quantised weights; the steps of caches are so coarse that tokens differ from
those of caches as they are.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from lmdeploy_jobs import answer_of
from lmdeploy_runs import results_of

if find_spec("lmdeploy") is None:
    pytest.skip("LMDeploy is not installed", allow_module_level=True)

OPERATORS = {
    "awq": {"weight_quant_matmul"},
    "int8": {"rms_norm_w8a8", "add_rms_norm_w8a8", "dynamic_quant", "linear_w8a8"},
    "float8": {"rms_norm_w8a8", "add_rms_norm_w8a8", "dynamic_quant", "linear_w8a8"},
    "experts": {"linear_w8a8", "fused_moe_w8a8"},
    "cache": {"fill_kv_cache", "prefill_attention", "paged_prefill_attention", "paged_decode_attention"},
}
CACHES = ("cache", "cache of another engine")
REFUSALS = {
    "4 bits": "quant_policy=4",
    "float8": "quant_policy=16",
    "no file": "ASCEND_QUANT_RECORD_FILE is not set",
    "no such file": "cannot be read",
    "other layers": "has 3 scales, and the model has 2 layers",
    "on loading": "model_format='fp8'",
    "no zeros": "zero_point is False, expected True",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(tmp_path_factory, "lmdeploy_quantised_worker", timeout=220)


@pytest.mark.parametrize("name", [*OPERATORS, CACHES[1]])
def test_tokens_are_those_of_the_same_arithmetic(results: dict[str, Any], name: str) -> None:
    answer = answer_of(results, name)
    assert [len(got) for got in answer["got"]] == [24] * 4
    pairs = zip(answer["got"], answer["expected"], strict=True)
    assert [got[: len(expected)] for got, expected in pairs] == answer["expected"]
    assert (
        sum(len(set(expected)) for expected in answer["expected"]) >= 20
    )  # of 96, the rest comes after near ties


@pytest.mark.parametrize("name", OPERATORS)
def test_the_operators_of_its_kind_did_it(results: dict[str, Any], name: str) -> None:
    assert answer_of(results, name)["operators"].keys() >= OPERATORS[name]


@pytest.mark.parametrize("name", CACHES)
def test_caches_of_8_bits_matter(results: dict[str, Any], name: str) -> None:
    answer = answer_of(results, name)
    assert answer["caches"] == [
        "torch.int8",
        "torch.int8",
    ]  # with a sign, and no scales of tokens beside them
    pairs = zip(answer["plain"], answer["expected"], strict=True)
    assert sum(plain[: len(expected)] != expected for plain, expected in pairs) >= 2


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_served_ends_with_the_reason(results: dict[str, Any], name: str) -> None:
    assert REFUSALS[name] in answer_of(results, "refusals")[name]


def test_only_weights_that_are_served_are_loaded(results: dict[str, Any]) -> None:
    for reason, messages in answer_of(results, "refused weights").items():
        for message in messages:
            assert reason in message if reason else not message


def test_the_token_of_padding_can_be_written(results: dict[str, Any]) -> None:
    answer = answer_of(results, "padding")
    assert answer["token"] in answer["expected"]
    assert answer["got"] == answer["expected"]
