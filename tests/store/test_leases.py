"""Leases: one of several contenders, takeover from the dead, and those fenced off notice."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.store.leases import Held, Leases
from tests.fakes.configs import ROOT


@pytest.fixture
def writers(tmp_path: Path) -> Any:
    """`writers(n)`: n writers in one folder, with leases of a third of a second."""
    made: list[Leases] = []

    def make(count: int) -> list[Leases]:
        for _ in range(count):
            leases = Leases(tmp_path, 0.3)
            leases.enter()
            made.append(leases)
        return made[-count:]

    yield make
    for leases in made:
        leases.close()


def dies(leases: Leases, elsewhere: bool = True) -> None:
    """The writer's heart stops; `elsewhere`: on a machine whose processes cannot be seen."""
    leases._stop.set()
    assert leases._thread is not None
    leases._thread.join()
    beat = leases.folder / f"{leases.writer}.beat"
    content = json.loads(beat.read_text())
    beat.write_text(json.dumps(content | ({"boot": "another machine"} if elsewhere else {})))


def test_one_of_many_contenders_gets_a_lease(writers: Any) -> None:
    many, taken = writers(12), []
    start = threading.Barrier(12)

    def contend(leases: Leases) -> None:
        start.wait()
        try:
            taken.append(leases.take("chunk-001"))
        except Held:
            pass

    threads = [threading.Thread(target=contend, args=(leases,)) for leases in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1


def test_a_living_holder_keeps_its_lease_and_is_named(writers: Any) -> None:
    first, second = writers(2)
    lease = first.take("all")
    time.sleep(0.5)  # longer than a lease: the heartbeat goes on
    with pytest.raises(Held, match=f"process {os.getpid()} on") as caught:
        second.take("all")
    assert caught.value.alive and first.held(lease)


def test_a_silent_holder_elsewhere_is_dead_after_the_leases_seconds_and_not_before(
    writers: Any,
) -> None:
    first, second = writers(2)
    lease = first.take("all")
    dies(first)
    with pytest.raises(Held) as caught:
        second.take("all")
    assert not caught.value.alive, "not known yet, so nothing to refuse for"
    time.sleep(0.4)
    taken = second.take("all")
    assert taken.inherited and second.held(taken) and not first.held(lease)


def test_a_holder_seen_to_beat_lives_wherever_it_is(writers: Any) -> None:
    first, second = writers(2)
    beat = first.folder / f"{first.writer}.beat"
    first.take("all")
    dies(first)
    assert second.alive(first.writer) is None
    beat.write_text(json.dumps(json.loads(beat.read_text()) | {"count": 1000}))
    assert second.alive(first.writer) is True


def _holds_and_is_killed(folder: Path, ready: Any) -> None:
    leases = Leases(folder, 60)
    leases.enter()
    leases.take("all")
    ready.set()
    time.sleep(60)


def test_a_holder_killed_on_this_machine_is_dead_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    child = context.Process(target=_holds_and_is_killed, args=(tmp_path, ready))
    child.start()
    ready.wait(30)
    second = Leases(tmp_path, 60)
    second.enter()
    with pytest.raises(Held):
        second.take("all")
    child.kill()
    child.join()
    assert second.take("all").inherited
    second.close()


def test_who_was_taken_over_can_neither_hold_nor_end_the_lease(writers: Any) -> None:
    first, second, third = writers(3)
    old = first.take("chunk-001")
    dies(first)
    second.alive(first.writer)
    time.sleep(0.4)
    new = second.take("chunk-001")
    first.give_back(old, "done")
    assert second.held(new) and third.state("chunk-001") == "held"
    second.give_back(new)
    assert not first.held(old), "the files of earlier holders are gone, and still it is not held"
    again = third.take("chunk-001")
    assert not again.inherited and again.epoch == 3 and not first.held(old)


def test_a_writer_killed_in_the_middle_of_a_heartbeat_is_known_to_be_dead_at_once(
    tmp_path: Path,
) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from pipeline.store.leases import Leases\n"
        "leases = Leases(Path(sys.argv[1]), 60)\n"
        "leases.enter()\n"
        "leases.take('all')\n"
        "Path.write_text = lambda path, *_, **__: (open(path, 'w'), os.kill(os.getpid(), 9))\n"
        "leases._beat(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    second = Leases(tmp_path, 60)
    second.enter()
    assert second.take("all").inherited
    second.close()


@pytest.mark.parametrize("name", ["all.1~", "all.7 (copy)", "all.x", ".all.1.swp"])
def test_what_others_put_beside_the_leases_is_none(writers: Any, name: str) -> None:
    (leases,) = writers(1)
    (leases.folder / name).write_text('{"writer": "x-1-a", "state": "held"}')
    assert leases.state("all") == "free" and not leases.held_by_others("all")
    assert leases.take("all").epoch == 1


def test_given_back_is_free_for_the_next(writers: Any) -> None:
    first, second = writers(2)
    first.give_back(first.take("all"))
    assert not second.take("all").inherited
