"""Signs of life: what a run says before, while and after rows come, in a pipe and in the log."""

import io
import os
import signal
import subprocess
import time
from pathlib import Path

from rich.console import Console

from launch.running.progress import Progress, num_rows, start_line, tokens_of
from tests.run.test_executor import Counting, point, spec
from tests.test_run import LINE, command, run, wait_for_rows


class Talking(Counting):
    """Counts tokens as they come, before any row is whole."""

    tokens = 100

    def describe(self) -> dict[str, object]:
        return {"device": "none", "dtype": "float32", "generated_tokens": self.tokens}


def test_the_bar_counts_tokens_that_came_since_the_start_of_all_points_that_share_a_backend(
    tmp_path: Path,
) -> None:
    text, backend = io.StringIO(), Talking()
    points = [point(spec(tmp_path / name / "step-0")) for name in ("a", "b")]
    with Progress(points, backend, Console(file=text, width=200), 0.05) as progress:
        assert progress.line().startswith("loading the model since ")
        progress.on_start([])
        backend.tokens = 1882
        assert "0 of 0 rows, 1782 tokens" in progress.line()
        time.sleep(0.3)
    lines = text.getvalue().splitlines()
    assert any("on none, float32: 0 of" in line and "of 2 points" in line for line in lines)
    assert any("1782 tokens" in line for line in lines)


def test_the_time_left_is_told_once_as_many_rows_have_ended_as_were_open_at_once(
    tmp_path: Path,
) -> None:
    made, backend = point(spec(tmp_path / "step-0")), Talking()
    total = num_rows(made)
    backend.capacity = total - 1
    with Progress([made], backend, Console(file=io.StringIO())) as progress:
        progress.on_start([])
        progress._total = total
        for done in range(1, total + 1):
            progress.on_row(None, None)  # type: ignore[arg-type]
            told = "time left: unknown" not in progress.line()
            assert told == (done >= total - 1)


def test_tokens_of_gateways_and_of_models_are_one_number() -> None:
    assert tokens_of({"generated_tokens": 3}) == tokens_of({"completion_tokens": 3}) == 3
    assert tokens_of({}) == 0


def test_the_first_line_says_model_device_type_decoder_rows_and_folder(tmp_path: Path) -> None:
    made = point(spec(tmp_path / "a/step-0"))
    about = {"device": "cpu", "dtype": "bfloat16", "decoder": "slots"}
    line = start_line([made], about, 5)
    assert line.endswith(f"rows to do, into {tmp_path}/a/step-0")
    assert f"{made.model_name} on cpu, bfloat16, decoder slots: 5 of " in line


def test_a_run_into_a_pipe_says_where_rows_go_there_and_in_its_log(tmp_path: Path) -> None:
    done = run(*LINE, f"run.root={tmp_path}", "run.limit=1")
    (log,) = tmp_path.rglob("log.txt")
    line = f"echo on none: 1 of 1 rows to do, into {log.parent}"
    assert line in done.stderr and line in log.read_text()


def test_two_interrupts_end_without_a_traceback_and_say_what_goes_on(tmp_path: Path) -> None:
    slow = [*LINE, f"run.root={tmp_path}", "backend.capacity=2", "backend.seconds_per_token=0.002"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command(*slow), text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
        wait_for_rows(tmp_path, 2)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT) and "Traceback" not in errors
    assert "the same command goes on" in errors
