"""Write self-contained HTML pages: text, tables and embedded pictures, no scripts and no external resources."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from partreduce.report.picture import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 75rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .35rem .9rem; text-align: right; }
th { border-bottom: 2px solid #ccc; font-weight: 600; } td { border-bottom: 1px solid #eee; }
th:first-child, td:first-child { text-align: left; } .note { color: #777; } svg { max-width: 100%; height: auto; }
code { background: #f4f4f4; padding: .1rem .3rem; border-radius: 3px; } .best { font-weight: 700; color: #2c7a2c; }
figure { margin: 1rem 0; overflow-x: auto; } figcaption { color: #777; font-size: .9rem; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Return an HTML document with a title and these parts."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def heading(text: str) -> str:
    """Return a section heading as HTML."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, *, note: bool = False) -> str:
    """Return a paragraph of plain text as HTML; `note` makes it less prominent."""
    return f'<p class="note">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>"


def command_line(text: str) -> str:
    """Return a shell command as HTML."""
    return f"<p><code>{escape(text)}</code></p>"


def rows(header: Sequence[str], body: Sequence[Sequence[str]], *, best: Sequence[tuple[int, int]] = ()) -> str:
    """Return a table as HTML; `best` lists the (row, column) of cells to emphasize."""
    stressed = set(best)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = []
    for r, line in enumerate(body):
        cells = "".join(
            f'<td class="best">{escape(cell)}</td>' if (r, c) in stressed else f"<td>{escape(cell)}</td>"
            for c, cell in enumerate(line)
        )
        lines.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def picture(figure: Figure, caption: str) -> str:
    """Return a matplotlib figure with a caption as inline SVG."""
    svg = render(figure, "svg").decode("utf-8")
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(caption)}</figcaption></figure>"
