"""Robust standard output and error: closed pipes, full disks, and encodings without the symbols that are printed.

Libraries below the command line (typer, rich) answer a closed pipe with exit code 1, which means "refuted" here. So
while a command runs the two streams raise an error that those libraries do not know; the entry point then ends the
process, with exit code 0 if the reader closed the pipe.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

PLAIN = {
    "→": "->", "←": "<-", "−": "-", "–": "-", "—": "-", "×": "x", "·": ".", "•": "*", "…": "...", "∞": "inf",
    "≤": "<=", "≥": ">=", "≠": "!=", "√": "sqrt", "α": "alpha", "β": "beta", "λ": "lambda", "Σ": "sum", "µ": "u",
    "μ": "u", "“": '"', "”": '"', "’": "'", "‘": "'", "±": "+-", "²": "^2", "₂": "_2", "‖": "||", "⪰": ">=",
    "σ": "sigma", "∅": "{}", "∩": "and", "∈": "in", "ü": "ue", "ö": "oe", "ä": "ae", "é": "e", "á": "a", "č": "c",
    "│": "|", "─": "-", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "━": "-", "╸": "-", "╺": "-", "┃": "|",
}  # fmt: skip
"""ASCII replacements of the symbols that are printed, for terminals whose encoding lacks them."""


class OutputLostError(Exception):
    """Standard output was closed by its reader (empty text) or cannot be written (the text is the reason).

    Not an OSError, because the libraries below the command line would handle one.
    """


class _WatchedDescriptor(io.FileIO):
    """A file descriptor whose failing writes raise OutputLostError."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer, as in FileIO
        try:
            return super().write(data)
        except BrokenPipeError:
            raise OutputLostError from None
        except OSError as error:
            raise OutputLostError(error.strerror) from None


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Context manager: writing to a closed or full standard output or error raises OutputLostError.

    Characters that the encoding lacks are replaced. Streams that a caller has replaced stay as they are.
    """
    before = (sys.stdout, sys.stderr)
    codecs.register_error("partreduce-plain", _plainly)
    sys.stdout, sys.stderr = _guard(sys.stdout, sys.__stdout__, 1), _guard(sys.stderr, sys.__stderr__, 2)
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            sys.stdout, sys.stderr = before


def silence() -> None:
    """Redirect standard output and error to the null device, so that the interpreter's last flush cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _guard(stream: TextIO | None, own: TextIO | None, descriptor: int) -> TextIO:
    if stream is None:  # the descriptor was closed by the process that started us
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - lives as long as the process
    if stream is not own or not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    raw = _WatchedDescriptor(descriptor, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="partreduce-plain",
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """Replace text that the encoding lacks, by `PLAIN` or else by Python's escape; an error handler of `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(PLAIN.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in lost), error.end
