"""Qwen3-MoE (as Qwen3-30B-A3B): every token goes to two of eight experts; their load is balanced by a second loss."""

from __future__ import annotations

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from language import SIZES, VOCABULARY
from training import Experiment, greedy, main, own_loss, token_samples


def build() -> Experiment:
    config = Qwen3MoeConfig(
        **SIZES,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        norm_topk_prob=True,
        output_router_logits=True,
    )
    return Experiment(Qwen3MoeForCausalLM(config), token_samples(VOCABULARY), own_loss, greedy)


if __name__ == "__main__":
    main(build)
