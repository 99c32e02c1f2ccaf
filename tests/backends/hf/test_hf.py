"""How `HfBackend` treats rows, stops, ends, caps, failures and what a checkpoint brings along."""

import asyncio
import gc
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from components.backends.hf import backend as hf
from components.backends.hf.rowwise import order_is_fixed
from components.quantization.precision import Precision
from pipeline.protocols import Generation, Request
from pipeline.spec import ModelSpec, SpecError
from tests.fakes.hf_requests import answers, ask, backend, request

Maker = Callable[..., Path]
with_both = pytest.mark.parametrize("decoder", ["generate", "slots"])


@pytest.fixture(scope="module")
def many() -> list[Request]:
    return [request(n, cap=24) for n in range(6)]


@pytest.fixture(scope="module")
def plain(tiny_llama: Maker, many: list[Request]) -> list[Generation]:
    """What the rows are when nothing special happens."""
    rows = answers(backend(tiny_llama()), many)
    assert len({tuple(row.token_ids) for row in rows}) == 6
    return rows


def ids(rows: list[Generation]) -> list[list[int]]:
    return [row.token_ids for row in rows]


def edited(folder: Path, target: Path, **generation_config: Any) -> Path:
    """A copy of a model folder with another generation config."""
    shutil.copytree(folder, target)
    (target / "generation_config.json").write_text(json.dumps(generation_config))
    return target


@pytest.mark.parametrize(
    "start, length", [(3, 1), (3, 2), (3, 5)], ids=["one token", "two tokens", "five tokens"]
)
@with_both
def test_a_stop_string_ends_its_own_row_only(
    decoder: str,
    tiny_llama: Maker,
    many: list[Request],
    plain: list[Generation],
    start: int,
    length: int,
) -> None:
    ends = [0, *(plain[1].ends or [])]
    text = plain[1].text
    stop = text[ends[start] : ends[start + length]]
    assert stop and text.index(stop) == ends[start]
    stopping = request(1, cap=24, stop=("never to be seen", stop))
    rows = answers(backend(tiny_llama(), decoder=decoder), [many[0], stopping, *many[2:]])
    assert ids(rows[:1] + rows[2:]) == ids(plain[:1] + plain[2:])
    row = rows[1]
    assert (row.finish_reason, row.text, row.tail) == ("stop_token", text[: ends[start]], stop)
    assert row.token_ids == plain[1].token_ids[: start + length]
    assert row.entropies is not None and len(row.entropies) == len(row.token_ids)


@with_both
def test_a_stop_string_is_found_inside_a_token_and_across_two(
    decoder: str, tiny_llama: Maker, plain: list[Generation]
) -> None:
    text, ends = plain[2].text, [0, *(plain[2].ends or [])]
    inside = [
        (text[ends[n] + 1 : ends[n + 1] - 1], n + 1)
        for n in range(23)
        if ends[n + 1] - ends[n] > 3 and text.index(text[ends[n] + 1 : ends[n + 1] - 1]) > ends[n]
    ]
    across = [
        (text[ends[n] - 2 : ends[n] + 1], n + 1)
        for n in range(1, 23)
        if ends[n] - ends[n - 1] > 2 and text.index(text[ends[n] - 2 : ends[n] + 1]) > ends[n - 1]
    ]
    for stop, used in (inside[0], across[0]):
        row = answers(backend(tiny_llama(), decoder=decoder), [request(2, cap=24, stop=(stop,))])[0]
        assert row.token_ids == plain[2].token_ids[:used]
        assert row.text == text.partition(stop)[0] and row.tail.startswith(stop)
        assert row.text + row.tail == text[: ends[used]]


@with_both
def test_every_end_of_sequence_id_of_the_checkpoint_ends_a_row_once(
    decoder: str, tiny_llama: Maker, tmp_path: Path, many: list[Request], plain: list[Generation]
) -> None:
    end = plain[0].token_ids[5]
    where = plain[0].token_ids.index(end)
    folder = edited(tiny_llama(), tmp_path / "m", eos_token_id=[48_000, end])
    row = answers(backend(folder, decoder=decoder), many[:1])[0]
    assert row.finish_reason == "eos" and row.token_ids == plain[0].token_ids[: where + 1]
    assert row.token_ids.count(end) == 1 and row.tail == ""
    ends = [0, *(plain[0].ends or [])]
    assert row.text == plain[0].text[: ends[where]] and row.ends == [
        *ends[1 : where + 1],
        ends[where],
    ]


