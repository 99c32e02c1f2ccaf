"""A choice of a service's answer, as the generation that a row is made of."""

from typing import Any

from components.backends.openai_api.bounds import probability_fields
from components.backends.openai_api.endings import ending
from components.backends.openai_api.samples import Share
from pipeline.protocols import Generation, Request


def generation_of(
    request: Request,
    share: Share,
    columns: dict[str, Any],
    stop_text: str,
    top_logprobs: int,
    seconds: float,
) -> Generation:
    """The generation that took `seconds`. `columns` are what the backend itself says of it.

    `stop_text` is that of `ending`; `top_logprobs` likeliest tokens were asked for.
    """
    said, usage = share.said, share.usage
    made = usage.get("completion_tokens")
    alone = made if share.shared_by == 1 else None  # a part of several samples' usage
    text, tail, reason = ending(said, request, stop_text, alone)
    chosen, about_entropy = probability_fields(said, top_logprobs if request.entropy else 0)
    extra = columns | about_entropy | said.extra
    extra |= {"tokens_unknown": True} if made is None and not said.tokens else {}
    discarded = share.answered.discarded_usd if share.first else 0.0
    extra |= {"discarded_usd": discarded} if discarded else {}
    extra |= {"usage_shared_by": share.shared_by} if share.shared_by > 1 else {}
    return Generation(
        token_ids=[],
        num_tokens=_num_tokens(made, share),
        text=text,
        tail=tail,
        finish_reason=reason,
        prompt_tokens=(usage.get("prompt_tokens") or 0) * share.shared_by,
        logprobs=chosen,
        seconds=seconds,
        backend_columns=extra,
    )


def _num_tokens(reported: int | None, share: Share) -> int:
    """Generated tokens of one choice; its own probabilities count them where usage is shared."""
    tokens = share.said.tokens
    if reported is None or (share.shared_by > 1 and tokens):
        return len(tokens or ())
    return reported
