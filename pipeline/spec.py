"""RunSpec: the typed schema of one run, its checks, and the hash that says what a row is."""

import hashlib
import json
import math
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any

from omegaconf import MISSING

ENTROPY_MODES = ("full", "means", "none")
PHASE_MODES = ("auto", "tagged", "single")
INFERENCER_SCHEMAS = ("inferencer_documented", "inferencer")
MISSING_MODES = ("fail", "skip", "wait")
NOT_EMPTY = "be null, or not empty"
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


def refuse_empty(part: Any, group: str) -> None:
    """Refuse an empty text in a field of a dataclass that null switches off. Raises SpecError."""
    for one in fields(part):
        value = getattr(part, one.name)
        require(value != "" or one.default is not None, f"{group}.{one.name}", NOT_EMPTY, value)


@dataclass(slots=True)
class Sampling:
    """How tokens are drawn.

    Order: logit bias, repetition penalty, banned n-grams and ends, presence and frequency
    penalties, format (regex or json_schema), temperature, top_k, top_p, min_p, typical_p.
    temperature 0 is greedy. The values below switch a filter off, but for temperature and top_p,
    which is off at 1. `presence_penalty`, `frequency_penalty` and `min_new_tokens` count what is
    generated, each phase by itself; `repetition_penalty` and `no_repeat_ngram_size` see the prompt
    too. `regex` and `json_schema` hold for the phase that answers.
    With `num_beams` above 1, sample k is the k-th best text of a beam search, and nothing is drawn.
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
    typical_p: float = 1.0  # keep the tokens of typical surprise that hold this mass
    presence_penalty: float = 0.0  # off the logit of every id that was generated
    frequency_penalty: float = 0.0  # the same, times how often it was
    no_repeat_ngram_size: int = 0  # no n ids in a row come twice
    min_new_tokens: int = 0  # the end of the turn cannot come earlier; a stop string can
    logit_bias: Any = None  # a mapping of token ids to what is added to their logits
    num_beams: int = 1
    length_penalty: float = 1.0  # of beams: sum of logprobs / length**this; above 0 favours long
    early_stopping: bool | str = False  # of beams: true, false or never, as in Transformers
    regex: str | None = None  # the whole text matches it
    json_schema: Any = None  # a JSON schema as a mapping, or a file that holds one

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
        self._check_strategies()
        self._check_beams()
        self._check_format()

    def _check_strategies(self) -> None:
        require(0 < self.typical_p <= 1, "sampling.typical_p", "lie in (0, 1]", self.typical_p)
        for name in ("presence_penalty", "frequency_penalty"):
            penalty = getattr(self, name)
            require(-2 <= penalty <= 2, f"sampling.{name}", "lie in [-2, 2]", penalty)
        size, least = self.no_repeat_ngram_size, self.min_new_tokens
        require(size >= 0, "sampling.no_repeat_ngram_size", "be 0 (off) or more", size)
        cap = self.max_new_tokens
        rule = "be 0 or more, and at most sampling.max_new_tokens"
        require(0 <= least <= (cap or least), "sampling.min_new_tokens", rule, least)
        bias = {} if self.logit_bias is None else self.logit_bias
        rule = "map token ids, 0 or more, to numbers in [-100, 100]"
        sane = isinstance(bias, dict) and all(_is_bias(*each) for each in bias.items())
        require(sane, "sampling.logit_bias", rule, bias)
        self.logit_bias = {token: float(value) for token, value in bias.items()} or None

    def _check_beams(self) -> None:
        beams, early = self.num_beams, self.early_stopping
        require(beams >= 1, "sampling.num_beams", "be 1 (no beam search) or more", beams)
        words = early in (True, False, "never")
        require(words, "sampling.early_stopping", "be true, false or never", early)
        power = self.length_penalty
        require(math.isfinite(power), "sampling.length_penalty", "be finite", power)
        if beams == 1:
            rule = "be left out without a beam search (sampling.num_beams above 1)"
            require(power == 1, "sampling.length_penalty", rule, power)
            require(early is False, "sampling.early_stopping", rule, early)
            return
        rule = "be 0 with sampling.num_beams above 1: a beam search draws nothing (sampling=greedy)"
        require(self.temperature == 0, "sampling.temperature", rule, self.temperature)
        rule = f"be at most sampling.num_beams={beams}: sample k is the k-th best beam"
        require(self.num_samples <= beams, "sampling.num_samples", rule, self.num_samples)

    def _check_format(self) -> None:
        for name in ("regex", "json_schema"):
            value = getattr(self, name)
            if value is not None:
                beams, least = self.num_beams, self.min_new_tokens
                rule = f"be 1 with sampling.{name}, which a beam search does not follow"
                require(beams == 1, "sampling.num_beams", rule, beams)
                rule = f"be 0 with sampling.{name}, which says where the text ends"
                require(least == 0, "sampling.min_new_tokens", rule, least)
                require(value != "", f"sampling.{name}", "not be empty", value)
        both = self.regex is not None and self.json_schema is not None
        rule = "be null where sampling.json_schema is given"
        require(not both, "sampling.regex", rule, self.regex)
        rule = "be a mapping, or the name of a file that holds one"
        fits = isinstance(self.json_schema, dict | str | None)
        require(fits, "sampling.json_schema", rule, self.json_schema)


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
    adapter: str | None = None  # a LoRA adapter (hub id or folder)
    merge_adapter: bool = True  # add it to the weights; false: computed beside them, as trained
    architecture: str | None = None  # module that registers a model class with Transformers
    routing: str | None = None  # of memory, such as rolling; null: as it says
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
        require(self.path != "", "model.path", "name a hub id, a folder or a file", self.path)
        refuse_empty(self, "model")
        sides = " or ".join(TRUNCATION_SIDES)
        side = self.truncation_side
        require(side in TRUNCATION_SIDES, "model.truncation_side", f"be {sides}", side)
        rule = "be left, the default, without model.max_length: nothing is cut"
        require(side == "left" or self.max_length is not None, "model.truncation_side", rule, side)
        window = self.routing_window
        require(window is None or window >= 1, "model.routing_window", "be 1 or more", window)
        cap = self.reasoning_cap
        require(cap is None or cap >= 1, "model.reasoning_cap", "be 1 or more", cap)
        length = self.max_length
        require(length is None or length >= 1, "model.max_length", "be 1 or more", length)
        step_ok = self.step is None or self.step in ("latest", "best") or _is_step(self.step)
        require(step_ok, "model.step", "be a number from 0, latest or best", self.step)


def _is_bias(token: object, value: object) -> bool:
    whole = isinstance(token, int) and token >= 0
    return whole and isinstance(value, int | float) and -100 <= value <= 100


def _is_step(step: object) -> bool:
    return isinstance(step, int) and step >= 0


@dataclass(slots=True)
class Run:
    """Run-wide numbers: which rows, what is kept, where."""

    name: str = "default"
    root: str = "outputs"
    dir: str | None = None  # exact folder of the point, instead of the one made from the spec
    text_output: str | None = (
        None  # a file of all prompts and answers as plain text, made at the end
    )
    inferencer_output: str | None = (
        None  # also leave inferencer_output.jsonl in the run folder: in which schema
    )
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
        schemas = (None, *INFERENCER_SCHEMAS)
        rule = f"be null or one of {INFERENCER_SCHEMAS}"
        schema = self.inferencer_output
        require(schema in schemas, "run.inferencer_output", rule, schema)
        parts = PurePath(self.name)
        inside = self.name.strip() != "" and not parts.is_absolute() and ".." not in parts.parts
        require(inside, "run.name", "name a folder below run.root", self.name)
        require(self.root != "", "run.root", "name a folder", self.root)
        refuse_empty(self, "run")
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