@with_both
def test_nothing_else_of_the_checkpoints_generation_config_reaches_a_row(
    decoder: str, tiny_llama: Maker, tmp_path: Path, many: list[Request], plain: list[Generation]
) -> None:
    loud = {
        "do_sample": True,
        "temperature": 0.01,
        "top_k": 1,
        "top_p": 0.1,
        "repetition_penalty": 9.0,
        "max_length": 7,
        "min_new_tokens": 20,
        "no_repeat_ngram_size": 1,
        "suppress_tokens": plain[0].token_ids,
        "begin_suppress_tokens": plain[0].token_ids[:1],
        "eos_token_id": 2,
    }
    rows = answers(backend(edited(tiny_llama(), tmp_path / "m", **loud), decoder=decoder), many)
    assert ids(rows) == ids(plain)


@pytest.mark.parametrize("window", [None, 8], ids=["full attention", "sliding window"])
def test_float32_rows_are_the_same_bit_for_bit_in_any_batch(
    tiny_llama: Maker, tmp_path: Path, window: int | None
) -> None:
    folder = tiny_llama()
    if window:
        folder = shutil.copytree(folder, tmp_path / "m")
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
        (folder / "config.json").write_text(json.dumps(config | {"sliding_window": window}))
    requests = [request(n, "word " * (n % 5), cap=16 - n, top_p=0.9) for n in range(10)]
    alone, four, ten = (answers(backend(folder, batch_size=size), requests) for size in (1, 4, 10))
    assert ids(alone) == ids(four) == ids(ten)
    measured = [[(row.entropies, row.logprobs) for row in rows] for rows in (alone, four, ten)]
    if not order_is_fixed():
        pytest.skip(
            "this processor's products add in an order that depends on the batch: ids agree"
        )
    assert measured[0] == measured[1] == measured[2]


def test_attention_row_by_row_is_the_attention_of_the_batch(tiny_llama: Maker) -> None:
    requests = [request(n, "word " * (n % 5), cap=16) for n in range(6)]
    ours = answers(backend(tiny_llama()), requests)
    eager = answers(backend(tiny_llama(), attn_implementation="eager"), requests)
    assert ids(ours) == ids(eager)
    for one, other in zip(ours, eager, strict=True):
        assert one.entropies == pytest.approx(other.entropies, abs=1e-4)


@with_both
def test_a_row_stops_at_its_own_cap(
    decoder: str, tiny_llama: Maker, plain: list[Generation]
) -> None:
    rows = answers(
        backend(tiny_llama(), decoder=decoder), [request(n, cap=1 + 5 * n) for n in range(4)]
    )
    assert [len(row.token_ids) for row in rows] == [1, 6, 11, 16]
    assert {row.finish_reason for row in rows} == {"max_new_tokens"}
    assert ids(rows) == [row.token_ids[: 1 + 5 * n] for n, row in enumerate(plain[:4])]


@with_both
def test_temperature_zero_is_greedy_in_every_spelling(decoder: str, tiny_llama: Maker) -> None:
    rows = answers(
        backend(tiny_llama(), decoder=decoder),
        [request(n, "Hi", temperature=t, top_p=0.9, top_k=7) for n, t in enumerate((0, 0.0, 1e-7))],
    )
    assert rows[0].token_ids == rows[1].token_ids == rows[2].token_ids


def test_a_prompts_ids_and_a_half_done_turn_continue_the_same_row(
    tiny_llama: Maker, plain: list[Generation]
) -> None:
    first = answers(backend(tiny_llama()), [request(0, cap=8, temperature=0)])[0]
    whole = answers(backend(tiny_llama()), [request(0, cap=16, temperature=0)])[0]
    prompt = request(0).prompt
    going_on = request(0, cap=8, temperature=0, prompt=type(prompt)(prompt.messages, (first,)))
    second = answers(backend(tiny_llama()), [going_on])[0]
    assert second.prompt_ids == (first.prompt_ids or []) + first.token_ids
    assert first.token_ids + second.token_ids == whole.token_ids


def test_without_a_cache_rows_are_the_same(
    tiny_llama: Maker, many: list[Request], plain: list[Generation]
) -> None:
    assert ids(answers(backend(tiny_llama(), use_cache=False), many)) == ids(plain)


