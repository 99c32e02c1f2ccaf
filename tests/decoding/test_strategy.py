"""What changes a row's logits, against Transformers' own chain, and what a format allows."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
)

from components.decoding.fast_draw import draw
from components.decoding.grammar import Grammars, refuse_format
from components.decoding.sampling import SamplingTensors, choose, filtered
from components.decoding.strategy import CountPenalties, RowStrategy, changing
from components.models.architectures.byte_tokenizer import byte_tokenizer
from components.models.checkpoint import resolve
from components.models.tokenizer_loading import load_tokenizer
from pipeline.spec import ModelSpec, Sampling, SpecError

SIZE, PROMPT, END = 60, 4, 7
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Rhine", "Danube"]},
        "length": {"type": "integer", "minimum": 0, "maximum": 9000},
        "towns": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
    },
    "required": ["name", "length", "towns"],
    "additionalProperties": False,
}


def theirs(fields: dict[str, Any]) -> LogitsProcessorList:
    """The processors that `generate` makes of the same settings."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=SIZE, hidden_size=8, intermediate_size=8, **sizes)
    make: Any = GenerationConfig
    bias = {(token,): value for token, value in fields.pop("logit_bias", {}).items()}
    settings = make(do_sample=True, eos_token_id=END, sequence_bias=bias or None, **fields)
    model: Any = LlamaForCausalLM(config)
    model._prepare_special_tokens(settings, device="cpu")
    of = {"generation_config": settings, "input_ids_seq_length": PROMPT}
    made: LogitsProcessorList = model._get_logits_processor(
        **of, encoder_input_ids=None, prefix_allowed_tokens_fn=None, logits_processor=[]
    )
    return made


@pytest.mark.parametrize(
    "fields",
    [
        {"typical_p": 0.4},
        {"typical_p": 0.7, "temperature": 0.6, "top_k": 30, "top_p": 0.9, "min_p": 0.01},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 5},
        {"logit_bias": {3: 2.5, 9: -100.0}},
        {
            "logit_bias": {3: 2.5, 9: -4.0},
            "repetition_penalty": 1.4,
            "no_repeat_ngram_size": 2,
            "min_new_tokens": 9,
            "typical_p": 0.8,
            "temperature": 1.3,
            "top_p": 0.95,
        },
    ],
    ids=lambda fields: " ".join(fields),
)
def test_the_distribution_is_that_of_transformers(fields: dict[str, Any]) -> None:
    given: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0} | fields
    sampling = Sampling(**given)
    expected_chain = theirs(dict(given))
    for seed in range(20):
        ids, logits = row(seed)
        strategy = RowStrategy(sampling, PROMPT, [END], None)
        changed = strategy.changed(logits, ids, None)[None]
        ours = filtered(changed, SamplingTensors.of([strategy.filters], logits.device))
        inputs: Any = torch.tensor([ids])
        expected = expected_chain(inputs, logits[None].clone())
        assert torch.equal(ours.isinf(), expected.isinf())
        assert torch.allclose(ours.softmax(-1), expected.softmax(-1), atol=1e-6)


def row(seed: int) -> tuple[list[int], Tensor]:
    """Ids in which pairs recur, and raw logits of both signs."""
    rng = random.Random(seed)
    logits = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * 3
    return [rng.randrange(12) for _ in range(PROMPT + 6)], logits


def test_a_typical_row_draws_what_its_whole_distribution_would() -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, typical_p=0.5)
    strategy, seeds = RowStrategy(sampling, PROMPT, [END], None), torch.arange(500)
    ids, logits = row(3)
    changed = strategy.changed(logits, ids, None).expand(500, -1)
    settings = SamplingTensors.of([strategy.filters] * 500, logits.device)
    indices = torch.zeros(500, dtype=torch.int64)
    drawn = draw(changed.contiguous(), settings, seeds, indices)
    assert torch.equal(drawn, choose(filtered(changed, settings), seeds, indices))
    inputs: Any = torch.tensor([ids])
    chain = theirs({"temperature": 0.8, "top_p": 0.9, "typical_p": 0.5})
    wanted = chain(inputs, logits[None].clone())[0].softmax(-1)
    counts = Counter(drawn.tolist())
    assert set(counts) <= set(wanted.nonzero()[:, 0].tolist())
    assert all(abs(counts[n] / 500 - float(p)) < 0.08 for n, p in enumerate(wanted))


