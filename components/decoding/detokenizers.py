"""The text of a growing list of token ids, as the tokenizer decodes the whole of it."""

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

HALF = "\ufffd"  # what decoders write for bytes that are not (yet) a character
LONGEST_CHARACTER = 4  # bytes of UTF-8, thus tokens, that one character can need
WINDOW = 12  # ids decoded together before the window is moved on
_LOOKED_BACK = 128  # bytes of a run in which a stop string is looked for
HOPELESS = 32  # ids after which a window is moved on though it ends in no whole character

Decode = Callable[[list[int]], str]


class Detokenizer:
    """Text of a growing list of ids, from a bounded window of the last ones.

    `decode` maps ids to text and must keep special tokens. `context` holds ids that come before the
    first one: a tokenizer that drops the space at the start of a text needs them to keep the space
    of the first id.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        """Start behind `context`."""
        self._decode = decode
        self._window = list(context[-LONGEST_CHARACTER:])
        self._text = decode(self._window) if self._window else ""
        self._told = len(self._text)
        self._unsettled = 0  # ids since the window last ended in a whole character

    def push(self, token: int) -> str:
        """Take one id; return the characters that are now certain."""
        self._window.append(token)
        self._text = self._decode(self._window)
        self._unsettled = self._unsettled + 1 if self._text.endswith(HALF) else 0
        certain = self._certain(self._text)
        new = self._text[self._told : certain]
        self._told = max(self._told, certain)
        settled = self._unsettled == 0 and len(self._window) > WINDOW
        if settled or len(self._window) > HOPELESS:
            self._move_on()
        return new

    def texts(self, tokens: Sequence[int]) -> list[str] | None:
        """The text of every id, where each is known by itself: here it never is."""
        return None

    @property
    def pending(self) -> str:
        """What is not told yet, and is text only if the next id is of another kind: nothing."""
        return ""

    def closed(self) -> list[int]:
        """How many characters each id of a run has that is told only now: there are no runs."""
        return []

    def rest(self) -> str:
        """The text of ids that do not make a whole character; asked once no more ids come."""
        new = self._text[self._told :]
        self._told = len(self._text)
        return new

    def _certain(self, text: str) -> int:
        """How many characters later ids cannot change.

        Bytes that stay unfinished for longer than any character can are taken as they are.
        """
        whole = len(text.rstrip(HALF))
        if self._unsettled > LONGEST_CHARACTER:
            return max(whole, len(text) - (LONGEST_CHARACTER - 1))
        return whole

    def _move_on(self) -> None:
        """Shorten the window to its last ids, cut where a character begins if it can be."""
        for kept in range(1, LONGEST_CHARACTER + 1):
            window = self._window[-kept:]
            text = self._decode(window)
            if HALF not in text:
                break
        self._window, self._text = window, text
        self._told = self._certain(text)


@dataclass(frozen=True, slots=True)
class Pieces:
    """What every id spells, for tokenizers whose text is its ids' bytes one after another.

    `texts` holds None for ids that do not spell whole characters.
    """

    spelled: list[bytes]
    texts: list[str | None]

    @classmethod
    def of(cls, spelled: Sequence[bytes]) -> Self:
        """The pieces of ids 0, 1, 2 ..."""
        return cls(list(spelled), [_whole(piece) for piece in spelled])


def _whole(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


class PieceDetokenizer:
    """As `Detokenizer`, from a table: some thirty times faster.

    Bytes that cannot become a character are told at once, as U+FFFD.
    """

    def __init__(self, pieces: Pieces, context: Sequence[int] = ()) -> None:
        """Start behind `context`."""
        self._pieces = pieces
        self._left = b""
        for token in context[-LONGEST_CHARACTER:]:
            self.push(token)

    def push(self, token: int) -> str:
        """Take one id; return the characters that are now certain."""
        if not self._left:
            text = self._pieces.texts[token]
            if text is not None:
                return text
        known = self._left + self._pieces.spelled[token]
        new, used = codecs.utf_8_decode(known, "replace", False)
        self._left = known[used:]
        return new

    def texts(self, tokens: Sequence[int]) -> list[str] | None:
        """The text of every id, where all are whole characters; else None, and none is taken."""
        if self._left:
            return None
        known = self._pieces.texts
        found = [text for token in tokens if (text := known[token]) is not None]
        return found if len(found) == len(tokens) else None

    @property
    def pending(self) -> str:
        """As of `Detokenizer`."""
        return ""

    def closed(self) -> list[int]:
        """As of `Detokenizer`."""
        return []

    def rest(self) -> str:
        """The text of bytes that do not make a whole character; asked once no more ids come."""
        new, self._left = self._left.decode(errors="replace"), b""
        return new


@dataclass(frozen=True, slots=True)
class ByteIds:
    """The byte of every id that spells one, for tokenizers that fall back on bytes.

    Their decoders write a run of such ids as its characters, or, where the run as a whole is no
    text, as one U+FFFD for every id.
    """

    bytes: Mapping[int, int]


class RunDetokenizer:
    """As `Detokenizer`, for tokenizers with `ByteIds`: a run is told once it is over."""

    def __init__(self, decode: Decode, known: ByteIds, context: Sequence[int] = ()) -> None:
        """Start behind `context`."""
        self._decode, self._bytes = decode, known.bytes
        self._between = Detokenizer(decode, context)
        self._closed: list[int] = []
        self._open()

    def push(self, token: int) -> str:
        """Take one id; return the characters that are now certain."""
        byte = self._bytes.get(token)
        if byte is None:
            return self._close() + self._between.push(token)
        unfinished = self._between.rest()
        self._run.append(token)
        try:
            self._characters.append(self._reader.decode(bytes([byte])))
        except UnicodeDecodeError:
            self._broken = True
        return unfinished

    def texts(self, tokens: Sequence[int]) -> list[str] | None:
        """As of `Detokenizer`."""
        return None

    @property
    def pending(self) -> str:
        """The characters of the run so far, if it is text up to its last byte."""
        whole = not self._broken and not self._reader.getstate()[0]
        if not whole:
            return ""
        last = self._characters[-_LOOKED_BACK:]
        return (HALF if len(last) < len(self._characters) else "") + "".join(last)

    def closed(self) -> list[int]:
        """How many characters each id of the run has that was told last; asked once."""
        closed, self._closed = self._closed, []
        return closed

    def rest(self) -> str:
        """The text of a run that nothing follows, or of an unfinished character."""
        return self._close() + self._between.rest()

    def _open(self) -> None:
        self._run: list[int] = []
        self._characters: list[str] = []
        self._reader = codecs.getincrementaldecoder("utf-8")()
        self._broken = False

    def _close(self) -> str:
        if not self._run:
            return ""
        whole = not self._broken and not self._reader.getstate()[0]
        told = self._characters if whole else [HALF] * len(self._run)
        self._closed = list(map(len, told))
        # The run's last id keeps the space of the id behind it.
        self._between = Detokenizer(self._decode, self._run[-1:])
        self._open()
        return "".join(told)


def detokenizer(
    decode: Decode, known: Pieces | ByteIds | None, context: Sequence[int]
) -> Detokenizer | PieceDetokenizer | RunDetokenizer:
    """The one for what is known of a tokenizer."""
    if isinstance(known, Pieces):
        return PieceDetokenizer(known, context)
    return Detokenizer(decode, context) if known is None else RunDetokenizer(decode, known, context)
