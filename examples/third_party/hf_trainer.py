"""The Trainer of transformers looks for CUDA by itself, and puts a part of each batch on every card it finds."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument("--rows", type=int, default=4, help="rows of a batch on each device")
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
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    rows = torch.randint(128, (32, 16))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=options.cpu,
            max_steps=4,
            per_device_train_batch_size=options.rows,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            logging_steps=1,
            save_steps=2,
            report_to="none",
            disable_tqdm=True,
            seed=0,
        )
        data = [{"input_ids": row, "labels": row} for row in rows]
        trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
        trainer.train()
        evaluation = trainer.evaluate()["eval_loss"]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    device = next(model.parameters()).device
    cards = 0 if options.cpu else torch.cuda.device_count()
    print(
        f"Trainer on {device}, {arguments.n_gpu} in all: loss {losses[0]:.4f} -> {losses[-1]:.4f}, evaluated {evaluation:.4f}"
    )
    if options.json:
        result = {
            "losses": [*losses, evaluation],
            "device": str(device),
            "peak_memory": min((torch.cuda.max_memory_allocated(card) for card in range(cards)), default=0),
        }
        options.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
