"""The five papers, as `papers.toml` lists them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.papers.cells import LabPaper


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """`module` holds its experiments as `PAPER`; `headlines` are (figure, setting) of rows that docs/papers.md shows.

    `regime` says where it was measured here, `why` what made our figures differ, `picture` what is shown of them.
    """

    name: str
    title: str
    claim: str
    regime: str
    why: str
    module: str
    headlines: tuple[tuple[str, str], ...]
    picture: str | None = None

    def load(self) -> LabPaper:
        paper: LabPaper = import_module(self.module).PAPER
        return paper


def _of(fields: dict[str, Any]) -> Paper:
    headlines = tuple((figure, setting) for figure, setting in fields.pop("headlines"))
    return Paper(**fields, headlines=headlines)


PAPERS = tuple(map(_of, tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))["paper"]))