@with_both
def test_a_repetition_penalty_looks_at_prompt_and_generated_ids(
    decoder: str, tiny_llama: Maker
) -> None:
    rows = answers(
        backend(tiny_llama(), decoder=decoder),
        [request(n, temperature=0.0, cap=40, repetition_penalty=1e6) for n in range(3)],
    )
    for row in rows:
        everything = (row.prompt_ids or []) + row.token_ids
        assert len(set(row.token_ids)) == 40 and not set(row.prompt_ids or []) & set(row.token_ids)
        assert len(everything) == row.prompt_tokens + 40


@with_both
def test_ids_beyond_the_tokenizer_are_never_drawn(decoder: str, tiny_llama: Maker) -> None:
    folder = tiny_llama(vocab_size=70_000)
    rows = answers(
        backend(folder, decoder=decoder), [request(n, cap=20, temperature=3.0) for n in range(4)]
    )
    drawn = [token for row in rows for token in row.token_ids]
    assert max(drawn) < 49_152 and len(set(drawn)) > 40


@with_both
def test_entropies_are_left_out_where_they_are_not_asked_for(
    decoder: str, tiny_llama: Maker, many: list[Request], plain: list[Generation]
) -> None:
    rows = answers(
        backend(tiny_llama(), decoder=decoder), [many[0], request(1, cap=24, entropy=False)]
    )
    assert rows[0].entropies == pytest.approx(plain[0].entropies, abs=1e-4)
    assert rows[1].entropies is None and rows[1].logprobs is None
    alone = answers(backend(tiny_llama(), decoder=decoder), [request(1, cap=24, entropy=False)])[0]
    assert alone.token_ids == rows[1].token_ids == plain[1].token_ids


@with_both
def test_streamed_text_adds_up_and_arrives_on_the_event_loop(
    decoder: str, tiny_llama: Maker, plain: list[Generation]
) -> None:
    ends = [0, *(plain[1].ends or [])]
    stop = plain[1].text[ends[6] : ends[8]]
    pieces: list[str] = []
    threads = set()

    def on_token(text: str) -> None:
        pieces.append(text)
        threads.add(threading.get_ident())

    row = answers(
        backend(tiny_llama(), decoder=decoder),
        [request(1, cap=24, stop=(stop,), on_token=on_token)],
    )[0]
    assert len(pieces) > 2 and "".join(pieces) == row.text == plain[1].text[: ends[6]]
    assert threads == {threading.get_ident()}


@with_both
def test_a_row_at_the_end_of_the_models_positions_ends_as_other(
    decoder: str, tiny_llama: Maker
) -> None:
    folder = tiny_llama(max_position_embeddings=64)
    row = answers(backend(folder, decoder=decoder), [request(0, cap=100)])[0]
    assert row.finish_reason == "max_context" and row.prompt_tokens + len(row.token_ids) == 64
    with pytest.raises(SpecError, match=r"model\.max_length must be below 64"):
        answers(backend(folder, decoder=decoder), [request(0, "word " * 100)])
    cut = answers(backend(folder, decoder=decoder, max_length=40), [request(0, "word " * 100)])[0]
    assert cut.prompt_tokens == 40 and cut.prompt_cut > 60


def test_cancelled_requests_leave_the_queue_and_the_batch(
    tiny_llama: Maker, many: list[Request], plain: list[Generation]
) -> None:
    async def scene() -> tuple[list[Generation], dict[str, Any]]:
        begun = asyncio.Event()
        async with backend(tiny_llama(), batch_size=2) as made:
            endless = request(0, cap=1800, on_token=lambda _: begun.set())
            first = asyncio.create_task(made.generate(endless))
            queued = [asyncio.create_task(made.generate(each)) for each in many[1:5]]
            await begun.wait()
            first.cancel()
            queued[2].cancel()
            rows = await asyncio.gather(*queued[:2], queued[3])
            return list(rows), made.describe()

    rows, described = asyncio.run(scene())
    assert ids(rows) == ids([plain[1], plain[2], plain[4]])
    assert described["requests"] == 3 and described["generated_tokens"] == 72


@with_both
def test_leaving_ends_a_running_batch_at_once(decoder: str, tiny_llama: Maker) -> None:
    async def scene() -> None:
        begun = asyncio.Event()
        async with backend(tiny_llama(), decoder=decoder) as made:
            endless = request(0, cap=1900, on_token=lambda _: begun.set())
            task = asyncio.create_task(made.generate(endless))
            await begun.wait()
        with pytest.raises(RuntimeError, match="closed"):
            await task

    asyncio.run(asyncio.wait_for(scene(), 60))


