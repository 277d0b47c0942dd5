"""Progress: the step that an optimizer is in, published to the launcher where it watches."""

from __future__ import annotations

from partreduce.runtime.watch.published_progress import Report, Slot


class Progress:
    """How far one optimizer is; where nobody watches only a number is kept.

    The first optimizer of a process has its slot until it ends; then the next one may take it.
    """

    def __init__(self) -> None:
        self.counts_rounds = False
        """Whether the runner says its rounds here in place of steps: where neighbours know one another's."""
        self.is_watched = False
        self.step = self._generation = 0
        self._slot: Slot | None = None

    def begin(self) -> bool:
        """Publish from now on how far this is; False where nobody watches, or another optimizer publishes."""
        if Slot.own is None or Slot.own.is_taken:
            return False
        self._slot, Slot.own.is_taken, self.is_watched = Slot.own, True, True
        self._slot.enter(self.step, self._generation)
        return True

    def enter(self, step: int, generation: int = 0) -> None:
        """Say that a step has begun; before anything is sent that lets others begin theirs. From any thread.

        Steps of different generations are not compared: all workers went back to an earlier step in between.
        """
        self.step, self._generation = step, generation
        if self._slot is not None:
            self._slot.enter(step, generation)

    def report(self, report: Report) -> None:
        """Say the rest; between `begin` and `end`."""
        assert self._slot is not None, "it has begun"
        self._slot.write(report)

    def end(self) -> None:
        if self._slot is not None:
            self._slot.is_taken, self._slot = False, None
