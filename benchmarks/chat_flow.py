"""How soon an answer begins and how evenly it flows, for a person at a chat.

    python benchmarks/chat_flow.py smollm2 quantization=fp32
    python benchmarks/chat_flow.py smollm2 backend=local_server backend.deployment=m

The words are those of `launch.api.load`, so any backend can be measured. One conversation of
several turns is held; for each turn a line says the tokens of its prompt, the milliseconds to the
first piece of text, and of the pauses between pieces the median, the 95th percentile and the
longest. A later turn's prompt holds all turns before it; what was cached of them is not computed
again.
"""

import argparse
import itertools
import statistics
import time

from launch import api
from launch.talk.session import Session
from pipeline.protocols import Generation, Message, Prompt

TURNS = ("What is a verb?", "And a noun?", "Give three examples of each.", "Make a rhyme of them.")
COLUMNS = ("turn", "prompt", "tokens", "pieces", "first", "median", "95 %", "longest", "tokens/s")


def main() -> None:
    """Talk, and print a line for each turn."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--tokens", type=int, default=100, help="at most, of an answer")
    asked = parser.parse_args()
    cap = f"sampling.max_new_tokens={asked.tokens}"
    with api.load(asked.model, "sampling=greedy", cap, *asked.overrides) as session:
        about = session.backend.describe()
        print(asked.model, about.get("device"), about.get("dtype"), "pauses in milliseconds")
        print("".join(f"{name:>9}" for name in COLUMNS))
        talk(session)


def talk(session: Session) -> None:
    """One conversation, after a turn of another that compiles whatever is compiled."""
    timed(session, (Message("user", ("Hello",)),))
    turns: tuple[Message, ...] = ()
    for number, text in enumerate(TURNS, start=1):
        turns = (*turns, Message("user", (text,)))
        generation, seconds = timed(session, turns)
        turns = (*turns, Message("assistant", (generation,)))
        print("".join(f"{cell:>9}" for cell in (number, *cells(generation, seconds))))


def timed(session: Session, turns: tuple[Message, ...]) -> tuple[Generation, list[float]]:
    """An answer, and when each of its pieces came: seconds since it was asked for."""
    start = time.perf_counter()
    stream = session.stream_prompt(Prompt(turns))
    seconds = [time.perf_counter() - start for _ in stream]
    return stream.generation, seconds


def cells(generation: Generation, seconds: list[float]) -> list[str]:
    """The numbers of one answer."""
    pauses = [1000 * (later - earlier) for earlier, later in itertools.pairwise(seconds)]
    spread = ["-"] * 3
    rate = "-"
    if len(pauses) > 1:
        percentiles = statistics.quantiles(pauses, n=20, method="inclusive")
        spread = [f"{n:.1f}" for n in (statistics.median(pauses), percentiles[-1], max(pauses))]
        rate = f"{(generation.count - 1) / (seconds[-1] - seconds[0]):.1f}"
    first = f"{1000 * seconds[0]:.0f}" if seconds else "-"
    counts = [generation.prompt_tokens, generation.count, len(seconds)]
    return [*map(str, counts), first, *spread, rate]


if __name__ == "__main__":
    main()
