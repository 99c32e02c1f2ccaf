"""Token ids to text, one id at a time: finds stop strings, holds back what is not certain yet."""

import codecs
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Self

HALF = "\ufffd"  # what decoders write for bytes that are not (yet) a character
LONGEST_CHARACTER = 4  # bytes of UTF-8, thus tokens, that one character can need
WINDOW = 12  # ids decoded together before the window is moved on
HOPELESS = 32  # ids after which a window is moved on though it ends in no whole character


class Detokenizer:
    """Text of a growing list of ids, from a bounded window of the last ones.

    `decode` maps ids to text and must keep special tokens. `context` holds ids that come before the
    first one: a tokenizer that drops the space at the start of a text needs them to keep the space
    of the first id.
    """

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int] = ()) -> None:
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

    def rest(self) -> str:
        """The text of bytes that do not make a whole character; asked once no more ids come."""
        new, self._left = self._left.decode(errors="replace"), b""
        return new


class StopText:
    """The text of a generation, scanned for stop strings as its ids come.

    A stop string is found wherever it lies: inside an id, across several, with other text before or
    behind it in the same id. `ends[i]` is the number of whole characters after id i (the stop
    string and what follows it included).
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        stops: Sequence[str] = (),
        context: Sequence[int] = (),
        pieces: Pieces | None = None,
    ) -> None:
        """`decode` and `context` as in `Detokenizer`; empty stop strings are refused.

        `pieces`, if the tokenizer has such, save decoding ids again and again.
        """
        if "" in stops:
            raise ValueError("a stop string must hold at least one character, got ''")
        self.ends: list[int] = []
        self._stops = tuple(stops)
        self._reach = max((len(stop) for stop in stops), default=1) - 1
        self._detokenizer: Detokenizer | PieceDetokenizer = (
            Detokenizer(decode, context) if pieces is None else PieceDetokenizer(pieces, context)
        )
        self._recent = ""  # the end of the text, in which a stop string may have begun
        self._buffer = io.StringIO(newline="\n")
        self._moved = False  # whether the buffer's place is not its end
        self._length = 0
        self._cut: int | None = None
        self._taken = 0
        self._finished = False

    def push(self, token: int) -> bool:
        """Take one id; True once a stop string is complete. No id may follow then."""
        self._append(self._detokenizer.push(token))
        self.ends.append(self._length)
        if self._cut is not None:
            self.finish()
        return self._cut is not None

    def push_all(self, tokens: Sequence[int]) -> int:
        """Take ids until a stop string is complete; return how many these were."""
        texts = self._detokenizer.texts(tokens)
        if texts is not None:
            new = "".join(texts)
            recent = self._recent + new
            if not any(stop in recent for stop in self._stops):
                ends = accumulate(map(len, texts), initial=self._length)
                self.ends += islice(ends, 1, None)
                self._append(new)
                return len(tokens)
        return next((n for n, token in enumerate(tokens, 1) if self.push(token)), len(tokens))

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._cut is not None

    def push_end(self, token: int) -> bool:
        """Take an end-of-sequence id.

        Its own spelling is no text unless it completes a stop string.
        """
        before, unfinished = self._length, self._detokenizer.rest()
        self._append(unfinished)
        whole = self._length
        self._append(self._detokenizer.push(token) + self._detokenizer.rest())
        if self._cut is None:
            self._moved = True
            self._buffer.truncate(whole)
            self._length = whole
        if self.ends and unfinished:
            self.ends[-1] = before + len(unfinished)
        self.ends.append(self._length)
        self._finished = True
        return self._cut is not None

    def finish(self) -> None:
        """No more ids come: bytes of an unfinished character become text as they are."""
        if self._finished:
            return
        self._append(self._detokenizer.rest())
        if self.ends:
            self.ends[-1] = self._length
        self._finished = True

    @property
    def text(self) -> str:
        """The text up to the stop string."""
        return self._buffer.getvalue()[: self._cut]

    @property
    def tail(self) -> str:
        """What the ids spell from the stop string's start on; empty without one."""
        return "" if self._cut is None else self._buffer.getvalue()[self._cut :]

    def take(self) -> str:
        """Text not taken yet that can no longer be part of a stop string or a half character."""
        if self._cut is not None:
            limit = self._cut
        elif self._finished:
            limit = self._length
        else:
            limit = self._length - self._held()
        new = self._read(self._taken, limit)
        self._taken = max(self._taken, limit)
        return new

    def _held(self) -> int:
        """Length of the longest end of the text that could begin a stop string."""
        end = self._read(max(0, self._length - self._reach), self._length)
        lengths = range(len(end), 0, -1)
        return next((n for n in lengths if any(s.startswith(end[-n:]) for s in self._stops)), 0)

    def _append(self, new: str) -> None:
        if not new:
            return
        if self._moved:
            self._buffer.seek(self._length)
            self._moved = False
        self._buffer.write(new)
        self._length += len(new)
        if self._cut is not None or not self._stops:
            return
        recent = self._recent + new
        found = [place for place in map(recent.find, self._stops) if place >= 0]
        if found:
            self._cut = self._length - len(recent) + min(found)
        self._recent = recent[len(recent) - self._reach :] if self._reach < len(recent) else recent

    def _read(self, start: int, end: int) -> str:
        if end <= start:
            return ""
        self._moved = True
        self._buffer.seek(start)
        return self._buffer.read(end - start)
