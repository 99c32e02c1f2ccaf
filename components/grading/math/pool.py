"""Grading from any thread, in worker processes with a hard time limit."""

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
    """The grading process cannot be started."""


class Pool:
    """Up to `workers` grading processes, started when needed and shared by all threads."""

    def __init__(self, workers: int | None = None, seconds: float = 3.0) -> None:
        """Cheap: starts nothing.

        Args:
            workers: at most so many processes; None: half the processors, 1 to 4.
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
        """Compare two answers; safe from any thread.

        And never longer than the limit once a worker runs.
        """
        worker = self._idle.get()
        try:
            if worker is None or not worker.alive():
                worker = _Worker(self.seconds)
            return worker.grade(gold, pred)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End idle workers; a later `grade` starts them again."""
        for _ in range(self._idle.qsize()):
            worker = self._idle.get()
            if worker is not None:
                worker.close()
            self._idle.put(None)


class _Worker:
    def __init__(self, seconds: float) -> None:
        places = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
        self.seconds = seconds
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "components.grading.math.worker",
                str(seconds),
                str(MEGABYTES),
            ],
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

    def grade(self, gold: str, pred: str) -> Verdict:
        assert self.process.stdin is not None
        job = json.dumps({"gold": gold, "pred": pred}).encode() + b"\n"
        try:
            self.process.stdin.write(job)
            self.process.stdin.flush()
        except BrokenPipeError:
            return Verdict(False, "the grading process died", 0.0)
        answer = self._read(self.seconds + 5)
        if not answer:
            self.close()
            return Verdict(False, "the grading process died", self.seconds)
        return Verdict(**json.loads(answer))

    def close(self) -> None:
        self._end()

    def _read(self, limit: float) -> bytes:
        """One line; empty when the process ends, or after `limit` seconds (it is killed then)."""
        assert self.process.stdout is not None
        timer = threading.Timer(limit, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            return self.process.stdout.readline()
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
