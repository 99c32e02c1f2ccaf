"""Memory that runs out, memory that is spread, and what a run says of it, all taken for real."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch import api
from pipeline.protocols import Generation
from pipeline.spec import SpecError
from pipeline.store.environment import peak_memory_bytes
from tests.fakes.configs import ROOT
from tests.fakes.hf_requests import answers, backend, request

Maker = Callable[..., Path]
# Runs in a process of its own, whose address space may not grow by more than so much in a batch.
LIMITED = """
import json, resource, sys, threading
from pathlib import Path
from launch import api

def limit(spare):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + spare
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

import pandas, pipeline.analysis.table, pipeline.analysis.summary
import components.backends.hf.static as static
begin, line, spare = static.StaticDecoder.run, sys.argv[2:], int(sys.argv[1])
threading.stack_size(1 << 18)
def run(self, sequences, finish):
    limit(spare)
    try:
        begin(self, sequences, finish)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
static.StaticDecoder.run = run
outcome = api.run(api.compose(*line))
print(json.dumps([outcome.state, str(outcome.folder)]))
"""


def line_of(folder: Path, tmp_path: Path, name: str, *more: str) -> list[str]:
    data = tmp_path / "test.jsonl"
    rows = [{"id": str(n), "question": f"{n} " + "why " * 300, "answer": "x"} for n in range(64)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        *["task=qa", f"task.data.path={data}", "model=local", f"model.path={folder}"],
        *["backend=hf", "backend.device=cpu", "backend.decoder=generate", "backend.batch_size=64"],
        *["sampling=greedy", "sampling.max_new_tokens=3", f"run.dir={tmp_path}/{name}", *more],
    ]


def test_a_batch_for_which_memory_does_not_suffice_is_halved_and_no_row_is_lost(
    tiny_llama: Maker, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LIMITED, str(20 << 20)]
    ran = subprocess.run(
        [*command, *line_of(tiny_llama(), tmp_path, "limited")],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    state, folder = json.loads(ran.stdout.splitlines()[-1])
    assert state == "complete", (Path(folder) / "log.txt").read_text()[-3000:]
    (attempt,) = json.loads((Path(folder) / "run.json").read_text())["attempts"]
    halved = attempt["backend"]["out_of_memory"]
    rows = halved[0]["rows"]
    assert rows > 15 and attempt["backend"]["batch_size"] <= rows // 2
    assert f"out of memory with {rows} rows" in (Path(folder) / "log.txt").read_text()
    free = api.run(api.compose(*line_of(tiny_llama(), tmp_path, "free")))
    texts = {row["example_id"]: row["pass1"]["output"] for row in free.rows()}
    rows = [json.loads(text) for text in next(Path(folder).glob("step*.jsonl")).open()]
    assert len(rows) == 64
    assert {row["example_id"]: row["pass1"]["output"] for row in rows} == texts


def test_a_model_for_which_memory_does_not_suffice_is_refused_with_what_to_do(
    tiny_llama: Maker, tmp_path: Path
) -> None:
    script = LIMITED.split("import components")[0] + (
        "import torch, components.models.loading\n"
        "setup = api.compose(*sys.argv[2:])\n"
        "backend = api.open_backend(setup)\n"
        "point = api.point_of(setup, backend)\n"
        "limit(int(sys.argv[1]))\n"
        "from launch.config.command_line import ended\n"
        "sys.exit(ended(lambda: api.run(setup, backend).status))\n"
    )
    large = tiny_llama(hidden_size=1024)  # 200 MB of embedding
    line = line_of(large, tmp_path, "large", "quantization=fp32")
    ran = subprocess.run(
        [sys.executable, "-c", script, str(330 << 20), *line],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 2, ran.stderr[-3000:]
    assert "there is not enough memory to load model=" in ran.stderr
    assert "quantization=bf16 or bnb_nf4, or backend.device_map=auto" in ran.stderr


def test_the_peak_is_that_of_the_operating_system_and_the_phases_add_up(
    tiny_llama: Maker, tmp_path: Path
) -> None:
    before = peak_memory_bytes()
    outcome = api.run(api.compose(*line_of(tiny_llama(), tmp_path, "run")))
    (attempt,) = json.loads((outcome.folder / "run.json").read_text())["attempts"]
    own, phases = attempt["backend"]["peak_memory_bytes"], attempt["phases"]
    assert before <= own <= peak_memory_bytes()
    assert own >> 20 <= attempt["peak_memory_mib"] <= peak_memory_bytes() >> 20
    assert list(phases) == ["load", "prefill", "decode", "write"]
    assert all(phase["seconds"] > 0 for phase in phases.values())
    seconds = [phase["seconds"] for phase in phases.values()]
    # Rows are written while others decode; the model does one thing at a time.
    assert sum(seconds[:3]) < attempt["seconds"] > seconds[3]
    added = [phase["peak_added_bytes"] for phase in phases.values()]
    assert 0 <= added.pop() < 8 << 20, "writing rows takes little"
    assert sum(added) <= own and own - sum(added) < 8 << 20


def test_the_peak_of_a_process_is_its_own_and_grows_by_what_it_touches() -> None:
    own = (
        "from pipeline.store.environment import peak_memory_bytes as peak\n"
        "before, held = peak(), bytearray(150 << 20)\n"
        "held[::4096] = b'x' * len(held[::4096])\n"
        "print(before, peak())"
    )
    mine = bytearray(400 << 20)  # which getrusage would let the process below inherit
    mine[::4096] = b"x" * len(mine[::4096])
    ran = subprocess.run([sys.executable, "-c", own], cwd=ROOT, capture_output=True, check=True)
    before, after = map(int, ran.stdout.split())
    assert peak_memory_bytes() > 400 << 20 > 4 * before
    assert after - before == pytest.approx(150 << 20, rel=0.05)


@pytest.mark.parametrize("decoder", ["generate", "slots"])
def test_phases_are_timed_by_both_decoders(tiny_llama: Maker, decoder: str) -> None:
    made = backend(tiny_llama(), decoder=decoder)
    answers(made, [request(number) for number in range(3)])
    assert list(made.describe()["phases"]) == ["load", "prefill", "decode"]


def test_layers_that_lie_on_disk_give_the_same_rows(tiny_llama: Maker, tmp_path: Path) -> None:
    # Embedding, head and each layer take 12.6 MB.
    folder = tiny_llama(tie_word_embeddings=False, num_hidden_layers=4, intermediate_size=16384)
    asked = [request(number) for number in range(4)]
    spread = {"device_map": "auto", "cache_dir": str(tmp_path / "cache")}
    places: list[list[str]] = []

    async def ask_spread() -> list[Generation]:
        async with backend(folder, **spread, max_memory={"cpu": "45MB"}) as made:
            places.append(made.describe()["device_map"])
            return await asyncio.gather(*(made.generate(each) for each in asked))

    apart, whole = asyncio.run(ask_spread()), answers(backend(folder), asked)
    assert places == [["cpu", "disk"]]
    assert [one.token_ids for one in apart] == [one.token_ids for one in whole]
    with pytest.raises(SpecError, match=r"backend\.max_memory must leave room for the embedding"):
        answers(backend(folder, **spread, max_memory={"cpu": "9MB"}), asked)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_memory": {"cpu": "1GB"}}, "backend.max_memory must be null without"),
        ({"device_map": "auto", "max_memory": {"tpu": 1}}, "must name GPUs by number, and cpu"),
        ({"device_map": "auto", "max_memory": {0: -1}}, "max_memory.0 must be bytes, or text"),
    ],
)
def test_what_bounds_no_place_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said.replace(".", r"\.")):
        backend(Path("nowhere"), **fields)
