"""Published progress: a piece of memory that the launcher shares with its workers, in which each says how far it is.

It is memory and not notes in the run's store, because all workers of `partreduce run` are forked from one process: to
say a step is then one store of eight bytes, which costs the training nothing, asks no server and works while the store
hangs; and the launcher reads all steps within microseconds, so that differences between them mean something. The
memory has no name, so nothing is left of it, however the run ends.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from partreduce.runtime.watch.status import GapStatus

SLOT_BYTES = 4096
"""One page for each worker."""
STEP, VERSION, LENGTH = 0, 1, 2
"""Places of numbers of eight bytes at the beginning of a slot; what a worker reports follows them as JSON."""
TEXT = 24
GENERATION = 1 << 40
"""More than there ever are steps."""
MAX_TEXT = 300
MAX_WAITS = 64
READS = 5
"""A report that changes so often while it is read stays as it was known before."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of itself about twice a second; `beat` counts these reports."""

    beat: int
    doing: str
    """A clause that follows "worker 3, which"."""
    waits: tuple[int, ...] = ()
    """For whom it waits in that."""
    pace: int = 1
    gap: GapStatus | None = None
    rests: bool = False
    """Whether it takes no more steps until all meet, while the others' rounds go on."""

    def to_json(self) -> dict[str, Any]:
        cut = {"doing": self.doing[:MAX_TEXT], "waits": self.waits[:MAX_WAITS]}
        gap = None if self.gap is None else asdict(self.gap)
        return {"beat": self.beat, "pace": self.pace, "gap": gap, "rests": self.rests} | cut

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> Report:
        gap = content["gap"]
        if gap is not None:
            values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in gap.items()}
            gap = GapStatus(**values)
        waits = tuple(content["waits"])
        return cls(content["beat"], content["doing"], waits, content["pace"], gap, content["rests"])


class PublishedProgress:
    """A slot for each of `num_workers` workers; made before they are forked."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._memory = mmap.mmap(-1, num_workers * SLOT_BYTES)
        self._numbers = memoryview(self._memory).cast("q")
        self._known: list[Report | None] = [None] * num_workers
        self._versions = [0] * num_workers

    def places(self) -> list[int | None]:
        """The step that each worker is in plus its generation times `GENERATION`; None before its optimizer was made.

        Whoever is read later may have gone on meanwhile, so differences take two readings: what is read first, minus
        what is read then, is never more than the truth was between the two.
        """
        numbers, words = self._numbers, SLOT_BYTES // 8
        found = [numbers[rank * words + STEP] for rank in range(self.num_workers)]
        return [place - 1 if place else None for place in found]

    def steps(self) -> list[int | None]:
        """The step that each worker is in."""
        return [None if place is None else place % GENERATION for place in self.places()]

    def report(self, rank: int) -> Report | None:
        """What a worker said last; None before its optimizer was made."""
        first, start = rank * SLOT_BYTES // 8, rank * SLOT_BYTES + TEXT
        for _ in range(READS):
            version = self._numbers[first + VERSION]
            if version == self._versions[rank]:
                break
            text = self._memory[start : start + self._numbers[first + LENGTH]]
            if version % 2 == 0 and version == self._numbers[first + VERSION]:
                self._known[rank], self._versions[rank] = Report.of_json(json.loads(text)), version
                break
        return self._known[rank]

    def claim(self, rank: int) -> None:
        """Called in the process of a worker: what runs there says how far it is in the slot of this rank."""
        Slot.own = Slot(self._memory, rank)


class Slot:
    """A worker's place in the published progress; written by one optimizer of its process at a time."""

    own: Slot | None = None
    """This process's place, where its launcher watches."""

    def __init__(self, memory: mmap.mmap, rank: int) -> None:
        self._memory, self._start = memory, rank * SLOT_BYTES
        self._numbers = memoryview(memory)[self._start : self._start + TEXT].cast("q")
        self.is_taken = False

    def enter(self, step: int, generation: int = 0) -> None:
        self._numbers[STEP] = generation * GENERATION + step + 1

    def write(self, report: Report) -> None:
        """Replace the report; while its version is odd, nobody takes it."""
        text = json.dumps(report.to_json()).encode()
        if len(text) > SLOT_BYTES - TEXT:  # of very many queues the fullest tells most
            assert report.gap is not None, "all else is short"
            text = json.dumps(report.to_json() | {"gap": asdict(_shortened(report.gap))}).encode()
        version = self._numbers[VERSION]
        self._numbers[VERSION] = version + 1
        self._memory[self._start + TEXT : self._start + TEXT + len(text)] = text
        self._numbers[LENGTH] = len(text)
        self._numbers[VERSION] = version + 2


def _shortened(status: GapStatus) -> GapStatus:
    def fewest(numbers: Sequence[int] | None) -> tuple[int, ...] | None:
        return None if numbers is None else (min(numbers),)

    updates, capacity = status.fullest
    return GapStatus(
        tokens=fewest(status.tokens), updates=(updates,), capacities=(capacity,), sent=status.sent,
        received=status.received, skipped=status.skipped,
    )  # fmt: skip
