"""BDH against its equations in float64, recurrent against parallel, its folders."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from components.models.architectures import bdh
from components.models.architectures.bdh import BdhConfig, BdhForCausalLM
from components.models.architectures.byte_tokenizer import byte_tokenizer
from components.models.architectures.outputs import CACHE, cache_of
from components.models.checkpoint import prepare, resolve
from components.models.converters.bdh import convert
from components.models.foreign_checkpoints import foreign_kind
from pipeline.spec import ModelSpec, SpecError

SIZES = {"n_layer": 3, "n_embd": 32, "n_head": 4, "mlp_internal_dim_multiplier": 16}


def reference(state: dict[str, Tensor], config: BdhConfig, ids: Tensor, dtype: Any) -> Tensor:
    """Logits [time, vocabulary] by the paper's equations, every token against every earlier one."""
    weights = {name: tensor.to(dtype) for name, tensor in state.items()}
    count, time = config.num_neurons, len(ids)

    def norm(v: Tensor) -> Tensor:
        centred = v - v.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5)

    neuron = torch.arange(count, dtype=dtype)
    frequency = 65536.0 ** (-2 * torch.floor(neuron / 2) / count) / (2 * math.pi)
    angle = 2 * math.pi * torch.frac(torch.arange(time, dtype=dtype)[:, None] * frequency)
    x = norm(weights["embed.weight"][ids])
    for _ in range(config.num_hidden_layers):
        s = torch.relu(torch.einsum("td,hdn->htn", x, weights["encoder"]))
        quarter = torch.empty_like(s)
        quarter[..., ::2], quarter[..., 1::2] = -s[..., 1::2], s[..., ::2]
        q = s * torch.cos(angle) + quarter * torch.sin(angle)
        attended = torch.tril(q @ q.mT, -1) @ x
        y = torch.relu(torch.einsum("htd,hdn->htn", norm(attended), weights["encoder_v"]))
        z = (s * y).transpose(0, 1).reshape(time, -1)
        x = norm(x + norm(z @ weights["decoder"]))
    return x @ weights["lm_head"]


def model(seed: int = 0, bias: float = 0.0, **sizes: Any) -> BdhForCausalLM:
    """A random model; a negative `bias` on the encoder makes its activations sparse."""
    torch.manual_seed(seed)
    made = BdhForCausalLM(BdhConfig(**(SIZES | sizes))).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2)
    return made


def ids_of(count: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed))


def step_by_step(made: BdhForCausalLM, ids: Tensor) -> Tensor:
    cache, rows = None, []
    with torch.inference_mode():
        for token in ids:
            given = {} if cache is None else {CACHE: cache}
            result = made(token.view(1, 1), use_cache=True, **given)
            cache = cache_of(result)
            rows.append(result.logits[0, -1])
    return torch.stack(rows)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).abs().max())


def test_logits_are_those_of_the_equations_in_float64() -> None:
    made, ids = model(), ids_of(600)
    exact = reference(made.state_dict(), made.config, ids, torch.float64)
    own = error(reference(made.state_dict(), made.config, ids, torch.float32), exact)
    with torch.inference_mode():
        found = made(ids[None]).logits[0]
    assert error(found, exact) <= 10 * own


def test_the_recurrent_form_equals_the_parallel_one_over_2000_tokens() -> None:
    made, ids = model(n_layer=2, n_embd=16), ids_of(2000)
    made.config.dropout = 0.0
    with torch.inference_mode():
        parallel = made.train()(ids[None]).logits[0]
    made.eval()
    exact = reference(made.state_dict(), made.config, ids, torch.float64)
    limit = 10 * error(parallel, exact)
    assert error(step_by_step(made, ids), exact) <= limit
    with torch.inference_mode():
        assert error(made(ids[None]).logits[0], exact) <= limit  # in chunks


def test_a_prompt_may_come_in_pieces_of_any_length() -> None:
    made, ids = model(), ids_of(300)
    with torch.inference_mode():
        whole = made(ids[None]).logits[0]
        first = made(ids[None, :17], use_cache=True)
        second = made(ids[None, 17:], use_cache=True, **{CACHE: cache_of(first)})
    pieces = torch.cat((first.logits[0], second.logits[0]))
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-4)


def test_reading_active_neurons_alone_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ids = model(), ids_of(80)
    monkeypatch.setattr(bdh, "SPARSE", 0.0)
    dense = step_by_step(made, ids)
    monkeypatch.setattr(bdh, "SPARSE", 1.1)
    torch.testing.assert_close(step_by_step(made, ids), dense, rtol=1e-4, atol=1e-4)


def test_ragged_rows_with_padding_equal_each_by_itself() -> None:
    made = model()
    prompts = [ids_of(count, seed=count) for count in (3, 40, 17)]
    longest = max(map(len, prompts))
    ids = torch.stack([torch.cat((ids_of(longest - len(p)), p)) for p in prompts])
    mask = torch.stack([torch.arange(longest) >= longest - len(p) for p in prompts]).long()
    for row, prompt in zip(
        made.generate(ids, attention_mask=mask, max_new_tokens=25, do_sample=False),
        prompts,
        strict=True,
    ):
        alone = made.generate(prompt[None], max_new_tokens=25, do_sample=False)[0]
        assert row[longest:].tolist() == alone[len(prompt) :].tolist()


