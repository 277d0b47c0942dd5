"""The five papers, as `papers.toml` lists them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.papers.cells import LabPaper


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """`module` holds its experiments as `PAPER`; `headlines` are (figure, setting) of rows that the README shows."""

    name: str
    title: str
    claim: str
    module: str
    headlines: tuple[tuple[str, str], ...]

    def load(self) -> LabPaper:
        """Its experiments."""
        paper: LabPaper = import_module(self.module).PAPER
        return paper


def _of(fields: dict[str, list[list[str]]]) -> Paper:
    headlines = tuple((figure, setting) for figure, setting in fields.pop("headlines"))
    return Paper(**fields, headlines=headlines)  # type: ignore[arg-type]


PAPERS = tuple(map(_of, tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))["paper"]))
