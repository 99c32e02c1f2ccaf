"""The points of a backfill: one for all rows of a file that the same settings made."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launch.rows.backfill_spec import BackfillSpec
from pipeline.backfill.missing_passes import RowToFill, Scan
from pipeline.backfill.points import (
    BackfillPoint,
    pass1_giver,
    pass1_place,
    reader,
    seed_rows,
    trace_of,
)
from pipeline.backfill.stored_rows import phases_of
from pipeline.protocols import Backend, Cue, Task
from pipeline.run.phases import (
    refuse_format_of_tags,
    refuse_unused_caps,
    resolve_phases,
    with_phases,
)
from pipeline.run.point import Point, model_name
from pipeline.spec import digest, require
from pipeline.store.files import Row
from pipeline.store.row_heads import Key

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
        traces = [trace_of(read(member.offset)) for member in members]
        keys = [Key(example.id, sample) for example, sample in traces]
        places = _pass1_places(keys, members, spec.run.pass1_sample, scanned)
        point = _point(spec, cues, built, settings)
        point = replace(
            point,
            # Pass 1 answered a prompt that stated the caps of its own run.
            task=with_phases(built[0], phases_of(first, built[0])),
            examples=[example for example, _ in traces],
            chosen=traces,
            given_pass1=pass1_giver(places, point.phases, read),
        )
        seed_rows(point, (read(member.offset) for member in members), spec.backfill.force)
        points.append(BackfillPoint(point, settings, places))
    phases = (phase for made in points for phase in made.point.phases)
    refuse_unused_caps(phases, spec, built[0].name)
    return points


def _pass1_places(
    keys: Sequence[Key], members: Sequence[RowToFill], preferred: int | None, scanned: Scan
) -> dict[Key, tuple[int, int]]:
    if preferred is None:
        return {}
    places = (pass1_place(scanned, member, preferred) for member in members)
    return dict(zip(keys, places, strict=True))


def _point(
    spec: BackfillSpec, cues: tuple[Cue, ...], built: Built, run_settings: tuple[Any, ...]
) -> Point:
    """The point of the rows that `run_settings` made, without its traces."""
    task, backend, work = built
    single = replace(spec.run, phases="single") if run_settings[-1] == "single" else spec.run
    phases = resolve_phases(task, backend, replace(spec, run=single))
    refuse_format_of_tags(phases, spec, task)
    settings = {k: v for k, v in asdict(spec).items() if k in ("task", "sampling", "quantization")}
    settings |= {"seed": spec.run.seed, "pass1_sample": spec.run.pass1_sample}
    identity = {"backfill.spec": digest(settings)} | backend.identity()
    asked = [asdict(cue) for cue in cues]
    named = [repr(run_settings), digest(identity), asked, spec.backfill.force]
    folder = work / digest(named)[:12]
    name = model_name(spec, backend)
    own = replace(spec, run=replace(spec.run, dir=str(folder)))
    return Point(own, task, [], phases, cues, identity, step=0, model_name=name)


def require_same_model(row: Row, spec: BackfillSpec, backend: Backend) -> None:
    """Refuse rows that say that another model made them. Raises SpecError."""
    made_by, name = row.get("model"), model_name(spec, backend)
    wanted = made_by in (None, name) or spec.backfill.other_model
    rule = (
        f"be {made_by}, which made rows of {spec.backfill.input}; choose it, leave these rows out "
        f"(backfill.filter={{model:{name}}}) or say backfill.other_model=true"
    )
    require(wanted, "model", rule, name)
