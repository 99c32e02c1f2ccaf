"""What this machine's processor can do."""

from pathlib import Path

X86_BFLOAT16 = frozenset({"amx_bf16", "avx512_bf16"})
_INFO = Path("/proc/cpuinfo")


def instructions() -> frozenset[str] | None:
    """The names of its instruction sets, among other words; None where the system has no list."""
    return frozenset(_INFO.read_text().split()) if _INFO.is_file() else None


def has_bfloat16() -> bool:
    """Whether it computes in bfloat16; without, torch takes several times longer."""
    known = instructions()
    return known is None or not known.isdisjoint(X86_BFLOAT16 | {"bf16"})
