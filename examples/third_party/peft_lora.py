"""peft: low-rank adapters on a frozen Llama, trained on CUDA, merged, and asked for text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument("--json", type=Path, help="write the losses here")
    options = parser.parse_args()

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=None,
    )
    base = LlamaForCausalLM(config)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base if options.cpu else base.cuda(), adapters)
    frozen = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2)
    rows = torch.randint(128, (4, 16))
    rows = rows if options.cpu else rows.cuda()

    losses = []
    for _ in range(4):
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    untouched = all(
        torch.equal(value, dict(model.named_parameters())[name]) for name, value in frozen.items()
    )
    merged = model.merge_and_unload().eval()
    with torch.no_grad():
        tokens = merged.generate(
            rows[:1, :4],
            attention_mask=torch.ones_like(rows[:1, :4]),
            max_new_tokens=8,
            do_sample=False,
            pad_token_id=0,
        )
    device = next(merged.parameters()).device
    print(
        f"LoRA on {device}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, frozen weights untouched: {untouched}"
    )
    if options.json:
        result = {
            "losses": losses,
            "tokens": tokens[0].tolist(),
            "frozen_untouched": untouched,
            "device": str(device),
            "peak_memory": 0 if options.cpu else torch.cuda.max_memory_allocated(),
        }
        options.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
