"""Stop strings, half characters and streaming, with decoders that work on bytes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from components.decoding.stop_text import StopText


def byte_level(pieces: dict[int, bytes]) -> Callable[[list[int]], str]:
    """Decodes as byte-level BPE does: bytes joined, then read as UTF-8."""
    return lambda ids: b"".join(pieces[i] for i in ids).decode("utf-8", errors="replace")


def byte_fallback(ids: list[int]) -> str:
    """Decodes as sentencepiece does: a run of bytes is a text or one replacement a byte.

    Ids below 256 are bytes, others characters; the space before the first word goes.
    """
    text, run = "", b""
    for token in [*ids, 300]:
        if token < 256:
            run += bytes([token])
            continue
        try:
            text += run.decode("utf-8")
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        run = b""
        text += chr(token)
    return text[:-1].removeprefix(chr(ord(" ") + 1000)).replace(chr(ord(" ") + 1000), " ")


def pushed(scanner: StopText, ids: Sequence[int]) -> int:
    """How many ids it took to stop, or all."""
    return next((n for n, i in enumerate(ids, start=1) if scanner.push(i)), len(ids))


def text_of(parts: Sequence[bytes], *stops: str) -> tuple[StopText, int]:
    pieces = dict(enumerate(parts))
    scanner = StopText(byte_level(pieces), stops)
    return scanner, pushed(scanner, list(pieces))


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param([b"</think>"], id="one token"),
        pytest.param([b"</", b"think>"], id="two tokens"),
        pytest.param([b"</", b"th", b"in", b"k", b">"], id="five tokens"),
        pytest.param([b"so</think>\n\n"], id="inside a token"),
        pytest.param([b"so</thi", b"nk>\n"], id="across two tokens"),
    ],
)
def test_a_stop_string_ends_the_text_wherever_it_lies(stop: list[bytes]) -> None:
    scanner, used = text_of([b"I ", b"see ", *stop, b"never"], "</think>")
    whole = b"".join([b"I ", b"see ", *stop]).decode()
    assert used == 2 + len(stop)
    assert scanner.text == whole.partition("</think>")[0]
    assert scanner.text + scanner.tail == whole
    assert scanner.ends[-1] == len(whole) and len(scanner.ends) == used


def test_the_earliest_stop_string_counts_even_if_listed_last() -> None:
    scanner, _ = text_of([b"a END b STOP"], "STOP", "END")
    assert (scanner.text, scanner.tail) == ("a ", "END b STOP")


def test_a_stop_string_ends_the_text_before_half_a_character_behind_it() -> None:
    scanner, used = text_of([b"x", b"</a>\xe2", b"\x82\xac"], "</a>")
    assert (scanner.text, scanner.tail, used) == ("x", "</a>\ufffd", 2)


def test_characters_split_over_tokens_come_out_whole() -> None:
    text = "naïve 😀€ 漢字 done"
    parts = [bytes([b]) for b in text.encode()]
    scanner, _ = text_of(parts)
    assert "\ufffd" not in scanner.text
    scanner.finish()
    assert scanner.text == text
    assert scanner.ends == [
        len(text.encode()[: n + 1].decode("utf-8", errors="ignore")) for n in range(len(parts))
    ]


def test_text_cut_inside_a_character_keeps_its_bytes_visible() -> None:
    scanner, _ = text_of([b"ok", b"\xe2", b"\x82"])
    assert scanner.text == "ok"
    scanner.finish()
    assert scanner.text == "ok\ufffd" and scanner.ends == [2, 2, 3]


def test_bytes_that_never_become_characters_do_not_block_the_text() -> None:
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return bytes(ids).decode("utf-8", errors="replace")

    scanner = StopText(decode, ["stop"])
    used = pushed(scanner, [0xE2] * 500 + list(b"stop!"))
    assert used == 504 and len(scanner.text) == 500 and longest < 40


def test_random_byte_splits_give_the_text_that_decoding_all_ids_gives() -> None:
    random = Random(3)
    for _ in range(300):
        raw = "".join(random.choice("ab é€😀<\n") for _ in range(40)).encode()
        cuts = sorted(random.sample(range(1, len(raw)), 12))
        parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        scanner, _ = text_of(parts)
        scanner.finish()
        assert scanner.text == raw.decode()


def test_byte_fallback_runs_are_read_as_they_grow() -> None:
    word = [ord(" ") + 1000, ord("A") + 300]
    ids = [*word, *"€€".encode(), 0xE2, *word]
    scanner = StopText(byte_fallback)
    pushed(scanner, ids[:-3])
    assert scanner.text.endswith("€€")
    pushed(scanner, ids[-3:])
    scanner.finish()
    assert len(scanner.text) == len(byte_fallback(ids)) and scanner.text[1:3] == "€€"


def test_the_context_keeps_the_space_of_the_first_id() -> None:
    space, letter = ord(" ") + 1000, ord("A") + 300
    alone, behind = StopText(byte_fallback), StopText(byte_fallback, context=[letter])
    pushed(alone, [space, letter])
    pushed(behind, [space, letter])
    assert (alone.text, behind.text) == (chr(letter), " " + chr(letter))


def test_decoding_looks_at_a_bounded_number_of_ids() -> None:
    sizes = []

    def decode(ids: list[int]) -> str:
        sizes.append(len(ids))
        return "word " * len(ids)

    scanner = StopText(decode, ["never"])
    pushed(scanner, range(2000))
    assert max(sizes) < 20 and len(sizes) < 3000 and scanner.text == "word " * 2000


def streamed(parts: Sequence[bytes], *stops: str) -> list[str]:
    pieces = dict(enumerate(parts))
    scanner = StopText(byte_level(pieces), stops)
    taken = []
    for token in pieces:
        stopped = scanner.push(token)
        taken.append(scanner.take())
        if stopped:
            break
    scanner.finish()
    return [*taken, scanner.take()]


def test_streaming_holds_back_what_could_begin_a_stop_string() -> None:
    assert streamed([b"a<", b"/", b"b", b"</", b"x>", b"z"], "</x>") == ["a", "", "</b", "", "", ""]
    assert streamed([b"a<", b"/x"], "</x>") == ["a", "", "</x"]


def test_streaming_never_shows_half_a_character() -> None:
    assert streamed([b"a\xf0\x9f", b"\x98", b"\x80b"]) == ["a", "", "😀b", ""]


def test_streamed_pieces_add_up_to_the_text() -> None:
    random = Random(5)
    for _ in range(300):
        raw = "".join(random.choice("ab</>é€") for _ in range(60)).encode()
        cuts = sorted(random.sample(range(1, len(raw)), 20))
        parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        scanner, _ = text_of(parts, "</a>", "ab<")
        scanner.finish()
        assert "".join(streamed(parts, "</a>", "ab<")) == scanner.text


def test_an_end_token_is_no_text_but_may_complete_a_stop_string() -> None:
    decode = byte_level({0: b"fine", 1: b"<|end|>"})
    plain, stopping = StopText(decode, ["</a>"]), StopText(decode, ["<|end|>"])
    for scanner in (plain, stopping):
        assert not scanner.push(0)
    assert not plain.push_end(1) and stopping.push_end(1)
    assert (plain.text, plain.tail, plain.ends) == ("fine", "", [4, 4])
    assert (stopping.text, stopping.tail) == ("fine", "<|end|>")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        StopText(byte_level({}), [""])


def test_a_real_tokenizer_spells_text_as_one_decode_does(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    text = "Thé 😀 quick\n\n  bröwn <|im_end|> 漢字 \\boxed{\\frac{1}{2}}</think>" * 5

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    scanner = StopText(decode)
    pushed(scanner, tokenizer.encode(text, add_special_tokens=False))
    scanner.finish()
    assert scanner.text == text
