"""Text from the table of pieces is the tokenizer's own, and stops are found at the same ids."""

import random
from pathlib import Path

from components.decoding.prompt_encoder import PromptEncoder
from components.decoding.stop_text import StopText
from components.models.checkpoint import resolve
from components.models.tokenizer_loading import load_tokenizer
from pipeline.spec import ModelSpec

PARTS = ("né ", "日本語", "😀 x", "</th", "ink>", "abc ", "\n", "é", " a b")
STOPS = ("</think>", "zz", "語x")


def test_pieces_spell_and_stop_as_the_tokenizer_does(smollm2: Path) -> None:
    spec = ModelSpec(name="m", path=str(smollm2))
    encoder = PromptEncoder(load_tokenizer(resolve(spec, smollm2), spec), spec)
    assert encoder.pieces is not None
    rng, stopped = random.Random(3), 0
    for case in range(300):
        ids = [rng.randrange(49152) for _ in range(30)]
        whole = case % 2 == 0  # text without broken characters
        if whole:
            ids = encoder.tokenizer.encode("".join(rng.choices(PARTS, k=12)))
        slow = StopText(encoder.decode, STOPS, [1, 2])
        fast = StopText(encoder.decode, STOPS, [1, 2], encoder.pieces)
        for token in ids:
            over = slow.push(token)
            assert fast.push(token) == over
            if over:
                stopped += 1
                break
        slow.finish()
        fast.finish()
        assert (fast.text, fast.tail) == (slow.text, slow.tail)
        assert not whole or fast.ends == slow.ends
    assert stopped > 10
