"""Table -> the numbers of a run: by step, by example, and means of every pass."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipeline.analysis.row_files import parse, read_at
from pipeline.analysis.row_lines import Flag, PassLine
from pipeline.analysis.table import Table
from pipeline.store.stored_record import attempts_of

# Names of the means of one pass in the tables by step and by example, and our columns.
ENTROPIES = {"ent": "entropy", "t": "entropy_think", "a": "entropy_answer"}
STOP_REASONS = ("stop_token", "eos", "max_new_tokens", "max_context", "other", "unknown")
STEP_COLUMNS = (
    *("n1S", "acc1S_pct", "acc1E_pct", "ent1", "t1", "a1", "soft1S", "soft1E"),
    *("n2S", "acc2S_pct", "acc2E_pct", "ent2", "t2", "a2", "soft2S", "soft2E"),
    *("impS_pct", "impE_pct", "tag1_pct", "tag2_pct"),
)


def steps(table: Table, by: Sequence[str] = ("step",)) -> pd.DataFrame:
    """The table of the original runners, by step; `by=("run", "step")` keeps runs apart.

    Percentages 0-100, entropies in nats; empty (NaN) where undefined. A missing verdict counts as
    wrong. Examples are told apart by their problem text, as there.
    """
    keys = list(by)
    columns = ["correct", "tags", "improved", "soft", *ENTROPIES.values()]
    first, second = _passes_by_step(table, columns)
    parts = [table.rows.groupby(keys, observed=True)["problem"].nunique().rename("examples")]
    for number, passes in ((1, first), (2, second)):
        parts.append(_samples(passes, keys, number))
        best = _best(passes, keys)
        right = best["right"].groupby(keys, observed=True).sum()
        parts += [right.rename(f"right{number}")]
        parts += [best["soft"].groupby(keys, observed=True).mean().rename(f"soft{number}E")]
    gained = _gained(first, second, keys).groupby(keys, observed=True).sum().rename("gained")
    whole = pd.concat([*parts, gained], axis=1).sort_index()
    for number in (1, 2):
        whole[f"n{number}S"] = whole[f"n{number}S"].fillna(0).astype(int)
        right = whole[f"right{number}"].fillna(0)
        whole[f"acc{number}E_pct"] = 100 * right / whole["examples"]
    whole["impE_pct"] = 100 * whole["gained"].fillna(0) / whole["examples"]
    return whole.reindex(columns=list(STEP_COLUMNS)).reset_index()


def examples(table: Table) -> pd.DataFrame:
    """Their table by example: step, problem, p1_correct, p2_correct, improved (0 or 1)."""
    first, second = _passes_by_step(table, ["correct", "soft"])
    keys = ["step", "problem"]
    found = table.rows.groupby(keys, observed=True).size().rename("rows").to_frame()
    found["p1_correct"] = _best(first, ["step"])["right"]
    found["p2_correct"] = _best(second, ["step"])["right"]
    found = found.fillna(0).astype(int).reset_index()
    found["improved"] = ((found["p2_correct"] == 1) & (found["p1_correct"] == 0)).astype(int)
    texts = problems(table)
    found["problem"] = [texts[problem] for problem in found["problem"]]
    columns = ["step", "problem", "p1_correct", "p2_correct", "improved"]
    return found.sort_values(["step", "problem"])[columns].reset_index(drop=True)


def problems(table: Table) -> dict[int, str]:
    """Problem texts by hash, each read from the first row that has it."""
    first = table.rows.drop_duplicates("problem")
    texts = {}
    for file, offset, length, problem in zip(
        *(first[name] for name in ("file", "offset", "length", "problem")), strict=True
    ):
        row = parse(read_at(table.files[file].path, int(offset), int(length))) or {}
        texts[int(problem)] = str(row.get("problem") or "")
    return texts


def passes(table: Table, by: Sequence[str] | None = None) -> pd.DataFrame:
    """Means of every pass: accuracy (of those with a verdict), rates, entropy, tokens, time.

    Shares lie in [0, 1]. `tokens_per_second` is per trace: tokens over the seconds they took, of
    the samples that say both.
    """
    by = [*table.point, "pass", "cue", "control"] if by is None else by
    place = [name for name in by if name not in ("pass", "cue", "control")]
    keys = table.joined(["pass", "cue", "control"], by=[*place, "example"])
    groups = keys.groupby(list(by), observed=True, dropna=False, sort=True)
    codes = groups.ngroup().to_numpy()
    found = groups.agg(rows=("example", "size"), examples=("example", "nunique")).reset_index()
    for column, name in MEANS.items():
        found[name] = _wide(table.passes[column]).groupby(codes).mean()
    found["tag_violations"] = 1 - found.pop("tags")
    timed = table.passes[["tokens", "seconds"]].notna().all(axis=1)
    tokens, seconds = (
        _wide(table.passes[name].where(timed)).groupby(codes).sum()
        for name in ("tokens", "seconds")
    )
    found["tokens_per_second"] = tokens / seconds.where(seconds > 0, np.nan)
    return found


def _wide(values: pd.Series) -> pd.Series:
    """Values in float64: means and sums of float32 would be float32."""
    return values.astype(float).reset_index(drop=True)


MEANS = {
    "correct": "accuracy",
    "improved": "improved",
    "no_answer": "no_answer",
    "truncated": "truncated",
    "tags": "tags",
    "marked": "marked",
    "entropy": "entropy",
    "entropy_think": "entropy_think",
    "entropy_answer": "entropy_answer",
    "soft": "soft",
    "tokens": "tokens",
    "seconds": "seconds",
}


def _passes_by_step(table: Table, columns: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Passes 1, and for each row the pass 2 of the table by step, with the run of its row."""
    by = ("run", "step", "problem")
    first = table.joined(columns, table.passes["pass"] == "pass1", by)
    return first, table.joined(columns, table.passes["second"], by)


