"""Grades from any thread, in worker processes with limits of time and memory.

The workers are plain `python -m components.grading.math.worker` subprocesses and not a
`multiprocessing` pool (Pebble, say): such a pool imports the caller's main module again in every
child. That reruns a script or a notebook of a user that is not guarded, and loads PyTorch, whose
address space alone exceeds the memory limit.
"""

import json
import math
import os
import queue
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from components.grading.verdict import Verdict
from pipeline.spec import require

MEGABYTES = 2048
START_SECONDS = 120.0
_ROOT = Path(__file__).resolve().parents[3]


class GraderError(RuntimeError):
    """A grading process cannot be started, or died twice on one pair: there is no verdict."""


class Pool:
    """Up to `workers` grading processes, started when needed and shared by all threads."""

    def __init__(self, workers: int | None = None, seconds: float = 3.0) -> None:
        """Check the arguments; no process is started yet.

        Args:
            workers: the most processes at a time; None: half the processors, 1 to 4.
            seconds: hard limit for one comparison; then the answer counts as different.
        """
        count = workers if workers is not None else max(1, min(4, (os.cpu_count() or 2) // 2))
        require(count >= 1, "task.grading_workers", "be null or 1 or more", workers)
        require(0 < seconds < math.inf, "task.grading_seconds", "be above 0, and finite", seconds)
        self.seconds = seconds
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)

    def grade(self, gold: str, pred: str) -> Verdict:
        """Compare two answers, from any thread; past the time limit they count as different.

        A worker that dies says nothing about the answers: the pair is tried once more in a fresh
        one.

        Raises:
            GraderError: no worker starts, or the second one died as well.
        """
        worker = self._idle.get()
        try:
            for _ in range(2):
                if worker is None or not worker.alive():
                    worker = _Worker(self.seconds)
                verdict = worker.grade(gold, pred)
                if verdict is not None:
                    return verdict
        finally:
            self._idle.put(worker)
        raise GraderError(
            "the grading process died twice on one pair, killed from outside or out of memory; "
            "start the run again when the machine has memory left, or lower task.grading_workers"
        )

    def close(self) -> None:
        """End idle workers; a later `grade` starts them again."""
        for _ in range(self._idle.qsize()):
            worker = self._idle.get()
            if worker is not None:
                worker.close()
            self._idle.put(None)

    def pids(self) -> list[int]:
        """Process ids of the idle workers' supervisors."""
        return [worker.process.pid for worker in self._idle.queue if worker is not None]


class _Worker:
    """A supervisor process; its stdin takes pairs, its stdout gives verdicts, as JSON lines."""

    def __init__(self, seconds: float) -> None:
        places = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
        module = "components.grading.math.worker"
        self.seconds = seconds
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(seconds), str(MEGABYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a Ctrl-C is the run's to handle
        )
        self._end = weakref.finalize(self, _stop, self.process)
        if not self._read(START_SECONDS):
            raise GraderError(
                "the grading process ended or hung at its start; its message stands above. "
                f"It needs the package math-verify (exit status {self.process.poll()})"
            )

    def alive(self) -> bool:
        return self.process.poll() is None

    def grade(self, gold: str, pred: str) -> Verdict | None:
        """The verdict, or None when the supervisor or its grader died before it gave one."""
        assert self.process.stdin is not None
        job = json.dumps({"gold": gold, "pred": pred}).encode() + b"\n"
        try:
            self.process.stdin.write(job)
            self.process.stdin.flush()
        except BrokenPipeError:
            self.close()
            return None
        answer = self._read(self.seconds + 5)
        if not answer:
            self.close()
            return None
        values = json.loads(answer)
        return None if values.get("died") else Verdict(**values)

    def close(self) -> None:
        self._end()

    def _read(self, limit: float) -> bytes:
        """One line; empty when the process ends, or after `limit` seconds (it is killed then)."""
        assert self.process.stdout is not None
        timer = threading.Timer(limit, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            line = self.process.stdout.readline()
            return line if line.endswith(b"\n") else b""
        finally:
            timer.cancel()


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the supervisor by closing its input (its child goes with it); kill it if it does not."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                continue
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
