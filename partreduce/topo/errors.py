"""The exceptions of the project. Every message names place, value, rule and remedy in one line.

    PartreduceError                      exit code
    ├── InputError (also ValueError)  65   a file, an argument or a model that breaks a stated rule
    │   ├── DocumentError             65   a JSON or YAML document; carries the place inside it
    │   ├── ScheduleError             65   a schedule that cannot be built as asked
    │   └── HandshakeError            65   workers that disagree before the first step; names rank and field
    ├── RefutedError                   1   a claim that is false; carries the witness
    ├── UndecidedError                   3   a limit (time, size) was reached before there was an answer
    ├── InfeasibleError                4   proved: no schedule of a named class keeps the limits
    ├── UnavailableError              69   a worker, service or store that never answered; names it
    │   ├── PeerFailedError             69   a group operation that failed or timed out; names step and group
    │   └── StoreLostError            75   the run's store is unreachable or silent: its host failed, not a worker
    ├── FileError                   74   a file that cannot be read or written
    ├── EvictedError                   76   this worker is no longer part of the job
    └── MissingDependencyError           77   an optional dependency or a machine feature that is absent

The command line maps each class to its exit code (`exit_code`) and prints `str(error)`, without a traceback.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

Argument = TypeVar("Argument")


class PartreduceError(Exception):
    """Base of every error that partreduce raises on purpose."""

    exit_code: ClassVar[int] = 70


class InputError(PartreduceError, ValueError):
    """An argument, file or model breaks a documented rule."""

    exit_code: ClassVar[int] = 65


class DocumentError(InputError):
    """A document breaks its format; `place` is a path such as `strategy.phases[2][0].group`, or `line:column`."""

    def __init__(self, place: str, problem: str, source: str = "") -> None:
        """Build the message "SOURCE: PLACE: PROBLEM" and keep its parts as attributes; `source` is the file's name."""
        super().__init__(": ".join(part for part in (source, place, problem) if part))
        self.place = place
        self.problem = problem
        self.source = source

    def __reduce__(self) -> tuple[type[DocumentError], tuple[str, str, str]]:
        """Support pickling, because errors are sent between worker processes."""
        return type(self), (self.place, self.problem, self.source)


class ScheduleError(InputError):
    """A schedule, a rule (groups given by node digits) or a cluster is invalid."""


class HandshakeError(InputError):
    """Workers differ in schedule, model, version or settings before the first step."""


class RefutedError(PartreduceError):
    """A claim about a schedule is false; the message holds a counterexample."""

    exit_code: ClassVar[int] = 1


class UndecidedError(PartreduceError):
    """A time or size limit was reached before a proof or a counterexample was found."""

    exit_code: ClassVar[int] = 3


class InfeasibleError(PartreduceError):
    """No solution within the limits exists in the class of schedules that the message names; this is proved."""

    exit_code: ClassVar[int] = 4


class UnavailableError(PartreduceError):
    """A worker, service or store did not answer in time."""

    exit_code: ClassVar[int] = 69


class PeerFailedError(UnavailableError):
    """A collective of a group failed or timed out, usually because another worker failed."""


class StoreLostError(UnavailableError):
    """The store that coordinates the workers of a run is unreachable: the store's host failed, not a worker."""

    exit_code: ClassVar[int] = 75


class FileError(PartreduceError, OSError):
    """A file cannot be read or written."""

    exit_code: ClassVar[int] = 74


class EvictedError(PartreduceError):
    """The other workers have removed this worker from the job."""

    exit_code: ClassVar[int] = 76


class MissingDependencyError(PartreduceError):
    """An optional dependency or a feature of the machine is absent."""

    exit_code: ClassVar[int] = 77


def of_type(value: Argument, kind: type[Any] | tuple[type[Any], ...], place: str, way_out: str) -> Argument:
    """Return `value` if it is a `kind`; else raise InputError: the argument `place`, its type, the remedy `way_out`."""
    if not isinstance(value, kind):
        name = type(value).__name__
        raise InputError(f"{place}: is {'an' if name[0].lower() in 'aeiou' else 'a'} {name}; {way_out}")
    return value
