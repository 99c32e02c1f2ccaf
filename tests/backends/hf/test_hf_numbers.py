"""Entropies, logprobs and draws of SmolLM2: equal to a double-precision reference, in any batch."""

from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.protocols import Generation
from tests.fakes.hf_requests import QUESTIONS, answers, backend, request

LONGER = "Tell me a long story about the sea, the wind and a lighthouse. " * 3
TEXTS = ("Write a long story about a dragon.", QUESTIONS[2], LONGER, "Explain how rain forms.")


def reference(folder: Path, generations: list[Generation]) -> list[tuple[list[float], list[float]]]:
    """Entropies and logprobs of each row alone, from one double-precision forward over its ids."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    results = []
    for row in generations:
        assert row.prompt_ids is not None
        ids = torch.tensor([row.prompt_ids + row.token_ids])
        with torch.inference_mode():
            logits = model(ids, logits_to_keep=len(row.token_ids) + 1).logits[0, :-1]
        logprobs = logits.log_softmax(-1)
        chosen = logprobs.gather(-1, torch.tensor(row.token_ids).unsqueeze(-1)).squeeze(-1)
        results.append(((-(logprobs.exp() * logprobs).sum(-1)).tolist(), chosen.tolist()))
    return results


def test_entropy_and_logprob_equal_a_double_precision_reference(smollm2: Path) -> None:
    plain = [request(n, text, cap=60, top_p=1.0) for n, text in enumerate(TEXTS)]
    cut = [request(n + 4, text, cap=60, top_p=0.9) for n, text in enumerate(TEXTS)]
    made = backend(smollm2, batch_size=8)
    generations = answers(made, [*plain, *cut])
    assert len({row.prompt_tokens for row in generations}) == 4, "the batch is to be ragged"
    for part in (generations[:4], generations[4:]):
        assert sum(len(row.token_ids) for row in part) >= 200
    for row, (entropies, logprobs) in zip(
        generations, reference(smollm2, generations), strict=True
    ):
        assert row.entropies == pytest.approx(entropies, abs=1e-4)
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)
        assert max(entropies) - min(entropies) > 0.5


def same(one: Generation, other: Generation) -> None:
    assert (one.token_ids, one.text, one.finish_reason) == (
        other.token_ids,
        other.text,
        other.finish_reason,
    )
    assert one.entropies == pytest.approx(other.entropies, abs=1e-4)
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_rows_do_not_depend_on_batch_size_or_order(smollm2: Path) -> None:
    requests = [
        request(n, TEXTS[n % 4], cap=6, top_p=(1.0, 0.9)[n % 2], temperature=(0.8, 0.0)[n == 3])
        for n in range(16)
    ]
    alone, three, sixteen = (
        answers(backend(smollm2, batch_size=size), requests) for size in (1, 3, 16)
    )
    order = Random(1).sample(range(16), 16)
    shuffled = answers(backend(smollm2, batch_size=16), [requests[n] for n in order])
    for number in range(16):
        same(alone[number], three[number])
        same(alone[number], sixteen[number])
        same(alone[number], shuffled[order.index(number)])