class _Failing:
    """Wraps a model's forward: from its third step on it fails with more than `fits` rows."""

    def __init__(self, model: torch.nn.Module, fits: int, error: Exception) -> None:
        self._forward, self._fits, self._error = model.forward, fits, error
        self.failures = self._steps = 0

    def __call__(self, *positional: Any, **named: Any) -> Any:
        self._steps += 1
        if self._steps > 2 and len(named["input_ids"]) > self._fits:
            self.failures += 1
            raise self._error
        return self._forward(*positional, **named)


async def asked_of_failing(
    folder: Path, requests: list[Request], fits: int, error: Exception
) -> tuple[list[Any], dict[str, Any], int]:
    async with backend(folder, batch_size=6) as made:
        model = made._model
        assert model is not None
        failing = _Failing(model, fits, error)
        model.forward = failing  # type: ignore[assignment]
        rows = await asyncio.gather(*map(made.generate, requests), return_exceptions=True)
        return rows, made.describe(), failing.failures


def test_out_of_memory_halves_the_batch_and_loses_nothing(
    tiny_llama: Maker, many: list[Request], plain: list[Generation]
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")
    rows, described, failures = asyncio.run(asked_of_failing(tiny_llama(), many, 2, error))
    assert ids(rows) == ids(plain) and failures == 2
    assert described["batch_size"] == 1
    for row, expected in zip(rows, plain, strict=True):
        assert row.entropies == pytest.approx(expected.entropies, abs=1e-4)
        assert row.text == expected.text and row.ends == expected.ends


def test_a_single_row_that_does_not_fit_names_what_to_lower(
    tiny_llama: Maker, many: list[Request]
) -> None:
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    rows, _, _ = asyncio.run(asked_of_failing(tiny_llama(), many[:2], 0, error))
    for row in rows:
        assert isinstance(row, MemoryError)
        assert "backend.batch_size" in str(row) and "model.max_length" in str(row)


def test_an_error_of_the_model_reaches_its_callers_and_the_next_batch_runs(
    tiny_llama: Maker, many: list[Request], plain: list[Generation]
) -> None:
    async def scene() -> tuple[list[Any], Generation]:
        async with backend(tiny_llama()) as made:
            model = made._model
            assert model is not None
            whole = model.forward
            model.forward = _Failing(model, 0, ValueError("broken"))  # type: ignore[assignment]
            failed = await asyncio.gather(*map(made.generate, many[:3]), return_exceptions=True)
            model.forward = whole  # type: ignore[method-assign]
            return failed, await made.generate(many[3])

    failed, row = asyncio.run(scene())
    assert [str(error) for error in failed] == ["broken"] * 3
    assert row.token_ids == plain[3].token_ids


def test_logits_that_are_no_numbers_are_an_error(tiny_llama: Maker, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny_llama(), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][:] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(FloatingPointError, match="quantization"):
        answers(backend(folder), [request(0)])


def test_memory_does_not_grow_with_length_times_vocabulary(tiny_llama: Maker) -> None:
    rows, size = 4, 49_152
    held: dict[int, int] = {}
    steps = 0

    def on_token(_: str) -> None:
        nonlocal steps
        steps += 1
        if steps in (10, 110):
            tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor]
            held[steps] = sum(t.numel() * t.element_size() for t in tensors)

    requests = [request(n, cap=200) for n in range(rows - 1)]
    answers(backend(tiny_llama()), [*requests, request(rows, cap=200, on_token=on_token)])
    one_step = rows * size * 4
    assert set(held) == {10, 110} and held[110] - held[10] < 8 * one_step


def test_identity_says_what_a_row_is_and_not_how_it_was_made(
    tiny_llama: Maker, tmp_path: Path
) -> None:
    folder = tiny_llama()
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    base = backend(folder).identity()
    json.dumps(base)
    assert backend(moved, batch_size=3, use_cache=False, threads=2).identity() == base
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    others = [
        backend(tiny_llama(seed=1)),
        backend(folder, dtype="bfloat16"),
        backend(folder, max_length=9),
        backend(folder, max_length=9, truncation_side="right"),
        backend(folder, chat_template=str(template)),
        backend(folder, template_kwargs={"a": 1}),
    ]
    identities = [json.dumps(each.identity()) for each in others]
    assert len({json.dumps(base), *identities}) == 7


