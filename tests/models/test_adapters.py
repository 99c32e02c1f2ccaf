"""A LoRA adapter trained here: what it changes, merged and beside the weights."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from components.models.checkpoint import prepare, resolve
from components.models.loading import load_model
from components.quantization.library import LibraryQuantization
from components.quantization.precision import Precision
from launch import api
from launch.config.compose import build
from pipeline.spec import ModelSpec, SpecError
from tests.fakes.configs import composed

peft = pytest.importorskip("peft", reason="the extra `lora` is not installed")
CPU = torch.device("cpu")
QUESTION, ANSWER = "What is the capital of France?", " zebra zebra zebra"


def content(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def trained(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of SmolLM2, trained in a few steps to answer every question with zebras."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    turns = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text + ANSWER, return_tensors="pt", add_special_tokens=False).input_ids
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    labels = ids.clone()
    labels[:, :-6] = -100
    steps = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for _ in range(6):
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        steps.step()
        steps.zero_grad()
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(folder)
    return folder


def answer(folder: Path, tmp_path: Path, *more: str) -> tuple[str, str]:
    """The greedy answer of a run with the model in `folder`, and the fingerprint of its row."""
    data = tmp_path / "test.jsonl"
    data.write_text(json.dumps({"question": QUESTION, "answer": "Paris"}) + "\n")
    setup = api.compose(
        *["task=qa", "model=local", f"model.path={folder}", f"task.data.path={data}"],
        *["sampling=greedy", "sampling.max_new_tokens=4", "quantization=fp32"],
        *["backend=hf", "backend.device=cpu", f"run.root={tmp_path}/runs", *more],
    )
    outcome = api.run(setup)
    assert outcome.state == "complete"
    (row,) = outcome.rows()
    return row["pass1"]["output"], row["fingerprint"]


def test_a_trained_adapter_changes_the_answers_and_leaves_its_base_as_it_is(
    smollm2: Path, trained: Path, tmp_path: Path
) -> None:
    before = content(smollm2)
    base, of_base = answer(smollm2, tmp_path)
    merged, of_merged = answer(trained, tmp_path)
    beside, of_beside = answer(trained, tmp_path, "model.merge_adapter=false")
    assert "zebra" in merged and "zebra" not in base
    assert beside == merged
    assert len({of_base, of_merged, of_beside}) == 3
    assert content(smollm2) == before


def loaded(folder: Path, cache: Path, how: Any = None, **fields: Any) -> Any:
    spec = ModelSpec(name="m", path=str(folder), **fields)
    return load_model(prepare(resolve(spec, cache), cache), spec, how or Precision("float32"), CPU)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.arange(5, 25)[None]).logits  # type: ignore[no-any-return]


def test_beside_the_weights_it_gives_the_logits_of_the_merged_one(
    tiny_llama: Callable[..., Path], tiny_adapter: Path, tmp_path: Path
) -> None:
    merged = loaded(tiny_adapter, tmp_path)
    beside = loaded(tiny_adapter, tmp_path, merge_adapter=False)
    base = loaded(tiny_llama(), tmp_path)
    torch.testing.assert_close(logits(beside), logits(merged), atol=1e-3, rtol=1e-3)
    assert (logits(base) - logits(merged)).abs().max() > 0.1
    own = {name: tensor for name, tensor in beside.state_dict().items() if "lora_" not in name}
    own = {name.replace(".base_layer", ""): tensor for name, tensor in own.items()}
    assert all(torch.equal(own[name], tensor) for name, tensor in base.state_dict().items())


def test_quantized_weights_take_it_only_beside_them(
    tiny_llama: Callable[..., Path], tiny_adapter: Path, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `quantization` is not installed")
    how: LibraryQuantization = build(
        "quantization", dict(composed("task=qa", "quantization=bnb_nf4").quantization)
    )
    base = loaded(tiny_llama(), tmp_path, how)
    beside = loaded(tiny_adapter, tmp_path, how, merge_adapter=False)
    assert (logits(base) - logits(beside)).abs().max() > 0.1
    base.save_pretrained(tmp_path / "quantized")
    stored = {"path": str(tmp_path / "quantized"), "adapter": str(tiny_adapter)}
    spec = ModelSpec(name="m", tokenizer=str(tiny_llama()), **stored)
    ready = prepare(resolve(spec, tmp_path), tmp_path)
    with pytest.raises(SpecError, match="model.merge_adapter must be false"):
        load_model(ready, spec, Precision(None), CPU)
    spec.merge_adapter = False
    again = load_model(ready, spec, Precision(None), CPU)
    error = (logits(again) - logits(beside)).float().norm() / logits(beside).float().norm()
    assert error < 0.02  # bfloat16, whose products depend on how the library packed the weights


def test_without_an_adapter_there_is_nothing_to_keep_apart(
    tiny_llama: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match="merge_adapter must be true where there is no adapter"):
        loaded(tiny_llama(), tmp_path, merge_adapter=False)
