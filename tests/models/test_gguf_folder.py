"""Conversion, on a GGUF of 400 tokens and one layer written here."""

import json
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from components.models.checkpoint import resolve
from components.models.gguf_folder import folder_for
from components.models.gguf_header import read_header
from components.models.hashes import file_hash
from pipeline.spec import ModelSpec, SpecError

WIDTH, HIDDEN, VOCABULARY = 32, 48, 300
SHAPES = {
    "token_embd.weight": (VOCABULARY, WIDTH),
    "output_norm.weight": (WIDTH,),
    "blk.0.attn_norm.weight": (WIDTH,),
    "blk.0.attn_q.weight": (WIDTH, WIDTH),
    "blk.0.attn_k.weight": (WIDTH, WIDTH),
    "blk.0.attn_v.weight": (WIDTH, WIDTH),
    "blk.0.attn_output.weight": (WIDTH, WIDTH),
    "blk.0.ffn_norm.weight": (WIDTH,),
    "blk.0.ffn_gate.weight": (HIDDEN, WIDTH),
    "blk.0.ffn_up.weight": (HIDDEN, WIDTH),
    "blk.0.ffn_down.weight": (WIDTH, HIDDEN),
}


def alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes as."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(rest))]


def write_gguf(
    path: Path,
    shapes: dict[str, tuple[int, ...]] = SHAPES,
    tensors: Mapping[str, Any] = MappingProxyType({}),
    scaling: str | None = None,
) -> Path:
    """A random model; `tensors` are added as they are, and `scaling` is that of its positions."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("A Tiny Model")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    tokens = ["<unk>", "<|im_start|>", "<|im_end|>", *alphabet()]
    merges = [f"{a} {b}" for a in "abcdef" for b in "ghijklmn"][: VOCABULARY - len(tokens)]
    tokens += [merge.replace(" ", "") for merge in merges]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if scaling is not None:
        writer.add_string("llama.rope.scaling.type", scaling)
        writer.add_float32("llama.rope.scaling.factor", 4.0)
    draw = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(name, draw.normal(size=shape).astype(np.float32))
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.asarray(tensor, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def start(gguf_file: Path, cache: Path, patch: str = "") -> subprocess.Popen[str]:
    """A process that converts and prints the folder; its log goes to stderr."""
    script = f"""
