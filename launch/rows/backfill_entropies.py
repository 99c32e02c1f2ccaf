"""Entropies for rows that lack them: what passes say is scored by a model, nothing is generated."""

import asyncio
import hashlib
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.config.compose import build, build_backend, component_class
from launch.config.interrupts import INTERRUPTED
from launch.config.words import CONF
from launch.rows.backfill_points import require_same_model
from launch.rows.backfill_spec import Backfill, BackfillSpec
from launch.rows.backfill_target import keep_original, locked, nothing_to_do
from launch.running.here import ENDING
from pipeline.analysis.row_files import WORKING
from pipeline.backfill.merging import write_changed
from pipeline.backfill.pass_scores import RowScoring, with_scores
from pipeline.backfill.points import reader
from pipeline.backfill.score_file import ScoreFile, score_rows
from pipeline.backfill.unscored_passes import UnscoredRows, find_unscored, said
from pipeline.protocols import Backend, Cue
from pipeline.run.pass_fields import SeriesPolicy
from pipeline.run.point import model_name
from pipeline.spec import digest, require
from pipeline.store.files import Fence, Row

# Keys of `backfill` that say how passes are made.
_OF_PASSES = ("add", "flush_every", "pass_key", "group_by")


def fill_entropies(spec: BackfillSpec, cues: Sequence[Cue]) -> int:
    """Fill one file. Returns 0, 1 (rows could not be scored) or 130 (interrupted)."""
    _refuse_what_has_no_use(spec)
    source = Path(spec.backfill.input)
    with locked(source, spec) as fence:
        found = find_unscored(source, spec.backfill, cues)
        require(found.rows > 0, "backfill.input", "hold rows of a run", str(source))
        print(_what_there_is_to_do(found, spec))
        if spec.run.dry:
            return 0
        if not found.offsets:
            nothing_to_do(source, spec.backfill)
            return 0
        backend = build_backend(spec)
        require_scores(backend)
        return _fill(spec, cues, found, backend, fence)


def require_scores(backend: Backend) -> None:
    """Refuse a backend that cannot score given ids, naming those that can."""
    rule = f"be {' or '.join(scoring_backends())}, which can score given ids"
    require(backend.capabilities.scores, "backend", rule, backend.name)


def scoring_backends() -> list[str]:
    """The options of conf/backend whose class can score."""
    able = []
    for path in sorted((CONF / "backend").glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        target = next((x.partition(":")[2].strip() for x in lines if x.startswith("_target_")), "")
        with suppress(ValueError):  # an option whose class is in another file, or not installed
            capabilities = getattr(component_class("backend", target), "capabilities", None)
            if getattr(capabilities, "scores", False):
                able.append(path.stem)
    return able


def _fill(
    spec: BackfillSpec,
    cues: Sequence[Cue],
    found: UnscoredRows,
    backend: Backend,
    fence: Fence | None,
) -> int:
    source, target = Path(spec.backfill.input), spec.backfill.target
    read = reader(source)
    for offset in found.offsets:
        require_same_model(read(offset), spec, backend)

    def first_pass(row: Row, output: str) -> dict[str, Any] | None:
        offset = found.first_passes.get(said(row, output))
        return None if offset is None else dict(read(offset)["pass1"])

    scoring = RowScoring(build("task", spec.task), backend, cues, first_pass, spec.backfill.force)
    keep = SeriesPolicy(spec.run.entropy, spec.run.arrays)
    mark = scorer_of(spec, backend)
    named = [_content(source), mark, spec.backfill.force, spec.run.entropy, spec.run.arrays]
    work = target.with_name(f"{target.name}{WORKING}")
    work.mkdir(parents=True, exist_ok=True)
    file = ScoreFile(work / f"entropies-{digest(named)[:12]}.jsonl")
    with file:
        rows = ((offset, read(offset)) for offset in found.offsets if offset not in file)
        stopped = asyncio.run(_until_signal(scoring, file, rows, keep))
        if stopped:
            print(f"not finished: the same command goes on from {file.path}")
            return INTERRUPTED

        def changed(offset: int, row: Row) -> Row | None:
            scored = file.of(offset)
            return with_scores(row, scored, mark) if scored else None

        count = write_changed(keep_original(source, spec.backfill), target, changed, fence)
    print(f"{count} rows with new entropies in {target}")
    for reason, number in file.refused.items():
        print(f"{number} rows were not scored: {reason}", file=sys.stderr)
    file.path.unlink()
    with suppress(OSError):  # passes are being made there
        work.rmdir()
    return 1 if file.refused else 0


async def _until_signal(
    scoring: RowScoring,
    file: ScoreFile,
    rows: Iterable[tuple[int, Row]],
    keep: SeriesPolicy,
) -> bool:
    """Score until the rows or a signal end it; True after a signal."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        print("ending: what is scored is kept, the same command goes on", file=sys.stderr)
        stop.set()

    for number in ENDING:
        loop.add_signal_handler(number, end)
    try:
        async with scoring.backend:
            await score_rows(scoring, file, rows, keep, stop)
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)
    return stop.is_set()


def scorer_of(spec: BackfillSpec, backend: Backend) -> dict[str, Any]:
    """What a scored pass says of the model that scored it."""
    identity = backend.identity()
    return {
        "model": model_name(spec, backend),
        "backend": backend.name,
        "quantization": backend.quantization,
        "dtype": identity.get("dtype"),
        "fingerprint": digest(identity),
    }


def _refuse_what_has_no_use(spec: BackfillSpec) -> None:
    spec.backfill.check()
    require(spec.run.entropy != "none", "run.entropy", "be full or means", spec.run.entropy)
    usual = Backfill()
    for name in _OF_PASSES:
        value = getattr(spec.backfill, name)
        rule = "be left out with entropy=true: it says how passes are made"
        require(value == getattr(usual, name), f"backfill.{name}", rule, value)


def _what_there_is_to_do(found: UnscoredRows, spec: BackfillSpec) -> str:
    would = "would get entropies" if spec.run.dry else "get entropies"
    text = f"{spec.backfill.input}: {len(found.offsets)} of {found.rows} rows {would}"
    if found.skipped:
        text += f"; {found.skipped} lack them and have no problem or pass 1, or no cue that is told"
    if found.unnamed_cues:
        text += f"; in {found.unnamed_cues} a later pass does not say its cue: choose it (cue=wait)"
    if found.broken:
        text += f"; {found.broken} undecodable lines"
    return text


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
