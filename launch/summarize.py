"""Numbers from finished rows: `python launch/summarize.py outputs/...`.

Prints a table by step, then what each run's passes, samples, cues and entropies say (they are
explained in docs/numbers.md). Any number of run folders, row files and folders of older runners can
be given; rows are read as a stream. Tables go to CSV files with --save_csv, --per_example_csv and
--csv_dir.
"""

from launch.config.interrupts import guard

if __name__ == "__main__":
    guard()  # before libraries load

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from launch.config.command_line import ended, filled, named
from launch.reporting.swept import by_swept_keys
from launch.reporting.terminal import show
from launch.rows.regrade import regrade
from launch.rows.stored_task import StoredTasks
from launch.running.console import WIDTH
from pipeline.analysis import summary
from pipeline.analysis.columns import Judge
from pipeline.analysis.filters import Variants, capped, write_filtered
from pipeline.analysis.row_files import find, refuse_own_input
from pipeline.analysis.table import Table, load
from pipeline.spec import SpecError, require

JUDGES = {"none": None, "substring": summary.by_substring, "exact": summary.by_equality}
TITLES = {
    "steps": "By step: S over samples, E over examples; a missing verdict counts as wrong",
    "stops": "Stop reasons (shares of samples), markers, means of tokens",
    "verdicts": "Verdicts in the rows, and those given again",
    "passes": "Passes: means over samples, standard errors clustered by example",
    "at_k": "k samples: means over examples and their standard errors",
    "flips": "Flips from pass 1: means over samples; p with samples of an example together",
    "entropy_odds": "Odds ratio of success per standard deviation of pass-1 entropy",
    "entropy_quartiles": "Accuracy by quartile of entropy",
    "shifts": "Spontaneous shifts in pass 1",
    "attempts": "Attempts",
}


