"""The grading process: `python -m components.grading.math.worker SECONDS MEGABYTES`.

A supervisor reads one JSON job a line (`{"gold", "pred"}`) and answers one JSON verdict a line. A
child forked from it does the grading; a child that overstays its time or dies is replaced in
milliseconds, since the imports are done. Everything runs in main threads of single-threaded
processes, and nothing of the texts is ever executed.
"""

import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, BinaryIO, NoReturn

from components.grading.math.compare import compare

FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Child:
    """A forked grader and the pipes to it."""

    def __init__(self, seconds: float, megabytes: int) -> None:
        """Fork it."""
        self.seconds = seconds
        jobs_out, jobs_in = os.pipe()
        verdicts_out, verdicts_in = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(jobs_in)
            os.close(verdicts_out)
            _serve(os.fdopen(jobs_out, "rb"), os.fdopen(verdicts_in, "wb"), seconds, megabytes)
        os.close(jobs_out)
        os.close(verdicts_in)
        self.jobs = os.fdopen(jobs_in, "wb", buffering=0)
        self.verdicts = verdicts_out
        self.rest = b""

    def grade(self, job: bytes) -> dict[str, Any] | None:
        """The verdict; None when the child died or took too long (it is dead then)."""
        try:
            self.jobs.write(job)
        except BrokenPipeError:
            return None
        line = self._line(time.monotonic() + self.seconds)
        return None if line is None else json.loads(line)

    def kill(self) -> None:
        """Kill and reap."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.jobs.close()
        os.close(self.verdicts)

    def _line(self, deadline: float) -> bytes | None:
        while b"\n" not in self.rest:
            wait = deadline - time.monotonic()
            if wait <= 0 or not select.select([self.verdicts], [], [], wait)[0]:
                return None
            data = os.read(self.verdicts, 65536)
            if not data:
                return None
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line


def supervise(jobs: BinaryIO, verdicts: BinaryIO, seconds: float, megabytes: int) -> None:
    """Answer every job until the input ends."""
    child = Child(seconds, megabytes)
    verdicts.write(b'{"ready": true}\n')
    verdicts.flush()
    for job in jobs:
        begun = time.monotonic()
        verdict = child.grade(job)
        took = time.monotonic() - begun
        if verdict is None:
            child.kill()
            child = Child(seconds, megabytes)
            reason = (
                f"took longer than {seconds:g} s" if took >= seconds else "the grading process died"
            )
            verdict = {"equal": False, "reason": reason}
        verdict["seconds"] = took
        verdicts.write(json.dumps(verdict).encode() + b"\n")
        verdicts.flush()
    child.kill()


def _serve(jobs: BinaryIO, verdicts: BinaryIO, seconds: float, megabytes: int) -> NoReturn:
    _limit_memory(megabytes)
    for line in jobs:
        _limit_time(seconds)
        job = json.loads(line)
        try:
            equal, reason = compare(job["gold"], job["pred"])
        except FAILURES as error:
            equal, reason = False, f"cannot be graded: {type(error).__name__}"
        verdicts.write(json.dumps({"equal": equal, "reason": reason}).encode() + b"\n")
        verdicts.flush()
    os._exit(0)


def _limit_memory(megabytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, hard))


def _limit_time(seconds: float) -> None:
    """The kernel's own limit, should the supervisor be gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(
        resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 2, hard)
    )


def main() -> None:
    """Take over the standard streams: what libraries print goes to the error stream."""
    verdicts = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        supervise(sys.stdin.buffer, verdicts, float(sys.argv[1]), int(sys.argv[2]))
    except BrokenPipeError:  # who asked is gone, killed perhaps: nobody wants the verdict
        os._exit(1)


if __name__ == "__main__":
    main()
