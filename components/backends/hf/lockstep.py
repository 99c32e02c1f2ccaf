"""Several ranks that make the same calls of `generate`, step by step; rank 0 draws for all.

Rank 0 has the requests. Before each call it tells the others what to compute; at each step they
hand it their logits and hear the ids that it drew, and which rows have ended. So every rank makes
as many calls, of as many steps, and only rank 0 needs requests, stop strings and noise.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from components.backends.hf.padding import padded
from components.ranks.links import Links

FILLER = [0]  # the prompt of a rank without rows


class Lockstep:
    """One rank's side of it.

    With `split` each rank computes rows of its own, as where weights are gathered for every step
    (ZeRO): row n of a call is on rank n % ranks. Without, all compute all rows, each with a part of
    the weights (tensor parallel).
    """

    def __init__(self, links: Links, split: bool, device: torch.device) -> None:
        """`device` is that of the tensors which ranks exchange."""
        self.links = links
        self.ranks = links.place.world
        self._split = split
        self._device = device
        self._rows = 0  # of the present call, on all ranks

    def begin(self, rows: Sequence[Sequence[int]], most_new: int) -> list[list[int]]:
        """Rank 0: start a call for rows of ids; return those that are to be computed here."""
        self._rows = len(rows)
        plain = [list(row) for row in rows]
        self.links.send({"kind": "call", "rows": plain, "most_new": most_new})
        return self._own(plain)

    def logits(self, own: Tensor) -> Tensor:
        """Rank 0: the logits [rows, vocabulary] of all rows; `own` are those computed here."""
        if not self._split or self.ranks == 1:
            return own
        parts = [torch.empty_like(self._filled(own)) for _ in range(self.ranks)]
        dist.gather(self._filled(own), parts, dst=0)
        return torch.stack(parts, dim=1).flatten(0, 1)[: self._rows]

    def tell(self, tokens: Tensor, finished: Tensor) -> None:
        """Rank 0: the ids that were drawn, and which rows have ended, each [rows]."""
        if self.ranks > 1:
            dist.broadcast(torch.stack((tokens, finished.to(tokens.dtype))), src=0)

    def give_up(self) -> None:
        """Rank 0: end the call on the others, after an error here between two steps."""
        none = torch.zeros(self._rows, dtype=torch.long, device=self._device)
        self.tell(none, torch.ones_like(none))

    def forced(self, tokens: Tensor, vocabulary: int) -> Tensor:
        """Logits that make `generate` take this rank's ids: 0 for those, else -inf."""
        own = tokens
        if self._split:
            own = tokens[self.links.place.rank :: self.ranks]
            own = own if len(own) else tokens.new_tensor(FILLER)
        forced = torch.full((len(own), vocabulary), -torch.inf, device=tokens.device)
        return forced.scatter_(-1, own.unsqueeze(-1), 0.0)

    def call(self, model: Any, message: dict[str, Any], make_config: Any, use_cache: bool) -> None:
        """Ranks above 0: compute with the others until all rows have ended."""
        self._rows = len(message["rows"])
        follower = _Follower(self)
        model.generate(
            **padded(self._own(message["rows"]), self._device),
            generation_config=make_config(
                do_sample=False,
                max_new_tokens=message["most_new"],
                use_cache=use_cache,
                pad_token_id=0,
            ),
            logits_processor=LogitsProcessorList([follower]),
            stopping_criteria=StoppingCriteriaList([AllEnded(follower)]),
            synced_gpus=False,  # all ranks end at the same step
        )

    def follow_step(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """Ranks above 0: hand logits to rank 0, hear the ids of all rows and which have ended."""
        if self._split:
            dist.gather(self._filled(own), None, dst=0)
        heard = torch.zeros(2, self._rows, dtype=torch.long, device=self._device)
        dist.broadcast(heard, src=0)
        return heard[0], heard[1].bool()

    def _own(self, rows: list[list[int]]) -> list[list[int]]:
        mine = rows[self.links.place.rank :: self.ranks] if self._split else rows
        return mine or [FILLER]

    def _filled(self, own: Tensor) -> Tensor:
        """As many rows as any rank has: those of a collective call must be alike."""
        most = -(-self._rows // self.ranks)
        missing = most - len(own)
        return (
            torch.cat((own, own.new_zeros(missing, own.shape[1]))) if missing else own.contiguous()
        )


class _Follower(LogitsProcessor):
    """Takes the ids that rank 0 drew."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep
        self.all_finished = False

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """0 for those, else -inf."""
        tokens, finished = self._lockstep.follow_step(scores)
        self.all_finished = bool(finished.all())
        return self._lockstep.forced(tokens, scores.shape[-1])


class AllEnded(StoppingCriteria):
    """Ends a call on every rank at the same step: that in which its last row ends."""

    def __init__(self, step: Any) -> None:
        """`step.all_finished` says whether it has."""
        self._step = step

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """The same for every row."""
        ended = self._step.all_finished
        return torch.full((len(input_ids),), ended, dtype=torch.bool, device=input_ids.device)
