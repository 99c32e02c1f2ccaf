"""Numbers of quality against their definitions in float64."""

from pathlib import Path

import pytest
import torch

from components.quantization.quality import Compared, KeptLogits, divergence, windows
from pipeline.protocols import ForcedTokens


def test_numbers_are_what_their_names_say(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [ForcedTokens([1], [2, 3, 4]), ForcedTokens([5], [6, 0])]
    full = [torch.randn(len(row.token_ids), 9, generator=generator) * 3 for row in rows]
    other = [each + torch.randn(each.shape, generator=generator) for each in full]
    kept = KeptLogits(tmp_path / "logits", rows)
    for number, each in enumerate(full):
        kept(number, 0, each)
    compared = Compared(kept, rows)
    compared(1, 0, other[1])
    compared(0, 0, other[0][:1])
    compared(0, 1, other[0][1:])
    found = compared.quality()

    p, q = (torch.cat(each).double().softmax(-1) for each in (full, other))
    ids = torch.tensor([i for row in rows for i in row.token_ids])
    kl = (p * (p / q).log()).sum(-1)
    chosen = q[torch.arange(5), ids].log()
    entropies = [-(each * each.log()).sum(-1).mean() for each in (p, q)]
    assert found.positions == 5
    assert found.kl == pytest.approx(float(kl.mean()), rel=1e-5)
    assert found.kl_95 == pytest.approx(float(kl.quantile(0.95)), rel=1e-5)
    assert found.top1 == float((p.argmax(-1) == q.argmax(-1)).double().mean())
    assert found.perplexity == pytest.approx(float((-chosen.mean()).exp()), rel=1e-5)
    assert found.entropy == pytest.approx(float(entropies[1]), rel=1e-5)
    assert found.entropy_shift == pytest.approx(float(entropies[1] - entropies[0]), abs=1e-5)
    assert 0.2 < found.top1 < 1 and found.kl > 0.01


def test_a_model_does_not_diverge_from_itself_also_where_logits_are_extreme() -> None:
    logits = torch.tensor([[0.0, -1e4, 50.0], [1e4, 1e4, -1e4]])
    assert divergence(logits, logits).tolist() == [0, 0]


def test_a_text_is_read_in_rows_up_to_the_limit() -> None:
    rows = windows(range(100, 130), length=8, most=17)
    assert [row.prompt_ids for row in rows] == [[100], [108]]
    assert rows[1].token_ids == list(range(109, 116))
