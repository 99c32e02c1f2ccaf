"""A model class that Transformers does not know runs without a change to any file of ours."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.models.architecture import architecture_of
from pipeline.spec import ModelSpec, SpecError
from tests.fakes.configs import ROOT

MODULE = '''
"""A bigram model over bytes, and its tokenizer, which needs no files."""

import torch
from transformers import (
    AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationMixin, PreTrainedConfig,
    PreTrainedModel, PreTrainedTokenizer,
)
from transformers.modeling_outputs import CausalLMOutput


class BigramConfig(PreTrainedConfig):
    model_type = "toy_bigram"
    vocab_size: int = 257
    hidden_size: int = 257
    num_hidden_layers: int = 0


class BigramForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = BigramConfig

    def __init__(self, config):
        super().__init__(config)
        self.table = torch.nn.Embedding(config.vocab_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids, **_):
        return CausalLMOutput(logits=self.table(input_ids))


class ByteTokenizer(PreTrainedTokenizer):
    vocab_files_names = {}

    def __init__(self, **kwargs):
        super().__init__(eos_token="<end>", **kwargs)

    @property
    def vocab_size(self):
        return 256

    def get_vocab(self):
        return {chr(256 + byte): byte for byte in range(256)} | self.added_tokens_encoder

    def _tokenize(self, text, **_):
        return [chr(256 + byte) for byte in text.encode()]

    def _convert_token_to_id(self, token):
        return ord(token) - 256

    def _convert_id_to_token(self, index):
        return chr(256 + index)

    def convert_tokens_to_string(self, tokens):
        return bytes(ord(token) - 256 for token in tokens).decode("utf-8", "replace")


AutoConfig.register("toy_bigram", BigramConfig)
AutoModelForCausalLM.register(BigramConfig, BigramForCausalLM)
AutoTokenizer.register(BigramConfig, ByteTokenizer)

if __name__ == "__main__":
    import sys

    torch.manual_seed(0)
    model = BigramForCausalLM(BigramConfig())
    torch.nn.init.normal_(model.table.weight, std=3.0)
    model.save_pretrained(sys.argv[1])
'''
YAML = """
name: toy
path: {folder}/model
architecture: toy_bigram_of_mine
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A folder with the module of an architecture, a model of it without tokenizer, and a YAML."""
    (tmp_path / "toy_bigram_of_mine.py").write_text(MODULE)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "toy.yaml").write_text(YAML.format(folder=tmp_path))
    script = [sys.executable, str(tmp_path / "toy_bigram_of_mine.py"), str(tmp_path / "model")]
    subprocess.run(script, check=True, capture_output=True)
    return tmp_path


def run(toy: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    line = [
        "task=qa",
        "backend=hf",
        "backend.device=cpu",
        f"hydra.searchpath=[file://{toy}/conf]",
        "run.limit=2",
        "sampling.max_new_tokens=12",
        f"run.root={toy}/outputs",
        *overrides,
    ]
    path = os.pathsep.join([str(toy), str(ROOT)])
    return subprocess.run(
        [sys.executable, "launch/run.py", *line],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_an_architecture_of_ones_own_runs_from_its_module_and_a_yaml(toy: Path) -> None:
    done = run(toy, "model=toy")
    assert done.returncode == 0, done.stderr
    (rows,) = (toy / "outputs").rglob("step*.jsonl")
    passes = [json.loads(line)["pass1"] for line in rows.open(encoding="utf-8")]
    assert len(passes) == 2
    for each in passes:
        assert len(each["entropies"]) == len(each["token_ids"]) == 12
        assert 0 < min(each["entropies"]) < max(each["entropies"]) < 5.6
    (record,) = (toy / "outputs").rglob("run.json")
    identity = json.loads(record.read_text())["identity"]
    assert identity["tokenizer"] == "architecture:toy_bigram_of_mine"


def test_without_the_key_the_refusal_names_it(toy: Path) -> None:
    done = run(toy, "model=local", f"model.path={toy}/model")
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "model.tokenizer must name" in done.stderr + done.stdout
    assert "model.architecture" in done.stderr + done.stdout


def test_a_file_of_ours_goes_by_its_short_name_and_by_model_type(tmp_path: Path) -> None:
    module = "components.models.architectures.bdh"
    assert architecture_of(ModelSpec(path="m", architecture="bdh"), None) == module
    assert architecture_of(ModelSpec(path="m", architecture=module), None) == module
    for model_type, expected in {"bdh": module, "llama": None, "../bdh": None}.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert architecture_of(ModelSpec(path="m"), tmp_path) == expected


@pytest.mark.parametrize("name", ["no_such_module", "no.such.module", "..", "a b"])
def test_an_architecture_that_is_no_module_is_refused_by_key(name: str) -> None:
    with pytest.raises(SpecError, match=r"model\.architecture must name a module"):
        architecture_of(ModelSpec(path="m", architecture=name), None)
    with pytest.raises(SpecError, match=r"model\.architecture must be null, or not empty"):
        ModelSpec(path="m", architecture="")


def test_a_module_whose_imports_are_missing_is_refused_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_llama: Callable[..., Path]
) -> None:
    from components.models.checkpoint import resolve
    from components.models.tokenizer_loading import load_tokenizer

    (tmp_path / "needs_more.py").write_text("import no_such_library_anywhere")
    monkeypatch.syspath_prepend(tmp_path)
    spec: Any = ModelSpec(path=str(tiny_llama()), architecture="needs_more")
    with pytest.raises(SpecError, match=r"model\.architecture=needs_more cannot be imported"):
        load_tokenizer(resolve(spec, tmp_path / "cache"), spec)