def parser() -> argparse.ArgumentParser:
    """The command line; flags of the original summary keep their names."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add(
        "results_root", nargs="*", type=filled, help="run folders, folders above them, or row files"
    )
    add("--split", help="only files with this in their name")
    add("--by", nargs="+", default=[], metavar="COLUMN", help="group by columns of the data too")
    add("--table", nargs="+", choices=TITLES, metavar="NAME", help=f"only {', '.join(TITLES)}")
    add("--wide", action="store_true", help=f"do not fold tables to {WIDTH} columns")
    add("--k", type=int, nargs="+", help="k of avg@k, pass@k and maj@k; default: 1, 2, 4 ...")
    add("--save_csv", type=named, help="the table by step")
    add("--per_example_csv", type=named, help="a table by example")
    add("--csv_dir", type=named, help="a folder for every table as CSV")
    add(
        "--recompute",
        nargs="*",
        metavar="TASK or task.KEY=VALUE",
        help="judge again by the settings of each run, by those of TASK, or by changed ones; "
        "runs and files may stand on either side of it",
    )
    add(
        "--config-dir",
        type=named,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of configuration whose tasks are trusted as those of conf/ (docs/trust.md)",
    )
    add(
        "--recompute_correctness",
        choices=JUDGES,
        default="none",
        help="judge again by the canonical forms in the rows",
    )
    _add_filters(made)
    return made


def _add_filters(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("which rows count").add_argument
    add("--max_prompt_versions", type=int, help="drop problems asked in more prompts than this")
    add("--prompt_key", default="prompt", help="where a row holds its prompt, such as a.b")
    add("--strict_prompt_key", action="store_true", help="look nowhere else for it")
    add("--filter_scope", choices=("per_problem", "global"), default="per_problem")
    add("--prompt_family_regex", help="deleted from prompts before they are counted")
    add("--max_per_group", type=int, help="rows of each group that count, per file")
    add("--group_key", default="problem", help="what groups rows, such as pass1.pred_answer")
    write = made.add_mutually_exclusive_group()
    write.add_argument("--rewrite_filtered", action="store_true", help="drop the rows in the files")
    write.add_argument("--write_filtered_to", type=named, help="a folder for filtered copies")
    add("--aggregate_from_filtered", action="store_true", help="count what the copies hold")


def main(line: Sequence[str] | None = None) -> int:
    """Print and write; status 2 with one sentence when something is wrong."""
    given = parser().parse_args(line)
    return ended(lambda: summarize(given))


def summarize(given: argparse.Namespace) -> None:
    """Read, leave out, judge again where asked, and print."""
    take_roots(given)
    found = find(given.results_root, given.split)
    for name in ("save_csv", "per_example_csv"):
        refuse_own_input(getattr(given, name), found, f"--{name}")
    table = by_swept_keys(load(found, judge(given), by=given.by).with_rows())
    table = filtered(table, given)
    if given.recompute is not None:
        table = regrade(table, tasks_of(given))
    report(table, given)


def take_roots(given: argparse.Namespace) -> None:
    """Where no run stands first, those that `--recompute` took for words of its own."""
    if given.results_root:
        return
    words = given.recompute or []
    given.results_root = [word for word in words if Path(word).exists()]
    if not given.results_root:
        raise SpecError("give run folders or row files, before --by, --k and --table")
    given.recompute = [word for word in words if word not in given.results_root]


def tasks_of(given: argparse.Namespace) -> StoredTasks:
    """The tasks that judge again."""
    names = [word for word in given.recompute if "=" not in word]
    if len(names) > 1:
        raise SpecError(
            f"--recompute takes one task and task.KEY=VALUE, got {names}; give runs before it"
        )
    overrides = [word for word in given.recompute if "=" in word]
    return StoredTasks(overrides, names[0] if names else None, given.config_dir)


def judge(given: argparse.Namespace) -> Judge | None:
    """What replaces recorded verdicts while rows are read."""
    if given.recompute is not None and given.recompute_correctness != "none":
        raise SpecError("give --recompute or --recompute_correctness, not both")
    return JUDGES[given.recompute_correctness]


def filtered(table: Table, given: argparse.Namespace) -> Table:
    """The rows that count; writes filtered files where asked.

    As in the original summary a cap does not touch the numbers when copies are written, unless
    --aggregate_from_filtered.
    """
    if given.aggregate_from_filtered and not given.write_filtered_to:
        raise SpecError("--aggregate_from_filtered needs --write_filtered_to FOLDER")
    for name, least in {"max_prompt_versions": 0, "max_per_group": 1}.items():
        most = getattr(given, name)
        require(most is None or most >= least, f"--{name}", f"be {least} or more", most)
    kept = pd.Series(True, index=table.rows.index)
    if given.max_prompt_versions is not None:
        kept &= variants(given).kept(table)
    all_variants = kept
    if given.max_per_group is not None:
        within = capped(table.keep(kept), given.max_per_group, given.group_key)
        kept = kept & within.reindex(kept.index, fill_value=False)
    print_filter(table, all_variants, kept)
    if given.rewrite_filtered or given.write_filtered_to:
        source = common_root(given.results_root)
        for file in write_filtered(table, kept, given.write_filtered_to, source):
            print(f"wrote {file.path}: {file.kept} of {file.rows} rows")
    copies = given.write_filtered_to and not given.aggregate_from_filtered
    return table.keep(all_variants if copies else kept)


def variants(given: argparse.Namespace) -> Variants:
    """The filter by prompt variants. SpecError for a bad regular expression."""
    text = given.prompt_family_regex
    try:
        family = re.compile(text) if text else None
    except re.error as error:
        raise SpecError(f"--prompt_family_regex: {error}, got {text!r}") from error
    everywhere = given.filter_scope == "global"
    strict = given.strict_prompt_key
    return Variants(given.max_prompt_versions, given.prompt_key, strict, everywhere, family)


def common_root(roots: Sequence[str]) -> Path:
    """The folder whose tree filtered copies mirror."""
    folders = [Path(r) if Path(r).is_dir() else Path(r).parent for r in roots]
    parts = zip(*(folder.absolute().parts for folder in folders), strict=False)
    shared = [level[0] for level in parts if len(set(level)) == 1]
    return Path(*shared)


def print_filter(table: Table, variants_kept: pd.Series, kept: pd.Series) -> None:
    """One line on what filters dropped, if any."""
    by_variant, by_cap = (~variants_kept).sum(), (variants_kept & ~kept).sum()
    if by_variant or by_cap:
        print(f"left out of {len(kept)} rows: {by_variant} by prompts, {by_cap} by the cap")


def report(table: Table, given: argparse.Namespace) -> None:
    """Print every table, write those that are asked for."""
    steps = summary.steps(table)
    tables = tables_of(table, given.k)
    if given.save_csv:
        write_csv(steps, given.save_csv)
    if given.per_example_csv:
        write_csv(summary.examples(table), given.per_example_csv)
    if given.csv_dir:
        for name, frame in ({"steps": steps} | tables).items():
            if name == "verdicts" and frame.empty:
                continue
            write_csv(frame, given.csv_dir / f"{name}.csv")
    counts = f"{len(table.rows)} rows in {len(table.files)} files"
    print(f"{counts}; {table.broken} broken lines, {table.superseded} superseded")
    if given.recompute is None and given.recompute_correctness == "none":
        for note in several_graders(table):
            print(note)
    printed = {"steps": steps, "stops": summary.stops(table)} | tables
    for name, frame in printed.items():
        if given.table is None or name in given.table:
            show(TITLES[name], frame, table.by, given.wide)


def several_graders(table: Table) -> Iterator[str]:
    """A sentence for every point whose rows were judged by several graders."""
    counts = summary.graders(table)
    for (run, step), lines in counts.groupby(["run", "step"], observed=True, sort=True):
        if len(lines) > 1:
            pairs = zip(lines["rows"], lines["grader"], strict=True)
            judged = ", ".join(f"{rows} by {grader}" for rows, grader in pairs)
            yield (
                f"WARNING: several graders judged the rows of {run}, step {step} ({judged}); "
                "an accuracy over them means nothing: --recompute judges all by the run's settings"
            )


def tables_of(table: Table, ks: Sequence[int] | None) -> dict[str, pd.DataFrame]:
    """Every table but those by step. SpecError without the libraries for statistics."""
    try:
        from pipeline.analysis import estimates
        from pipeline.analysis.at_k import at_k
    except ModuleNotFoundError as error:
        raise SpecError(
            f"summaries need the package {error.name}, which is not installed: "
            "pip install 'rethink-pipeline[stats]'"
        ) from error
    return {
        "verdicts": summary.verdicts(table),
        "passes": estimates.passes(table),
        "at_k": at_k(table, ks),
        "flips": estimates.flips(table),
        "entropy_odds": estimates.entropy_odds(table),
        "entropy_quartiles": estimates.entropy_quartiles(table),
        "shifts": estimates.shifts(table),
        "attempts": summary.attempts(table),
    }


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """A CSV file; what is undefined is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False)


if __name__ == "__main__":
    sys.exit(main())
