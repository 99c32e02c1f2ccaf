"""Pass objects: assembly, entropies, markers, tags."""

import pytest

from pipeline.protocols import Cue, Example, Generation, Phase
from pipeline.run.markers import find_markers
from pipeline.run.pass_fields import SeriesPolicy, build_pass, generations_of, valid_tags
from tests.fakes.toy_task import TAGGED

EXAMPLE = Example("e", "What?", "x")
WAIT = Cue("wait", "Wait, no.")
NEUTRAL = Cue("neutral", "Again please.", control=True)


def generation(text: str, stop: str = "", entropies: list[float] | None = None) -> Generation:
    """One token per character; the stop string is one token more."""
    ids = list(range(len(text) + bool(stop)))
    ends = [min(i + 1, len(text)) + (len(stop) if i == len(text) else 0) for i in range(len(ids))]
    values = entropies or [float(i) for i in range(len(ids))]
    reason = "stop_token" if stop else "max_new_tokens"
    made = Generation(ids, text, reason, tail=stop, entropies=values, ends=ends)  # type: ignore[arg-type]
    made.logprobs = [-value for value in values]
    return made


def two(think: str, answer: str) -> list[Generation]:
    return [generation(think, "</think>"), generation(answer, "</answer>")]


def test_output_has_tags_without_blanks_inside_and_segments_point_at_the_text() -> None:
    fields = build_pass(EXAMPLE, TAGGED, two("  so it is \n", "\nx "), None, SeriesPolicy())
    assert fields["output"] == "<think>so it is</think>\n<answer>x</answer>"
    cut = {name: fields["output"][a:b] for name, (a, b) in fields["segments"].items()}
    assert cut == {"think": "so it is", "answer": "x"}
    assert fields["valid_tag_structure"]


def test_token_ends_are_places_in_the_output() -> None:
    fields = build_pass(EXAMPLE, TAGGED, two("ab", "x"), None, SeriesPolicy())
    begin = fields["output"].index("ab")
    assert fields["token_ends"][:3] == [begin + 1, begin + 2, begin + 2]
    answer = fields["output"].index("x")
    assert fields["token_ends"][3:] == [answer + 1, answer + 1]


def test_a_capped_think_phase_is_closed_by_force() -> None:
    made = [generation("no end"), generation("x", "</answer>")]
    fields = build_pass(EXAMPLE, TAGGED, made, None, SeriesPolicy())
    assert fields["output"] == "<think>no end</think>\n<answer>x</answer>"
    assert fields["stop_reason_think"] == "max_new_tokens"
    assert fields["stop_reason_answer"] == "stop_token"


def test_entropies_are_means_per_phase_and_counts_include_the_stop_token() -> None:
    fields = build_pass(EXAMPLE, TAGGED, two("abc", "x"), None, SeriesPolicy())
    assert fields["entropy_think"] == pytest.approx((0 + 1 + 2 + 3) / 4)
    assert fields["entropy_answer"] == pytest.approx(0.5)
    assert fields["entropy"] == pytest.approx((6 + 1) / 6)
    assert (fields["tokens_think"], fields["tokens_answer"], fields["tokens_total"]) == (4, 2, 6)
    assert fields["tokens_end_think"] == 4


def test_a_spontaneous_marker_splits_the_entropy_at_its_token_not_its_character() -> None:
    """The original used the character offset as a token index."""
    text = "one two\nWait, three"
    tokens = ["one two", "\n", "Wait", ", three"]
    ends = [7, 8, 12, 19]
    think = Generation([1, 2, 3, 4], text, "eos", entropies=[1.0, 2.0, 4.0, 8.0], ends=ends)
    assert "".join(tokens) == text
    fields = build_pass(
        EXAMPLE, TAGGED, [think, generation("x", "</answer>")], None, SeriesPolicy()
    )
    assert fields["reconsider_markers"] == ["wait_line"]
    assert fields["reconsider_pos"] == text.index("Wait")
    assert fields["entropy_pre_cue"] == pytest.approx(1.5)
    assert fields["entropy_reconsider_think"] == pytest.approx(6.0)
    assert fields["entropy_reconsider_full"] == pytest.approx((4 + 8 + 0 + 1) / 4)
    assert fields["reconsider_context"] == "What?\n\none two\n"


