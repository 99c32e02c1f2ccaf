"""The logits processor for vLLM's newer model runner; loaded by vLLM, by name."""

from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor

from components.backends.vllm_engine.measured import DRAWABLE, bar, observe, watched


class EntropyProcessor(LogitsProcessor):  # type: ignore[misc]
    """Measures the logits of requests that want it, and bars ids that are no tokens.

    It runs after vLLM's logit bias, minimal length and penalties, and before temperature.
    """

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        """As vLLM calls it."""
        super().__init__(vllm_config, req_states)
        self._drawable: int = vllm_config.additional_config[DRAWABLE]
        self._slots: dict[int, tuple[int, int]] = {}  # slot -> key, length of the prompt

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request takes a slot, which may have had another. True: it is to be called for it."""
        place = watched(sampling_params)
        if place is None:
            self._slots.pop(req_idx, None)
        else:
            self._slots[req_idx] = place
        return True

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Measure float32 logits [rows, vocabulary], one row for each request of the step."""
        slots, lengths = ctx.idx_mapping_np.tolist(), ctx.seq_lens_upper_bound_np.tolist()
        rows, places = [], []
        for row, (slot, length) in enumerate(zip(slots, lengths, strict=False)):
            key, prompt_length = self._slots.get(slot, (None, 0))
            if key is not None and length >= prompt_length:  # else the prompt is not read yet
                rows.append(row)
                places.append((key, length - prompt_length))
        observe(logits, rows, places)
        return bar(logits, self._drawable)
