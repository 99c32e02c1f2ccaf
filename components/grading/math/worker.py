"""The grading process: `python -m components.grading.math.worker SECONDS MEGABYTES`.

A supervisor reads one JSON job a line (`{"gold", "pred"}`) and answers one JSON object a line: the
fields of a Verdict, or `{"died": true}` when the grader ended without one. The grader is a child
forked from it; a child that exceeds its time or dies is replaced in milliseconds, since the imports
are done. Everything runs in main threads of single-threaded processes, and nothing of the texts is
ever executed.
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
    RuntimeError,
    TypeError,
    ValueError,
)
# What native code raises on the text itself (GMP aborts when memory ends), unlike a kill.
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)


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

    def grade(self, job: bytes) -> dict[str, Any]:
        """A Verdict's fields but `seconds`, or `{"died": True}`.

        After `timeout` and `died` the child must be replaced.
        """
        try:
            self.jobs.write(job)
        except BrokenPipeError:
            return {"died": True}
        line = self._line(time.monotonic() + self.seconds)
        if line is None:
            reason = f"took longer than {self.seconds:g} s"
            return {"equal": False, "reason": reason, "limit": "timeout"}
        verdict: dict[str, Any] = json.loads(line) if line else {"died": True}
        return verdict

    def kill(self) -> int:
        """Kill and reap; the signal that ended the child, which may have come before."""
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.jobs.close()
        os.close(self.verdicts)
        return max(0, -os.waitstatus_to_exitcode(status))

    def _line(self, deadline: float) -> bytes | None:
        """One line; empty when the child ended, None when the deadline passed."""
        while b"\n" not in self.rest:
            wait = deadline - time.monotonic()
            if wait <= 0 or not select.select([self.verdicts], [], [], wait)[0]:
                return None
            data = os.read(self.verdicts, 65536)
            if not data:
                return b""
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line


def supervise(jobs: BinaryIO, verdicts: BinaryIO, seconds: float, megabytes: int) -> None:
    """Answer every job until the input ends."""
    child = Child(seconds, megabytes)
    verdicts.write(b'{"ready": true}\n')
    verdicts.flush()
    for job in jobs:
        started = time.monotonic()
        verdict = child.grade(job)
        took = time.monotonic() - started
        if verdict.get("died") or verdict.get("limit") == "timeout":
            ended_by = child.kill()
            child = Child(seconds, megabytes)
            if verdict.get("died") and ended_by in CRASHES:
                reason = f"crashes the grader (signal {ended_by})"
                verdict = {"equal": False, "reason": reason, "limit": "crash"}
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
            limit = None
        except MemoryError:
            equal, reason, limit = False, f"needs more than {megabytes} MB", "memory"
        except FAILURES as error:
            equal, reason, limit = False, f"cannot be graded: {type(error).__name__}", None
        verdict = {"equal": equal, "reason": reason, "limit": limit}
        verdicts.write(json.dumps(verdict).encode() + b"\n")
        verdicts.flush()
    os._exit(0)


def _limit_memory(megabytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = megabytes << 20
    resource.setrlimit(
        resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
    )


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
