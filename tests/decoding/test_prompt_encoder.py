"""Prompts as ids: one BOS, generations spliced as they are, whatever the template does."""

import copy
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from components.decoding.detokenizers import ByteIds
from components.decoding.prompt_encoder import PromptEncoder
from components.decoding.stop_text import StopText
from pipeline.protocols import FinishReason, Generation, Message, Piece, Prompt
from pipeline.spec import ModelSpec, SpecError

BOS = 0  # <|endoftext|> of SmolLM2's tokenizer, which its own template does not use
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS = CHATML.replace(
    "{{ m.content }}",
    "{{ (m.content.split('</think>')[-1] if m.role == 'assistant' else m.content) | trim }}",
)
OPENS = STRIPS.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
OPENS_BARE = STRIPS.replace("assistant\n{% endif %}", "assistant\n<think>{% endif %}")
CLOSES = STRIPS.replace("assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}")
EMPTY_BLOCK = STRIPS.replace(
    "{{ (m.content", "{{ '<think></think>\n' if m.role == 'assistant' }}{{ (m.content"
)
WRITES_BOS = "{{ bos_token }}" + CHATML
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + CHATML
)
DROPS_SYSTEM = CHATML.replace(
    "{% for m in messages %}", "{% for m in messages if m.role != 'system' %}"
)


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def encoder(
    smol: PreTrainedTokenizerBase,
    template: str | None = CHATML,
    bos: str | None = "<|endoftext|>",
    adds: bool = False,
    **spec: Any,
) -> PromptEncoder:
    tokenizer = copy.deepcopy(smol)
    tokenizer.chat_template = template
    tokenizer.bos_token = bos
    if adds:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, BOS)]
        )
        assert tokenizer.encode("x")[0] == BOS
    return PromptEncoder(tokenizer, ModelSpec(name="m", path="m", **spec))


def generation(ids: list[int], reason: FinishReason = "stop_token", text: str = "?") -> Generation:
    return Generation(token_ids=ids, text=text, finish_reason=reason)


def chat(*contents: Piece | tuple[Piece, ...], prefill: tuple[Piece, ...] = ()) -> Prompt:
    """System, then user and assistant by turns."""
    roles = ("system", "user", "assistant", "user", "assistant", "user")
    pieces = [c if isinstance(c, tuple) else (c,) for c in contents]
    return Prompt(tuple(map(Message, roles, pieces)), prefill)


def two_passes(think: Generation, answer: Generation) -> tuple[Prompt, Prompt]:
    first = chat("Be brief.", "2+3?", prefill=("<think>\n",))
    turn = ("<think>\n", think, "</think>\n<answer>\n", answer)
    second = chat("Be brief.", "2+3?", turn, "Wait.", prefill=("<think>\nWait. ",))
    return first, second


def holds(ids: list[int], part: list[int]) -> bool:
    return any(ids[n : n + len(part)] == part for n in range(len(ids)))


@pytest.mark.parametrize("adds", [True, False], ids=["tokenizer adds", "tokenizer does not"])
@pytest.mark.parametrize("template", [CHATML, WRITES_BOS, None], ids=["plain", "writes", "none"])
def test_there_is_one_bos_never_two_never_none(
    smol: PreTrainedTokenizerBase, template: str | None, adds: bool
) -> None:
    ids = encoder(smol, template, adds=adds).encode(chat("S", "U", prefill=("<think>\n",))).ids
    wanted = adds or template in (WRITES_BOS, None)
    assert ids.count(BOS) == int(wanted) and (ids[0] == BOS) == wanted


def test_without_a_bos_token_nothing_is_put_first(smol: PreTrainedTokenizerBase) -> None:
    made = encoder(smol, None, bos=None)
    assert made.preview(chat("S", "U")) == "S\n\nU\n\n"


def test_a_bos_that_also_opens_every_turn_is_not_doubled(smol: PreTrainedTokenizerBase) -> None:
    ids = encoder(smol, bos="<|im_start|>").encode(chat("S", "U")).ids
    assert ids[0] == 1 and ids[1] != 1 and ids.count(1) == 3


@pytest.mark.parametrize(
    "template",
    [CHATML, STRIPS, OPENS, OPENS_BARE, CLOSES, EMPTY_BLOCK, None],
    ids=["plain", "strips", "opens", "opens bare", "closes", "empty block", "none"],
)
def test_pass_two_holds_the_very_ids_of_pass_one(
    smol: PreTrainedTokenizerBase, template: str | None
) -> None:
    made = encoder(smol, template)
    # Ids that encoding their own text would not give back.
    split = [smol.convert_tokens_to_ids(token) for token in ("h", "e", "l", "lo")]
    assert smol.encode("hello", add_special_tokens=False) != split
    first, second = two_passes(generation([*split, *split]), generation(split))
    one, two = made.encode(first).ids, made.encode(second).ids
    forced = smol.encode("</think>\n<answer>\n", add_special_tokens=False)
    turn = [*split, *split, *forced, *split]
    assert holds(two, turn)
    text = made.decode(two)
    assert text.count("<think>") == 2 and made.decode(one).count("<think>") == 1
    if template is not EMPTY_BLOCK:  # it writes another turn for the past than it opens
        assert two[: len(one) + len(turn)] == one + turn


