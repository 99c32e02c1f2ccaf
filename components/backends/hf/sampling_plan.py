"""What the samplings of a run ask of the decoder, and how the logits of each row change."""

from components.backends.hf.slots.scheduler import Steps
from components.decoding.grammar import Grammars, refuse_format
from components.decoding.prompt_encoder import PromptEncoder
from components.decoding.sequence import Limits
from components.decoding.strategy import RowStrategy, changing, refuse_ids_beyond
from pipeline.spec import Sampling, require


class SamplingPlan:
    """Collects samplings before the model is loaded; then makes the strategies of rows.

    `searches`: some sampling is a beam search. `changing`: keys that change logits row by row.
    """

    def __init__(self) -> None:
        """Nothing is expected yet."""
        self.searches = False
        self.changing: tuple[str, ...] = ()
        self._grammars: Grammars | None = None

    def expect(self, sampling: Sampling, decoder: str) -> None:
        """Take one more sampling into account; `decoder` is `backend.decoder`.

        Raises:
            SpecError: that decoder cannot sample so, or a format cannot be followed.
        """
        refuse_format(sampling)
        if sampling.num_beams > 1:
            rule = "not be slots with sampling.num_beams above 1: only generate searches beams"
            require(decoder != "slots", "backend.decoder", rule, decoder)
            self.searches = True
        self.changing = tuple(sorted({*self.changing, *changing(sampling)}))

    def strategy(
        self,
        sampling: Sampling,
        prompt_length: int,
        encoder: PromptEncoder,
        limits: Limits,
        vocabulary: int,
        steps: Steps | None,
    ) -> RowStrategy | None:
        """What changes the logits of a row, if anything does.

        Args:
            sampling: the row's.
            prompt_length: ids of its prompt.
            encoder: of the model's prompts.
            limits: of the model.
            vocabulary: the size of its embedding.
            steps: what decodes, where that is slots; None: generate.

        Raises:
            SpecError: the decoder was chosen for another sampling, or cannot follow this one.
        """
        refuse_another_decoder(sampling, steps)
        refuse_ids_beyond(sampling, vocabulary)
        if not changing(sampling) or sampling.num_beams > 1:  # a search makes its own processors
            return None
        grammar = None
        if sampling.regex is not None or sampling.json_schema is not None:
            self._grammars = self._grammars or Grammars(encoder.tokenizer, limits.end_ids)
            grammar = self._grammars.of(sampling)
        return RowStrategy(sampling, prompt_length, limits.end_ids, grammar)


def refuse_another_decoder(sampling: Sampling, steps: Steps | None) -> None:
    """Refuse what the decoder that was chosen when the model was loaded cannot do.

    `steps` is as of `SamplingPlan.strategy`.
    """
    keys, searching = changing(sampling), sampling.num_beams > 1
    rule = "be set before the model is loaded, as it takes another decoder"
    require(not searching or steps is None, "sampling.num_beams", rule, sampling.num_beams)
    if keys and not searching:
        able = steps is None or steps.changes_logits
        require(able, f"sampling.{keys[0]}", rule, getattr(sampling, keys[0]))
