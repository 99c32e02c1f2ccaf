"""The report as one file: page, styles, scripts and libraries inlined, data in gzipped pieces."""

import base64
import gzip
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata, resources
from pathlib import Path

from pipeline.spec import SpecError
from pipeline.store.files import write_atomically

PAGE = Path(__file__).with_name("page")
STYLES = ("page.css", "sample.css", "board.css")
SCRIPTS = (
    *("pieces.js", "elements.js", "tables.js", "figures.js", "plots.js"),
    *("search.js", "filters.js", "list.js", "latex.js", "tokens.js"),
    *("board.js", "pieces_on_board.js", "player.js", "passes.js", "sample.js", "samples.js"),
    "main.js",
)
Pieces = Iterable[tuple[str, bytes]]


def piece(value: object) -> bytes:
    """JSON, gzipped: small, and no text of a model can end the script element that holds it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode("ascii"), 6, mtime=0)


@cache
def libraries() -> dict[str, bytes]:
    """The charting and formula libraries, gzipped; unpacked by the page when first needed.

    Raises:
        SpecError: the charting library is not installed.
    """
    plotly = resources.files(_plotly()) / "package_data" / "plotly.min.js"
    texts = {
        "plotly": plotly.read_text(encoding="utf-8"),
        "katex": (PAGE / "katex" / "katex.min.js").read_text(encoding="utf-8"),
        "katex-style": _katex_style(),
    }
    return {name: gzip.compress(text.encode(), 9, mtime=0) for name, text in texts.items()}


def _plotly() -> str:
    try:
        resources.files("plotly")
    except ModuleNotFoundError:
        raise SpecError(
            "the report draws with plotly, which is not installed: pip install '.[report]'"
        ) from None
    return "plotly"


def _katex_style() -> str:
    """KaTeX's style sheet with its fonts inside; of each font's three formats the first."""
    style = (PAGE / "katex" / "katex.min.css").read_text(encoding="utf-8")
    for font in sorted((PAGE / "katex" / "fonts").glob("*.woff2")):
        data = base64.b64encode(font.read_bytes()).decode("ascii")
        name = f"fonts/{font.stem}"
        others = f',url({name}.woff) format("woff"),url({name}.ttf) format("truetype")'
        style = style.replace(f"url({name}.woff2)", f"url(data:font/woff2;base64,{data})")
        style = style.replace(others, "")
    return style


def write(path: Path, title: str, pieces: Pieces) -> int:
    """Write the report and return its size in bytes; readers see the old or the new file."""
    write_atomically(path, _chunks(title, pieces))
    return path.stat().st_size


def _chunks(title: str, pieces: Pieces) -> Iterator[bytes]:
    before, after = _page({"title": html.escape(title), "style": _joined(STYLES)})
    yield before.encode()
    for name, data in [*libraries().items(), *pieces]:
        text = base64.b64encode(data)
        yield b'<script type="text/plain" id="piece-%b">%b</script>\n' % (name.encode(), text)
    yield after.encode()


def _page(values: Mapping[str, str]) -> tuple[str, str]:
    """The page up to its data, and the rest."""
    before, after = (PAGE / "page.html").read_text(encoding="utf-8").split("{{pieces}}")
    filled = (_filled(part, {**values, "script": _joined(SCRIPTS)}) for part in (before, after))
    return next(filled), next(filled)


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Values in the places of `{{name}}`; what a value holds is no place."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text)


def _joined(names: Iterable[str]) -> str:
    return "\n".join((PAGE / name).read_text(encoding="utf-8") for name in names)


def licences() -> list[dict[str, str]]:
    """The libraries inside the report and the terms that they come under."""
    katex = (PAGE / "katex" / "LICENSE").read_text(encoding="utf-8")
    plotly = metadata.distribution(_plotly()).read_text("licenses/LICENSE.txt") or "MIT license"
    return [{"name": "plotly.js", "text": plotly}, {"name": "KaTeX", "text": katex}]