def test_a_turn_without_forced_opening_keeps_the_one_of_the_template(
    smol: PreTrainedTokenizerBase,
) -> None:
    made = encoder(smol, OPENS)
    ids = smol.encode("so</think>5", add_special_tokens=False)
    one = made.encode(chat("S", "U")).ids
    two = made.encode(chat("S", "U", generation(ids), "Wait.")).ids
    assert made.decode(one).endswith("assistant\n<think>\n")
    assert two[: len(one) + len(ids)] == one + ids


def test_think_text_of_rows_without_ids_survives_too(smol: PreTrainedTokenizerBase) -> None:
    made = encoder(smol, STRIPS)
    old = Generation(token_ids=[], text="<think>\n why </think>5 ", finish_reason="other")
    for turn in (old, "<think>\n why </think>5 "):
        text = made.preview(chat("S", "U", turn, "Wait."))
        assert "assistant\n<think>\n why </think>5 <|im_end|>" in text


def test_a_prefill_opens_think_once_where_the_template_did(smol: PreTrainedTokenizerBase) -> None:
    prompt = chat("S", "U", prefill=("<think>\nWait. ",))
    for template in (STRIPS, OPENS, OPENS_BARE, CLOSES):
        text = encoder(smol, template).preview(prompt)
        assert text.endswith("<|im_start|>assistant\n<think>\nWait. ")
    no_prefill = encoder(smol, OPENS).preview(chat("S", "U"))
    assert no_prefill.endswith("<|im_start|>assistant\n<think>\n")


def test_a_trailing_end_of_sequence_is_dropped_before_splicing(
    smol: PreTrainedTokenizerBase,
) -> None:
    ids = smol.encode("five", add_special_tokens=False)
    ended = chat("S", "U", generation([*ids, 2], "eos"), "Wait.")
    stopped = chat("S", "U", generation(ids, "max_new_tokens"), "Wait.")
    made = encoder(smol)
    assert made.encode(ended).ids == made.encode(stopped).ids


def test_text_between_ids_is_encoded_as_one_piece(smol: PreTrainedTokenizerBase) -> None:
    made = encoder(smol, None, bos=None)
    whole = smol.encode("hello\n\n\n", add_special_tokens=False)
    assert made.encode(Prompt((Message("user", ("hel", "lo")),), ("\n",))).ids == whole


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM], ids=["raises", "drops"])
def test_a_system_prompt_joins_the_user_turn_with_a_warning(
    smol: PreTrainedTokenizerBase, template: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = encoder(smol, template)
    with caplog.at_level(logging.WARNING):
        texts = [made.preview(chat("Be brief.", "2+3?")) for _ in range(2)]
    assert texts == [CHATML_FOLDED] * 2
    assert len([r for r in caplog.records if "takes no system role" in r.message]) == 1


CHATML_FOLDED = "<|im_start|>user\nBe brief.\n\n2+3?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{% for m in messages %}{{ m.role }}{% endfor %}",
    ],
    ids=["refuses", "drops the assistant"],
)
def test_a_template_that_cannot_write_the_prompt_is_named(
    smol: PreTrainedTokenizerBase, template: str
) -> None:
    turn = Message("assistant", (generation([5, 6]),))
    with pytest.raises(SpecError, match=r"model\.chat_template"):
        encoder(smol, template).encode(Prompt((Message("user", ("U",)), turn)))


