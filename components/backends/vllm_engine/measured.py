"""Entropies measured in vLLM's worker process, kept there until this process fetches them.

vLLM's logits processors run where the logits are and can hand nothing back; a method that vLLM
adds to its worker can. Nothing here imports vLLM.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

EXTRA = "rethink"  # of SamplingParams.extra_args: [key, length of the prompt]
DRAWABLE = "rethink_drawable"  # of additional_config: ids from here on are no tokens
WORKER_METHOD = "rethink_take_entropies"
_ROWS = 64  # rows measured together: what is computed for more takes memory that vLLM has not kept
_STEPS = 256  # steps after which values leave the device
_ENDED = 4096  # requests that are remembered after they were fetched

Place = tuple[int, int]  # a request's key, and the index of the token about to be drawn


class Measured:
    """Values by request and index.

    An index may be measured again: by a prompt that is read in pieces, of which only the last one's
    logits count, and by a request that was preempted and reads its own tokens again.
    """

    def __init__(self) -> None:
        """Nothing is measured yet."""
        self._steps: list[tuple[Sequence[Place], Tensor]] = []
        self._of: dict[int, dict[int, float]] = {}
        self._ended: dict[int, None] = {}

    def put(self, places: Sequence[Place], entropies: Tensor) -> None:
        """Keep the entropies [places] of one step, without waiting for the device."""
        self._steps.append((places, entropies))
        if len(self._steps) >= _STEPS:
            self._read()

    def take(self, ended: Sequence[int]) -> list[list[float | None]]:
        """What was measured of each request that has ended, by index; it is forgotten here."""
        self._read()
        taken = []
        for key in ended:
            values = self._of.pop(key, {})
            taken.append([values.get(index) for index in range(max(values, default=-1) + 1)])
            self._ended[key] = None
        for key in list(self._ended)[:-_ENDED]:
            del self._ended[key]
        return taken

    def _read(self) -> None:
        steps, self._steps = self._steps, []
        if not steps:
            return
        values = torch.cat([entropies for _, entropies in steps]).tolist()
        places = [place for step, _ in steps for place in step]
        for (key, index), value in zip(places, values, strict=True):
            if key not in self._ended:  # vLLM may compute a step more than a request needs
                self._of.setdefault(key, {})[index] = value


MEASURED = Measured()  # of this process: vLLM makes the processor and the worker apart


class MeasuringWorker:
    """What vLLM adds to its worker (`worker_extension_cls`)."""

    def rethink_take_entropies(self, ended: list[int]) -> list[list[float | None]]:
        """As `Measured.take`."""
        return MEASURED.take(ended)


def watched(params: Any) -> Place | None:
    """Key and prompt length of a request that wants entropies."""
    key = (params.extra_args or {}).get(EXTRA)
    return None if key is None else (int(key[0]), int(key[1]))


def observe(logits: Tensor, rows: Sequence[int], places: Sequence[Place]) -> None:
    """Measure rows of raw float32 logits [all rows, vocabulary], at temperature 1."""
    if not rows:
        return
    chosen = logits if len(rows) == len(logits) else logits[torch.tensor(rows).to(logits.device)]
    parts = torch.split(chosen, _ROWS)
    MEASURED.put(places, torch.cat([_entropies(part) for part in parts]))


def bar(logits: Tensor, drawable: int) -> Tensor:
    """The logits, minus infinity for ids that the tokenizer does not have; changed in place."""
    if drawable < logits.shape[-1]:
        logits[:, drawable:] = -torch.inf
    return logits


def _entropies(logits: Tensor) -> Tensor:
    """Nats. `entropy_and_logsumexp` asks the device whether all is finite, each step."""
    terms: Tensor = torch.special.entr(torch.softmax(logits, dim=-1))
    return terms.sum(dim=-1)
