"""dlinfer's platform and layers under vLLM, with stand-ins for vLLM's classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import vllm_stand_in as stand_in

from dlinfer.framework import vllm_ext
from dlinfer.settings import VLLM_DEVICE

pytestmark = pytest.mark.unit


@pytest.fixture
def layers() -> Iterator[Any]:
    with stand_in.installed():
        from dlinfer.framework.vllm_ext import layers as module

        yield module


@pytest.fixture
def platform() -> Iterator[Any]:
    with stand_in.installed():
        from dlinfer.framework.vllm_ext.platform import DlinferPlatform

        yield DlinferPlatform


# ---- entry points ----


def test_vllm_is_left_alone_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VLLM_DEVICE.name, raising=False)
    assert vllm_ext.platform_plugin() is None
    vllm_ext.register()  # must not even import vLLM, which is not here


def test_the_platform_is_found_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VLLM_DEVICE.name, "cpu")
    path = vllm_ext.platform_plugin()
    assert path is not None
    module, _, name = path.rpartition(".")
    with stand_in.installed():
        import importlib

        assert issubclass(getattr(importlib.import_module(module), name), stand_in.Platform)


def test_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VLLM_DEVICE.name, "cuda")
    with pytest.raises(ValueError, match="DLINFER_VLLM_DEVICE: expected cpu, got 'cuda'"):
        vllm_ext.register()


def test_layers_are_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VLLM_DEVICE.name, "cpu")
    with stand_in.installed():
        vllm_ext.register()
        vllm_ext.register()
        names = set(stand_in.op_registry_oot)
        ours = {kind.__name__ for kind in stand_in.op_registry_oot.values()}
    assert {
        "RMSNorm",
        "SiluAndMul",
        "RotaryEmbedding",
        "QKVParallelLinear",
        "UnquantizedFusedMoEMethod",
    } <= names
    assert all(name.startswith("Dlinfer") for name in ours)
    assert len(ours) == len(names) == 15


# ---- platform ----


class Wish(NamedTuple):
    head_size: int = 64
    dtype: torch.dtype = torch.float32
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    use_mla: bool = False
    has_sink: bool = False
    use_sparse: bool = False
    use_mm_prefix: bool = False
    use_per_head_quant_scales: bool = False
    attn_type: str = "decoder"


def test_attention_is_ours_or_refused(platform: Any) -> None:
    assert platform.get_attn_backend_cls(None, Wish()).endswith(".attention.DlinferAttentionBackend")
    with pytest.raises(ValueError, match="MLA not supported"):
        platform.get_attn_backend_cls(None, Wish(use_mla=True))


def _config(**given: Any) -> SimpleNamespace:
    absent = dict.fromkeys(("speculative_config", "lora_config", "kv_transfer_config"))
    return SimpleNamespace(
        **absent | given,
        compilation_config=SimpleNamespace(mode=3, cudagraph_mode=2, cudagraph_capture_sizes=[1]),
        scheduler_config=SimpleNamespace(async_scheduling=True),
        parallel_config=SimpleNamespace(worker_cls="auto", disable_custom_all_reduce=False),
    )


def test_the_configuration_is_brought_to_what_runs(platform: Any) -> None:
    config = _config()
    platform.apply_config_platform_defaults(config)
    platform.check_and_update_config(config)
    assert config.compilation_config.mode == "no compilation"
    assert config.compilation_config.cudagraph_mode == "no graphs"
    assert config.parallel_config.worker_cls.endswith(".worker.DlinferWorker")
    assert config.scheduler_config.async_scheduling is False


def test_a_worker_of_the_users_own_stays(platform: Any) -> None:
    config = _config()
    config.parallel_config.worker_cls = "mine.Worker"
    platform.check_and_update_config(config)
    assert config.parallel_config.worker_cls == "mine.Worker"


@pytest.mark.parametrize("feature", ["speculative_config", "lora_config", "kv_transfer_config"])
def test_features_without_kernels_are_refused(platform: Any, feature: str) -> None:
    with pytest.raises(ValueError, match="needs vLLM's own kernels"):
        platform.check_and_update_config(_config(**{feature: object()}))


def test_triton_with_a_device_is_refused(platform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vllm.triton_utils"], "HAS_TRITON", True)
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES="):
        platform.check_and_update_config(_config())


def test_slots_of_new_tokens(platform: Any) -> None:
    platform.register_triton_kernel_overrides()
    ((path, kernel),) = stand_in.REGISTERED.items()
    assert path == "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel"
    table = torch.tensor([[5, 2, 0], [7, 1, 0]], dtype=torch.int32)
    slots = torch.full((8,), 99)
    constants = {
        "KV_CACHE_BLOCK_SIZE": 4,
        "TOTAL_CP_WORLD_SIZE": 1,
        "TOTAL_CP_RANK": 0,
        "CP_KV_CACHE_INTERLEAVE_SIZE": 1,
        "PAD_ID": -1,
        "BLOCK_SIZE": 1024,
    }
    # Two tokens of the first sequence at 3 and 4, three of the second at 0 to 2.
    starts, positions = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([3, 4, 0, 1, 2, 0, 0, 0])
    kernel(5, 8, starts, positions, table, 3, slots, **constants)
    assert slots.tolist() == [5 * 4 + 3, 2 * 4, 7 * 4, 7 * 4 + 1, 7 * 4 + 2, -1, -1, -1]
    with pytest.raises(ValueError, match="context parallelism"):
        kernel(5, 8, starts, positions, table, 3, slots, **constants | {"TOTAL_CP_WORLD_SIZE": 2})


# ---- layers ----


def test_norm_with_and_without_residual(layers: Any) -> None:
    norm = layers.DlinferRMSNorm(16, eps=1e-5)
    norm.weight.data.copy_(torch.linspace(0.5, 2, 16))
    x, residual = torch.randn(3, 16), torch.randn(3, 16)
    right = torch.nn.functional.rms_norm
    torch.testing.assert_close(norm.forward_oot(x), right(x, (16,), norm.weight, 1e-5))
    found, total = norm.forward_oot(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(found, right(x + residual, (16,), norm.weight, 1e-5))
    assert layers.DlinferRMSNorm(16, has_weight=False).forward_oot(x) == "native"
    assert layers.DlinferRMSNorm(16, var_hidden_size=8).forward_oot(x) == "native"


def test_activation(layers: Any) -> None:
    x = torch.randn(3, 16)
    right = torch.nn.functional.silu(x[:, :8]) * x[:, 8:]
    torch.testing.assert_close(layers.DlinferSiluAndMul().forward_oot(x), right)


def _rotated(x: torch.Tensor, angle: torch.Tensor, halves: bool, rotary: int) -> torch.Tensor:
    """Each pair of elements as a complex number times e^(i angle)."""
    whole = x.clone()
    turned = x[..., :rotary]
    first, second = turned.chunk(2, -1) if halves else (turned[..., ::2], turned[..., 1::2])
    number = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)[:, None]
    parts = (number.real, number.imag)
    whole[..., :rotary] = torch.cat(parts, -1) if halves else torch.stack(parts, -1).flatten(-2)
    return whole


@pytest.mark.parametrize(("halves", "rotary"), [(True, 8), (True, 4), (False, 8)])
def test_rotary(layers: Any, halves: bool, rotary: int) -> None:
    made = layers.LAYERS[stand_in.RotaryEmbedding](8, rotary, 64, 100.0, halves, torch.float32)
    positions = torch.tensor([3, 60, 0, 7, 7])
    query, key = torch.randn(5, 4 * 8), torch.randn(5, 2 * 8)
    found = made.forward_oot(positions, query, key)
    angle = positions[:, None] * 100.0 ** -(torch.arange(0, rotary, 2) / rotary)
    for states, result in zip((query, key), found, strict=True):
        right = _rotated(states.view(5, -1, 8), angle, halves, rotary).flatten(1)
        torch.testing.assert_close(result, right, atol=1e-5, rtol=1e-5)


def test_rotary_beyond_the_operators_is_vllms(layers: Any) -> None:
    pairs = layers.LAYERS[stand_in.RotaryEmbedding](8, 4, 64, 100.0, False, torch.float32)
    states = torch.randn(2, 8)
    assert pairs.forward_oot(torch.tensor([0, 1]), states, states) == "native"
    halves = layers.LAYERS[stand_in.RotaryEmbedding](8, 8, 64, 100.0, True, torch.float32)
    assert halves.forward_oot(torch.tensor([0, 1]), states) == "native"


def test_linear_layers_take_our_method_for_plain_weights_only(layers: Any) -> None:
    for base, ours in layers.LAYERS.items():
        if issubclass(base, stand_in.LinearBase):
            plain = ours(stand_in.UnquantizedLinearMethod()).quant_method
            head = ours(stand_in.UnquantizedEmbeddingMethod()).quant_method
            assert isinstance(plain, layers.DlinferLinearMethod)
            assert isinstance(head, layers.DlinferEmbeddingMethod)
            quantised = object()
            assert ours(quantised).quant_method is quantised
    layer = SimpleNamespace(weight=torch.randn(6, 4))
    x, bias = torch.randn(3, 4), torch.randn(6)
    for method in (layers.DlinferLinearMethod(), layers.DlinferEmbeddingMethod()):
        torch.testing.assert_close(method.apply(layer, x, bias), x @ layer.weight.t() + bias)


def _experts(**given: Any) -> SimpleNamespace:
    usual = {
        "activation": "silu", "scoring_func": "softmax", "use_grouped_topk": False, "e_score_correction_bias": None,
        "custom_routing_function": None, "swiglu_limit": None, "routed_scaling_factor": 1.0,
        "apply_router_weight_on_input": False, "top_k": 2, "renormalize": True,
    }  # fmt: skip
    return SimpleNamespace(**usual | given)


def _moe(layers: Any) -> Any:
    parallel = SimpleNamespace(use_ep=False)
    return layers.DlinferFusedMoEMethod(SimpleNamespace(has_bias=False, moe_parallel_config=parallel))


@pytest.mark.parametrize("renormalize", [True, False])
def test_experts(layers: Any, renormalize: bool) -> None:
    layer = _experts(
        w13_weight=torch.randn(4, 12, 8), w2_weight=torch.randn(4, 8, 6), renormalize=renormalize
    )
    x, logits = torch.randn(5, 8), torch.randn(5, 4)
    right = torch.zeros(5, 8)
    for token in range(5):
        chances = logits[token].softmax(0)
        best = chances.topk(2)
        shares = best.values / best.values.sum() if renormalize else best.values
        for share, expert in zip(shares, best.indices.tolist(), strict=True):
            gate, up = (layer.w13_weight[expert] @ x[token]).chunk(2)
            right[token] += share * (layer.w2_weight[expert] @ (torch.nn.functional.silu(gate) * up))
    method = _moe(layers)
    assert method.is_monolithic
    torch.testing.assert_close(method.apply_monolithic(layer, x, logits), right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"activation": "gelu"}, "gelu"),
        ({"scoring_func": "sigmoid"}, "sigmoid"),
        ({"use_grouped_topk": True}, "groups"),
        ({"e_score_correction_bias": torch.zeros(4)}, "correction"),
        ({"custom_routing_function": len}, "routing function"),
        ({"routed_scaling_factor": 2.5}, "factor"),
        ({"apply_router_weight_on_input": True}, "router weights"),
    ],
)
def test_experts_beyond_the_operators_are_refused_when_the_model_is_made(
    layers: Any, given: dict[str, Any], word: str
) -> None:
    method = _moe(layers)
    with pytest.raises(ValueError, match=word):
        method.create_weights(_experts(**given), 4, 8, 6, torch.float32)
    usual = _experts()
    method.create_weights(usual, 4, 8, 6, torch.float32)
    assert usual.created
