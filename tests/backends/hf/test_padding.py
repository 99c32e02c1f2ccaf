"""Rows do not depend on their company, also in models whose own code lets them."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from components.backends.hf.padding import Sharing, rotary_switch, sharing
from pipeline.protocols import Generation, Request
from pipeline.spec import Sampling
from tests.fakes.hf_requests import answers, backend, request
from tests.fakes.slots import backend as slots_backend
from tests.fakes.slots import decode, requests, same
from tests.fakes.tiny_models import tiny

PLAIN = [Sampling(temperature=0.8, top_p=1.0)]
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 96,
}


def alone(folder: Path, asked: Sequence[Request], **fields: Any) -> list[Generation]:
    made = backend(folder, batch_size=1, **fields)
    return answers(made, asked)


@pytest.mark.parametrize(
    ("kind", "shares", "fields"),
    [
        ("rwkv", "no two rows share", {"attention_hidden_size": 64, "context_length": 2048}),
        (
            "recurrent_gemma",
            "equal length share",
            {"block_types": ["recurrent", "attention"], "head_dim": 16},
        ),
        ("mamba", "", {"state_size": 4}),
    ],
)
def test_rows_of_models_that_read_padding_are_what_they_are_alone(
    kind: str,
    shares: str,
    fields: dict[str, Any],
    smollm2: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tiny(kind, smollm2, tmp_path, **fields)
    asked = requests(5, PLAIN, samples=2, caps=(1, 10))
    with caplog.at_level(logging.WARNING):
        together = answers(backend(folder, batch_size=8, attn_implementation="eager"), asked)
    assert ("mixes padded rows" in caplog.text) == bool(shares) and shares in caplog.text
    for ours, theirs in zip(
        together, alone(folder, asked, attn_implementation="eager"), strict=True
    ):
        same(ours, theirs)


def test_the_trial_of_padding_passes_models_that_mask_it(smollm2: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny("llama", smollm2, tmp_path))
    assert {sharing(model, use_cache) for use_cache in (True, False)} == {Sharing.PADDED}


@pytest.mark.parametrize("decoder", ["auto", "generate"])
def test_a_row_beyond_the_short_factors_of_longrope_changes_no_other(
    decoder: str, smollm2: Path, tmp_path: Path
) -> None:
    fields = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 96}
    folder = tiny("phi3", smollm2, tmp_path, **fields)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert rotary_switch(model) == 96
    short = [request(n, cap=12) for n in range(4)]
    long = request(4, "one two three four five " * 30, cap=12)
    crossing = request(5, "one two three four " * 12, cap=60)
    asked = [*short, long, crossing]
    expected = alone(folder, asked)
    together = answers(backend(folder, decoder=decoder, batch_size=8), asked)
    for ours, theirs in zip(together, expected, strict=True):
        same(ours, theirs)
    assert expected[5].prompt_tokens < 96 < expected[5].prompt_tokens + len(expected[5].token_ids)
    for row in expected[:5]:
        same_as_forward(model, row)


def test_layers_that_attend_in_chunks_equal_the_models_own_forward(
    smollm2: Path, tmp_path: Path
) -> None:
    fields = {
        "attention_chunk_size": 32,
        "num_local_experts": 2,
        "intermediate_size_mlp": 128,
        "head_dim": 16,
        "layer_types": ["chunked_attention", "full_attention"],
    }
    folder = tiny("llama4_text", smollm2, tmp_path, **fields)
    asked = requests(4, PLAIN, caps=(40, 60))
    about: dict[str, Any] = {}
    rows = decode(
        slots_backend(folder, decoder="auto"), asked, lambda b: about.update(b.describe())
    )
    assert about["decoder"] == "generate"
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    for row in rows:
        same_as_forward(model, row)


def same_as_forward(model: Any, row: Generation) -> None:
    """Entropies are those of one forward of the whole row."""
    ids = torch.tensor([[*(row.prompt_ids or []), *row.token_ids]])
    with torch.inference_mode():
        logs = model(ids).logits[0, -len(row.token_ids) - 1 : -1].double().log_softmax(-1)
    expected = -(logs.exp() * logs).sum(-1)
    assert torch.allclose(torch.tensor(row.entropies).double(), expected, atol=1e-3)
