"""The one error tree of the project. Every error says place, value, rule and way out in one line.

    PartreduceError                      exit code
    ├── InputError (also ValueError)  65   a file, an argument or a model that breaks a stated rule
    │   ├── DocumentError             65   a JSON or YAML document; carries the place inside it
    │   ├── ScheduleError             65   a schedule that cannot be built as asked
    │   └── HandshakeError            65   workers that disagree before the first step; names rank and field
    ├── RefutedError                   1   a claim that is false; carries the witness
    ├── UndecidedError                   3   a limit (time, size) was reached before an answer was
    ├── InfeasibleError                4   proved: nothing of a named class keeps the limits
    ├── UnavailableError              69   a worker, service or store that never answered; names it
    │   ├── PeerFailedError             69   a group operation that failed or timed out; names step and group
    │   └── StoreLostError            75   the run's store is gone or silent: no worker is to blame but its host
    ├── FileError                   74   a file that cannot be read or written
    ├── EvictedError                   76   this worker is no longer part of the job
    └── MissingDependencyError           77   an optional dependency or a machine feature that is absent

The command line maps each class to its exit code (`exit_code`) and prints `str(error)`; nothing else is printed.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

Argument = TypeVar("Argument")


class PartreduceError(Exception):
    """Base of every error that partreduce raises on purpose."""

    exit_code: ClassVar[int] = 70


class InputError(PartreduceError, ValueError):
    """Input that breaks a stated rule."""

    exit_code: ClassVar[int] = 65


class DocumentError(InputError):
    """A document that is refused; `place` is a path such as `strategy.phases[2][0].group`, or `line:column`."""

    def __init__(self, place: str, problem: str, source: str = "") -> None:
        """Keep the parts with the message, so that tools can point at them; `source` is the file's name."""
        super().__init__(": ".join(part for part in (source, place, problem) if part))
        self.place = place
        self.problem = problem
        self.source = source

    def __reduce__(self) -> tuple[type[DocumentError], tuple[str, str, str]]:
        """Errors travel between worker processes, so they must pickle."""
        return type(self), (self.place, self.problem, self.source)


class ScheduleError(InputError):
    """A schedule, rule or cluster that cannot exist."""


class HandshakeError(InputError):
    """Workers that disagree before the first step."""


class RefutedError(PartreduceError):
    """A claim that is false."""

    exit_code: ClassVar[int] = 1


class UndecidedError(PartreduceError):
    """A limit was reached before an answer was."""

    exit_code: ClassVar[int] = 3


class InfeasibleError(PartreduceError):
    """Proved: no answer within the limits exists in the class that the message names."""

    exit_code: ClassVar[int] = 4


class UnavailableError(PartreduceError):
    """A worker, service or store that did not answer in time."""

    exit_code: ClassVar[int] = 69


class PeerFailedError(UnavailableError):
    """A group operation that failed or timed out."""


class StoreLostError(UnavailableError):
    """The store through which the workers of a run agree is gone: its host, and no worker, is to blame."""

    exit_code: ClassVar[int] = 75


class FileError(PartreduceError, OSError):
    """A file that cannot be read or written."""

    exit_code: ClassVar[int] = 74


class EvictedError(PartreduceError):
    """This worker is no longer part of the job."""

    exit_code: ClassVar[int] = 76


class MissingDependencyError(PartreduceError):
    """An optional dependency or a machine feature that is absent."""

    exit_code: ClassVar[int] = 77


def of_type(value: Argument, kind: type[Any] | tuple[type[Any], ...], place: str, way_out: str) -> Argument:
    """An argument, if it is of the type that its place asks for."""
    if not isinstance(value, kind):
        name = type(value).__name__
        raise InputError(f"{place}: is {'an' if name[0].lower() in 'aeiou' else 'a'} {name}; {way_out}")
    return value