def test_frequencies_stay_float32_whatever_the_models_type() -> None:
    made, ids = model().to(torch.bfloat16), ids_of(300)
    exact = reference(made.state_dict(), made.config, ids, torch.float64)
    with torch.inference_mode():
        found = made(ids[None]).logits[0]
    # Angles in bfloat16 would be off by whole turns after some dozens of tokens.
    assert float((found.double() - exact).abs().mean()) < 0.1 * float(exact.abs().mean())
    assert made._frequencies(torch.device("cpu")).dtype == torch.float32


def folder_of(made: BdhForCausalLM, folder: Path, layout: str) -> Path:
    """The model as the original (`original`) or its fork and their trainings write it."""
    folder.mkdir(parents=True)
    config = {name: getattr(made.config, name) for name in ("n_layer", "n_embd", "n_head")}
    config |= {"mlp_internal_dim_multiplier": 16, "vocab_size": 256, "dropout": 0.1}
    (folder / "config.json").write_text(json.dumps(config, sort_keys=True))
    state = dict(made.state_dict())
    state["attn.freqs"] = made._frequencies(torch.device("cpu")).view(1, 1, 1, -1)
    if layout == "original":
        save_file(state, folder / "model.safetensors")
    elif layout == "fork":
        torch.save(state, folder / "model.pt")
        byte_tokenizer().save_pretrained(folder / "tokenizer")
    elif layout == "compiled":
        state["lm_gate"] = torch.zeros(32, 1)
        torch.save({f"_orig_mod.{k}": v for k, v in state.items()}, folder / "model.pt")
    else:
        saved = {"model_state_dict": state, "step": 1000}
        torch.save(saved, folder / "checkpoint-0001000.pt")
    return folder


@pytest.mark.parametrize("layout", ["original", "fork", "compiled"])
def test_both_folder_layouts_and_compiled_names_load(tmp_path: Path, layout: str) -> None:
    made = model()
    folder = folder_of(made, tmp_path / "bdh", layout)
    assert foreign_kind(folder) == "bdh"
    config, state = convert(folder)
    loaded = BdhForCausalLM(config).eval()
    loaded.load_state_dict(state)
    ids = ids_of(20)[None]
    with torch.inference_mode():
        assert torch.equal(loaded(ids).logits, made(ids).logits)


def test_a_training_checkpoint_loads_by_its_file(tmp_path: Path) -> None:
    folder = folder_of(model(), tmp_path / "run", "training")
    _, state = convert(folder / "checkpoint-0001000.pt")
    assert sorted(state) == ["decoder", "embed.weight", "encoder", "encoder_v", "lm_head"]
    with pytest.raises(SpecError, match=r"checkpoint-0001000\.pt: choose one with model\.step"):
        convert(folder)


@pytest.mark.parametrize(
    ("step", "linked", "number"),
    [(1000, True, 1000), ("latest", True, 1000), ("best", False, 1000)],
)
def test_training_checkpoints_are_found_by_their_step(
    tmp_path: Path, step: Any, linked: bool, number: int
) -> None:
    folder = folder_of(model(), tmp_path / "run", "training")
    best, file = folder / "checkpoint-best.pt", folder / "checkpoint-0001000.pt"
    best.symlink_to(file.name) if linked else file.rename(best)
    spec = ModelSpec(name="bdh", path=str(folder), step=step)
    ready = prepare(resolve(spec, tmp_path / "cache"), tmp_path / "cache")
    assert ready.step == number
    loaded = AutoModelForCausalLM.from_pretrained(ready.weights.location)
    assert isinstance(loaded, BdhForCausalLM)
    with pytest.raises(SpecError, match=r"has \((1000|none)\), got 2000"):
        resolve(ModelSpec(name="bdh", path=str(folder), step=2000), tmp_path / "cache")


def test_a_folder_with_the_signs_of_two_kinds_is_refused(tmp_path: Path) -> None:
    folder = folder_of(model(), tmp_path / "bdh", "fork")
    (folder / "config.yaml").write_text("model: {}\nmemory: {}\n")
    with pytest.raises(SpecError, match="has the files of bdh and of memory_transformer"):
        resolve(ModelSpec(name="bdh", path=str(folder)), tmp_path / "cache")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s.pop("encoder_v"), "missing: encoder_v"),
        (lambda s: s.update(extra=torch.zeros(2)), "not expected: extra"),
        (lambda s: s.update(lm_head=torch.zeros(2, 2)), r"shape: lm_head is \[2, 2\]"),
        (lambda s: s.update({"attn.freqs": torch.ones(128)}), "rotary frequencies"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, change: Any, told: str
) -> None:
    folder = folder_of(model(), tmp_path / "bdh", "fork")
    state = torch.load(folder / "model.pt", weights_only=True)
    change(state)
    torch.save(state, folder / "model.pt")
    with pytest.raises(SpecError, match=told):
        convert(folder)


def test_a_byte_tokenizer_gives_the_bytes_and_the_text_back() -> None:
    text = "Grüße,\n\t世界 😀 \x00 end "
    tokenizer = byte_tokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
