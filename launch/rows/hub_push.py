"""Pushes rows to a data set on the hub, when a person asks for it, with the token of HF_TOKEN."""

from pathlib import Path

from pipeline.spec import SpecError

FILE = "data/train-00000-of-00001.parquet"  # which the hub and `datasets` find by itself


def push(rows: Path, count: int, repository: str, private: bool = True, dry: bool = False) -> str:
    """Put a Parquet file in the place of the rows that a data set has; say what was done.

    The data set is created if there is none. The file replaces what an earlier push left, so no row
    is there twice.

    Args:
        rows: the Parquet file.
        count: how many rows it holds.
        repository: owner/name.
        private: whether the data set is to be private; one that is public is then refused.
        dry: ask nothing of the network, and only say what would be pushed.

    Raises:
        SpecError: no such name, no token, a public data set where a private one was asked for, or
            the hub refused.
    """
    owner, slash, name = repository.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise SpecError(f"out must be owner/name for to=hub, got {repository!r}")
    kind = "private" if private else "public"
    what = (
        f"{count} rows ({rows.stat().st_size} bytes) as {FILE} of the {kind} data set {repository}"
    )
    if dry:
        return f"dry: would push {what}"
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if get_token() is None:
        raise SpecError("to=hub needs a token that may write: set HF_TOKEN in the environment")
    api = HfApi()
    try:
        api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        if private and not api.repo_info(repository, repo_type="dataset").private:
            raise SpecError(
                f"out={repository} is a public data set: add private=false to push there, or take "
                "another name"
            )
        api.upload_file(
            path_or_fileobj=str(rows), path_in_repo=FILE, repo_id=repository, repo_type="dataset"
        )
    except SpecError:
        raise
    except (OSError, HfHubHTTPError, ValueError) as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SpecError(f"the hub did not take out={repository}: {said}") from error
    return f"pushed {what}"
