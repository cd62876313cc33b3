"""Parts of the pages this package writes. A page holds its pictures and needs nothing else.

Every text given to these functions is escaped by them; names that end in ``_html`` are markup.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2

from sparkrt_ros.report_style import FIGURE_SETTINGS, STYLE, css
from sparkrt_ros.runtime.types import ImageArray
from sparkrt_ros.runtime.whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The page may show what it holds, and nothing may be fetched or run.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_COLOUR = re.compile(r'\b(fill|stroke): (#[0-9a-f]{6})\b')


def write_page(path: Path, *, title: str, parts_html: Iterable[str], style: str = '') -> None:
    """Write one self-contained page to ``path``; ``style`` follows the common style sheet.

    Raises FileNotWritten.
    """
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head><body>'
    )
    write_whole(path, '\n'.join([head, *parts_html, '</body></html>\n']))


def cards(rows: Iterable[tuple[str, str, str]]) -> str:
    """A row of figures: (value, label, ``good``, ``bad`` or nothing)."""
    done = [
        f'<div class="card {html.escape(kind)}"><b>{html.escape(value)}</b>'
        f'<span>{html.escape(label)}</span></div>'
        for value, label, kind in rows
    ]
    return f'<div class="cards">{"".join(done)}</div>'


def table(rows: Iterable[Sequence[str]], *, heads: Sequence[str] = ()) -> str:
    """A plain table; ``heads`` names its columns."""
    head = ''.join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    body = ''.join(
        f'<tr>{"".join(f"<td>{html.escape(text)}</td>" for text in row)}</tr>' for row in rows
    )
    return f'<div class="wide"><table>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'


def picture(image: ImageArray, *, caption: str) -> str:
    """A camera frame (H, W, 3) RGB with its caption, as JPEG."""
    # Small frames cost little and are looked at closely.
    quality = 95 if image.size < 200_000 else 85
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    done, encoded = cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError('OpenCV could not encode a camera frame as JPEG')
    text = html.escape(caption)
    data = base64.b64encode(encoded.tobytes()).decode()
    return (
        f'<div><img alt="{text}" src="data:image/jpeg;base64,{data}"><small>{text}</small></div>'
    )


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib's settings for the figures of a page; also a decorator of what draws one."""
    import matplotlib

    settings: Any = dict(FIGURE_SETTINGS)
    with matplotlib.rc_context(settings):
        yield


def svg(figure: Figure, *, name: str, label: str) -> str:
    """The figure as inline SVG. name: unique in its page; label: what a screen reader says."""
    import matplotlib

    buffer = io.StringIO()
    # Ids inside the drawing follow from the salt: the same in every run, another per figure.
    settings: Any = {'svg.fonttype': 'none', 'svg.hashsalt': name, 'svg.image_inline': True}
    with matplotlib.rc_context(settings):
        figure.savefig(
            buffer,
            format='svg',
            transparent=True,
            metadata={'Date': None, 'Creator': None, 'Format': None, 'Type': None},
        )
    text = buffer.getvalue()
    body = _COLOUR.sub(_variable, text[text.index('<svg') + len('<svg') :])
    return f'<svg role="img" aria-label="{html.escape(label)}"{body}'


def _variable(match: re.Match[str]) -> str:
    return f'{match[1]}: {css(match[2])}'
