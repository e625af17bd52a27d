"""The engine of vLLM as it is published, through dlinfer: greedy tokens equal to transformers'. Needs vLLM (docs/vllm.md)."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from forked_python import run_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: docs/vllm.md says how"
    ),
]
_PROGRAM = Path(__file__).parent / "vllm_program.py"
_POINTS = """[vllm.platform_plugins]
dlinfer = dlinfer.framework.vllm_ext:platform_plugin
[vllm.general_plugins]
dlinfer = dlinfer.framework.vllm_ext:register
"""
_SHARED = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}


def _model(kind: str, folder: Path) -> None:
    """A small model with random weights."""
    import torch
    import transformers

    configs = {
        "llama": transformers.LlamaConfig(**_SHARED),
        "mixtral": transformers.MixtralConfig(**_SHARED, num_local_experts=4, num_experts_per_tok=2),
        "gemma2": transformers.Gemma2Config(
            **_SHARED, head_dim=16, sliding_window=24, query_pre_attn_scalar=16
        ),
    }
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(configs[kind]).float().save_pretrained(folder)


@pytest.mark.parametrize("kind", ["llama", "mixtral", "gemma2"])
def test_greedy_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    _model(kind, tmp_path / "model")
    # The entry points as an installation writes them: this must work from a source tree too.
    points = tmp_path / "site" / "dlinfer_vllm-0.dist-info"
    points.mkdir(parents=True)
    (points / "METADATA").write_text("Metadata-Version: 2.1\nName: dlinfer-vllm\nVersion: 0\n")
    (points / "entry_points.txt").write_text(_POINTS)
    environment = os.environ | {
        "DLINFER_VLLM_DEVICE": "cpu",
        "VLLM_PLUGINS": "dlinfer",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(points.parent), os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        ),
    }
    done = run_python(str(_PROGRAM), str(tmp_path / "model"), env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["once"] == answer["right"]
    assert answer["again"] == answer["right"]
    ran = {
        "fill_kv_cache",
        "paged_prefill_attention",
        "paged_decode_attention",
        "linear",
        "apply_rotary_pos_emb",
    }
    if kind != "gemma2":  # its norms and activation are its own classes
        ran |= {"rms_norm", "add_rms_norm"}
    if kind == "mixtral":
        ran |= {"moe_gating_topk_softmax", "fused_moe"}
    assert ran <= set(answer["calls"])
