"""The configuration of a backfill: a run's, and which rows of which file get passes."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING

from pipeline.backfill.missing_passes import Selection, split_cues
from pipeline.protocols import Cue
from pipeline.spec import RunSpec, refuse_empty, require
from pipeline.store.files import is_new_or_begins, read_text


@dataclass(slots=True)
class Backfill(Selection):
    """Which rows of which file get passes, and where the result goes.

    `phrase`: cues joined by three bars, instead of the group `cue`; `phrase_file` holds them where
    the command line would mangle them. `other_model`: the rows were made by another model.
    """

    input: str = MISSING
    output: str | None = None
    inplace: bool = False
    flush_every: int | None = None
    phrase: str | None = None
    phrase_file: str | None = None
    other_model: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        Selection.__post_init__(self)
        refuse_empty(self, "backfill")
        every = self.flush_every
        require(every is None or every >= 1, "backfill.flush_every", "be 1 or more", every)

    def check(self) -> None:
        """Refuse what does not go together or is not there."""
        one = self.inplace != (self.output is not None)
        both = {"output": self.output, "inplace": self.inplace}
        require(one, "backfill", "have either output=FILE or inplace=true", both)
        require(Path(self.input).is_file(), "backfill.input", "name a file of rows", self.input)
        if self.output is not None:
            rule = "name another file than backfill.input; inplace=true changes that, with a backup"
            same = self.target.exists() and self.target.samefile(self.input)
            require(not same and not self.target.is_dir(), "backfill.output", rule, self.output)
            rule = "name a new file, or rows of an earlier backfill, which it replaces"
            require(is_new_or_begins(self.target, b"{"), "backfill.output", rule, self.output)

    @property
    def target(self) -> Path:
        """The file that is written."""
        return Path(self.output or self.input)


@dataclass(slots=True)
class BackfillSpec(RunSpec):
    """A run's spec, and what is to be backfilled: passes, or with `entropy` only entropies."""

    backfill: Backfill = field(default_factory=Backfill)
    entropy: bool = False


def cues_of(spec: BackfillSpec) -> tuple[Cue, ...]:
    """The cues of the group, or of a phrase."""
    given = spec.backfill
    phrase = given.phrase
    if given.phrase_file is not None:
        phrase = read_text(Path(given.phrase_file), "backfill.phrase_file")
    if phrase is not None:
        return split_cues(phrase)
    if spec.entropy and not spec.cue:
        return ()
    require(len(spec.cue) > 0, "cue", "name at least one cue (cue=wait), or backfill.phrase", [])
    return tuple(Cue(name, cue.text, cue.control) for name, cue in spec.cue.items())
