"""Issue warnings that point at the user's own line of code, below any frames of the runtime and torch."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

import torch

BETWEEN = (f"{Path(__file__).parent}/", f"{Path(torch.__file__).parent}/", contextlib.__file__)
"""Prefixes of files that are not the user's code: those of the runtime, of torch, and of contextlib."""


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points at the nearest line of the user's code, outside of the runtime and torch."""
    frame, level = sys._getframe(), 1  # noqa: SLF001 - `skip_file_prefixes` of warnings.warn came with Python 3.12
    while frame.f_back is not None and frame.f_code.co_filename.startswith(BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
