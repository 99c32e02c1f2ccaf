"""Trains a tiny Llama with DeepSpeed on each rank, and saves checkpoints and what it says.

torchrun --nproc_per_node 2 train.py FOLDER STAGE-DTYPE ...; checkpoints go to FOLDER/STAGE-DTYPE.
"""

import sys
from pathlib import Path

import deepspeed
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.integrations import HfDeepSpeedConfig

STEPS = 2


def train(folder: Path, stage: int, dtype: str) -> None:
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "bf16": {"enabled": dtype == "bf16"},
        "fp16": {"enabled": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    alive = HfDeepSpeedConfig(settings)  # while it is, a model of stage 3 is cut as it is made
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32
    )
    engine = deepspeed.initialize(
        model=model, config=settings, model_parameters=model.parameters()
    )[0]
    ids = torch.arange(12).view(1, -1)
    for step in range(1, STEPS + 1):
        own = ids + 7 * engine.global_rank
        engine.backward(engine(input_ids=own, labels=own).loss)
        engine.step()
        engine.save_checkpoint(str(folder), tag=f"global_step{step}")
    engine.eval()
    with torch.no_grad():
        logits = engine(input_ids=ids).logits.float()
    if engine.global_rank == 0:
        torch.save(logits, folder / "logits.pt")
        config.save_pretrained(folder)
    del alive


if __name__ == "__main__":
    deepspeed.init_distributed(dist_backend="gloo")
    for trained in sys.argv[2:]:
        stage, dtype = trained.split("-")
        train(Path(sys.argv[1], trained), int(stage), dtype)