import logging, os, sys
from pathlib import Path
import components.models.converted_folder as c
import components.models.gguf_folder as g
logging.basicConfig(level=logging.INFO)
{patch}
print(g.folder_for(Path(sys.argv[1]), "c" * 64, Path(sys.argv[2])))
"""
    command = [sys.executable, "-c", script, str(gguf_file), str(cache)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if path.suffix != ".lock"]


def test_two_starts_at_once_make_one_good_folder(tiny_gguf: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    started = [start(tiny_gguf, tmp_path), start(tiny_gguf, tmp_path)]
    ends = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], ends
    folders = {out.splitlines()[-1] for out, _ in ends}  # libraries print before it
    assert len(folders) == 1
    assert sum(log.count("converting tiny.gguf") for _, log in ends) == 1
    folder = Path(folders.pop())
    assert leftovers(tmp_path) == [folder.name]
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = np.random.default_rng(0).normal(size=SHAPES["token_embd.weight"])
    weight = model.get_input_embeddings().weight.detach()
    assert torch.equal(weight, torch.tensor(expected, dtype=torch.float32))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer.encode("a cab, ägh")) == "a cab, ägh"


def test_a_conversion_that_was_killed_leaves_nothing_that_is_used(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    killed = start(tiny_gguf, tmp_path, "c._seal = lambda made: os.kill(os.getpid(), 9)")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    (half,) = leftovers(tmp_path)
    assert ".part-" in half
    folder = folder_for(tiny_gguf, "c" * 64, tmp_path)
    assert leftovers(tmp_path) == [folder.name]
    assert (folder / "model.safetensors").is_file()


def test_a_folder_that_lost_bytes_is_made_again(tiny_gguf: Path, tmp_path: Path) -> None:
    folder = folder_for(tiny_gguf, "c" * 64, tmp_path)
    whole = file_hash(folder / "model.safetensors", tmp_path)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    assert folder_for(tiny_gguf, "c" * 64, tmp_path) == folder
    assert file_hash(folder / "model.safetensors", tmp_path) == whole


def test_a_whole_folder_is_taken_as_it_is(tiny_gguf: Path, tmp_path: Path) -> None:
    folder = folder_for(tiny_gguf, "c" * 64, tmp_path)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert folder_for(tiny_gguf, "c" * 64, tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made


def test_a_cache_that_cannot_be_written_names_its_key(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"run\.cache_dir="):
        folder_for(tiny_gguf, "c" * 64, tmp_path / "file")


def test_a_file_that_is_no_gguf_is_refused_with_its_name(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    with pytest.raises(SpecError, match=r"broken\.gguf"):
        folder_for(broken, "d" * 64, tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == []


def split(whole: Path, folder: Path) -> list[Path]:
    """The GGUF file as two shards, as llama.cpp's splitter writes them."""
    reader = gguf.GGUFReader(whole)
    half = len(reader.tensors) // 2
    shards = []
    for number, tensors in enumerate((reader.tensors[:half], reader.tensors[half:])):
        path = folder / f"tiny-{number + 1:05d}-of-00002.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for field in reader.fields.values() if number == 0 else ():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                kind = field.types[0]
                element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(field.name, field.contents(), kind, sub_type=element)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        shards.append(path)
    return shards


@pytest.mark.parametrize("named", [0, 1])
def test_any_shard_stands_for_all_of_them(tiny_gguf: Path, tmp_path: Path, named: int) -> None:
    shards = split(tiny_gguf, tmp_path)
    expected = load_file(folder_for(tiny_gguf, "a" * 64, tmp_path) / "model.safetensors")
    joined = load_file(folder_for(shards[named], "b" * 64, tmp_path) / "model.safetensors")
    assert expected.keys() == joined.keys()
    assert all((expected[name] == joined[name]).all() for name in expected)


def test_shards_are_identified_together(tiny_gguf: Path, tmp_path: Path) -> None:
    shards = split(tiny_gguf, tmp_path)
    identities = [
        resolve(ModelSpec(path=str(shard)), tmp_path / "cache").identity for shard in shards
    ]
    assert identities[0] == identities[1]
    whole = bytearray(shards[1].read_bytes())
    whole[-1] ^= 1
    shards[1].write_bytes(whole)
    assert resolve(ModelSpec(path=str(shards[0])), tmp_path / "cache").identity != identities[0]


