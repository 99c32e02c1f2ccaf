"""What a person is told of a hub repository that they may not read, by a hub on this machine."""

from pathlib import Path

import pytest

from components.models.checkpoint import resolve
from pipeline.spec import ModelSpec, SpecError
from tests.fakes.hub import local_hub

COMMIT = "/api/models/org/model/revision/main"


def refusal(tmp_path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        resolve(ModelSpec(path="org/model"), tmp_path / "cache")
    return str(caught.value)


@pytest.mark.parametrize(
    ("token", "status", "code", "said"),
    [
        (None, 401, "GatedRepo", "model.path=org/model is gated: accept its terms on its page"),
        (None, 401, "GatedRepo", "then set HF_TOKEN"),
        ("hf_mine", 403, "GatedRepo", "with the account of HF_TOKEN"),
        (None, 401, "RepoNotFound", "or it is private: set HF_TOKEN"),
        ("hf_mine", 404, "RepoNotFound", "the account of HF_TOKEN sees none"),
    ],
)
def test_a_repository_that_is_gated_or_missing_is_told_with_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    status: int,
    code: str,
    said: str,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with local_hub(monkeypatch, token) as hub:
        hub.answers["GET", COMMIT] = (status, {"X-Error-Code": code}, {"error": "no"})
        told = refusal(tmp_path)
    assert said in told and "hf_mine" not in told
    assert hub.requests and hub.tokens == {f"Bearer {token}" if token else None}
