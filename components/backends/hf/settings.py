"""Which values the settings of the hf backend may have, and which do not go together."""

from pipeline.spec import require

DECODERS = ("auto", "slots", "generate")
KV_TYPES = ("auto", "fp8")


def refuse_values(
    batch_size: int, decoder: str, slots: int | None, threads: int | None, kv_cache_dtype: str
) -> None:
    """Refuse a value outside of its range. Raises SpecError, which names the key."""
    require(batch_size >= 1, "backend.batch_size", "be 1 or more", batch_size)
    require(decoder in DECODERS, "backend.decoder", f"be one of {DECODERS}", decoder)
    require(slots is None or slots >= 1, "backend.slots", "be 1 or more", slots)
    require(threads is None or threads >= 1, "backend.threads", "be 1 or more", threads)
    known = kv_cache_dtype in KV_TYPES
    require(known, "backend.kv_cache_dtype", f"be one of {KV_TYPES}", kv_cache_dtype)


def refuse_beside_decoder(
    decoder: str, kv_cache_dtype: str, assistant_model: str | None, use_cache: bool, ranks: bool
) -> None:
    """Refuse what the decoder cannot do; `ranks`: there are several. Raises SpecError."""
    rule = "be auto with backend.decoder=generate, which caches in the model's type"
    fits = kv_cache_dtype == "auto" or decoder != "generate"
    require(fits, "backend.kv_cache_dtype", rule, kv_cache_dtype)
    if assistant_model is None:
        return
    rule = "be null with backend.decoder=slots: only generate takes an assistant"
    require(decoder != "slots", "backend.assistant_model", rule, assistant_model)
    rule = "be null with backend.use_cache=false, which leaves nothing to save"
    require(use_cache, "backend.assistant_model", rule, assistant_model)
    require(not ranks, "backend.assistant_model", "be null on several ranks", assistant_model)