def test_the_type_that_a_checkpoint_has_already_is_the_same_row(
    tiny_llama: Maker, tmp_path: Path
) -> None:
    folder = tiny_llama()
    assert backend(folder, dtype=None).identity() == backend(folder, dtype="float32").identity()
    config = json.loads((folder / "config.json").read_text())
    half = shutil.copytree(folder, tmp_path / "m")
    (half / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    assert backend(half, dtype=None).identity() == backend(half, dtype="bfloat16").identity()
    assert backend(half, dtype=None).identity() != backend(half, dtype="float32").identity()


def test_the_training_step_is_known_before_loading(tiny_llama: Maker, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama(), tmp_path / "series" / "checkpoint-50")
    series = {"checkpoints": str(tmp_path / "series"), "step": "latest"}
    assert backend(tiny_llama(seed=1), **series).identity()["model.step"] == 50
    assert backend(tiny_llama()).identity()["model.step"] == 0


def test_a_preview_needs_no_weights(tiny_llama: Maker, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_llama(), tmp_path / "m")
    (folder / "config.json").unlink()
    text = backend(folder).preview(request(0, "Hi").prompt)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("dtype", ["bfloat16", None])
def test_weights_have_the_type_that_was_asked_for(
    tiny_llama: Maker, dtype: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "has_bfloat16", lambda: True)

    async def scene() -> dict[str, Any]:
        made = backend(tiny_llama(), dtype=dtype)
        await ask(made, [request(0)])
        async with made:
            return made.describe()

    described = asyncio.run(scene())
    assert described["dtype"] == (dtype or "float32") and described["device"] == "cpu"
    assert described["peak_memory_bytes"] > 0 and described["versions"]["torch"]


def test_a_processor_without_bfloat16_computes_in_float32(
    tiny_llama: Maker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hf, "has_bfloat16", lambda: False)
    made = backend(tiny_llama(), dtype="bfloat16")

    async def enter() -> dict[str, Any]:
        async with made:
            return made.describe()

    assert asyncio.run(enter())["dtype"] == "float32"
    assert "no bfloat16" in caplog.text


def test_bad_settings_are_refused_by_key(tiny_llama: Maker) -> None:
    folder = tiny_llama()
    for key, fields in {
        r"backend\.device": {"device": "tpu9"},
        r"backend\.batch_size": {"batch_size": 0},
        r"backend\.threads": {"threads": 0},
    }.items():
        with pytest.raises(SpecError, match=key):
            backend(folder, **fields)
    with pytest.raises(SpecError, match=r"quantization\.dtype"):
        Precision("float8")
    with pytest.raises(SpecError, match=r"model\.attn_implementation"):
        answers(backend(folder, attn_implementation="nonsense"), [request(0)])
    assert ModelSpec.__slots__


def with_an_added_token(folder: Path, target: Path, template: str) -> Path:
    """A copy of a model folder whose tokenizer has `<extra>` beyond the model's embedding."""
    from transformers import AutoTokenizer

    shutil.copytree(folder, target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert tokenizer.add_tokens(["<extra>"], special_tokens=True) == 1
    tokenizer.chat_template = template + tokenizer.chat_template
    tokenizer.save_pretrained(target)
    return target


def test_a_template_that_writes_a_token_without_embedding_is_refused_at_load(
    tiny_llama: Maker, tmp_path: Path
) -> None:
    folder = with_an_added_token(tiny_llama(), tmp_path / "m", "<extra>")
    with pytest.raises(SpecError, match=r"ids up to 49152 and the model embeds 49152.*<extra>"):
        answers(backend(folder), [request(0)])


@with_both
def test_a_prompt_that_writes_a_token_without_embedding_fails_alone(
    decoder: str, tiny_llama: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_an_added_token(tiny_llama(), tmp_path / "m", "")

    async def scene() -> list[Any]:
        async with backend(folder, decoder=decoder) as made:
            asked = [request(0), request(1, "Hi <extra>"), request(2)]
            return await asyncio.gather(*map(made.generate, asked), return_exceptions=True)

    first, second, third = asyncio.run(scene())
    assert isinstance(second, SpecError) and "ids below 49152" in str(second)
    assert len(first.token_ids) == len(third.token_ids) == 12
    assert "a prompt with <extra> is refused" in caplog.text
