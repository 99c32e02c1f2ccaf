"""How a composed config becomes components: what constructors get, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from launch.config.compose import build_backend, construct_backend, to_spec
from pipeline.protocols import Backend, Capabilities, Generation, Request
from pipeline.run.point import Point
from pipeline.spec import ModelSpec, SpecError
from tests.fakes.configs import composed, point_of
from tests.gateways.asking import configured
from tests.gateways.service import chat, serving


class Shout(Backend):
    """The smallest backend: a name and `generate`, no parameter of any kind."""

    name = "shout"
    capabilities = Capabilities(runs_model=False)

    async def generate(self, request: Request) -> Generation:
        return Generation([], self.preview(request.prompt).upper(), "eos", num_tokens=1)


class NeedsTheModel(Shout):
    """A backend that takes the model and a setting of its own, and neither of the others."""

    def __init__(self, model: ModelSpec, volume: int = 1) -> None:
        self.model, self.volume = model, volume


class TwoBits:
    """A quantization of one's own."""

    name, devices = "two_bits", ()

    def identity(self) -> dict[str, Any]:
        return {"bits": 2}


class Nameless:
    """Not a quantization: it lacks what rows and fingerprints need."""


def spec(target: type, *overrides: str) -> Any:
    line = ["task=crossword", "backend=echo", "~backend.capacity", "~backend.seconds_per_token"]
    return to_spec(composed(*line, f"backend._target_={__name__}.{target.__name__}", *overrides))


def test_a_constructor_gets_what_it_has_parameters_for() -> None:
    assert isinstance(build_backend(spec(Shout)), Shout)
    backend = build_backend(spec(NeedsTheModel, "+backend.volume=11", "model.name=tiny"))
    assert isinstance(backend, NeedsTheModel)
    assert (backend.model.name, backend.volume) == ("tiny", 11)


def test_a_backend_without_the_parameter_refuses_any_quantization_but_none() -> None:
    for option in ("bf16", "fp32"):
        with pytest.raises(
            SpecError, match=f"quantization must be none with backend shout.*{option}"
        ):
            build_backend(spec(Shout, f"quantization={option}"))


@pytest.mark.parametrize("kind", ["echo", "openai", "local_server"])
def test_a_quantization_of_ones_own_is_refused_by_name_where_nothing_is_loaded(kind: str) -> None:
    asked = to_spec(composed("task=crossword", f"backend={kind}"))
    asked.quantization = {"_target_": f"{__name__}.TwoBits"}
    with pytest.raises(SpecError, match="quantization must be none with backend .*'two_bits'"):
        build_backend(asked)


def test_what_is_no_quantization_is_refused_by_its_class() -> None:
    asked = spec(Shout)
    asked.quantization = {"_target_": f"{__name__}.Nameless"}
    with pytest.raises(SpecError, match=r"quantization\._target_ must be a class with `name`"):
        build_backend(asked)


def test_a_cap_that_is_set_twice_to_two_values_is_refused() -> None:
    def asked(*overrides: str) -> Point:
        return point_of(composed("task=crossword", "backend=echo", *overrides), overrides)

    rule = r"task\.think_cap must be left out, or equal sampling\.think_cap=8, .*, got 9"
    with pytest.raises(SpecError, match=rule):
        asked("task.think_cap=9", "sampling.think_cap=8")
    assert asked("task.think_cap=8", "sampling.think_cap=8").phases[0].cap == 8
    assert asked("sampling.think_cap=7").phases[0].cap == 7
    assert asked("task.think_cap=6").phases[0].cap == 6
    reasons = ("model.reasoning_cap=4000",)
    rule = r"task\.think_cap must be left out: .*=4000 replaces it; use sampling\.think_cap, got 9"
    with pytest.raises(SpecError, match=rule):
        asked("task.think_cap=9", *reasons)
    assert [phase.cap for phase in asked("task.answer_cap=9", *reasons).phases] == [4000, 9]
    rule = (
        r"task\.max_output_tokens must be left out, or equal sampling\.max_new_tokens=9, .* got 7"
    )
    with pytest.raises(SpecError, match=rule):
        asked("run.phases=single", "task.max_output_tokens=7", "sampling.max_new_tokens=9")


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        (
            ("task=qa", "task.think_cap=5"),
            "task.think_cap .* use task.max_output_tokens for output",
        ),
        (
            ("task=crossword", "task.max_output_tokens=5"),
            "use task.think_cap for think and task.ans",
        ),
        (
            ("task=crossword", "run.phases=single", "task.answer_cap=5"),
            "use task.max_output_tokens",
        ),
    ],
)
def test_a_cap_of_the_task_that_no_phase_uses_is_refused(
    line: tuple[str, ...], refused: str
) -> None:
    with pytest.raises(SpecError, match=refused):
        point_of(composed("backend=echo", *line), line)


def test_a_service_is_asked_what_it_can_do_inside_a_running_loop_and_by_nothing_else(
    tmp_path: Path,
) -> None:
    with serving(chat("five, six")) as service:
        line = ("task=crossword", "backend=local_server", f"run.cache_dir={tmp_path}")
        line += (f"backend.endpoint={service.url}", "backend.prefill=auto")
        asked = to_spec(configured(*line))
        construct_backend(asked)
        assert not service.seen

        async def in_a_notebook() -> Backend:
            return build_backend(asked)

        backend = asyncio.run(in_a_notebook())
        assert backend.capabilities.assistant_prefill and len(service.seen) == 1
        assert build_backend(asked).identity()["backend.prefill"] and len(service.seen) == 1
