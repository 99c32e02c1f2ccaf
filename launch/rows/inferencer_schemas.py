"""Rows as the fine-tuner's inferencer wrote them: as its code does, and as its document says."""

import json
from typing import Any

from pipeline.protocols import STRATEGIES, Prompt, spelled
from pipeline.run.row_fields import SAMPLING_COLUMNS
from pipeline.store.files import Row

CAPS = ("think_cap", "answer_cap", "max_new_tokens")


def written(row: Row, name: str, system: str | None, user: str) -> Row:
    """The keys of its code, of the pass `name`; `system` and `user` are the messages of pass 1."""
    return {
        "system_prompt": system,
        "user_prompt": user,
        "assistant_response": row[name].get("output"),
        "ground_truth": _text(row.get("gold_answer")),
    }


def documented(row: Row, name: str) -> Row:
    """The keys of its document, of the pass `name`. `inference_time` is in seconds."""
    fields = row[name]
    seconds, tokens = fields.get("seconds"), fields.get("tokens_total")
    used = {n: row.get(n) for n in (*SAMPLING_COLUMNS, *CAPS, "seed")}
    return {
        "question": row.get("problem"),
        "predicted_answer": fields.get("pred_answer"),
        "ground_truth": _text(row.get("gold_answer")),
        "metadata": {
            "model_id": row.get("model"),
            "revision": row.get("revision"),
            "inference_time": seconds,
            "token_count": tokens,
            "tokens_per_second": round(tokens / seconds, 3) if tokens and seconds else None,
            "generation_config": {
                **used,
                "do_sample": bool(row.get("temperature")),
                **{n: row[n] for n in STRATEGIES if n in row},
            },
        },
    }


def system_and_user(prompt: Prompt) -> tuple[str | None, str]:
    """The system message (None without one) and the last user message."""
    by_role = {message.role: spelled(message.content) for message in prompt.messages}
    return by_role.get("system"), by_role.get("user", "")


def _text(value: Any) -> str | None:
    plain = value is None or isinstance(value, str)
    return value if plain else json.dumps(value, ensure_ascii=False)
