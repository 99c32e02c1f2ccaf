"""Ranks of which the last fails while it loads, and rank 0 waits for ever in a call of its own."""

import time
from typing import Any

import torch

from components.backends.hf.spread import Spread
from components.ranks.place import place


def load() -> Any:
    if ranks.rank == ranks.world - 1:
        raise RuntimeError("no memory for this")
    time.sleep(1000)


if __name__ == "__main__":
    ranks = place()
    spread = Spread(ranks, True, torch.device("cpu"))
    if spread.follows:
        spread.follow(load, lambda: None)
    spread.begin(lambda why: print("heard"))
    time.sleep(1000)
