"""RunSpec: the typed schema of one run, its checks, and the hash that says what a row is."""

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from omegaconf import MISSING

ENTROPY_MODES = ("full", "means", "none")
PHASE_MODES = ("auto", "tagged", "single")
MISSING_MODES = ("fail", "skip", "wait")
TRUNCATION_SIDES = ("left", "right")


class SpecError(ValueError):
    """A value of the run spec breaks a rule.

    The message names the config key, the rule and the value.
    """


class MissingCheckpointError(SpecError):
    """The checkpoint of a training step is not there, or not yet: `run.missing_checkpoint`."""


def require(rule_holds: bool, key: str, rule: str, value: object) -> None:
    """Raise `SpecError` naming the config key, the rule and the value unless `rule_holds`."""
    if not rule_holds:
        raise SpecError(f"{key} must {rule}, got {value!r}")


@dataclass(slots=True)
class Sampling:
    """How tokens are drawn.

    Order: repetition penalty, temperature, top_k, top_p, min_p (as Transformers).
    temperature 0 is greedy. top_k 0, top_p 1, min_p 0 and repetition_penalty 1 switch a filter off.
    The caps, where given, replace the task's own: `think_cap` and `answer_cap` those of its phases,
    `max_new_tokens` that of a single phase. A cap without a phase in the run is refused.
    """

    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    num_samples: int = 1
    think_cap: int | None = None
    answer_cap: int | None = None
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        require(
            0 <= self.temperature < math.inf,
            "sampling.temperature",
            "be 0 (greedy) or more, and finite",
            self.temperature,
        )
        require(0 < self.top_p <= 1, "sampling.top_p", "lie in (0, 1]", self.top_p)
        require(self.top_k >= 0, "sampling.top_k", "be 0 (off) or more", self.top_k)
        require(0 <= self.min_p < 1, "sampling.min_p", "lie in [0, 1)", self.min_p)
        penalty = self.repetition_penalty
        above = "be above 0, and finite"
        require(0 < penalty < math.inf, "sampling.repetition_penalty", above, penalty)
        require(self.num_samples >= 1, "sampling.num_samples", "be 1 or more", self.num_samples)
        for name in ("think_cap", "answer_cap", "max_new_tokens"):
            cap = getattr(self, name)
            require(cap is None or cap >= 1, f"sampling.{name}", "be 1 or more", cap)


@dataclass(slots=True)
class CueText:
    """One reconsideration cue.

    A control cue is neutral: `pass2` skips it and it is not counted as a cue.
    """

    text: str = MISSING
    control: bool = False


