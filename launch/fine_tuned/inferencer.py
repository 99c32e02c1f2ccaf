"""The fine-tuner's `Inferencer`, over our own parts: a run, whose rows come in its two schemas.

    from launch.fine_tuned.inferencer import Inferencer

    inferencer = Inferencer("config.toml")  # or Inferencer(None, "model.path=models/fine_tuned",
    results = inferencer.run()              #               "task.data.path=test.jsonl")

Rows lie in the run folder, so that the same call again does only what is missing, and
`inferencer_output.jsonl` beside them (`run.inferencer_output`) is written anew each time: no row is
there twice.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch import api
from launch.config.words import quoted
from launch.fine_tuned.config_file import FineTunerConfig, read_config
from launch.fine_tuned.custom_backend import CustomBackend
from launch.fine_tuned.experiment_file import experiment_of
from launch.rows.inferencer_schemas import system_and_user
from launch.running.inferencer_output import results
from pipeline.protocols import Backend
from pipeline.run.point import Point
from pipeline.spec import INFERENCER_SCHEMAS, SpecError, digest
from pipeline.store.files import Row, write_atomically

_LOG = logging.getLogger(__name__)


class Inferencer:
    """Asks a fine-tuned model the questions of a test set.

    A subclass that has a method `custom_generate(prompt) -> str` makes its texts itself, with
    `self.model` and `self.tokenizer`; all else stays as it is.
    """

    def __init__(
        self,
        config: str | Path | FineTunerConfig | None = "config.toml",
        *overrides: str,
        schema: str = "inferencer_documented",
        without: Sequence[str] = (),
    ) -> None:
        """Compose the run; nothing is loaded.

        Args:
            config: the fine-tuner's TOML file, or what `read_config` made of it. None: the
                experiment `inferencer`, whose model and data the overrides name.
            overrides: as on the command line; they come before the file.
            schema: of the results: the keys of the fine-tuner's document, or those of its code.
            without: steps of the file's pipeline that are left out, as for `launch/import_toml.py`.

        Raises:
            SpecError: names the key of what is wrong.
        """
        if schema not in INFERENCER_SCHEMAS:
            known = ", ".join(INFERENCER_SCHEMAS)
            raise SpecError(f"schema must be one of {known}, got {schema!r}")
        self.schema = schema
        self.model: Any = None
        self.tokenizer: Any = None
        self.outcome: api.RunOutcome | None = None
        given = [*overrides, f"run.inferencer_output={schema}"]
        self._line = _line(config, given, tuple(without))
        self._setup = api.compose(*self._line)
        self._loaded: Any = None

    def load_model_and_tokenizer(self) -> tuple[Any, Any]:
        """Load both; the next `generate_responses` uses them.

        Raises:
            SpecError: they are not there, memory does not suffice, or no model of Transformers is
                asked for.
        """
        backend: Any = api.open_backend(self._setup)
        if not hasattr(backend, "preload"):
            raise SpecError(f"load_model_and_tokenizer needs backend=hf, got {backend.name}")
        self._loaded = backend
        self.model, self.tokenizer = backend.preload()
        return self.model, self.tokenizer

    def process_dataset(self, dataset: Iterable[Mapping[str, Any]] | None = None) -> list[Row]:
        """The questions as they will be asked, without a model.

        Args:
            dataset: rows, such as a list or a `datasets.Dataset`; None: the configured data set.

        Returns:
            For each question `example_id`, `question`, `system_prompt`, `user_prompt`,
            `ground_truth`, and `prompt`, the text that the model reads.
        """
        if dataset is not None:
            self._take(dataset)
        point = self._point(backend := self._backend())
        processed = []
        for example in point.examples:
            prompt = point.task.prompt(example)
            system, user = system_and_user(prompt)
            processed.append(
                {
                    "example_id": example.id,
                    "question": example.question,
                    "system_prompt": system,
                    "user_prompt": user,
                    "ground_truth": example.target,
                    "prompt": backend.preview(prompt),
                }
            )
        return processed

    def generate_responses(self, processed: Sequence[Mapping[str, Any]] | None = None) -> list[Row]:
        """Answers in the chosen schema, in the order of the data; those that are there are read.

        Args:
            processed: what `process_dataset` returned, or a part of it; None: all.

        Raises:
            SpecError, BackendLostError: as `launch.api.run`.
        """
        setup, spec = self._setup, self._setup.spec
        if processed is not None:
            ids = [str(item["example_id"]) for item in processed]
            setup = replace(setup, spec=replace(spec, run=replace(spec.run, ids=ids)))
        backend = self._backend()
        if isinstance(backend, CustomBackend) and self.model is None:
            self.load_model_and_tokenizer()
            backend = self._backend()
        self.outcome = api.run(setup, backend)
        if not isinstance(backend, CustomBackend):
            self._loaded = self.model = None  # the run has unloaded it
        if self.outcome.status:
            _LOG.warning(
                "the run is %s: what is missing is made when it is run again; see %s",
                *(self.outcome.state, self.outcome.folder),
            )
        return results(self.outcome.point, self.schema)

    def run(self) -> list[Row]:
        """All answers; `inferencer_output.jsonl` in the run folder has the same."""
        return self.generate_responses()

    def custom_generate(self, prompt: str) -> str:
        """The answer to a prompt; for subclasses."""
        raise NotImplementedError("a subclass that generates by itself has this method")

    def _backend(self) -> Backend:
        """The one that has loaded a model already, else a new one; with the hook if there is one.

        A run takes a backend once.
        """
        backend: Backend = self._loaded or api.open_backend(self._setup)
        if type(self).custom_generate is Inferencer.custom_generate:
            return backend
        custom: Any = CustomBackend  # mypy takes what the protocol leaves out for abstract
        made: Backend = custom(backend, self.custom_generate)
        return made

    def _point(self, backend: Backend) -> Point:
        return api.point_of(self._setup, backend)

    def _take(self, dataset: Iterable[Mapping[str, Any]]) -> None:
        """Make rows the data set of the run: a file beside its run folders, named by content."""
        rows = [dict(row) for row in dataset]
        run = self._setup.spec.run
        path = Path(run.root) / run.name / f"data-{digest(rows)[:16]}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(row).encode() + b"\n" for row in rows))
        data = ["task.data.hub=null", f"task.data.path={quoted(str(path.absolute()))}"]
        self._setup = api.compose(*_without(self._line, data), *data)


def _line(
    config: str | Path | FineTunerConfig | None, overrides: Sequence[str], without: tuple[str, ...]
) -> list[str]:
    if config is None:
        return ["experiment=inferencer", *overrides]
    given = config if isinstance(config, FineTunerConfig) else read_config(Path(config))
    models = [word.partition("=")[2] for word in overrides if word.startswith("model.path=")]
    of_file = experiment_of(given, models[-1].strip("\"'") if models else None, without).overrides
    return [*_without(of_file, overrides), *overrides]


def _without(words: Sequence[str], later: Sequence[str]) -> list[str]:
    """The words whose keys no later word gives again."""
    keys = {word.lstrip("+~").partition("=")[0] for word in later}
    return [word for word in words if word.lstrip("+~").partition("=")[0] not in keys]
