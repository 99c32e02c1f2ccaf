"""llama.cpp itself, in a process of its own: greedy tokens and whole distributions.

Run as a program it takes a GGUF file and a file of requests, and writes a file of answers: a crash
of native code would end whoever holds it.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

Answers = list[tuple[list[int], "np.ndarray[Any, Any]"]]


def answers(gguf: Path, work: Path, prompts: list[list[int]], count: int, whole: bool) -> Answers:
    """For every prompt its greedy ids, and log probabilities [vocabulary] of the first of them.

    Args:
        gguf: the model.
        work: a folder for two small files.
        prompts: token ids.
        count: how many ids are generated.
        whole: whether all of the first distribution is wanted, or its best entry only.
    """
    asked = {"prompts": prompts, "count": count, "whole": whole}
    (work / "asked.json").write_text(json.dumps(asked))
    line = [sys.executable, __file__, str(gguf), str(work)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((work / "answers.json").read_text())
    first = np.load(work / "first.npy")
    return [(ids, row) for ids, row in zip(found, first, strict=True)]


def main(gguf: str, work: Path) -> None:
    import xllamacpp

    asked = json.loads((work / "asked.json").read_text())
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.n_ctx, params.n_parallel, params.warmup, params.port = 512, 1, False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    vocabulary = 49152
    found, first = [], np.full((len(asked["prompts"]), vocabulary), -np.inf)
    for number, prompt in enumerate(asked["prompts"]):
        probabilities = vocabulary if asked["whole"] else 1
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "max_tokens": asked["count"],
                "temperature": 0,
                "logprobs": probabilities,
                "n_probs": probabilities,
                "cache_prompt": False,
            }
        )
        steps = answer["choices"][0]["logprobs"]["content"]
        found.append([step["id"] for step in steps])
        for entry in steps[0]["top_logprobs"]:
            first[number, entry["id"]] = entry["logprob"]
    (work / "answers.json").write_text(json.dumps(found))
    np.save(work / "first.npy", first)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
