"""Whether a tracker's library is there."""

from importlib.util import find_spec

from pipeline.spec import SpecError


def installed(module: str, extra: str) -> None:
    """Refuse, before anything is loaded, a tracker whose library is missing."""
    if find_spec(module) is None:
        raise SpecError(
            f"tracking={module} needs the package {module}, which is not installed: "
            f"pip install 'rethink-pipeline[{extra}]', or choose tracking=none"
        )
