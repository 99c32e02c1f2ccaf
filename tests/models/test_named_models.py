"""Models by name: hub id, and the sampling and template settings of their makers."""

import re

import pytest

from launch.config.compose import to_spec
from pipeline.spec import RunSpec
from tests.fakes.configs import ROOT, composed

NAMED = sorted(
    path.stem
    for path in (ROOT / "conf" / "model").glob("*.yaml")
    if path.read_text().startswith("# @package _global_")
)


def spec(*overrides: str) -> RunSpec:
    return to_spec(composed("task=math", *overrides))


@pytest.mark.parametrize("name", NAMED)
def test_a_named_model_is_a_hub_id_that_names_it(name: str) -> None:
    made = spec(f"model={name}")
    assert re.fullmatch(r"[\w-]+/[\w.-]+", made.model.path)
    assert made.model.name == made.model.path.partition("/")[2]
    letters = re.sub(r"[^a-z0-9]", "", made.model.name.lower())
    family = re.sub(r"[^a-z]", "", name.partition("_")[0])
    assert family in letters


def test_the_makers_sampling_comes_with_the_model_and_the_line_wins() -> None:
    qwen = spec("model=qwen3_8b")
    assert (qwen.sampling.temperature, qwen.sampling.top_p, qwen.sampling.top_k) == (0.6, 0.95, 20)
    assert qwen.model.template_kwargs == {"enable_thinking": True}
    assert spec("model=qwen3_8b", "sampling=greedy").sampling.temperature == 0
    mixed = spec("model=qwen3_8b", "sampling.temperature=1")
    assert (mixed.sampling.temperature, mixed.sampling.top_k) == (1.0, 20)
    assert spec("model=smollm2").sampling.top_k == 0
