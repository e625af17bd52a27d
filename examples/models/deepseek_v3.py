"""DeepSeek-V3: attention over compressed keys and values (MLA), shared and routed experts, routing by groups."""

from __future__ import annotations

from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from language import SIZES, VOCABULARY
from training import Experiment, greedy, main, own_loss, token_samples


def build() -> Experiment:
    config = DeepseekV3Config(
        **SIZES,
        num_key_value_heads=4,
        q_lora_rank=32,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        first_k_dense_replace=1,
        moe_intermediate_size=48,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
    )
    return Experiment(DeepseekV3ForCausalLM(config), token_samples(VOCABULARY), own_loss, greedy)


if __name__ == "__main__":
    main(build)
