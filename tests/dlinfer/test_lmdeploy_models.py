"""Small models with random weights through LMDeploy as it is published: the tokens are those of transformers.

Everything runs in one process of its own, started once: see lmdeploy_worker.py.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from lmdeploy_jobs import answer_of
from lmdeploy_runs import results_of

if find_spec("lmdeploy") is None:
    pytest.skip("LMDeploy is not installed", allow_module_level=True)

LANGUAGE_MODELS = (
    "llama3",
    "llama31",
    "internlm2",
    "internlm25",
    "qwen2",
    "mixtral",
    "qwen2_moe",
    "mistral",
    "gemma2",
)
OTHER_WAYS = ("llama3 on camb", "mixtral on maca", "mistral in pieces", "gemma2 in pieces")
SEEING_MODELS = ("llava", "qwen2_vl")
ALWAYS = {
    "rms_norm",
    "add_rms_norm",
    "apply_rotary_pos_emb",
    "fill_kv_cache",
    "prefill_attention",
    "paged_decode_attention",
}
EXPERTS = {"moe_gating_topk_softmax", "fused_moe"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(tmp_path_factory, "lmdeploy_worker", timeout=220)


def test_every_model_ran(results: dict[str, Any]) -> None:
    assert set(results) == {*LANGUAGE_MODELS, *SEEING_MODELS, *OTHER_WAYS, "neighbours", "keywords", "seeds"}


@pytest.mark.parametrize("name", [*LANGUAGE_MODELS, *SEEING_MODELS, *OTHER_WAYS])
def test_tokens_are_those_of_transformers(results: dict[str, Any], name: str) -> None:
    answer = answer_of(results, name)
    assert answer["got"] == answer["expected"]


@pytest.mark.parametrize("name", [*LANGUAGE_MODELS, *SEEING_MODELS])
def test_equal_tokens_prove_something(results: dict[str, Any], name: str) -> None:
    """A model that repeats itself, or answers the same to everything, would be right with broken attention."""
    expected = answer_of(results, name)["expected"]
    assert all(len(set(tokens)) >= 12 for tokens in expected)
    assert len({tuple(tokens) for tokens in expected}) == len(expected)


@pytest.mark.parametrize("name", [*LANGUAGE_MODELS, *SEEING_MODELS])
def test_operators_of_dlinfer_did_it(results: dict[str, Any], name: str) -> None:
    used = set(answer_of(results, name)["operators"])
    middle = {"mixtral": EXPERTS, "qwen2_moe": EXPERTS, "gemma2": set()}.get(name, {"silu_and_mul"})
    wanted = ALWAYS | middle
    assert wanted <= used


@pytest.mark.parametrize("name", ["mistral in pieces", "gemma2 in pieces"])
def test_a_prompt_in_pieces_reads_the_cache(results: dict[str, Any], name: str) -> None:
    assert "paged_prefill_attention" in answer_of(results, name)["operators"]


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_model_saved_in_float32_is_served_in_float32(results: dict[str, Any], name: str) -> None:
    assert answer_of(results, name)["dtype"] == "torch.float32"


def test_engines_take_turns_in_one_process(results: dict[str, Any]) -> None:
    answer = answer_of(results, "neighbours")
    assert answer["got"] == answer["expected"]


def test_request_output_len_limits_theanswer_of(results: dict[str, Any]) -> None:
    answer = answer_of(results, "keywords")
    assert [written for written, _ in answer["plain"]] == [9, 9]
    assert [written for written, _ in answer["chat"]] == [5, 5]
    assert answer["alone"] == 3
    assert answer["stream"] == 6
    # Without a config of one's own, the end of text may come earlier.
    assert all(1 <= written <= 4 for written in answer["default"])


def test_do_preprocess_decides_about_the_chat_template(results: dict[str, Any]) -> None:
    answer = answer_of(results, "keywords")
    assert [read for _, read in answer["plain"]] == answer["plain_input"]
    assert [read for _, read in answer["chat"]] == answer["chat_input"]
    assert answer["plain_text"] == answer["expected_text"]


def test_the_callers_config_is_left_alone(results: dict[str, Any]) -> None:
    assert answer_of(results, "keywords")["callers_config"] == 20


def test_a_wrong_length_is_refused(results: dict[str, Any]) -> None:
    messages = answer_of(results, "keywords")["refused"]
    assert len(messages) == 5
    assert all("request_output_len" in message and "at least 1" in message for message in messages)


def test_a_seed_gives_the_same_answer_again(results: dict[str, Any]) -> None:
    drawn = answer_of(results, "seeds")["drawn"]
    assert len(drawn["first"][0]) == 12
    assert drawn["first"] == drawn["again"] == drawn["beside others"]
    others = [drawn[name] for name in ("first", "another seed", "no seed", "no seed again")]
    assert all(one != other for place, one in enumerate(others) for other in others[:place])


def test_a_prompt_without_tokens_ends_nothing(results: dict[str, Any]) -> None:
    answer = answer_of(results, "seeds")
    assert answer["empty"] == ["error", 0]
    assert answer["after"] == answer["drawn"]["first"]
