"""The logits processor for vLLM's first model runner; loaded by vLLM, by name."""

from typing import Any

from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from components.backends.vllm_engine.measured import DRAWABLE, bar, observe, watched


class EntropyProcessor(LogitsProcessor):  # type: ignore[misc]
    """Measures the logits of requests that want it, and bars ids that are no tokens.

    It runs after vLLM's logit bias and minimal length, and before penalties and temperature.
    """

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        """As vLLM calls it."""
        self._drawable: int = vllm_config.additional_config[DRAWABLE]
        self._rows: dict[int, tuple[int, list[int]]] = {}  # row -> key, ids drawn so far

    def is_argmax_invariant(self) -> bool:
        """False: it must see greedy rows too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests as they come, move and go."""
        process_dict_updates(self._rows, batch_update, _key_and_ids)

    def apply(self, logits: Tensor) -> Tensor:
        """Measure float32 logits [rows, vocabulary]."""
        rows = sorted(self._rows)
        keys = [self._rows[row] for row in rows]
        observe(logits, rows, [(key, len(drawn)) for key, drawn in keys])
        return bar(logits, self._drawable)


def _key_and_ids(
    params: Any, prompt_ids: list[int] | None, drawn: list[int]
) -> tuple[int, list[int]] | None:
    place = watched(params)
    return None if place is None else (place[0], drawn)
