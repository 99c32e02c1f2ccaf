"""The ranks that one model is spread over: they meet, load together, and follow rank 0."""

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from components.backends.hf.lockstep import Lockstep
from components.ranks.links import Links
from components.ranks.place import Place

_LOG = logging.getLogger(__name__)


class Spread:
    """This process's part.

    `split`: each rank computes rows of its own. Else all compute the same rows, each with a part of
    the weights.
    """

    def __init__(self, place: Place, split: bool, device: torch.device) -> None:
        """Nothing is done yet."""
        self.place = place
        self.split = split
        self._device = device
        self._links: Links | None = None

    @property
    def follows(self) -> bool:
        """Whether rank 0 is another process."""
        return self.place.rank > 0

    @property
    def rows_at_once(self) -> int:
        """Ranks that compute different rows."""
        return self.place.world if self.split else 1

    async def meet(self) -> None:
        """Meet the other ranks, if there are any."""
        if self.place.world > 1 and self._links is None:
            await asyncio.to_thread(self._open)

    def begin(self, on_lost: Callable[[str], None]) -> None:
        """Rank 0: let the others load; `on_lost` hears, in another thread, that one has gone."""
        links = self._open()
        links.on_lost = on_lost
        links.send({"kind": "begin"})

    def lockstep(self) -> Lockstep:
        """What makes all ranks compute the same steps."""
        return Lockstep(self._open(), self.split, self._device)

    def end(self) -> None:
        """Rank 0: let the others drop the model."""
        if self._links is not None:
            self._links.on_lost = None
            self._links.send({"kind": "end"})

    def dismiss(self) -> None:
        """Rank 0: let the others return."""
        if self._links is not None:
            self._links.leave()
            self._close()

    def follow(
        self,
        load: Callable[[], Callable[[dict[str, Any]], None]],
        unload: Callable[[], None],
    ) -> None:
        """Ranks above 0: do what rank 0 says until it is done.

        Args:
            load: loads the model, and returns what makes a call with it.
            unload: drops the model.

        Raises:
            Exception: what went wrong here, which rank 0 has been told.
        """
        links, call = self._open(), None
        try:
            while (message := links.receive())["kind"] != "leave":
                if message["kind"] == "begin":
                    call = load()
                elif message["kind"] == "end":
                    call = None
                    unload()
                else:
                    assert call is not None, "rank 0 begins first"
                    call(message)
        except BaseException:
            links.send({"kind": "error", "text": traceback.format_exc()})
            raise
        self._close()

    def _open(self) -> Links:
        if self._links is None:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            group = "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo"
            self._links = Links(self.place, group)
        return self._links

    def _close(self) -> None:
        assert self._links is not None
        self._links.close()
        self._links = None
        if dist.is_initialized():
            dist.destroy_process_group()
