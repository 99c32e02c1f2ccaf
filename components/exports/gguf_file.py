"""A model as one GGUF file, for llama.cpp and everything that is built on it."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.exports.chosen_model import ChosenModel
from components.exports.llama_cpp import (
    convert,
    converter_script,
    quantize,
    quantizer_program,
    unknown,
)
from components.models.gguf_header import read_header
from components.models.gguf_rewriting import rewritten
from components.models.weight_files import read_json
from pipeline.spec import SpecError

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, ReaderTensor

CONVERTED = ("F32", "F16", "BF16", "Q8_0")  # by the converter itself
ROUNDED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1")  # by the reference in llama.cpp's package gguf
NATIVE = (
    *("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K"),
    *("IQ4_NL", "IQ4_XS"),
)
_KEPT_BETTER = ("token_embd.weight", "output.weight")  # what llama.cpp gives more bits, too
_BLOCK = 32  # values that share a scale


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Weights, config, tokenizer and chat template in one file `<model>-<type>.gguf`.

    Attributes:
        type: of the large tensors, in llama.cpp's words; norms and the like stay F32.
        converter: a folder with llama.cpp's convert_hf_to_gguf.py; None: the installed one.
        quantizer: llama.cpp's program llama-quantize; None: the one on PATH. Only the types in
            NATIVE need it.
    """

    type: str = "F16"
    converter: str | None = None
    quantizer: str | None = None
    name: str = "gguf"

    def check(self, chosen: ChosenModel) -> None:
        """Refuse what llama.cpp cannot hold, and types whose tools are not there.

        Raises:
            SpecError: says what to choose or install.
        """
        known = (*CONVERTED, *ROUNDED, *NATIVE)
        if self.type not in known:
            raise SpecError(f"to.type must be one of {', '.join(known)}, got {self.type!r}")
        chosen.require_plain(self.name, "to.type says how a GGUF file holds the weights")
        if chosen.checkpoint.architecture:
            raise unknown(chosen.checkpoint.architecture.rpartition(".")[2])
        converter_script(self.converter)
        if self.type in NATIVE:
            quantizer_program(self.type, self.quantizer)

    def write(self, chosen: ChosenModel, folder: Path) -> dict[str, Any]:
        """Write the file.

        Raises:
            SpecError: llama.cpp does not know the architecture or the tokenizer, or the weights are
                stored quantized.
        """
        stored = chosen.stored_quantization()
        if stored:
            raise SpecError(
                f"to=gguf must have weights in floating point, and those of {chosen.spec.path} are "
                f"stored quantized ({stored}): take the model that they were made from"
            )
        title = chosen.spec.name.replace("/", "-")
        target = folder / f"{title}-{self.type}.gguf"
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            source = Path(work) / title
            model = chosen.load()
            between = self.type if self.type in CONVERTED else _halves(str(model.dtype))
            chosen.save(model, source)
            del model
            if not chosen.spec.trust_remote_code:
                remove_code(source)
            whole = target if self.type in CONVERTED else Path(work) / "whole.gguf"
            convert(converter_script(self.converter), source, whole, between)
            if self.type in ROUNDED:
                round_to(self.type, whole, target)
            elif self.type in NATIVE:
                quantize(quantizer_program(self.type, self.quantizer), whole, target, self.type)
        header = read_header(target)
        return {"architecture": header.fields["general.architecture"], "type": self.type}


def remove_code(folder: Path) -> None:
    """Take Python files, and the words that name such, out of a model folder.

    llama.cpp's converter runs a tokenizer's own code without asking.
    """
    for path in folder.glob("*.py"):
        path.unlink()
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        words = read_json(path) if path.is_file() else {}
        if words.pop("auto_map", None):
            path.write_text(json.dumps(words, indent=1, ensure_ascii=False), encoding="utf-8")


def round_to(kind: str, source: Path, target: Path) -> None:
    """Write a GGUF file again, with its large 16-bit tensors in 4 or 5 bit.

    The embedding and the output head get 8 bit. Tensors that the converter keeps in F32, and rows
    that do not divide into blocks of 32, stay as they are.
    """
    import gguf

    asked, better = gguf.GGMLQuantizationType[kind], gguf.GGMLQuantizationType.Q8_0

    def type_of(tensor: "ReaderTensor") -> "GGMLQuantizationType":
        halves = tensor.tensor_type.name in ("F16", "BF16")
        if not halves or int(tensor.shape[0]) % _BLOCK:
            return tensor.tensor_type
        return better if tensor.name in _KEPT_BETTER else asked

    reader = gguf.GGUFReader(source)
    file_type = int(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    rewritten(reader, reader.tensors, target, type_of, {"general.file_type": file_type})


def _halves(dtype: str) -> str:
    """The 16-bit type that loses least before rounding: float16 has more digits than bfloat16."""
    return "BF16" if dtype.endswith("bfloat16") else "F16"