def test_a_missing_shard_is_named(tiny_gguf: Path, tmp_path: Path) -> None:
    shards = split(tiny_gguf, tmp_path)
    shards[1].unlink()
    with pytest.raises(SpecError, match=r"one of 2 shards, and tiny-00002-of-00002\.gguf is not"):
        resolve(ModelSpec(path=str(shards[0])), tmp_path / "cache")
    alone = shards[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(SpecError, match="one of 2 shards"):
        resolve(ModelSpec(path=str(alone)), tmp_path / "cache")


def test_a_file_that_lacks_a_tensor_is_refused_by_the_tensors_name(tmp_path: Path) -> None:
    shapes = {name: shape for name, shape in SHAPES.items() if name != "blk.0.attn_k.weight"}
    path = write_gguf(tmp_path / "tiny.gguf", shapes)
    with pytest.raises(SpecError, match=r"it lacks model\.layers\.0\.self_attn\.k_proj\.weight"):
        folder_for(path, "e" * 64, tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == []


def test_a_partial_download_is_refused_wherever_it_ends(tiny_gguf: Path, tmp_path: Path) -> None:
    content = tiny_gguf.read_bytes()
    part = tmp_path / "part.gguf"
    for size in (0, 3, 6, 20, 100, 1000, 5000, len(content) // 2, len(content) - 100):
        part.write_bytes(content[:size])
        with pytest.raises(SpecError, match=r"part\.gguf is not a whole GGUF file") as caught:
            read_header(part)
        assert "\n" not in str(caught.value)


def test_an_absurd_header_is_refused_at_once(tiny_gguf: Path, tmp_path: Path) -> None:
    content = tiny_gguf.read_bytes()
    bad = tmp_path / "bad.gguf"
    for at in (4, 8, 16, 24):  # version, number of tensors, number of pairs, a key's length
        for value in (2**31, 2**62, 2**64 - 1):
            bad.write_bytes(content[:at] + struct.pack("<Q", value) + content[at + 8 :])
            with pytest.raises(SpecError, match=r"bad\.gguf is not a whole GGUF file"):
                read_header(bad)


def test_a_header_with_random_bytes_changed_is_read_or_refused(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    content, rng = tiny_gguf.read_bytes(), np.random.default_rng(1)
    bad, refused = tmp_path / "bad.gguf", 0
    for _ in range(200):
        changed = bytearray(content)
        for at in rng.integers(0, 9000, size=3):
            changed[at] = rng.integers(256)
        bad.write_bytes(changed)
        try:
            read_header(bad)
        except SpecError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"blk.0.attn_q.bias": np.ones(WIDTH)}, "blk.0.attn_q.bias"),
        ({"blk.1.attn_norm.weight": np.ones(WIDTH)}, "blk.1.attn_norm.weight"),
        ({"rope_factors_long.weight": np.ones(8)}, "rope_factors_long.weight"),
    ],
    ids=["a bias", "a block too many", "factors of LongRoPE"],
)
def test_a_tensor_that_no_weight_is_made_of_is_refused_by_name(
    tmp_path: Path, tensors: dict[str, Any], named: str
) -> None:
    odd = write_gguf(tmp_path / "odd.gguf", tensors=tensors)
    with pytest.raises(SpecError, match=f"cannot read from a GGUF file: {named}"):
        folder_for(odd, "e" * 64, tmp_path)


def llama3_factors(factor: float) -> Any:
    """What llama.cpp's converter writes for Llama 3.1: by how much each frequency is slowed."""
    periods = 2 * np.pi * 10000.0 ** (np.arange(0, 16, 2) / 16)
    smooth = np.clip((8192 / periods - 1.0) / (4.0 - 1.0), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def config_of(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())["rope_parameters"]


def test_the_scaled_rotation_of_a_file_is_that_of_its_model(tmp_path: Path) -> None:
    factors = llama3_factors(32.0)
    assert len(set(factors)) == 3, "all three parts of the rule"
    kept = write_gguf(tmp_path / "kept.gguf", tensors={"rope_freqs.weight": factors})
    scaled = config_of(folder_for(kept, "a" * 64, tmp_path))
    assert (scaled["rope_type"], scaled["factor"]) == ("llama3", 32.0)
    linear = config_of(
        folder_for(write_gguf(tmp_path / "linear.gguf", scaling="linear"), "b" * 64, tmp_path)
    )
    assert (linear["rope_type"], linear["factor"]) == ("linear", 4.0)


def test_a_rotation_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    odd = write_gguf(tmp_path / "odd.gguf", tensors={"rope_freqs.weight": np.linspace(1, 9, 8)})
    with pytest.raises(SpecError, match="not those of Llama 3"):
        folder_for(odd, "c" * 64, tmp_path)
    yarn = write_gguf(tmp_path / "yarn.gguf", scaling="yarn")
    with pytest.raises(SpecError, match=r"llama\.rope\.scaling\.type=yarn"):
        folder_for(yarn, "d" * 64, tmp_path)
