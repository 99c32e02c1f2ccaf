"""Which model a configuration of the fine-tuner means: its folder, or a repository of its user."""

from pathlib import Path
from typing import Any

from pipeline.spec import SpecError

LOCAL = "models/fine_tuned"  # where the fine-tuner leaves what it trained


def model_of(of: dict[str, Any], name: str) -> tuple[str, str]:
    """The model, and why it is that one.

    It is the fine-tuner's own folder where there is one, else `<hf_user_id>/<run_name>`, else the
    user's newest model whose name has the prefix and the suffix.

    Args:
        of: the section `inferencer`.
        name: its run name with prefix and suffix.

    Raises:
        SpecError: there is no such folder and no user, or the hub knows no such model.
    """
    if (Path(LOCAL) / "config.json").is_file() or (Path(LOCAL) / "adapter_config.json").is_file():
        return LOCAL, "the folder that the fine-tuner leaves is here"
    user = of["hf_user_id"]
    if not user:
        raise SpecError(
            f"inferencer.hf_user_id is null and there is no model in {LOCAL}: add model=FOLDER"
        )
    if of["run_name"]:
        return f"{user}/{name}", "hf_user_id and run_name"
    found = newest(user, of["run_name_prefix"], of["run_name_suffix"])
    return found, f"the newest model of {user}, since run_name is null"


def newest(user: str, prefix: str, suffix: str) -> str:
    """The id of the model of a hub user that was changed last. Raises SpecError."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    instead = "add model=FOLDER, or set inferencer.run_name"
    try:
        models = HfApi().list_models(author=user, sort="last_modified")
        for model in models:
            own = model.id.rpartition("/")[2]
            if own.startswith(prefix.strip()) and own.endswith(suffix.strip()):
                return str(model.id)
    except (OSError, HfHubHTTPError) as error:
        raise SpecError(
            f"inferencer.run_name is null, and the hub cannot be asked for the newest model of "
            f"{user} ({type(error).__name__}): {instead}"
        ) from error
    named = "".join(
        f" {word} {part!r}" for word, part in (("from", prefix), ("to", suffix)) if part
    )
    raise SpecError(f"the hub shows no model of {user} named{named or ' anything'}: {instead}")
