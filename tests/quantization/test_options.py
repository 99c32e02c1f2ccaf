"""Every option of `conf/quantization/` loads, or is refused with the reason."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from components.backends.hf.backend import HfBackend
from components.models.checkpoint import prepare, resolve
from components.models.loading import load_model
from components.quantization.library import LibraryQuantization
from launch.config.compose import build, to_spec
from pipeline.protocols import Generation, Quantization
from pipeline.spec import ModelSpec, SpecError
from tests.fakes.configs import composed
from tests.fakes.hf_requests import HERE, ask, request
from tests.fakes.tiny_models import tiny

Maker = Callable[..., Path]
LIBRARY_OPTIONS = ("bnb_nf4", "bnb_fp4", "bnb_int8", "torchao_int8wo", "torchao_int8dyn")
CPU_OPTIONS = (*LIBRARY_OPTIONS, "torchao_fp8wo", "dynamic_int8")
CUDA_OPTIONS = {"torchao_int4wo": "bnb_nf4", "torchao_fp8dyn": "torchao_fp8wo"}
ALIASES = {
    "fp8": "torchao_fp8wo",
    "bnb_8bit": "bnb_int8",
    "bnb_4bit": "bnb_nf4",
    "dynamic": "dynamic_int8",
}
# Least agreement of the likeliest token with float32, and most bytes beside it, on SmolLM2.
SMOLLM2 = {
    "fp32": (1.0, 1.01),
    "bf16": (0.9, 0.51),
    "fp16": (0.95, 0.51),
    "bnb_nf4": (0.3, 0.22),
    "bnb_fp4": (0.3, 0.22),
    "bnb_int8": (0.75, 0.32),
    "torchao_int8wo": (0.8, 0.42),
    "torchao_int8dyn": (0.6, 0.42),
    "torchao_fp8wo": (0.7, 0.42),
    "dynamic_int8": (0.2, 0.48),
}


@pytest.fixture(autouse=True)
def libraries() -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `quantization` is not installed")
    pytest.importorskip("torchao", reason="the extra `quantization` is not installed")


def option(name: str) -> Any:
    """The quantization that the YAML of this name makes."""
    node = to_spec(composed("task=math", f"quantization={name}")).quantization
    return build("quantization", node)


def backend(folder: Path, name: str, **fields: Any) -> HfBackend:
    model = ModelSpec(name="m", path=str(folder))
    return HfBackend(model, option(name), **(HERE | fields))


async def answers_and_description(made: HfBackend) -> tuple[list[Generation], dict[str, Any]]:
    async with made:
        rows = await asyncio.gather(*(made.generate(request(n, cap=8)) for n in range(2)))
        return list(rows), made.describe()


@pytest.fixture(scope="module")
def folder(tiny_llama: Maker) -> Path:
    return tiny_llama(tie_word_embeddings=False, initializer_range=0.1)


@pytest.mark.parametrize("decoder", ["generate", "auto"])
@pytest.mark.parametrize("name", CPU_OPTIONS)
def test_a_quantized_model_generates_and_tells_its_layers_and_bytes(
    folder: Path, name: str, decoder: str
) -> None:
    made = backend(folder, name, decoder=decoder)
    rows, described = asyncio.run(answers_and_description(made))
    for row in rows:
        assert len(row.token_ids) == 8 and row.entropies is not None
        assert all(0 < entropy < 11 for entropy in row.entropies)
    weights = described["weights"]
    assert weights["quantized"]["model.layers.*.self_attn.q_proj"] == 2
    assert sum(weights["quantized"].values()) == 14 + (name == "dynamic_int8")
    assert "model.embed_tokens" in weights["kept"]
    small = sum(n for kind, n in weights["bytes"].items() if "8" in kind)
    assert small >= 2 * 36_864 // (2 if "4" in name else 1)


@pytest.mark.parametrize("name", ["none", "fp32", "bf16", "fp16"])
def test_a_plain_precision_keeps_every_layer(folder: Path, name: str) -> None:
    _, described = asyncio.run(answers_and_description(backend(folder, name)))
    weights = described["weights"]
    assert weights["quantized"] == {}
    parameters = 2 * 49_152 * 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64) + 64
    dtype, size = {"bf16": ("bfloat16", 2), "fp16": ("float16", 2)}.get(name, ("float32", 4))
    assert 0 <= weights["bytes"][dtype] - size * parameters < 100  # with the rotation's buffers


def test_every_option_has_an_identity_of_its_own_and_its_name(folder: Path) -> None:
    names = ("fp32", "bf16", "fp16", *CPU_OPTIONS)
    identities = {name: json.dumps(backend(folder, name).identity()) for name in names}
    assert len(set(identities.values())) == len(names)
    for name in names:
        made = option(name)
        assert made.name == name and isinstance(made, Quantization)


@pytest.mark.parametrize("alias", ALIASES)
def test_another_name_is_the_same_option(alias: str) -> None:
    assert option(alias) == option(ALIASES[alias])


def test_a_name_that_nothing_offers_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="bnb_fp8 cannot be honoured.*torchao_fp8wo"):
        option("bnb_fp8")


@pytest.mark.parametrize("name", CUDA_OPTIONS)
def test_an_option_for_cuda_is_refused_on_a_processor_before_loading(name: str) -> None:
    rule = f"does not run on cpu, only on cuda: .* quantization={CUDA_OPTIONS[name]}"
    with pytest.raises(SpecError, match=rule):
        backend(Path("never-looked-at"), name)


@pytest.mark.parametrize(
    ("name", "device", "capability", "said"),
    [
        ("torchao_fp8dyn", "cuda", 8.0, "compute capability 8.9 or more, and this one has 8.0"),
        ("torchao_int4wo", "cuda", 7.5, "quantization=bnb_nf4"),
        ("bnb_nf4", "mps", None, "does not run on mps, only on cpu or cuda"),
        ("dynamic_int8", "cuda", 9.0, "quantization=torchao_int8dyn"),
    ],
)
def test_a_device_that_an_option_does_not_run_on_is_refused(
    name: str, device: str, capability: float | None, said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        option(name).refuse(device, capability, None)
    assert said in str(caught.value)
    option("bf16").refuse(device, capability, "gptq")


@pytest.mark.parametrize("name", ["bnb_nf4", "torchao_int8wo", "dynamic_int8"])
def test_weights_that_are_quantized_already_are_refused_before_loading(
    folder: Path, tmp_path: Path, name: str
) -> None:
    stored = shutil.copytree(folder, tmp_path / "m")
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (stored / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError, match=r"stored quantized already \(gptq\)"):
        asyncio.run(ask(backend(stored, name), [request(0)]))


INT4 = "torchao.prototype.quantization.int4.PrototypeInt4WeightOnlyConfig"


def int4(group: int) -> LibraryQuantization:
    """What torchao has for a processor; it quantizes as `torchao_int4wo` does, and packs anew."""
    arguments = {"group_size": group, "set_inductor_config": False}
    return LibraryQuantization("int4", INT4, arguments, dtype="bfloat16", devices=("cpu",))


def test_a_library_that_leaves_every_layer_whole_is_refused(folder: Path) -> None:
    made = HfBackend(ModelSpec(name="m", path=str(folder)), int4(128), **HERE)
    _, described = asyncio.run(answers_and_description(made))
    assert described["weights"]["quantized"] == {"model.layers.*.mlp.down_proj": 2}  # 128 inputs
    narrow = tiny("llama", folder, folder.parent / "narrow", intermediate_size=64)
    made = HfBackend(ModelSpec(name="m", path=str(narrow)), int4(128), **HERE)
    with pytest.raises(SpecError, match="int4 must be another .* torchao leaves every layer"):
        asyncio.run(ask(made, [request(0)]))


def test_torchao_int4wo_reaches_every_layer_of_smollm2() -> None:
    """Its layers have 576 and 1536 inputs, of which groups of 128 would leave the former whole."""
    group = option("torchao_int4wo").arguments["group_size"]
    assert 576 % group == 1536 % group == 0


def test_a_missing_library_is_refused_with_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from components.quantization import library

    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"needs bitsandbytes: pip install .*\[quantization\]"):
        option("bnb_nf4").load_kwargs()


def test_an_architecture_without_linear_layers_is_refused_before_loading(
    tmp_path: Path, smollm2: Path
) -> None:
    from components.models.architecture import register

    register("components.models.architectures.bdh")
    config = AutoConfig.for_model("bdh", n_layer=1, n_embd=16, n_head=2, vocab_size=256)
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "bdh")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(smollm2 / name, tmp_path / "bdh" / name)
    for name in ("torchao_int8wo", "dynamic_int8"):
        with pytest.raises(SpecError, match="has no linear layers"):
            asyncio.run(ask(backend(tmp_path / "bdh", name), [request(0)]))


def test_a_checkpoint_that_a_library_quantized_loads_as_it_is(folder: Path, tmp_path: Path) -> None:
    cache, spec = tmp_path / "cache", ModelSpec(name="m", path=str(folder))
    device = torch.device("cpu")
    model = load_model(prepare(resolve(spec, cache), cache), spec, option("bnb_int8"), device)
    saved = shutil.copytree(folder, tmp_path / "m")
    (saved / "model.safetensors").unlink()
    model.save_pretrained(saved)
    spec = ModelSpec(name="m", path=str(saved))
    again = load_model(prepare(resolve(spec, cache), cache), spec, option("none"), device)
    ids = torch.arange(10)[None]
    with torch.inference_mode():
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
    _, described = asyncio.run(answers_and_description(backend(saved, "none")))
    assert sum(described["weights"]["quantized"].values()) == 14


def test_layers_that_are_no_linear_classes_are_quantized_too_where_the_library_can(
    smollm2: Path, tmp_path: Path
) -> None:
    folder = tiny("gpt2", smollm2, tmp_path / "gpt2", n_embd=64)
    _, described = asyncio.run(answers_and_description(backend(folder, "bnb_int8")))
    assert described["weights"]["quantized"]["transformer.h.*.attn.c_attn"] == 2


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Ids of a text, SmolLM2's float32 logits, and its bytes."""
    made = backend(smollm2, "fp32")
    ids = torch.tensor([made.encode(request(1).prompt)])
    logits, size = logits_and_bytes(smollm2, "fp32", ids)
    return ids, logits, size


def logits_and_bytes(folder: Path, name: str, ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    from components.quantization.report import weights_report

    spec = ModelSpec(name="m", path=str(folder))
    checkpoint = prepare(resolve(spec, folder), folder)
    model: Any = load_model(checkpoint, spec, option(name), torch.device("cpu"))
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0].float()
    return logits, sum(weights_report(model)["bytes"].values())


@pytest.mark.parametrize("name", SMOLLM2)
def test_smollm2_is_as_small_and_as_good_as_was_measured(
    smollm2: Path, reference: tuple[torch.Tensor, torch.Tensor, int], name: str
) -> None:
    ids, expected, whole = reference
    logits, size = logits_and_bytes(smollm2, name, ids)
    agreement, share = SMOLLM2[name]
    same = (logits.argmax(-1) == expected.argmax(-1)).float().mean()
    assert same >= agreement and size <= share * whole
