"""No key is ignored in silence: each is read, refused, or said to be idle where it stands.

The tables below name every key of `model` and `sampling` for every backend, and the settings of
backends that are idle beside others. A key that is added without a line here, or a line that is not
true, fails.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from components.backends.echo import Echo
from components.backends.hf.backend import HfBackend
from components.backends.openai_api.backend import OpenAiBackend
from components.backends.openai_api.batch_api import BatchApi
from components.backends.openai_api.pace import Limits
from components.backends.openai_api.retries import Retry
from components.backends.openai_api.service import Connection
from components.backends.vllm_engine.backend import VllmBackend
from components.backends.zero_inference.backend import DeepSpeedBackend
from launch.config.compose import construct_backend
from launch.config.setup import setup_of
from launch.config.words import CONF
from pipeline.protocols import FILTERS, STRATEGIES, Backend
from pipeline.run.point import refuse_what_it_cannot
from pipeline.spec import ModelSpec, Sampling, SpecError
from tests.fakes.configs import ROOT, composed

Maker = Callable[..., Path]
HF = ("backend=hf", "backend.device=cpu")
DEEPSPEED = ("backend=deepspeed", "backend.device=cpu")
CHAT = ("backend=openai", "backend.prefill=yes")
COMPLETIONS = ("backend=local_server", "backend.api=completions", "backend.prefill=yes")
READ_BY_MODELS = {  # proof that it is read: nonsense is told by its key, or identity changes
    "revision": ("told", "main"),
    "step": ("told", "5"),
    "checkpoints": ("told", "/nowhere"),
    "adapter": ("told", "/nowhere"),
    "merge_adapter": ("told", "false"),
    "architecture": ("told", "nowhere"),
    "tokenizer": ("told", "/nowhere"),
    "chat_template": ("told", "/nowhere"),
    "template_kwargs": ("identity", "1"),
    "max_length": ("identity", "9"),
    "truncation_side": ("identity", "right"),
    "trust_remote_code": ("test", "tests/models/test_trust.py"),
}
MODEL: dict[str, dict[str, tuple[str, str]]] = {
    "hf": READ_BY_MODELS
    | {
        "routing": ("test", "tests/models/test_memory_transformer.py"),
        "routing_window": ("test", "tests/models/test_memory_transformer.py"),
        "attn_implementation": ("test", "tests/backends/hf/test_hf.py"),
    },
    "vllm": READ_BY_MODELS
    | {
        "routing": ("refused", "token"),
        "routing_window": ("refused", "4"),
        "attn_implementation": ("refused", "eager"),
    },
    "chat": {
        "step": ("identity", "5"),
        "revision": ("refused", "main"),
        "checkpoints": ("refused", "folder"),
        "adapter": ("refused", "folder"),
        "merge_adapter": ("refused", "false"),
        "architecture": ("refused", "bdh"),
        "routing": ("refused", "token"),
        "routing_window": ("refused", "4"),
        "tokenizer": ("refused", "folder"),
        "chat_template": ("refused", "file"),
        "template_kwargs": ("refused", "1"),
        "attn_implementation": ("refused", "eager"),
        "max_length": ("refused", "100"),
        "truncation_side": ("refused", "right"),
        "trust_remote_code": ("refused", "true"),
    },
}
MODEL["deepspeed"] = MODEL["hf"]
MODEL["completions"] = MODEL["chat"] | {"tokenizer": ("told", "/nowhere")}
IDLE_IN_ECHO = ("idle", "of model only a number as model.step is read")
MODEL["echo"] = dict.fromkeys(MODEL["chat"], IDLE_IN_ECHO)
MODEL["echo"]["step"] = ("identity", "5")
LINES = {
    "echo": ("backend=echo",),
    "hf": HF,
    "deepspeed": DEEPSPEED,
    "vllm": ("backend=vllm",),
    "chat": CHAT,
    "completions": COMPLETIONS,
}
OF_EVERY_RUN = (
    "name",
    "path",
    "reasoning_cap",
)  # folders, rows and phases are made without a backend
HONOURED = {  # keys of sampling beyond those that the run itself carries out
    "hf": {*FILTERS, *STRATEGIES},
    "echo": set(FILTERS),  # in its YAML: it reads num_samples and caps alone
    "chat": {"top_p", "presence_penalty", "frequency_penalty", "logit_bias", "json_schema"},
    "completions": {*FILTERS, "presence_penalty", "frequency_penalty", "logit_bias"},
}
BEAMS = {"num_beams", "length_penalty", "early_stopping"}
HONOURED["deepspeed"] = HONOURED["hf"] - BEAMS
HONOURED["vllm"] = HONOURED["deepspeed"] - {"typical_p", "no_repeat_ngram_size", "regex"}
HONOURED["vllm"] -= {"json_schema"}
BY_THE_RUN = {"temperature", "num_samples", "think_cap", "answer_cap", "max_new_tokens"}


def backend_of(name: str, folder: Path, *words: str) -> Backend:
    """A backend as a line makes it, before it asks or loads anything."""
    model = (
        ()
        if name == "echo" or name in ("chat", "completions")
        else ("model=local", f"model.path={folder}", "quantization=fp32")
    )
    line = ["task=crossword", *LINES[name], *model, *words]
    return construct_backend(setup_of(composed(*line), line).spec)


def test_the_tables_name_every_key() -> None:
    keys = {one.name for one in fields(ModelSpec)} - set(OF_EVERY_RUN)
    assert {name: keys ^ set(table) for name, table in MODEL.items()} == dict.fromkeys(LINES, set())
    assert {one.name for one in fields(Sampling)} == {*BY_THE_RUN, *FILTERS, *STRATEGIES}
    assert set(HONOURED) == set(LINES)


BESIDE = {"truncation_side": ["model.max_length=9"], "checkpoints": ["model.step=5"]}


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, table in MODEL.items() for key in sorted(table)]
)
def test_a_key_of_model_is_read_refused_or_said_to_be_idle(
    name: str, key: str, tiny_llama: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    kind, value = MODEL[name][key]
    folder, beside = tiny_llama(), BESIDE.get(key, []) if name != "chat" else []
    word = f"+model.{key}.a={value}" if key == "template_kwargs" else f"model.{key}={value}"
    if kind == "refused":
        with pytest.raises(SpecError, match=rf"^model\.{key} must "):
            backend_of(name, folder, word)
    elif kind == "told":
        with pytest.raises(SpecError, match=rf"model\.{key}\b"):
            backend_of(name, folder, *beside, word).identity()
    elif kind == "identity":
        before = backend_of(name, folder, *beside).identity()
        assert backend_of(name, folder, *beside, word).identity() != before
    elif kind == "idle":
        assert value in comments(CONF / "backend" / f"{name}.yaml")
    else:
        assert kind == "test" and key in (ROOT / value).read_text()


def comments(path: Path) -> str:
    return " ".join(path.read_text().replace("#", "").split())


@pytest.mark.parametrize("name", sorted(LINES))
def test_a_key_of_sampling_is_honoured_or_refused(name: str, tiny_llama: Maker) -> None:
    values: dict[str, Any] = {"top_p": 0.5, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2}
    values |= {"typical_p": 0.5, "presence_penalty": 1.0, "frequency_penalty": 1.0}
    values |= {"no_repeat_ngram_size": 2, "min_new_tokens": 2, "logit_bias": {3: 1.0}}
    values |= {"num_beams": 2, "regex": "a+", "json_schema": {"type": "object"}}
    values |= {"length_penalty": 2.0, "early_stopping": True}
    assert set(values) == {*FILTERS, *STRATEGIES}
    folder = tiny_llama()
    asked = setup_of(composed("task=crossword", "backend=echo"), []).spec
    for key, value in values.items():
        needs_beams = key in ("length_penalty", "early_stopping")
        beams = {"num_beams": 2} if needs_beams else {}
        off = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "num_samples": 1}
        asked.sampling = Sampling(**off | beams | {key: value})
        backend = backend_of(name, folder)
        if key in HONOURED[name]:
            refuse_what_it_cannot(asked, backend)
        else:
            told = rf"^sampling\.({key}|num_beams) must be"
            with pytest.raises(SpecError, match=told):
                refuse_what_it_cannot(asked, backend)


# Settings that do nothing beside another setting, and what their line says of that.
IDLE = {
    "hf": {
        "slots": "rows that slots decodes",
        "share": "slots:",
        "compile": "slots on CUDA",
        "batch_size": "of generate",
        "use_cache": "of generate",
        "kv_cache_dtype": "of slots",
        "assistant_model": "of generate",
        "max_memory": "of device_map",
    },
    "vllm": {"score_device": "of that copy"},
    "base/gateway": {
        "token_cap": "responses has one of its own",
        "seed": "responses takes none",
        "samples_per_request": "not of responses, nor in batches",
        "prefill_body": "in chat",
    },
}


def test_a_setting_that_is_idle_beside_another_says_so_on_its_line() -> None:
    for name, said in IDLE.items():
        lines = (CONF / "backend" / f"{name}.yaml").read_text().splitlines()
        for key, phrase in said.items():
            [line] = [one for one in lines if one.strip().startswith(f"{key}:")]
            assert phrase in line.partition("#")[2], (name, key)


@pytest.mark.parametrize("backend", [Echo, HfBackend, DeepSpeedBackend, VllmBackend, OpenAiBackend])
def test_every_setting_of_a_backend_is_read_where_it_is_made(backend: type) -> None:
    given = set(inspect.signature(backend).parameters)
    tree = ast.parse(textwrap.dedent(inspect.getsource(backend.__init__)))
    names = [one.id for one in ast.walk(tree) if isinstance(one, ast.Name)]
    assert given - set(names) == set()


@pytest.mark.parametrize("part", [Connection, Limits, Retry, BatchApi])
def test_every_setting_of_a_part_of_a_gateway_is_read_somewhere(part: Any) -> None:
    files = (ROOT / "components/backends/openai_api").glob("*.py")
    code = "\n".join(path.read_text() for path in files)
    unread = [name for name in inspect.signature(part).parameters if f".{name}" not in code]
    assert is_dataclass(part) and unread == []