def _samples(found: pd.DataFrame, keys: list[str], number: int) -> pd.DataFrame:
    shares = {"correct": f"acc{number}S_pct", "tags": f"tag{number}_pct"}
    shares |= {"improved": "impS_pct"} if number == 2 else {}
    means = {"soft": f"soft{number}S"} | {c: f"{name}{number}" for name, c in ENTROPIES.items()}
    by = [found[key] for key in keys]
    columns = {f"n{number}S": found.groupby(keys, observed=True).size()}
    for column, name in shares.items():
        values = 100 * found[column].fillna(0).astype(float)
        columns[name] = values.groupby(by, observed=True).mean()
    for column, name in means.items():
        columns[name] = found[column].groupby(by, observed=True).mean()
    return pd.DataFrame(columns)


def _best(found: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """By group and problem: whether any sample is right, and the best soft reward."""
    groups = found.groupby([*keys, "problem"], observed=True)
    right = groups["correct"].max().fillna(0) > 0
    best: pd.DataFrame = pd.DataFrame({"right": right.astype(int), "soft": groups["soft"].max()})
    return best


def _gained(first: pd.DataFrame, second: pd.DataFrame, keys: list[str]) -> pd.Series:
    """By group and problem: right in pass 2 and never in pass 1."""
    after = _best(second, keys)["right"]
    before = _best(first, keys)["right"].reindex(after.index).fillna(0)
    return ((after == 1) & (before == 0)).astype(int)


def by_substring(fields: PassLine, gold: str | None) -> Flag:
    """The verdict of published tables: the canonical gold is part of the canonical answer."""
    answer = fields.pred_answer_canon
    if gold is None or answer is None:
        return fields.is_correct_pred
    return gold != "" and gold in answer


def by_equality(fields: PassLine, gold: str | None) -> Flag:
    """The verdict by equality of the canonical forms."""
    answer = fields.pred_answer_canon
    return fields.is_correct_pred if gold is None or answer is None else answer == gold


def verdicts(table: Table) -> pd.DataFrame:
    """Recorded verdicts and those given again, side by side, by pass; empty where none were.

    Accuracies are means over samples with that verdict.
    """
    names = ["accuracy_recorded", "accuracy_again", "right_to_wrong", "wrong_to_right"]
    if "recorded" not in table.passes:
        return pd.DataFrame(columns=[*table.point, "pass", "cue", "rows", *names])
    joined = table.joined(["pass", "cue", "recorded", "correct"], by=table.point)
    joined = joined.astype({"recorded": float, "correct": float})
    groups = joined.assign(
        right_to_wrong=(joined["recorded"] > 0) & (joined["correct"] == 0),
        wrong_to_right=(joined["recorded"] == 0) & (joined["correct"] > 0),
    ).groupby([*table.point, "pass", "cue"], observed=True, dropna=False, sort=True)
    return groups.agg(
        rows=("correct", "size"),
        accuracy_recorded=("recorded", "mean"),
        accuracy_again=("correct", "mean"),
        right_to_wrong=("right_to_wrong", "sum"),
        wrong_to_right=("wrong_to_right", "sum"),
    ).reset_index()


def graders(table: Table) -> pd.DataFrame:
    """By run, step and grader: how many rows it judged. Rows that name no grader are left out."""
    named = table.rows[table.rows["grader"].notna()]
    counts = named.groupby(["run", "step", "grader"], observed=True).size()
    return counts[counts > 0].rename("rows").reset_index()


def attempts(table: Table) -> pd.DataFrame:
    """By run and step: attempts, rows, tokens and seconds over all of them.

    They come from `run.json`, and from the files of attempts of several writers that are under way.
    Columns of `table.by` are there if each file has one value of them, as it has of swept keys.
    """
    lines = []
    of_files = table.rows.groupby("file")
    by_file = {name: of_files[name].agg(["nunique", "first"]) for name in table.by}
    whole = [name for name, values in by_file.items() if (values["nunique"] == 1).all()]
    for number, file in enumerate(table.files):
        tries = attempts_of(file.path.parent)
        if tries:
            total = {k: sum(t.get(k) or 0 for t in tries) for k in ("rows", "tokens", "seconds")}
            speed = total["tokens"] / total["seconds"] if total["seconds"] else np.nan
            peak = max((t.get("peak_memory_mib") or 0 for t in tries), default=0)
            lines.append(
                {"run": file.run, "step": file.step}
                | {name: by_file[name]["first"].get(number) for name in whole}
                | {"attempts": len(tries)}
                | total
                | {"tokens_per_second": speed, "peak_memory_mib": peak}
            )
    columns = ["attempts", "rows", "tokens", "seconds", "tokens_per_second", "peak_memory_mib"]
    found = pd.DataFrame(lines, columns=["run", "step", *whole, *columns])
    return found.drop_duplicates(["run", "step"]).reset_index(drop=True)


def stops(table: Table) -> pd.DataFrame:
    """By step and pass (1 or 2): shares of stop reasons, rate of markers, mean tokens."""
    lines = []
    columns = ["stop_think", "stop_answer", "marked", "tokens_think", "tokens_answer"]
    for number, found in enumerate(_passes_by_step(table, columns), start=1):
        for step, group in found.groupby("step", observed=True):
            line: dict[str, object] = {"step": step, "pass": number, "rows": len(group)}
            for phase in ("think", "answer"):
                shares = group[f"stop_{phase}"].astype(object).fillna("unknown")
                counts = shares.replace("", "unknown").value_counts(normalize=True)
                line |= {f"{phase}_{reason}": counts.get(reason, 0.0) for reason in STOP_REASONS}
            line["markers"] = group["marked"].fillna(0).astype(float).mean()
            line["tokens_think"] = group["tokens_think"].astype(float).mean()
            line["tokens_answer"] = group["tokens_answer"].astype(float).mean()
            lines.append(line)
    return pd.DataFrame(lines).sort_values(["step", "pass"]) if lines else pd.DataFrame()
