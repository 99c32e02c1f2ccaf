"""The same rows by vLLM, in a process and an environment of its own.

`vllm` is vLLM as it comes, which on a processor keeps one core for its scheduler; `vllm-all-cores`
has its worker compute on every core. It starts, compiles and warms up before the clock does.

    echo '{"folder": ..., "dtype": "float32", "ids": [[...]], "caps": [...]}' | python vllm_rows.py
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

ENGINES = ("vllm", "vllm-all-cores")
_OURS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "PYTHONPATH", "MKL_CBWR")


def run(engine: str, python: str, job: dict[str, Any]) -> dict[str, Any]:
    """Decode a job (see the module) with the vLLM of `python`'s environment.

    Raises:
        RuntimeError: it ended without a result; its last lines are told.
    """
    env = {name: value for name, value in os.environ.items() if name not in _OURS}
    env |= {"VLLM_CPU_KVCACHE_SPACE": "4", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if engine == "vllm-all-cores":
        cores = sorted(os.sched_getaffinity(0))
        env["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    done = subprocess.run(
        [python, __file__], input=json.dumps(job), capture_output=True, text=True, env=env
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"tokens_per_s"')]
    if not lines:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise RuntimeError(f"{python} gave no result of vLLM (status {done.returncode}):\n{last}")
    made: dict[str, Any] = json.loads(lines[-1])
    return made


def main() -> None:
    """Read a job, decode it, print a line of JSON."""
    import vllm
    from vllm import LLM, SamplingParams

    job = json.load(sys.stdin)
    engine = LLM(job["folder"], dtype=job["dtype"], max_model_len=2048, seed=0).llm_engine
    fields = {"temperature": 0.7, "top_p": 0.95, "ignore_eos": True, "detokenize": False}

    def decode(name: str, ids: list[list[int]], caps: list[int]) -> tuple[int, float]:
        for row, (prompt, cap) in enumerate(zip(ids, caps, strict=True)):
            params = SamplingParams(max_tokens=cap, **fields)
            engine.add_request(f"{name}{row}", {"prompt_token_ids": prompt}, params)
        tokens, first = 0, 0.0
        while engine.has_unfinished_requests():
            over = [out for out in engine.step() if out.finished]
            first = first or (time.perf_counter() if over else 0.0)
            tokens += sum(len(out.outputs[0].token_ids) for out in over)
        return tokens, first

    decode("warm", [row[::-1] for row in job["ids"]], [4] * len(job["ids"]))
    started, spent = time.perf_counter(), _processor_seconds()
    tokens, first = decode("row", job["ids"], job["caps"])
    seconds, spent = time.perf_counter() - started, _processor_seconds() - spent
    made = {
        "tokens_per_s": round(tokens / seconds, 1),
        "first_row_s": round(first - started, 2),
        "seconds": round(seconds, 2),
        "processor_s": round(spent, 1),
        "tokens": tokens,
        "version": vllm.__version__,
    }
    print(json.dumps(made), flush=True)


def _processor_seconds() -> float:
    """Seconds of processor time of this process and all that it started."""
    import psutil

    me = psutil.Process()
    times = [each.cpu_times() for each in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in times)


if __name__ == "__main__":
    main()