@dataclass(slots=True)
class ModelSpec:
    """Which weights, tokenizer and template.

    `path` is a hub id, a local folder, a GGUF file, or `package:<module>/<file>` for weights that a
    Python package ships. A LoRA adapter may stand in its place if it names its base model.
    """

    name: str = MISSING
    path: str = MISSING
    revision: str | None = None
    step: int | str | None = (
        None  # training step: a number, `latest` or `best`; null: not a checkpoint series
    )
    checkpoints: str | None = None  # folder of `checkpoint-<step>`; null: `path` itself
    adapter: str | None = None  # a LoRA adapter (hub id or folder), merged into the weights
    architecture: str | None = None  # module that registers a model class with Transformers
    routing: str | None = None  # of memory: sequence, rolling, token, hybrid; null: as it says
    routing_window: int | None = None  # tokens of the rolling window; null: as it says
    tokenizer: str | None = None
    chat_template: str | None = None  # a Jinja file that replaces the tokenizer's own
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    reasoning_cap: int | None = (
        None  # tokens of a reasoning model's think phase, or free phase; sampling's caps beat it
    )
    attn_implementation: str = "sdpa"
    max_length: int | None = (
        None  # longest prompt in tokens; longer ones are cut and the row flagged
    )
    truncation_side: str = "left"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Check ranges; a model without a name is called like the last part of its path."""
        self.name = self.name or PurePath(self.path).name.removesuffix(".gguf")
        sides = " or ".join(TRUNCATION_SIDES)
        side = self.truncation_side
        require(side in TRUNCATION_SIDES, "model.truncation_side", f"be {sides}", side)
        window = self.routing_window
        require(window is None or window >= 1, "model.routing_window", "be 1 or more", window)
        cap = self.reasoning_cap
        require(cap is None or cap >= 1, "model.reasoning_cap", "be 1 or more", cap)
        length = self.max_length
        require(length is None or length >= 1, "model.max_length", "be 1 or more", length)
        step_ok = self.step is None or self.step in ("latest", "best") or _is_step(self.step)
        require(step_ok, "model.step", "be a number from 0, latest or best", self.step)


def _is_step(step: object) -> bool:
    return isinstance(step, int) and step >= 0


@dataclass(slots=True)
class Run:
    """Run-wide numbers: which rows, what is kept, where."""

    name: str = "default"
    root: str = "outputs"
    dir: str | None = None  # exact folder of the point, instead of the one made from the spec
    seed: int = 42
    split: str = "test"
    start: int = 0
    limit: int | None = None
    from_end: int | None = None
    shuffle_seed: int | None = None
    ids: list[str] | None = None
    phases: str = "auto"
    pass1_sample: int | None = None
    entropy: str = "full"
    arrays: bool = True
    max_failed: int = 20
    budget: float | None = None  # USD, over all attempts; needs a backend with prices
    grace_seconds: float | None = (
        None  # how long the first signal waits for answers under way; null: 120 if paid, else 0
    )
    cache_dir: str | None = None
    dry: bool = False
    shards: int = 1  # above 1: any number of processes share the rows, chunk by chunk
    shard: int | None = None  # which of them this one is; for the record
    wait: bool = False  # wait for another writer of the folder to end, instead of refusing
    lease_seconds: float = 60.0  # a writer silent for so long is dead; NFS: not below its cache
    pack: list[str] = field(default_factory=list)  # swept keys whose points share one load
    plan: bool = False  # print the jobs of a sweep and submit nothing
    missing_checkpoint: str = "fail"  # a checkpoint that is not there: fail, skip or wait
    missing_minutes: float = 600.0  # how long to wait for it
    manifest: str | None = None  # a file of points, one per line, instead of a grid

    def __post_init__(self) -> None:
        """Check ranges."""
        require(
            self.entropy in ENTROPY_MODES, "run.entropy", f"be one of {ENTROPY_MODES}", self.entropy
        )
        require(self.phases in PHASE_MODES, "run.phases", f"be one of {PHASE_MODES}", self.phases)
        parts = PurePath(self.name)
        inside = self.name.strip() != "" and not parts.is_absolute() and ".." not in parts.parts
        require(inside, "run.name", "name a folder below run.root", self.name)
        for name in ("root", "dir"):
            require(getattr(self, name) != "", f"run.{name}", "name a folder", "")
        require(self.start >= 0, "run.start", "be 0 or more", self.start)
        for name in ("limit", "from_end"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"run.{name}", "be 1 or more", value)
        require(self.shards >= 1, "run.shards", "be 1 or more", self.shards)
        shard_ok = self.shard is None or 0 <= self.shard < self.shards
        require(
            shard_ok, "run.shard", f"be null or 0 to run.shards-1={self.shards - 1}", self.shard
        )
        lease = self.lease_seconds
        require(0 < lease < math.inf, "run.lease_seconds", "be above 0, and finite", lease)
        minutes = self.missing_minutes
        finite = 0 <= minutes < math.inf
        require(finite, "run.missing_minutes", "be 0 or more, and finite", minutes)
        plain = self.split != "" and "/" not in self.split
        require(plain, "run.split", "be a word, a part of the rows' file name", self.split)
        require(
            self.missing_checkpoint in MISSING_MODES,
            "run.missing_checkpoint",
            f"be in {MISSING_MODES}",
            self.missing_checkpoint,
        )
        require(
            self.budget is None or self.budget > 0, "run.budget", "be null or above 0", self.budget
        )
        alone = self.budget is None or self.shards == 1
        rule = (
            "be null with run.shards above 1, whose writers do not see each other's spending "
            "(run.shards at 1 is no slower: one process sends all that a service takes)"
        )
        require(alone, "run.budget", rule, self.budget)
        grace = self.grace_seconds
        rule = "be null or 0 or more seconds, and finite"
        require(grace is None or 0 <= grace < math.inf, "run.grace_seconds", rule, grace)
        require(self.max_failed >= 0, "run.max_failed", "be 0 or more", self.max_failed)
        sample = self.pass1_sample
        require(sample is None or sample >= 0, "run.pass1_sample", "be 0 or more", sample)


@dataclass(slots=True)
class RunSpec:
    """The whole run.

    task, backend, quantization and tracking are open nodes; the constructor that `_target_` names
    is their schema.
    """

    task: dict[str, Any] = MISSING
    backend: dict[str, Any] = MISSING
    quantization: dict[str, Any] = MISSING
    model: ModelSpec = field(default_factory=ModelSpec)
    sampling: Sampling = field(default_factory=Sampling)
    cue: dict[str, CueText] = field(default_factory=dict)
    run: Run = field(default_factory=Run)
    tracking: dict[str, Any] = field(default_factory=dict)  # empty: none

    def __post_init__(self) -> None:
        """Check rules that span groups."""
        sample, count = self.run.pass1_sample, self.sampling.num_samples
        rule = f"be below sampling.num_samples={count}"
        require(sample is None or sample < count, "run.pass1_sample", rule, sample)
        for name, cue in self.cue.items():
            key, text = f"cue.{name}.text", cue.text
            require(bool(text.strip()), key, "not be blank", text)
            rule = "hold a letter (YAML reads 12:30 as the number 750: put a text in quotes)"
            require(any(map(str.isalpha, text)), key, rule, text)
        require(len(self.cue) <= 26, "cue", "hold at most 26 cues", len(self.cue))


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON of `value`, as hex."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
