"""The points of a backfill: one for all rows of a file that the same settings made."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launch.rows.backfill_spec import BackfillSpec
from pipeline.backfill.missing_passes import RowToFill, Scan
from pipeline.backfill.points import BackfillPoint, pass1_place, reader, seed_rows, trace_of
from pipeline.backfill.stored_rows import phases_of
from pipeline.protocols import Backend, Cue, Task
from pipeline.run.phases import refuse_unused_caps, resolve_phases, with_phases
from pipeline.run.point import model_name
from pipeline.spec import digest, require
from pipeline.store.files import Row

Built = tuple[Task, Backend, Path]


def points_of(
    spec: BackfillSpec, scanned: Scan, cues: tuple[Cue, ...], built: Built
) -> list[BackfillPoint]:
    """One point for all rows that the same settings made, seeded with their passes.

    `built` are the task, the backend, and the folder that the points work in.
    """
    by_settings: dict[tuple[Any, ...], list[RowToFill]] = {}
    for row_to_fill in scanned.to_fill:
        by_settings.setdefault(row_to_fill.run_settings, []).append(row_to_fill)
    read = reader(Path(spec.backfill.input))
    points = []
    for settings, members in by_settings.items():
        first = read(members[0].offset)
        require_same_model(first, spec, built[1])
        point = _point(spec, cues, built, settings)
        # Pass 1 answered a prompt that stated the caps of its own run.
        point.task = with_phases(built[0], phases_of(first, built[0]))
        point.traces = [trace_of(read(member.offset)) for member in members]
        point.examples = [example for example, _ in point.traces]
        preferred = spec.run.pass1_sample
        if preferred is not None:
            places = [pass1_place(scanned, member, preferred) for member in members]
            point.pass1_places = dict(zip(point.canonical_order(), places, strict=True))
            point.read = read
        seed_rows(point, (read(member.offset) for member in members), spec.backfill.force)
        points.append(point)
    phases = (phase for point in points for phase in point.phases)
    refuse_unused_caps(phases, spec, built[0].name)
    return points


def _point(
    spec: BackfillSpec, cues: tuple[Cue, ...], built: Built, run_settings: tuple[Any, ...]
) -> BackfillPoint:
    task, backend, work = built
    single = replace(spec.run, phases="single") if run_settings[-1] == "single" else spec.run
    phases = resolve_phases(task, backend, replace(spec, run=single))
    settings = {k: v for k, v in asdict(spec).items() if k in ("task", "sampling", "quantization")}
    settings |= {"seed": spec.run.seed, "pass1_sample": spec.run.pass1_sample}
    identity = {"backfill.spec": digest(settings)} | backend.identity()
    name = model_name(spec, backend)
    point = BackfillPoint(spec, task, [], phases, cues, identity, step=0, model_name=name)
    point.run_settings = run_settings
    asked = [asdict(cue) for cue in cues]
    named = [repr(run_settings), point.fingerprint, asked, spec.backfill.force]
    point.working_folder = work / digest(named)[:12]
    return point


def require_same_model(row: Row, spec: BackfillSpec, backend: Backend) -> None:
    """Refuse rows that say that another model made them. Raises SpecError."""
    made_by, name = row.get("model"), model_name(spec, backend)
    wanted = made_by in (None, name) or spec.backfill.other_model
    rule = (
        f"be {made_by}, which made rows of {spec.backfill.input}; choose it, leave these rows out "
        f"(backfill.filter={{model:{name}}}) or say backfill.other_model=true"
    )
    require(wanted, "model", rule, name)
