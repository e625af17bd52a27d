"""LMDeploy with `eager_mode=False`: decoding is one graph, and the tokens are those of transformers.

Everything runs in one process of its own, started once: see lmdeploy_graph_worker.py.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from lmdeploy_jobs import answer_of
from lmdeploy_runs import results_of

if find_spec("lmdeploy") is None:
    pytest.skip("LMDeploy is not installed", allow_module_level=True)

pytestmark = pytest.mark.unit

MODELS = ("llama3", "internlm25", "mixtral", "recorded")
LAYERS = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(tmp_path_factory, "lmdeploy_graph_worker", timeout=220)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_transformers_for_batches_of_8_to_1(results: dict[str, Any], name: str) -> None:
    answer = answer_of(results, name)
    assert answer["got"] == answer["expected"]
    assert answer["alone"] == answer["expected"][0]
    assert len(set(answer["alone"])) >= 12, "a model that repeats itself would prove nothing"


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_with_all_operators_serves_every_batch(results: dict[str, Any], name: str) -> None:
    answer = answer_of(results, name)
    assert answer["graphs"] == 1
    operators = answer["operators"]
    assert operators["paged_decode_attention"] == operators["fill_kv_cache"] == LAYERS
    assert operators["apply_rotary_pos_emb"] == LAYERS
    assert operators["rms_norm"] == 1 and operators["add_rms_norm"] == 2 * LAYERS
    assert operators.get("fused_moe", 0) == (LAYERS if name == "mixtral" else 0)
    assert answer["writes"] == 2 * LAYERS, "the caches, in place"


@pytest.mark.parametrize("name", MODELS[:-1])
def test_every_decoding_step_ran_in_the_graph(results: dict[str, Any], name: str) -> None:
    """The longest answer has 40 tokens, of which prefill writes the first; it was asked for twice."""
    assert answer_of(results, name)["runs"] >= 2 * 39


def test_backends_that_record_get_padded_batches(results: dict[str, Any]) -> None:
    assert answer_of(results, "recorded")["sizes"] == [1, 2, 4, 8]


def test_the_sizes_that_lmdeploy_is_told(results: dict[str, Any]) -> None:
    answer = answer_of(results, "sizes")
    assert answer["eager"] == answer["none"] == [1, 2, 3, 8, 9, 16, 17, 48, 250, 257, 600]
    assert answer["recorded"] == [1, 2, 4, 8, 16, 16, 32, 48, 256, 512, 768]
