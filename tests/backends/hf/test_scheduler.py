"""Rows and pages where a device is ahead of the host, as on CUDA: several steps in one go.

The device here keeps ids where keys and values would be, so that a row which reads what is not its
own, or not yet written, is seen at once.
"""

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import pytest

from components.backends.hf.slots.pages import Copy, PageAllocator
from components.backends.hf.slots.scheduler import Scheduler
from components.backends.hf.slots.sequences import ActiveSequence, DrawnTokens
from components.backends.hf.submission import QueuedSequence
from components.decoding.detokenizers import Pieces
from components.decoding.prompt_encoder import Encoded
from components.decoding.sequence import Limits, TokenSequence
from pipeline.protocols import Group, Message, Prompt, Request
from pipeline.spec import Sampling

SIZE, END, VOCABULARY = 4, 40, 41
PIECES = Pieces.of([f" {n}".encode() for n in range(VOCABULARY)])
LIMITS = Limits(frozenset([END]), 400)


def following(ids: Sequence[int], seed: int) -> int:
    """The id that the model draws after `ids`."""
    return hash((seed, len(ids), *ids[-9:], ids[0])) % VOCABULARY


class Device:
    """Computes in the order in which it is asked; its results come up to one go late."""

    prefill_delay = 4

    def __init__(self, pages: int, rng: random.Random, ahead: int) -> None:
        self.pages = [[-1] * SIZE for _ in range(pages)]
        self._rng, self._ahead = rng, ahead
        self._ids: dict[ActiveSequence, list[int]] = {}
        self._pending: deque[DrawnTokens] = deque()

    def steps_per_launch(self, rows: int) -> int:
        return self._ahead

    def prefill(self, chunks: Sequence[tuple[ActiveSequence, int]]) -> None:
        done = []
        for active, count in chunks:
            cached = active.cached
            for place in range(cached.computed, cached.computed + count):
                self._write(cached.pages, place, cached.ids[place])
            cached.computed += count
            if not active.num_uncomputed:
                done.append(active)
        if done:
            self._send(done, [[self._draw(active) for active in done]])
        for active in done:
            active.decoding = True

    def decode(self, rows: Sequence[ActiveSequence], steps: int) -> None:
        results = []
        for step in range(steps):
            for active in rows:
                ids = self._known(active)
                place = active.cached.computed + step
                assert place == len(ids) - 1
                self._write(active.cached.pages, place, ids[place])
            results.append([self._draw(active) for active in rows])
        for active in rows:
            active.cached.computed += steps
        self._send(rows, results)

    def collect(self, wait: bool) -> list[DrawnTokens]:
        over = []
        while self._pending and (wait or len(self._pending) > 1 or self._rng.random() < 0.5):
            over.append(self._pending.popleft())
        return over

    def copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self.pages[copy.target][: copy.count] = self.pages[copy.source][: copy.count]

    def wipe(self, pages: Sequence[int], count: int) -> None:
        raise AssertionError("every number here is finite")

    def clear(self) -> None:
        self._pending.clear()

    def _known(self, active: ActiveSequence) -> list[int]:
        return self._ids.setdefault(active, list(active.cached.ids))

    def _draw(self, active: ActiveSequence) -> int:
        """Read all that the row has cached, and draw what follows."""
        ids, pages = self._known(active), active.cached.pages
        cached = [self.pages[pages[n // SIZE]][n % SIZE] for n in range(len(ids))]
        assert cached == ids
        ids.append(following(ids, active.sequence.seed))
        return ids[-1]

    def _write(self, pages: list[int], place: int, token: int) -> None:
        self.pages[pages[place // SIZE]][place % SIZE] = token

    def _send(self, rows: Sequence[ActiveSequence], results: list[list[int]]) -> None:
        numbers = [[float(token) for token in tokens] for tokens in results]
        self._pending.append(DrawnTokens(list(rows), results, numbers, numbers))
        for active in rows:
            active.in_flight += len(results)


def row(
    ids: list[int],
    seed: int,
    trace: int,
    cap: int,
    stop: tuple[str, ...] = (),
    limits: Limits = LIMITS,
) -> TokenSequence:
    request = Request(
        Prompt((Message("user", ("x",)),)), stop, cap, Sampling(), seed, trace, Group("g", 0, 1)
    )
    return TokenSequence(request, Encoded(ids), limits, lambda ids: "", PIECES)


def alone(made: TokenSequence) -> list[int]:
    """What the row is to hold: one id after another."""
    like = row(made.prompt.ids, made.seed, 0, made.request.cap, made.request.stop)
    while like.finish_reason is None:
        like.accept([following(like.ids, like.seed)], [0.0], [0.0])
    return like.token_ids


class Job:
    """Prompts with samples; every row that is over is continued twice, as by two cues."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._serial = 0
        self.coming: list[QueuedSequence] = []
        self.sequences: list[TokenSequence] = []
        start = rng.choices(range(END), k=rng.randint(1, 9))
        for trace in range(rng.randint(2, 9)):
            prompt = start[: rng.randint(1, 9)] + rng.choices(range(END), k=rng.randint(0, 20))
            for _ in range(rng.randint(1, 5)):
                self.add(prompt, trace)

    def add(self, ids: list[int], trace: int) -> None:
        rng = self._rng
        stop = rng.choice([(), (), (" 7",)])
        made = row(ids, rng.getrandbits(60), trace, rng.randint(1, 30), stop)
        self._serial += 1
        future = cast("asyncio.Future[Any]", None)  # of no use to the scheduler
        self.coming.append(QueuedSequence((trace, self._serial), made, future))
        self.sequences.append(made)

    def go_on(self, queued: QueuedSequence) -> None:
        if len(queued.sequence.ids) < 90:
            for _ in range(2):
                self.add(
                    [*queued.sequence.ids, *self._rng.choices(range(END), k=3)], queued.order[0]
                )


@pytest.mark.parametrize("seed", range(150))
def test_every_row_holds_what_it_would_alone_however_far_the_device_is_ahead(seed: int) -> None:
    rng = random.Random(seed)
    count, share = rng.choice([36, 60, 400]), rng.random() < 0.8
    device = Device(count, rng, rng.choice([1, 4, 8]))
    pages = PageAllocator(count, SIZE)
    scheduler = Scheduler(device, pages, rng.choice([1, 3, 40]), rng.choice([5, 64]), share)
    job, dropped, goes = Job(rng), set(), 0
    while job.coming or not scheduler.idle:
        for _ in range(min(len(job.coming), rng.randint(0, 6))):
            scheduler.add(job.coming.pop(0))
        for queued in scheduler.step():
            assert queued.sequence.failure is None
            if rng.random() < 0.3:
                job.go_on(queued)
            if rng.random() < 0.5:
                scheduler.release(queued.order[0])
        active = scheduler.active()
        if active and rng.random() < 0.03:
            lost = rng.choice(active).sequence
            lost.cancelled = True
            dropped.add(id(lost))
        goes += 1
        assert goes < 20_000, "no end is in sight"
    kept = [made for made in job.sequences if id(made) not in dropped]
    assert kept and all(made.token_ids == alone(made) for made in kept)
    for cached in list(pages._retained):
        pages.free(cached)
    assert pages.num_available == count


NOBODY = cast("asyncio.Future[Any]", None)


@pytest.mark.parametrize("ahead", [1, 4, 8])
def test_a_row_that_fills_the_cache_to_the_last_token_is_not_refused(ahead: int) -> None:
    rng = random.Random(0)
    for cap in [*range(1, 16)] * 5:
        device = Device(20 // SIZE, rng, ahead)
        scheduler = Scheduler(device, PageAllocator(20 // SIZE, SIZE), 4, 24, share=True)
        scheduler.add(
            QueuedSequence((0, 0), row([1, 2, 3, 4, 5], rng.getrandbits(60), 0, cap), NOBODY)
        )
        over: list[QueuedSequence] = []
        while not over:
            over = scheduler.step()
        assert over[0].sequence.failure is None


@pytest.mark.parametrize("ahead", [1, 4, 8])
def test_no_row_goes_further_than_one_go_behind_the_last_position(ahead: int) -> None:
    rng, context = random.Random(0), 50
    rows = [row([1, 2], seed, 0, 400, (), Limits(frozenset(), context)) for seed in range(9)]
    furthest = [0]

    class Watched(Device):
        def decode(self, rows: Sequence[ActiveSequence], steps: int) -> None:
            super().decode(rows, steps)
            furthest.append(max(active.cached.computed for active in rows))

    scheduler = Scheduler(Watched(400, rng, ahead), PageAllocator(400, SIZE), 9, 24, share=True)
    for number, made in enumerate(rows):
        scheduler.add(QueuedSequence((0, number), made, NOBODY))
    while not scheduler.idle:
        scheduler.step()
    assert max(furthest) < context + ahead
    assert all(len(made.ids) == context for made in rows)


def test_all_samples_of_prompts_decode_from_the_launch_after_their_prefill_on() -> None:
    rng, launches = random.Random(0), []

    class Watched(Device):
        def decode(self, rows: Sequence[ActiveSequence], steps: int) -> None:
            super().decode(rows, steps)
            launches.append(len(rows))

    pages = PageAllocator(4000, SIZE)
    scheduler = Scheduler(Watched(4000, rng, 8), pages, 300, 2000, share=True)
    for number in range(300):
        prompt = [number // 20, *range(1, 9)]
        made = row(prompt, rng.getrandbits(60), number, 30, (), Limits(frozenset(), 400))
        scheduler.add(QueuedSequence((number, number), made, NOBODY))
    while not scheduler.idle:
        scheduler.step()
    assert launches[0] == 300