def test_presence_and_frequency_count_each_rows_generated_ids() -> None:
    ids = torch.tensor([[1, 1, 2, 2, 2, 5], [1, 1, 3, 4, 4, 4]])
    scores = torch.zeros(2, 6)
    changed = CountPenalties(2, presence=1.0, frequency=0.25)(ids, scores)
    assert changed[0].tolist() == [0, 0, -1.75, 0, 0, -1.25]
    assert changed[1].tolist() == [0, 0, 0, -1.25, -1.75, 0]


def test_a_repetition_penalty_moves_negative_logits_down_for_a_strategys_row_too() -> None:
    logits = torch.tensor([2.0, -2.0, 2.0, -2.0])
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=0.5)
    strategy = RowStrategy(sampling, 2, [], None)
    assert strategy.changed(logits, [0, 1], None).tolist() == [1.0, -4.0, 2.0, -2.0]
    assert strategy.filters.repetition_penalty == 1, "not to be applied twice"
    assert not changing(Sampling(repetition_penalty=2.0)), "the filters do it by themselves"


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2: Path) -> PreTrainedTokenizerBase:
    spec = ModelSpec(name="m", path=str(smollm2))
    return load_tokenizer(resolve(spec, smollm2), spec)


def written(grammars: Grammars, sampling: Sampling, size: int, seed: int, end: int | None) -> list:
    """Ids drawn at random from what the format allows, up to its end."""
    grammar, rng, ids = grammars.of(sampling), random.Random(seed), []
    while not grammar.is_complete(ids) and len(ids) < 400:
        token = rng.choice(grammar.allowed(ids, size).nonzero()[:, 0].tolist())
        if token == end:
            break
        ids.append(token)
    return ids


@pytest.mark.parametrize("kind", ["bytes", "smollm2"])
def test_whatever_a_schema_allows_is_json_that_fits_it(
    kind: str, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenizer: Any = byte_tokenizer() if kind == "bytes" else smollm2_tokenizer
    size, end = len(tokenizer), tokenizer.eos_token_id
    grammars = Grammars(tokenizer, [] if end is None else [end])
    for seed in range(6):
        ids = written(grammars, Sampling(json_schema=SCHEMA), size, seed, end)
        found = json.loads(tokenizer.decode(ids))
        assert set(found) == {"name", "length", "towns"} and found["name"] in ("Rhine", "Danube")
        assert 0 <= found["length"] <= 9000 and len(found["towns"]) <= 2


def test_a_regex_holds_and_says_where_a_text_may_end(
    smollm2_tokenizer: PreTrainedTokenizerBase,
) -> None:
    end: int = smollm2_tokenizer.eos_token_id
    grammars = Grammars(smollm2_tokenizer, [end])
    grammar = grammars.of(Sampling(regex="[0-9]+(cm|km)"))
    ids = smollm2_tokenizer.encode("12")
    assert not grammar.allowed(ids, 50_000)[end] and not grammar.is_complete(ids)
    assert not grammar.allowed(ids, 50_000)[49_152:].any(), "ids beyond the vocabulary"
    ids += smollm2_tokenizer.encode("km")
    assert grammar.is_complete(ids)
    open_ended = grammars.of(Sampling(regex="a+"))
    ids = smollm2_tokenizer.encode("aa")
    assert open_ended.allowed(ids, 49_152)[end] and not open_ended.is_complete(ids)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"regex": "[0-9{3"}, "sampling.regex must be one that .*unclosed character class"),
        ({"regex": "(?=a)b"}, "sampling.regex must be one that .*look-ahead"),
        ({"json_schema": {"type": "objct"}}, "sampling.json_schema must be one .*objct"),
        ({"json_schema": {"not": {"type": "integer"}}}, "sampling.json_schema .*not"),
        ({"json_schema": "schema.json"}, "sampling.json_schema must be a mapping here"),
    ],
)
def test_a_format_that_cannot_be_followed_is_refused_with_the_reason(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        refuse_format(Sampling(**fields))


def test_a_schema_that_no_text_can_begin_is_refused_before_a_step() -> None:
    with pytest.raises(SpecError, match="sampling.json_schema must be one that a text can match"):
        Grammars(byte_tokenizer(), []).of(Sampling(json_schema={"$ref": "#"}))
