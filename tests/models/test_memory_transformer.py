"""Memory-augmented transformers against their equations in float64, routers, folders."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from components.models.architectures.memory_transformer import (
    MemoryTransformerForCausalLM,
)
from components.models.architectures.outputs import CACHE, cache_of
from components.models.converters.memory_transformer import convert
from components.models.foreign_checkpoints import foreign_kind
from components.models.memory.bank import ChapteredBank
from components.models.memory.quantized_rows import dequantize_rows, quantize_rows
from components.models.memory.routing import (
    Choice,
    HybridRouter,
    RollingWindowRouter,
    SequenceLevelRouter,
    SequenceRollingRouter,
    TokenLevelRouter,
    Window,
    create_inference_router,
)
from components.models.memory.settings import STRATEGIES
from pipeline.spec import SpecError
from tests.fakes.memory_models import CHAPTERS, SIZES, model, written


def ids_of(count: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 61, (count,), generator=torch.Generator().manual_seed(seed))


def rms(x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * scale


class Reference:
    """The equations in one type, one row, every position with the chapters of its own pool."""

    def __init__(self, made: MemoryTransformerForCausalLM, dtype: torch.dtype) -> None:
        self.w = {k: v.to(dtype) for k, v in made.state_dict().items()}
        self.made, self.s, self.dtype = made, made.settings, dtype

    def linear(self, name: str, x: Tensor) -> Tensor:
        bias = self.w.get(f"{name}.bias", 0)
        return x @ self.w[f"{name}.weight"].T + bias

    def logits(self, ids: Tensor, prefill: int | None = None) -> Tensor:
        """Logits [time, vocabulary]; with `prefill` each later token routes on its own window."""
        self.prefill = len(ids) if prefill is None else prefill
        x = self.w["backbone.model.embed_tokens.weight"][ids]
        for layer in range(SIZES["num_hidden_layers"]):
            at, given = f"backbone.model.layers.{layer}", x
            x = x + self.attention(
                f"{at}.self_attn", rms(x, self.w[f"{at}.input_layernorm.weight"])
            )
            whole, variant = not self.made.config.adapter, self.s.memory_block_variant
            if whole and variant == "A":
                x = self.memory(layer, x, given)
            h = rms(x, self.w[f"{at}.post_attention_layernorm.weight"])
            x = x + self.mlp(f"{at}.mlp", h)
            if whole and variant == "B":
                x = self.memory(layer, x, given)
            if not whole:
                x = self.memory(layer, x, x)
        x = rms(x, self.w["backbone.model.norm.weight"])
        head = self.w.get("backbone.lm_head.weight", self.w["backbone.model.embed_tokens.weight"])
        return x @ head.T

    def mlp(self, at: str, h: Tensor) -> Tensor:
        gate = F.silu(self.linear(f"{at}.gate_proj", h))
        return self.linear(f"{at}.down_proj", gate * self.linear(f"{at}.up_proj", h))

    def attention(self, at: str, h: Tensor) -> Tensor:
        time, size = len(h), 8
        angle = torch.arange(time, dtype=self.dtype)[:, None] * 10000.0 ** (
            -torch.arange(0, size, 2, dtype=self.dtype) / size
        )
        cos, sin = (f(torch.cat((angle, angle), -1)) for f in (torch.cos, torch.sin))

        def heads(name: str, count: int, turn: bool) -> Tensor:
            v = self.linear(f"{at}.{name}", h).view(time, count, size).transpose(0, 1)
            first, second = v.chunk(2, -1)
            return v * cos + torch.cat((-second, first), -1) * sin if turn else v

        q, k, v = heads("q_proj", 4, True), heads("k_proj", 2, True), heads("v_proj", 2, False)
        k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
        ahead = torch.ones(time, time).triu(1).bool()
        scores = (q @ k.mT / size**0.5).masked_fill(ahead, -torch.inf)
        return self.linear(f"{at}.o_proj", (scores.softmax(-1) @ v).transpose(0, 1).flatten(1))

    def bank(self, layer: int) -> Tensor:
        at = f"memory_banks.{self.s.banks[layer]}." + ("base_bank." if self.s.use_chapters else "")
        if f"{at}A" in self.w:
            return self.w[f"{at}A"] @ self.w[f"{at}B"].T
        return self.w[f"{at}memory"]

    def project(self, layer: int, name: str, x: Tensor) -> Tensor:
        at = f"memory_adapters.{layer}.memory_attn.{name}"
        if f"{at}_proj.weight" in self.w:
            return x @ self.w[f"{at}_proj.weight"].T
        return x @ self.w[f"{at}_down.weight"].T @ self.w[f"{at}_up.weight"].T

    def memory(self, layer: int, x: Tensor, routed_on: Tensor) -> Tensor:
        if layer not in self.s.layers:
            return x
        at = f"memory_adapters.{layer}"
        h = rms(x, self.w[f"{at}.memory_layernorm.weight"])
        rows = [self.token(layer, h[t : t + 1], routed_on, t) for t in range(len(h))]
        x = x + torch.cat(rows)
        if f"{at}.post_memory_layernorm.weight" in self.w:
            h = rms(x, self.w[f"{at}.post_memory_layernorm.weight"])
            x = x + self.mlp(f"{at}.post_memory_mlp", h)
        return x

    def token(self, layer: int, h: Tensor, routed_on: Tensor, time: int) -> Tensor:
        bank, s = self.bank(layer), self.s
        if not s.use_chapters:
            return self.project(layer, "o", self.read(layer, h, bank))
        length = s.num_memory_tokens // s.num_chapters
        chapter = bank.view(s.num_chapters, length, -1)
        scores = self.linear(f"routers.{layer}.router", self.pool(routed_on, time))
        p = scores.softmax(-1)[s.num_shared_chapters :]
        p = p / p.sum()
        weight, index = p.topk(s.top_k_chapters)
        weight, index = weight / weight.sum(), index + s.num_shared_chapters
        shared = chapter[: s.num_shared_chapters]
        if s.routing_strategy_inference == "token":
            mixed = self.read(layer, h, shared.flatten(0, 1)) if len(shared) else 0
            for w, i in zip(weight, index, strict=True):
                mixed = mixed + w * s.routed_scaling_factor * self.read(layer, h, chapter[i])
            return self.project(layer, "o", mixed)
        weight = torch.cat(
            (torch.ones(len(shared), dtype=self.dtype), weight * s.routed_scaling_factor)
        )
        weight = weight / weight.sum() if len(shared) else weight / weight.sum()
        routed = chapter[index]
        if s.normalize_shared_routed_before_mixing and len(shared):
            shared, routed = rms(shared), rms(routed)
        tokens = torch.cat((shared, routed)) * weight[:, None, None]
        return self.project(layer, "o", self.read(layer, h, tokens.flatten(0, 1)))

    def pool(self, states: Tensor, time: int) -> Tensor:
        strategy, size = self.s.routing_strategy_inference, self.s.routing_window_size
        if strategy == "token":
            return states[time]
        end = self.prefill if time < self.prefill else time + 1
        if strategy == "sequence":
            return states[:end].mean(0) if time < self.prefill else states[time]
        start = 0 if strategy == "hybrid" and time < self.prefill else max(0, end - size)
        return states[start:end].mean(0)

    def read(self, layer: int, h: Tensor, tokens: Tensor) -> Tensor:
        heads, groups = self.s.heads, self.s.heads // self.s.kv_heads
        size = self.s.width // heads

        def split(name: str, x: Tensor, count: int) -> Tensor:
            return self.project(layer, name, x).view(len(x), count, size).transpose(0, 1)

        q = split("q", h, heads)
        k, v = (split(n, tokens, self.s.kv_heads).repeat_interleave(groups, 0) for n in ("k", "v"))
        return ((q @ k.mT / size**0.5).softmax(-1) @ v).transpose(0, 1).flatten(1)


VARIANTS = [
    {},
    {"memory_layer_placement": "last_k", "memory_layer_k": 2, "memory_sharing": "per_layer"},
    {"use_low_rank_memory": True, "memory_rank": 8},
    {"use_low_rank_memory": True, "memory_rank": 16, "low_rank_mode": "reduced_dim"},
    {"use_low_rank_projections": True, "projection_rank": 5, "memory_layer_placement": "every_n"},
    {"memory_num_heads": 8, "memory_num_kv_heads": 2, "memory_dim": 20},
    CHAPTERS,
    CHAPTERS | {"normalize_shared_routed_before_mixing": True},
    CHAPTERS | {"num_shared_chapters": 0, "routing_strategy_inference": "token"},
    CHAPTERS | {"routing_strategy_inference": "token", "use_low_rank_memory": True},
]


def close(found: Tensor, made: MemoryTransformerForCausalLM, ids: Tensor, **given: Any) -> bool:
    """Whether the error is at most ten times that of the equations themselves in float32."""
    exact = Reference(made, torch.float64).logits(ids, **given)
    own = (Reference(made, torch.float32).logits(ids, **given).double() - exact).abs().max()
    return bool((found.double() - exact).abs().max() <= 10 * own)


@pytest.mark.parametrize("whole", [False, True], ids=["adapter", "from scratch"])
@pytest.mark.parametrize("memory", VARIANTS, ids=range(len(VARIANTS)))
def test_logits_are_those_of_the_equations_in_float64(memory: dict[str, Any], whole: bool) -> None:
    made, ids = model(adapter=not whole, **memory), ids_of(30)
    with torch.inference_mode():
        assert close(made(ids[None]).logits[0], made, ids)


def test_variant_b_reads_memory_after_the_mlp_and_has_a_second_one() -> None:
    made, ids = model(adapter=False, **CHAPTERS, memory_block_variant="B"), ids_of(30)
    assert "memory_adapters.0.post_memory_mlp.up_proj.weight" in made.state_dict()
    with torch.inference_mode():
        assert close(made(ids[None]).logits[0], made, ids)


def step_by_step(made: MemoryTransformerForCausalLM, ids: Tensor, prefill: int) -> Tensor:
    with torch.inference_mode():
        result = made(ids[None, :prefill], use_cache=True)
        rows = [result.logits[0]]
        for token in ids[prefill:]:
            result = made(token.view(1, 1), use_cache=True, **{CACHE: cache_of(result)})
            rows.append(result.logits[0])
    return torch.cat(rows)


@pytest.mark.parametrize("memory", [{}, CHAPTERS | {"routing_strategy_inference": "token"}])
def test_cached_decoding_equals_one_full_pass_without_chapters_and_with_token_routing(
    memory: dict[str, Any],
) -> None:
    made, ids = model(**memory), ids_of(40)
    with torch.inference_mode():
        whole = made(ids[None]).logits[0]
    torch.testing.assert_close(step_by_step(made, ids, 20), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strategy", ["sequence", "rolling", "hybrid"])
def test_cached_decoding_equals_a_full_pass_that_pools_the_same_tokens(strategy: str) -> None:
    memory = CHAPTERS | {"routing_strategy_inference": strategy, "routing_window_size": 7}
    made, ids = model(**memory), ids_of(40)
    found = step_by_step(made, ids, 20)
    assert close(found, made, ids, prefill=20)
    with torch.inference_mode():
        prefill = made(ids[None, :20], use_cache=True).logits[0]
    assert torch.equal(found[:20], prefill)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("whole", [False, True], ids=["adapter", "from scratch"])
def test_ragged_rows_with_padding_equal_each_by_itself(strategy: str, whole: bool) -> None:
    memory = CHAPTERS | {"routing_strategy_inference": strategy, "routing_window_size": 5}
    made = model(adapter=not whole, **memory)
    prompts = [ids_of(count, seed=count) for count in (3, 25, 11)]
    longest = max(map(len, prompts))
    ids = torch.stack([torch.cat((ids_of(longest - len(p)), p)) for p in prompts])
    mask = torch.stack([torch.arange(longest) >= longest - len(p) for p in prompts]).long()
    given = {"max_new_tokens": 15, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    rows = made.generate(ids, attention_mask=mask, **given)
    for row, prompt in zip(rows, prompts, strict=True):
        alone = made.generate(prompt[None], **given)[0]
        assert row[longest:].tolist() == alone[len(prompt) :].tolist()


def linear(chapters: int = 6, width: int = 4) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(width, chapters)


def test_routers_mask_padding_wherever_it_stands() -> None:
    states = torch.randn(1, 5, 4)
    padded = torch.cat((torch.randn(1, 3, 4), states, torch.randn(1, 2, 4)), 1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 0, 0]])
    for strategy in ("sequence", "sequence-rolling", "rolling", "hybrid"):
        alone, masked = (create_inference_router(linear(), strategy, Choice(2), 3) for _ in "ab")
        plain = alone.route(states)
        found = masked.route(padded, mask)
        assert plain.chapters.tolist() == found.chapters.tolist()
        torch.testing.assert_close(plain.weights, found.weights)


def test_shared_chapters_come_first_are_never_routed_to_and_weights_sum_to_one() -> None:
    chosen = SequenceLevelRouter(linear(), Choice(3, shared=2, scale=2.5)).route(
        torch.randn(4, 9, 4)
    )
    assert chosen.chapters.shape == (4, 5)
    assert (chosen.chapters[:, :2] == torch.tensor([0, 1])).all()
    assert (chosen.chapters[:, 2:] >= 2).all()
    torch.testing.assert_close(chosen.weights.sum(-1), torch.ones(4))
    torch.testing.assert_close(chosen.weights[:, 0], torch.full((4,), 1 / (2 + 2.5)))
    tokens = TokenLevelRouter(linear(), Choice(3, shared=2)).route(torch.randn(4, 9, 4))
    assert tokens.chapters.shape == (4, 9, 5)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_sequence_rolling_router_pools_the_means_of_all_windows(size: int) -> None:
    states = torch.randn(2, 10, 4)
    means = [states[:, max(0, end - size) : end].mean(1) for end in range(1, 11)]
    pooled = torch.stack(means).mean(0)
    found = SequenceRollingRouter(linear(), Choice(2), size).route(states)
    expected = Choice(2).routed(linear()(pooled))
    assert found.chapters.tolist() == expected.chapters.tolist()
    torch.testing.assert_close(found.weights, expected.weights)
    plain = SequenceLevelRouter(linear(), Choice(2)).route(states)
    assert (size == 1) == torch.allclose(found.weights, plain.weights, atol=1e-5)


def test_a_model_takes_the_strategy_in_either_spelling_and_reads_prompts_by_it() -> None:
    memory = CHAPTERS | {"routing_window_size": 2}
    made = [
        model(**memory, routing_strategy_inference=strategy)
        for strategy in ("sequence", "sequence-rolling", "sequence_rolling")
    ]
    with torch.inference_mode():
        plain, dash, underscore = (each(ids_of(30)[None]).logits for each in made)
    assert torch.equal(dash, underscore) and not torch.allclose(plain, dash, atol=1e-3)


def test_a_rolling_router_keeps_a_window_until_it_is_reset() -> None:
    states = torch.randn(2, 10, 4)
    router = RollingWindowRouter(linear(), Choice(2), window_size=4)
    router.route(states[:, :6])
    assert router.cache is not None and router.cache.states.shape == (2, 4, 4)
    torch.testing.assert_close(router.cache.states, states[:, 2:6])
    router.route(torch.randn(2, 3, 4), use_cache=False)
    torch.testing.assert_close(router.cache.states, states[:, 2:6])
    last = router.route(states[:, 6:7])
    fresh = RollingWindowRouter(linear(), Choice(2), window_size=4)
    torch.testing.assert_close(last.weights, fresh.route(states[:, 3:7]).weights)
    router.reset_cache()
    assert router.cache is None


def test_a_hybrid_router_rolls_once_generation_has_started() -> None:
    states = torch.randn(1, 12, 4)
    router = HybridRouter(linear(), Choice(2), window_size=3)
    whole = router.route(states[:, :11])
    torch.testing.assert_close(
        whole.weights, SequenceLevelRouter(linear(), Choice(2)).route(states[:, :11]).weights
    )
    router.start_generation(states[:, :11])
    rolled = router.route(states[:, 11:])
    expected = Window(states[:, 9:], torch.ones(1, 3).bool()).mean()
    torch.testing.assert_close(rolled.weights, Choice(2).routed(linear()(expected)).weights)
    router.reset()
    assert not router.generating and router.rolling.cache is None


@pytest.mark.parametrize(
    ("strategy", "choice", "window", "told"),
    [
        ("both", Choice(2), 4, "model.routing must be one of sequence, sequence-rolling, rolling"),
        ("token", Choice(7), 4, "top_k_chapters must be from 1 to 6"),
        ("sequence", Choice(5, shared=2), 4, "top_k_chapters must be from 1 to 4"),
        ("rolling", Choice(2), 0, "routing_window_size must be above 0"),
        ("sequence_rolling", Choice(2), 0, "routing_window_size must be above 0"),
    ],
)
def test_a_router_that_cannot_be_is_refused(
    strategy: str, choice: Choice, window: int, told: str
) -> None:
    with pytest.raises(SpecError, match=told):
        create_inference_router(linear(), strategy, choice, window)


@pytest.mark.parametrize("adapter", [True, False], ids=["adapter", "from scratch"])
def test_a_checkpoint_folder_gives_the_same_model(tmp_path: Path, adapter: bool) -> None:
    variant = {} if adapter else {"memory_block_variant": "B"}
    made = model(adapter=adapter, **CHAPTERS, **variant)
    folder = written(tmp_path / "checkpoint-7", made)
    assert foreign_kind(folder) == "memory_transformer"
    config, state = convert(folder)
    loaded = MemoryTransformerForCausalLM(config).eval()
    left = loaded.load_state_dict(state, strict=False)
    assert not left.unexpected_keys and set(left.missing_keys) <= {"backbone.lm_head.weight"}
    with torch.inference_mode():
        found, expected = (m(ids_of(20)[None]).logits for m in (loaded, made))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_saved_model_comes_back_through_transformers(tmp_path: Path) -> None:
    made = model(**CHAPTERS)
    made.save_pretrained(tmp_path / "m")
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.inference_mode():
        found, expected = (m(ids_of(20)[None]).logits for m in (loaded, made))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_lora_updates_are_merged_and_biases_kept(tmp_path: Path) -> None:
    made = model(use_lora=True, lora_rank=2, lora_alpha=8)
    name = "base_model.model.layers.1.self_attn.q_proj."
    a, b = torch.randn(2, 32), torch.randn(32, 2)
    folder = written(tmp_path / "m", made, **{f"{name}lora_A": a, f"{name}lora_B": b})
    _, state = convert(folder)
    ours = "backbone.model.layers.1.self_attn.q_proj"
    torch.testing.assert_close(
        state[f"{ours}.weight"], made.state_dict()[f"{ours}.weight"] + b @ a * 4
    )
    assert torch.equal(state[f"{ours}.bias"], made.state_dict()[f"{ours}.bias"])
    assert not [key for key in state if "lora" in key]


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_bank_is_read_as_its_numbers_and_stays_quantized(
    tmp_path: Path, bits: int
) -> None:
    made = model(memory_quant_bits=bits)
    bank = made.state_dict()["memory_banks.0.memory"]
    most = 127 if bits == 8 else 7
    scales = bank.abs().amax(1, keepdim=True) / most
    whole = (bank / scales).round().int()
    stored = whole.to(torch.int8)
    if bits == 4:
        stored = ((whole[:, ::2] & 15) | ((whole[:, 1::2] & 15) << 4)).to(torch.uint8)
    prefix = "memory_banks.0."
    extra = {f"{prefix}quantized_memory": stored, f"{prefix}scales": scales.squeeze(1)}
    folder = written(tmp_path / "m", made, **extra)
    saved = torch.load(folder / "model.pt", weights_only=True)
    del saved[f"{prefix}memory"]
    torch.save(saved, folder / "model.pt")
    config, state = convert(folder)
    assert config.settings().quantize_memory and f"{prefix}memory" not in state
    loaded = MemoryTransformerForCausalLM(config)
    loaded.load_state_dict(state)
    torch.testing.assert_close(loaded.memory_banks["0"](), whole * scales)
    rows = torch.tensor([3, 1])
    assert torch.equal(loaded.memory_banks["0"](rows), loaded.memory_banks["0"]()[rows])


def test_a_bank_that_was_spelled_out_when_it_was_quantized_is_read(tmp_path: Path) -> None:
    made = model(use_low_rank_memory=True, memory_rank=8)
    folder = written(tmp_path / "m", made)
    saved = torch.load(folder / "model.pt", weights_only=True)
    whole = saved.pop("memory_banks.0.A") @ saved.pop("memory_banks.0.B").T
    stored, scales = quantize_rows(whole, 8)
    saved |= {"memory_banks.0.quantized_memory": stored, "memory_banks.0.scales": scales}
    torch.save(saved, folder / "model.pt")
    config, state = convert(folder)
    loaded = MemoryTransformerForCausalLM(config)
    loaded.load_state_dict(state)
    error = loaded.memory_banks["0"]() - whole
    assert (error.abs() <= 0.5001 * scales).all()


def test_a_key_of_training_does_not_quantize_what_is_stored_plainly(tmp_path: Path) -> None:
    folder = written(tmp_path / "q", model())
    groups = yaml.safe_load((folder / "config.yaml").read_text())
    groups["memory"]["quantize_memory"] = True
    (folder / "config.yaml").write_text(yaml.safe_dump(groups))
    config, state = convert(folder)
    assert not config.settings().quantize_memory and "memory_banks.0.memory" in state


@pytest.mark.parametrize(("bits", "measured"), [(8, 0.005), (4, 0.096)])
@pytest.mark.parametrize("width", [32, 512])
def test_rows_are_off_by_what_the_theory_says(bits: int, measured: float, width: int) -> None:
    rows = torch.randn(4000, width, generator=torch.Generator().manual_seed(0))
    stored, scales = quantize_rows(rows, bits)
    back = dequantize_rows(stored, scales, torch.float32)
    assert stored.numel() == rows.numel() * bits // 8
    assert ((back - rows).abs() <= 0.5001 * scales).all()
    error = ((back - rows).norm() / rows.norm()).item()
    theory = ((scales**2).mean() / 12).sqrt().item()  # steps of one scale, evenly filled
    assert error == pytest.approx(theory, rel=0.02)
    if width == 32:
        assert error == pytest.approx(measured, rel=0.1 if bits == 8 else 0.02)


def test_a_quantized_bank_is_read_in_the_models_type(tmp_path: Path) -> None:
    made = model(**CHAPTERS, quantize_memory=True, memory_quant_bits=4)
    stored, scales = quantize_rows(torch.randn(40, 32), 4)
    bank: Any = made.memory_banks["0"]
    bank.base_bank.quantized_memory, bank.base_bank.memory_scales = stored, scales
    made.save_pretrained(tmp_path / "m")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.bfloat16)
    inner = loaded.memory_banks["0"].base_bank
    assert (inner.quantized_memory.dtype, inner.memory_scales.dtype) == (torch.uint8, torch.float32)
    assert torch.equal(inner.memory_scales, scales)
    with torch.inference_mode():
        found, exact = (m(ids_of(20)[None]).logits[0].float() for m in (loaded, made))
    assert loaded(ids_of(3)[None]).logits.dtype == torch.bfloat16
    assert float((found - exact).norm() / exact.norm()) < 0.1


def test_weights_and_keys_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    folder = written(tmp_path / "m", model(**CHAPTERS))
    state = torch.load(folder / "model.pt", weights_only=True)
    del state["routers.2.router.bias"]
    torch.save(state, folder / "model.pt")
    with pytest.raises(SpecError, match=r"missing: routers\.2\.router\.bias"):
        convert(folder)
    groups = yaml.safe_load((folder / "config.yaml").read_text())
    groups["memory"]["top_k_chapter"] = 3
    (folder / "config.yaml").write_text(yaml.safe_dump(groups))
    with pytest.raises(SpecError, match="memory has no key top_k_chapter"):
        convert(folder)


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        ({"num_chapters": 7}, "num_memory_tokens must be divided by num_chapters=7"),
        ({"top_k_chapters": 9}, "top_k_chapters must be from 1 to 8"),
        (
            {"routing_strategy_inference": "best"},
            "must be one of sequence, sequence-rolling, rolling",
        ),
        ({"memory_layer_indices": [9]}, "must be layers from 0 to 2"),
    ],
)
def test_sizes_that_no_model_has_are_refused(memory: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        model(**(CHAPTERS | memory))


def test_chapters_of_a_factorized_bank_are_made_row_by_row() -> None:
    made = model(**CHAPTERS, use_low_rank_memory=True, memory_rank=3)
    bank: Any = made.memory_banks["0"]
    assert isinstance(bank, ChapteredBank)
    every = bank.base_bank().view(10, 4, 32)
    some = torch.tensor([[7, 1], [0, 9]])
    torch.testing.assert_close(bank(some), every[some])
