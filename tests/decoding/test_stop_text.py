"""Stop strings, half characters and streaming, with decoders that work on bytes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from components.decoding.detokenizers import ByteIds
from components.decoding.stop_text import StopText

BYTE_IDS = ByteIds({n: n for n in range(256)})  # of `byte_fallback`


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


def of_bytes(ids: Sequence[int], *stops: str) -> StopText:
    scanner = StopText(byte_fallback, stops, pieces=BYTE_IDS)
    pushed(scanner, ids)
    scanner.finish()
    return scanner


def test_a_run_of_bytes_is_what_decoding_all_ids_makes_of_it() -> None:
    word = [ord(" ") + 1000, ord("A") + 300]
    good, broken = [*word, *"€€".encode(), *word], [*word, *"€€".encode(), 0xE2, *word]
    assert of_bytes(good).ends == [0, 1, 1, 1, 2, 2, 2, 3, 4, 5]
    assert of_bytes(broken).ends == list(range(11)), "one U+FFFD for every byte"
    random = Random(5)
    pieces = [*("é€😀<a".encode()[i : i + 2] for i in range(11)), *"€😀".encode(), *([400],) * 3]
    for _ in range(300):
        ids = [i for _ in range(12) for i in bytes_of(random.choice(pieces))]
        found = of_bytes(ids)
        assert found.text == byte_fallback(ids) and found.ends[-1] == len(found.text)
        assert len(found.ends) == len(ids) and found.ends == sorted(found.ends)


def bytes_of(piece: object) -> list[int]:
    return [piece] if isinstance(piece, int) else list(piece)  # type: ignore[call-overload]


def test_a_stop_string_in_bytes_ends_the_text_at_its_last_byte() -> None:
    letters = [ord(c) + 300 for c in "ab"]
    ids = [*letters, *b"</a>", *letters]
    scanner = StopText(byte_fallback, ["</a>"], pieces=BYTE_IDS)
    assert pushed(scanner, ids) == 6
    assert (scanner.text, scanner.tail) == (byte_fallback(letters), "</a>")
    assert scanner.ends == [1, 2, 3, 4, 5, 6]


def test_a_long_run_of_bytes_takes_linear_time() -> None:
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return byte_fallback(ids)

    scanner = StopText(decode, ["stop"], pieces=BYTE_IDS)
    pushed(scanner, [*"€".encode() * 3000, *b"stop"])
    assert scanner.text == "€" * 3000 and longest < 40


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
