"""Seeds that depend on what a row is, never on where or in which order it is made."""

import hashlib
import json


def row_seed(
    run_seed: int, example_id: str, sample_idx: int, cue_text: str | None, phase: str
) -> int:
    """64-bit seed of one generation. Without temperature: a sweep uses common random numbers."""
    key = json.dumps([run_seed, example_id, sample_idx, cue_text, phase], ensure_ascii=False)
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
