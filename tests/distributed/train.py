"""Trains a tiny Llama with DeepSpeed on each rank, and saves checkpoints and what it says.

torchrun --nproc_per_node 2 train.py FOLDER STAGE-DTYPE ...; checkpoints go to FOLDER/STAGE-DTYPE.
STAGE-DTYPE-groups freezes a layer and cuts the rest into groups, as trainers do.
"""

import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.integrations import HfDeepSpeedConfig

STEPS = 2
GREEDY = 6


def train(folder: Path, stage: int, dtype: str, groups: bool) -> None:
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "bf16": {"enabled": dtype == "bf16"},
        "fp16": {"enabled": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    if groups:
        settings["zero_optimization"]["sub_group_size"] = 20_000
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
    parameters: Any = model.parameters()
    if groups:
        model.model.layers[1].requires_grad_(False)
        norms = [w for name, w in model.named_parameters() if "norm" in name and w.requires_grad]
        others = [w for n, w in model.named_parameters() if "norm" not in n and w.requires_grad]
        parameters = [{"params": norms, "weight_decay": 0.0}, {"params": others}]
    engine = deepspeed.initialize(model=model, config=settings, model_parameters=parameters)[0]
    ids = torch.arange(12).view(1, -1)
    for step in range(1, STEPS + 1):
        own = ids + 7 * engine.global_rank
        engine.backward(engine(input_ids=own, labels=own).loss)
        engine.step()
        engine.save_checkpoint(str(folder), tag=f"global_step{step}")
    engine.eval()
    with torch.no_grad():
        logits = engine(input_ids=ids).logits.float()
        greedy = ids
        for _ in range(GREEDY):
            last = engine(input_ids=greedy).logits[:, -1]
            greedy = torch.cat([greedy, last.argmax(-1, keepdim=True)], dim=1)
    if engine.global_rank == 0:
        torch.save(logits, folder / "logits.pt")
        torch.save(greedy, folder / "greedy.pt")
        config.save_pretrained(folder)
    del alive


if __name__ == "__main__":
    deepspeed.init_distributed(dist_backend="gloo")
    for trained in sys.argv[2:]:
        stage, dtype, *groups = trained.split("-")
        train(Path(sys.argv[1], trained), int(stage), dtype, bool(groups))
