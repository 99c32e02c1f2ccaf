"""Token ids to text, one id at a time: finds stop strings, holds back what is not certain yet."""

import io
from collections.abc import Sequence
from itertools import accumulate, islice

from components.decoding.detokenizers import ByteIds, Decode, Pieces, detokenizer


class StopText:
    """The text of a generation, scanned for stop strings as its ids come.

    A stop string is found wherever it lies: inside an id, across several, with other text before or
    behind it in the same id. `ends[i]` is the number of whole characters after id i (the stop
    string and what follows it included).
    """

    def __init__(
        self,
        decode: Decode,
        stops: Sequence[str] = (),
        context: Sequence[int] = (),
        pieces: Pieces | ByteIds | None = None,
    ) -> None:
        """`decode` and `context` as in `Detokenizer`; empty stop strings are refused.

        `pieces` is what is known of the tokenizer's spelling, if anything.
        """
        if "" in stops:
            raise ValueError("a stop string must hold at least one character, got ''")
        self.ends: list[int] = []
        self._stops = tuple(stops)
        self._reach = max((len(stop) for stop in stops), default=1) - 1
        self._detokenizer = detokenizer(decode, pieces, context)
        self._recent = ""  # the end of the text, in which a stop string may have begun
        self._buffer = io.StringIO(newline="\n")
        self._moved = False  # whether the buffer's place is not its end
        self._length = 0
        self._cut: int | None = None
        self._taken = 0
        self._finished = False

    def push(self, token: int) -> bool:
        """Take one id; True once a stop string is complete. No id may follow then."""
        before = self._length
        self._append(self._detokenizer.push(token))
        self._share_out(before)
        self.ends.append(self._length)
        pending = self._detokenizer.pending
        if self._cut is not None or (pending and self._stops_in(self._recent + pending)):
            self.finish()
        return self._cut is not None

    def push_all(self, tokens: Sequence[int]) -> int:
        """Take ids until a stop string is complete; return how many these were."""
        texts = self._detokenizer.texts(tokens)
        if texts is not None:
            new = "".join(texts)
            recent = self._recent + new
            if not self._stops_in(recent):
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
        self._share_out(before)
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
        before = self._length
        self._append(self._detokenizer.rest())
        self._share_out(before)
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

    def _stops_in(self, text: str) -> bool:
        return any(stop in text for stop in self._stops)

    def _share_out(self, before: int) -> None:
        """Give every id of a run of bytes that is told only now its own end."""
        counts = self._detokenizer.closed()
        if counts:
            self.ends[-len(counts) :] = islice(accumulate(counts, initial=before), 1, None)

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