def test_where_the_model_writes_the_tags_its_answer_is_no_reasoning() -> None:
    """Reasoning ends with its closing tag, whichever of the pipeline and the model wrote it."""
    tokens = ["<think>", "one", "\nWait", ", two", "</think>", "<answer>", "x", "</answer>"]
    ends = [len("".join(tokens[: i + 1])) for i in range(len(tokens))]
    entropies = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    ids, text = list(range(8)), "".join(tokens)
    whole = Generation(ids, text, "eos", entropies=entropies, ends=ends)
    fields = build_pass(EXAMPLE, (Phase("output", 9),), [whole], None, SeriesPolicy())
    assert fields["output"][:-1] == text[:-1] and fields["reconsider_markers"] == ["wait_line"]
    assert fields["entropy_pre_cue"] == (1 + 2) / 2
    assert fields["entropy_reconsider_think"] == (4 + 8 + 16) / 3
    assert fields["entropy_reconsider_full"] == (4 + 8 + 16 + 32 + 64 + 128) / 6
    free = Generation([1, 2, 3], "Wait, no", "eos", entropies=[1.0, 2.0, 6.0], ends=[4, 8, 8])
    fields = build_pass(EXAMPLE, (Phase("output", 9),), [free], None, SeriesPolicy())
    assert fields["entropy_reconsider_think"] == 3, "without a block all is reasoning, its end too"


def test_an_injected_cue_begins_the_output_and_is_not_found_as_a_marker() -> None:
    fields = build_pass(EXAMPLE, TAGGED, two("yes", "x"), WAIT, SeriesPolicy())
    assert fields["output"].startswith("<think>Wait, no. yes</think>")
    assert fields["reconsider_markers"] == ["injected_cue"] and fields["reconsider_pos"] is None
    assert fields["entropy_reconsider_think"] == fields["entropy_think"]
    start, end = fields["segments"]["think"]
    assert fields["output"][start:end] == "yes"


def test_a_control_cue_is_no_reconsideration() -> None:
    fields = build_pass(EXAMPLE, TAGGED, two("yes", "x"), NEUTRAL, SeriesPolicy())
    assert fields["has_reconsider_cue"] is False and fields["entropy_reconsider_full"] is None


def test_a_pass_gives_its_generations_back() -> None:
    made = two("some text", "x")
    again = generations_of(build_pass(EXAMPLE, TAGGED, made, None, SeriesPolicy()), TAGGED)
    for old, new in zip(made, again, strict=True):
        assert (new.token_ids, new.text, new.tail) == (old.token_ids, old.text, old.tail)
        assert new.finish_reason == old.finish_reason


def test_arrays_can_be_left_out_without_losing_means_or_ids() -> None:
    full = build_pass(EXAMPLE, TAGGED, two("abc", "x"), None, SeriesPolicy())
    bare = build_pass(EXAMPLE, TAGGED, two("abc", "x"), None, SeriesPolicy(arrays=False))
    assert {k: v for k, v in full.items() if k in bare} == bare
    assert set(full) - set(bare) == {"entropies", "logprobs", "token_ends"}


def test_a_plain_phase_has_no_tags() -> None:
    plain = (Phase("output", 10),)
    fields = build_pass(EXAMPLE, plain, [generation("hello")], None, SeriesPolicy())
    assert fields["output"] == "hello" and fields["valid_tag_structure"] is False
    assert fields["tokens_output"] == 5


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("<think>a</think>\n<answer>b</answer>", True),
        ("<THINK>a</THINK><answer>b</Answer>", True),
        ("<think>a</think><think>b</think><answer>c</answer>", False),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a<answer>b</answer></think>", False),
        ("<think>a</think><answer>b", False),
    ],
)
def test_tag_structure(text: str, valid: bool) -> None:
    assert valid_tags(text) is valid


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("I think.\nWait, that is off", ["wait_line"]),
        ("waiter, bring it", []),
        ("Wait. Then I reconsider", ["wait_line", "wait_reconsider"]),
        ("wait, let me reconsider", ["wait_line", "wait_reconsider", "reconsider_exact"]),
        ("Let's take this step-by-step", ["step_by_step", "step_by_step_alt"]),
        ("go step by step", ["step_by_step_alt"]),
        ("re-checking it", ["recheck"]),
        ("Hold on, this reasoning\nis wrong", ["hold_on_reasoning_wrong"]),
        ("Actually, this approach doesn't look correct", ["approach_not_correct"]),
        ("nothing here", []),
    ],
)
def test_markers(text: str, names: list[str]) -> None:
    assert find_markers(text).names == names


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wait_line", "so\n  Wait, no"),
        ("wait_reconsider", "wait a moment, I reconsider"),
        ("reconsider_exact", "Wait... let me reconsider"),
        ("step_by_step", "Let\u2019s take it step-by-step"),
        ("step_by_step_alt", "going step by step"),
        ("recheck", "I re-checked it"),
        ("hold_on_reasoning_wrong", "Hold on, my reasoning was wrong"),
        ("approach_not_correct", "Actually the approach doesn't look correct"),
    ],
)
def test_every_marker_is_found_by_itself(name: str, text: str) -> None:
    assert name in find_markers(text).names