def test_template_arguments_reach_the_template_and_the_clock_does_not(
    smol: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    dated = "{{ day if day is defined else strftime_now('%d %b %Y') }} {{ messages[0].content }}"
    prompt = Prompt((Message("user", ("U",)),))
    made = encoder(smol, dated, template_kwargs={"day": "1 Jan 2030"})
    assert made.preview(prompt) == "1 Jan 2030 U"
    assert not caplog.records
    assert encoder(smol, dated).preview(prompt) == "26 Jul 2024 U"
    assert "model.template_kwargs" in caplog.text


def test_a_long_prompt_is_cut_on_the_stated_side_and_keeps_its_bos(
    smol: PreTrainedTokenizerBase,
) -> None:
    prompt = chat("Be brief.", "one two three four five six seven")
    whole = encoder(smol, WRITES_BOS).encode(prompt).ids
    turn = smol.encode("<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
    right = [*whole[: 10 - len(turn)], *turn]
    for side, kept in (("left", [whole[0], *whole[-9:]]), ("right", right)):
        cut = encoder(smol, WRITES_BOS, max_length=10, truncation_side=side).encode(prompt)
        assert (cut.ids, cut.cut) == (kept, len(whole) - 10)
    exact = encoder(smol, WRITES_BOS, max_length=len(whole)).encode(prompt)
    assert (exact.ids, exact.cut) == (whole, 0)


@pytest.mark.parametrize("template", [CHATML, OPENS, NO_SYSTEM, None])
def test_truncation_leaves_what_the_model_is_made_to_say(
    template: str | None, smol: PreTrainedTokenizerBase
) -> None:
    think = generation(smol.encode("five, I think", add_special_tokens=False))
    forced = ("<think>\n", think, "</think>\n<answer>\n")
    question = "one two three four five six seven " * 20
    for side in ("left", "right"):
        for turns in (("S", question), ("S", question, generation([40, 41]), "Wait.")):
            made = encoder(smol, template, max_length=60, truncation_side=side)
            cut = made.encode(chat(*turns, prefill=forced))
            assert len(cut.ids) == 60 and cut.cut > 0
            text = made.decode(cut.ids)
            assert text.endswith("<think>\nfive, I think</think>\n<answer>\n")
            assert "one two three" in text or side == "left"


def test_an_example_has_no_generation_prompt_before_it(smol: PreTrainedTokenizerBase) -> None:
    messages = [("user", "Spain?"), ("assistant", "Madrid"), ("user", "France?")]
    prompt = Prompt(tuple(Message(role, (text,)) for role, text in messages))
    plain = [{"role": role, "content": text} for role, text in messages]
    for template in (CHATML, OPENS, OPENS_BARE, CLOSES):
        made = encoder(smol, template)
        expected = made.tokenizer.apply_chat_template(
            plain, tokenize=False, add_generation_prompt=True
        )
        assert made.preview(prompt).removeprefix("<|endoftext|>") == expected


def test_end_ids_hold_the_chat_end_besides_the_tokenizers_own(
    smol: PreTrainedTokenizerBase,
) -> None:
    made = encoder(smol)
    made.tokenizer.eos_token = "<|endoftext|>"
    assert made.end_ids() == {0, 2}


HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last else '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "declared", "ends"),
    [
        (HARMONY, ["<|return|>"], {"<|endoftext|>", "<|return|>"}),  # gpt-oss
        (PHI, ["<|endoftext|>"], {"<|endoftext|>", "<|end|>"}),  # Phi-3
        (HARMONY, [], {"<|endoftext|>", "<|end|>", "<|im_end|>"}),  # it declares nothing
        (None, ["<|return|>"], {"<|endoftext|>", "<|return|>"}),
    ],
)
def test_the_checkpoint_and_its_template_say_what_ends_a_turn(
    template: str | None, declared: list[str], ends: set[str], smol: PreTrainedTokenizerBase
) -> None:
    tokenizer = copy.deepcopy(smol)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>", "<|return|>"]})
    tokenizer.chat_template, tokenizer.eos_token = template, "<|endoftext|>"
    made = PromptEncoder(tokenizer, ModelSpec(name="m", path="m"))
    ids = made.end_ids(tokenizer.convert_tokens_to_ids(declared))
    assert set(tokenizer.convert_ids_to_tokens(sorted(ids))) == ends


def spaced_tokenizer() -> PreTrainedTokenizerFast:
    """Sentencepiece's manner: a space before every text, bytes for characters it does not know."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += ["▁", "a", "b", "c", "<", "/", ">", "=", "x", "▁a", "▁b", "▁c"]
    vocabulary = {piece: n for n, piece in enumerate(pieces)}
    bpe = models.BPE(
        vocabulary, [("▁", "a"), ("▁", "b"), ("▁", "c")], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def test_forced_text_gets_no_space_of_its_own_in_the_middle() -> None:
    tokenizer = spaced_tokenizer()
    made = PromptEncoder(tokenizer, ModelSpec(name="m", path="m"))
    think = generation(tokenizer.encode("b", add_special_tokens=False))
    for forced in ("</a>\n<b>\n", "=b", "\nc", " c"):
        ids = made.encode(Prompt((), ("<a>", think, forced))).ids
        assert made.decode(ids) == "<s> <a> b" + forced


def test_bytes_of_a_real_tokenizer_make_the_text_of_one_decode() -> None:
    tokenizer = spaced_tokenizer()
    made = PromptEncoder(tokenizer, ModelSpec(name="m", path="m"))
    assert isinstance(made.pieces, ByteIds)
    rng = random.Random(0)
    prompt = tokenizer.encode("x", add_special_tokens=False)
    smileys = [3 + byte for byte in "\U0001f600\u20ac".encode()]
    for length in range(1, 60):
        ids = [
            token for _ in range(length) for token in rng.choice([[rng.randrange(270)], smileys])
        ]
        text = StopText(made.decode, (), prompt, made.pieces)
        text.push_all(ids)
        text.finish()
        assert text.text == made.decode([*prompt, *ids])[len(made.decode(prompt)) :]
        assert text.text.count("\ufffd") == made.decode(ids).count("\ufffd")
