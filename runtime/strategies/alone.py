"""Any strategy, run alone: steps and rounds are counted, and nothing is averaged."""

from __future__ import annotations

from partreduce.runtime.strategies.base import Runner


class Alone(Runner):
    """The runner of a script that runs as one process; the wrapped optimizer steps as it would by itself."""

    def end_round(self, step: int, round_: int) -> None:
        """Nobody is there to average with."""
