"""Seconds that a pass of looping output takes: markers, tags and all fields of the pass.

    python benchmarks/degenerate_text.py [--megabytes 1.0]

The texts are what reasoning models write when they loop: one sentence, a word, blanks or a tag,
over and over. Each is measured as the think phase of a pass, beside ordinary text as long.
"""

import argparse
import time

from pipeline.protocols import Example, Generation, Phase
from pipeline.run.markers import find_markers
from pipeline.run.pass_fields import SeriesPolicy, build_pass

PHASES = (
    Phase("think", 1 << 20, "<think>\n", ("</think>",), "</think>\n"),
    Phase("answer", 50, "<answer>\n", ("</answer>",), "</answer>"),
)
LOOPS = {
    "ordinary": "The sum of the first four odd numbers is sixteen, which is four squared. ",
    "hold on": "hold on, my reasoning. ",
    "approach": "Wait, actually, maybe the approach is wrong. ",
    "wait": "Wait. ",
    "wait lines": "wait\n\n\t\t",
    "wait, blanks": "wait" + " " * 60,
    "steps": "step by step by ",
    "tags": "<answer> <think> ",
    "blanks": " ",
    "digits": "9",
}


def seconds_of(text: str) -> tuple[float, float]:
    """Seconds of the markers alone, and of a whole pass."""
    begun = time.perf_counter()
    find_markers(text)
    marked = time.perf_counter()
    think = Generation([], text, "max_new_tokens", num_tokens=len(text) // 4)
    answer = Generation([], "4", "stop_token", tail="</answer>", num_tokens=2)
    build_pass(Example("loop", "What?"), PHASES, [think, answer], None, SeriesPolicy())
    return marked - begun, time.perf_counter() - marked


def main() -> None:
    """Print one line per text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1.0)
    num_chars = int(parser.parse_args().megabytes * 1e6)
    for name, sentence in LOOPS.items():
        markers, whole = seconds_of(sentence * (num_chars // len(sentence)))
        print(f"{name:12} {num_chars / 1e6:.1f} MB: markers {markers:.3f} s, pass {whole:.3f} s")


if __name__ == "__main__":
    main()
