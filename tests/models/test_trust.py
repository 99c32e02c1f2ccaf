"""A checkpoint is data: no code of it runs unless `model.trust_remote_code` says so."""

import asyncio
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from launch.config.compose import build_backend, to_spec
from pipeline.protocols import Group, Message, Prompt, Request
from pipeline.spec import SpecError
from tests.fakes.configs import composed

LINE = ("task=qa", "backend=hf", "backend.device=cpu", "backend.decoder=generate", "model=local")


class Touch:
    """What a pickle calls when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def answer(folder: Path) -> str:
    """What the model of a folder says, loaded as a run loads it."""
    spec = to_spec(composed(*LINE, f"model.path={folder}"))
    prompt = Prompt((Message("user", ("Hello",)),))
    request = Request(prompt, (), 2, spec.sampling, 1, 0, Group("a", 0, 1))

    async def ask() -> str:
        async with build_backend(spec) as backend:
            return (await backend.generate(request)).text

    return asyncio.run(ask())


@pytest.fixture
def checkpoint(tiny_llama: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama(), tmp_path / "checkpoint"))


def test_a_pickle_among_the_weights_is_not_opened(checkpoint: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    (checkpoint / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Touch(made)}, checkpoint / "pytorch_model.bin")
    with pytest.raises((SpecError, pickle.UnpicklingError)):
        answer(checkpoint)
    assert not made.exists()


def test_code_in_a_checkpoint_is_not_run(checkpoint: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    (checkpoint / "evil.py").write_text(f"import pathlib\npathlib.Path({str(made)!r}).touch()\n")
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    for file, named in (
        ("config.json", names),
        ("tokenizer_config.json", {"AutoTokenizer": ["evil.Slow", "evil.Fast"]}),
    ):
        stored = json.loads((checkpoint / file).read_text())
        (checkpoint / file).write_text(json.dumps(stored | {"auto_map": named}))
    answer(checkpoint)
    stored = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(stored | {"model_type": "evil"}))
    with pytest.raises(SpecError):
        answer(checkpoint)
    assert not made.exists()


def test_a_chat_template_runs_in_a_sandbox(checkpoint: Path) -> None:
    escape = "{{ cycler.__init__.__globals__.os.popen('id').read() }}"
    (checkpoint / "chat_template.jinja").write_text(escape)
    with pytest.raises(SpecError, match="unsafe|undefined"):
        answer(checkpoint)
