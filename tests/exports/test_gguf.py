"""GGUF files of SmolLM2 are read back by Transformers and by llama.cpp, as the same model."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from components.exports.llama_cpp import converter_script
from components.models.gguf_header import read_header
from pipeline.spec import SpecError
from tests.fakes.exports import exported, loaded
from tests.fakes.llama_cpp import answers

# Greedy answers whose every token leads by a margin: builds of llama.cpp differ in near ties.
PROMPTS = (
    "Explain gravity in one sentence.",
    "What is a noun? Answer in one sentence.",
)
TOKENS = 11
# Most KL divergence in nats of the next token's distribution from float32, over the contexts here.
KL = {"F16": 1e-4, "Q8_0": 0.03}


@pytest.fixture(scope="module")
def converter() -> None:
    try:
        converter_script(None)
    except SpecError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def prompts(smollm2: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    asked = ([{"role": "user", "content": text}] for text in PROMPTS)
    texts = [
        tokenizer.apply_chat_template(a, tokenize=False, add_generation_prompt=True) for a in asked
    ]
    return [tokenizer(text, add_special_tokens=False).input_ids for text in texts]


@pytest.fixture(scope="module")
def contexts(prompts: list[list[int]], greedy: list[list[int]]) -> list[list[int]]:
    """What stands before a few tokens of the greedy answers."""
    return [[*p, *g[:cut]] for p, g in zip(prompts, greedy, strict=True) for cut in (0, 6)]


@pytest.fixture(scope="module")
def greedy(smollm2: Path, prompts: list[list[int]]) -> list[list[int]]:
    """The model's own greedy ids in float32."""
    return [greedy_of(AutoModelForCausalLM.from_pretrained(smollm2), p) for p in prompts]


def greedy_of(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    given = torch.tensor([prompt])
    mask = torch.ones_like(given)
    ids = model.generate(given, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)
    return ids[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def export(converter: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`export(type)`: SmolLM2 in a GGUF file of a type."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            out = tmp_path_factory.mktemp("gguf") / kind
            record = exported(
                out, "to=gguf", f"to.type={kind}", "model=smollm2", "model.name=smollm2"
            )
            made[kind] = out / f"smollm2-{kind}.gguf"
            assert record["files"][0]["file"] == made[kind].name
        return made[kind]

    return make


def test_llama_cpp_generates_the_same_greedy_tokens_from_f32(
    export: Callable[[str], Path],
    prompts: list[list[int]],
    greedy: list[list[int]],
    tmp_path: Path,
) -> None:
    pytest.importorskip("xllamacpp")
    found = answers(export("F32"), tmp_path, prompts, TOKENS, whole=False)
    assert [ids for ids, _ in found] == greedy


def test_transformers_generates_the_same_greedy_tokens_from_f32(
    export: Callable[[str], Path], prompts: list[list[int]], greedy: list[list[int]], smollm2: Path
) -> None:
    model = loaded(export("F32"))
    assert [greedy_of(model, prompt) for prompt in prompts] == greedy


@pytest.mark.parametrize("kind", KL)
def test_llama_cpps_distributions_are_near_those_of_float32(
    export: Callable[[str], Path],
    contexts: list[list[int]],
    smollm2: Path,
    tmp_path: Path,
    kind: str,
) -> None:
    pytest.importorskip("xllamacpp")
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    with torch.inference_mode():
        rows = [model(torch.tensor([c])).logits[0, -1].double().log_softmax(-1) for c in contexts]
    expected = torch.stack(rows).numpy()
    found = np.stack([row for _, row in answers(export(kind), tmp_path, contexts, 1, whole=True)])
    found -= np.log(np.exp(found).sum(-1, keepdims=True))  # theirs sum to 1 within 1e-4 only
    divergence = (np.exp(expected) * (expected - found)).sum(-1)
    assert (divergence > -1e-9).all() and divergence.max() < KL[kind], divergence


@pytest.mark.skipif(shutil.which("llama-quantize") is None, reason="llama.cpp is not built here")
def test_the_native_quantizer_writes_a_file_that_llama_cpp_runs(
    export: Callable[[str], Path], prompts: list[list[int]], tmp_path: Path
) -> None:
    pytest.importorskip("xllamacpp")
    path = export("Q4_K_M")
    assert "Q4_K" in read_header(path).bytes_by_type
    ((ids, _), _) = answers(path, tmp_path, prompts, TOKENS, whole=False)
    assert len(ids) == TOKENS


def test_tokenizer_and_chat_template_are_in_the_file(
    export: Callable[[str], Path], smollm2: Path
) -> None:
    fields = read_header(export("Q8_0")).fields
    assert fields["tokenizer.chat_template"] == (smollm2 / "chat_template.jinja").read_text()
    assert fields["tokenizer.ggml.eos_token_id"] == 2
    assert fields["general.name"] == "smollm2"
