"""The assistant turn is spliced from exact generations and only the missing forced text."""

from dataclasses import replace

import pytest

from components.backends.echo import Echo
from pipeline.protocols import Capabilities, Generation
from pipeline.run.phases import assistant_turn, missing, resolve_phases
from pipeline.run.point import prepare
from pipeline.spec import ModelSpec, Run, RunSpec, Sampling, SpecError
from tests.fakes.toy_task import TAGGED, ToyTask

MODEL = ModelSpec(name="echo", path="echo")


@pytest.mark.parametrize(
    ("forced", "tail", "rest"),
    [
        ("</think>\n<answer>\n", "", "</think>\n<answer>\n"),
        ("</think>\n<answer>\n", "</think>", "\n<answer>\n"),
        ("</think>\n<answer>\n", "</think>\n", "<answer>\n"),
        ("</think>\n<answer>\n", "</think>\n\n", "<answer>\n"),
        ("</think>\n<answer>\n", "</think>\n<", "answer>\n"),
        ("</answer>", "</answer>!", ""),
    ],
)
def test_only_what_is_missing_of_the_forced_text_is_added(
    forced: str, tail: str, rest: str
) -> None:
    assert missing(forced, tail) == rest


def test_a_turn_with_fewer_generations_is_the_prefill_of_the_next_phase() -> None:
    think = Generation([5, 6], "so", "stop_token", tail="</think>")
    answer = Generation([7], "x", "max_new_tokens")
    assert assistant_turn(TAGGED, []) == ("<think>\n",)
    assert assistant_turn(TAGGED, [], "Wait. ") == ("<think>\nWait. ",)
    assert assistant_turn(TAGGED, [think]) == ("<think>\n", think, "\n<answer>\n")
    whole = assistant_turn(TAGGED, [think, answer])
    assert whole == ("<think>\n", think, "\n<answer>\n", answer, "</answer>")


class NoPrefill(Echo):
    name = "chat"
    capabilities = Capabilities(entropy=True)


def spec(phases: str = "auto", **sampling: int) -> RunSpec:
    return RunSpec({}, {}, {}, MODEL, Sampling(**sampling), {}, Run(phases=phases))  # type: ignore[arg-type]


def test_caps_come_from_the_task_unless_sampling_sets_them() -> None:
    backend = Echo(MODEL)
    assert [p.cap for p in resolve_phases(ToyTask(), backend, spec())] == [200, 50]
    capped = resolve_phases(ToyTask(), backend, spec(think_cap=9, answer_cap=8))
    assert [p.cap for p in capped] == [9, 8]


def test_a_model_that_reasons_gets_its_cap_unless_sampling_sets_one() -> None:
    def caps(phases: str, **sampling: int) -> list[int]:
        asked = spec(phases, **sampling)
        asked.model = replace(MODEL, reasoning_cap=4000)
        return [phase.cap for phase in resolve_phases(ToyTask(), Echo(MODEL), asked)]

    assert caps("tagged") == [4000, 50] and caps("single") == [4000]
    assert caps("tagged", think_cap=9) == [9, 50] and caps("single", max_new_tokens=8) == [8]
    with pytest.raises(SpecError, match=r"model\.reasoning_cap must be 1 or more, got 0"):
        replace(MODEL, reasoning_cap=0)


def test_a_cap_without_a_phase_is_refused_and_the_keys_that_count_are_named() -> None:
    def asked(phases: str, **caps: int) -> None:
        prepare(spec(phases, **caps), ToyTask(), Echo(MODEL))

    tagged = (
        r"sampling\.max_new_tokens must be left out.*task toy.*sampling\.think_cap for think and "
    )
    with pytest.raises(SpecError, match=tagged + r"sampling\.answer_cap for answer, got 10"):
        asked("tagged", max_new_tokens=10)
    single = (
        r"sampling\.answer_cap must be left out.*use sampling\.max_new_tokens for output, got 5"
    )
    with pytest.raises(SpecError, match=single):
        asked("single", answer_cap=5)
    asked("tagged", think_cap=1, answer_cap=1)
    asked("single", max_new_tokens=10)


def test_a_backend_without_prefill_gets_a_single_phase_and_refuses_tagged_by_name() -> None:
    (phase,) = resolve_phases(ToyTask(), NoPrefill(MODEL), spec())
    assert (phase.name, phase.cap, phase.stop, phase.opening) == ("output", 300, ("</answer>",), "")
    with pytest.raises(SpecError, match=r"run\.phases.*chat"):
        resolve_phases(ToyTask(), NoPrefill(MODEL), spec("tagged"))


def test_single_can_be_asked_for() -> None:
    (phase,) = resolve_phases(ToyTask(), Echo(MODEL), spec("single", max_new_tokens=77))
    assert phase.cap == 77


def test_a_generation_without_ids_stays_a_turn_of_the_model() -> None:
    think = Generation([], "so", "stop_token", tail="</think>")
    answer = Generation([7, 8], "5", "stop_token", tail="</answer>")
    turn = assistant_turn(TAGGED, [think, answer])
    assert turn == ("<think>\n", think, "\n<answer>\n", answer)
