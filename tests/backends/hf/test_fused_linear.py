"""Linear layers that read the same tensor are found by a trial and computed as one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from components.backends.hf.slots.attention import ProbeFrame, using_frame
from components.backends.hf.slots.build import chooses_on_host, waits_for_outliers
from components.backends.hf.slots.fit import compile_if_possible, fit, fuse_linears
from components.backends.hf.slots.fused_linear import FusedLinears, SharedInputs
from tests.fakes.memory_models import CHAPTERS
from tests.fakes.memory_models import model as memory_model
from tests.fakes.tiny_models import ARCHITECTURES, tiny

IDS = torch.arange(40)[None] * 7 + 3


@pytest.fixture(scope="module")
def fitted(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    def model(kind: str) -> Any:
        folder = tiny(kind, smollm2, tmp_path_factory.mktemp(kind))
        made = AutoModelForCausalLM.from_pretrained(folder)
        fit(made)
        return made

    return model


def logits(model: Any) -> torch.Tensor:
    positions = torch.arange(IDS.shape[1])[None]
    with torch.inference_mode(), using_frame(ProbeFrame()):
        found: torch.Tensor = model(IDS, position_ids=positions, use_cache=False).logits
    return found


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_joined_layers_give_the_logits_of_layers_by_themselves(
    kind: str, fitted: Callable[[str], Any]
) -> None:
    model = fitted(kind)
    expected = logits(model)
    saved = fuse_linears(model)
    # Queries, keys and values, and gate and up, of two layers; Phi3 has them joined already, and
    # experts hold theirs in one tensor.
    assert saved == {"phi3": 0, "mixtral": 4, "qwen3_moe": 4}.get(kind, 6)
    assert torch.allclose(logits(model), expected, atol=1e-4)


def test_joined_layers_are_compiled_into_one_program(fitted: Callable[[str], Any]) -> None:
    model = fitted("llama")
    expected = logits(model)
    fuse_linears(model)
    torch._dynamo.utils.counters.clear()
    compile_if_possible(model)
    assert torch.allclose(logits(model), expected, atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_any_number_of_models_in_one_process_are_compiled(
    smollm2: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = nn.Module.compile
    # What the compiler traces counts here, not the code that it makes of it, which takes seconds.
    monkeypatch.setattr(nn.Module, "compile", lambda *a, **b: real(*a, **b, backend="eager"))
    with torch._dynamo.config.patch(recompile_limit=1):
        for size in (32, 64, 96):
            folder = tiny("llama", smollm2, tmp_path / str(size), intermediate_size=size)
            model: Any = AutoModelForCausalLM.from_pretrained(folder)
            fit(model)
            compile_if_possible(model)
            assert model.model.layers[0]._compiled_call_impl is not None
    assert "uncompiled" not in caplog.text


def test_8_bit_layers_that_look_for_outliers_run_without_graphs(
    fitted: Callable[[str], Any],
) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = fitted("llama")
    assert not waits_for_outliers(model)
    for threshold in (0.0, 6.0):
        layer = bitsandbytes.nn.Linear8bitLt(64, 64, has_fp16_weights=False, threshold=threshold)
        model.model.layers[0].mlp.gate_proj = layer
        assert waits_for_outliers(model) == (threshold > 0)


def test_layers_that_the_compiler_cannot_follow_stay_as_they_are_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = memory_model(vocabulary=512)
    fit(model)
    expected = logits(model)
    compile_if_possible(model)
    assert "the layers run uncompiled, which is slower: " in caplog.text
    assert torch.equal(logits(model), expected)


def test_a_model_whose_tokens_choose_what_they_read_runs_without_graphs() -> None:
    routed = memory_model(**CHAPTERS, routing_strategy_inference="token")
    whole = memory_model()
    assert chooses_on_host(routed) and not chooses_on_host(whole)


def test_the_weights_of_joined_layers_take_no_more_memory(fitted: Callable[[str], Any]) -> None:
    model = fitted("qwen2")
    names = [name for name, _ in model.named_parameters()]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    fuse_linears(model)
    assert [name for name, _ in model.named_parameters()] == names
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    attention = model.model.layers[0].self_attn
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    assert len({part.weight.untyped_storage().data_ptr() for part in parts}) == 1


def test_layers_that_were_joined_can_be_parted_again() -> None:
    layers = [nn.Linear(8, size) for size in (4, 6)]
    given = torch.randn(3, 8)
    expected = [layer(given) for layer in layers]
    FusedLinears([layers]).undo()
    assert all(type(layer) is nn.Linear for layer in layers)
    assert all(torch.equal(layer(given), out) for layer, out in zip(layers, expected, strict=True))


class Adapted(nn.Linear):
    """Stands for an adapter's or a quantized layer, whose weight is not all that it computes."""


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([Adapted(8, 4)], id="a layer of another class"),
        pytest.param([nn.Linear(8, 4, bias=False)], id="a layer without a bias"),
        pytest.param([nn.Linear(8, 4, dtype=torch.float64)], id="a layer of another type"),
    ],
)
def test_unlike_layers_stay_by_themselves(others: list[nn.Linear]) -> None:
    model = nn.ModuleList([nn.Linear(8, 4), *others])
    readers, given = SharedInputs(), torch.randn(2, 8)
    with readers.watching(model):
        for layer in model:
            layer(given.to(layer.weight.dtype) if layer.weight.dtype != given.dtype else given)
    assert readers.groups() == []


def test_a_layer_that_is_called_twice_stays_by_itself() -> None:
    layer, other = nn.Linear(8, 8), nn.Linear(8, 8)
    readers, given = SharedInputs(), torch.randn(2, 8)
    with readers.watching(nn.ModuleList([layer, other])):
        layer(given)
        other(given)
        layer(given)
    assert readers.groups() == []
