"""Steady: what is priced by a run in virtual time is an option only if its consensus distance has come to rest there.

A run that is too short hides that workers drift apart without end: updates that never arrive in time cost no seconds.
So every option whose consensus distance comes from a run is run for longer before it is recommended or shown: n, 2n
and 4n rounds, under all that the job says of its step times, have to show the same consensus distance. Such a run costs
some times as much as the first one, so it is made only for what would be recommended, is on the front, or is the best
of its kind; what fails is taken out, and the rest is looked at again. A quick answer makes it for the first of these
alone, and shows no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite

from partreduce.planner.front import front
from partreduce.planner.job import PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.recommend import permitted, recommend
from partreduce.planner.trials.kit import best_of
from partreduce.planner.work import payer
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.errors import UndecidedError

STEADY_SHARE = 0.3
"""Of the time, for longer runs where a kind that needs them is weighed."""
WITHIN = 0.1
"""The part by which the consensus distances of n, 2n and 4n rounds may differ."""
DOUBLINGS = 2
"""Times that a run is doubled whose consensus distance rises ever more slowly, so that it may still come to rest."""
GROWTH = 1.5
"""Rising by so much with each doubling is no approach to a limit."""
LISTED = 8
"""Options that the answer names with their distances."""


def is_steady(distances: Sequence[float]) -> bool:
    """Whether consensus distances of n, 2n and 4n rounds are the same within 10 %."""
    return all(map(isfinite, distances)) and max(distances) <= (1 + WITHIN) * min(distances)


@dataclass
class SteadyCheck:
    """Runs options for longer, within the clock's position `until`; `left_out` says by name why an option is out."""

    job: PlanRequest
    clock: Clock
    until: float
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pay = payer(self.clock, self.until)
        self._tries = Counter[str]()

    def settled(self, options: Sequence[CandidateSchedule]) -> list[CandidateSchedule]:
        """The options without those that are not steady, and without those that nobody needs to run for longer.

        Raises:
            UndecidedError: the job takes an option that is not steady.
        """
        kept = list(options)
        while (unsure := self._next(kept)) is not None:
            found = self._longer(unsure)
            if found is None and self.job.take is not None and unsure.name == self.job.take:
                raise UndecidedError(f"--select {unsure.name!r}: {self.left_out[unsure.name]}; take another one")
            kept = [found or one if one is unsure else one for one in kept if one is not unsure or found is not None]
        return [one for one in kept if one.longer is None]

    def words(self) -> list[str]:
        """What is out, and why, as one sentence; none where nothing is."""
        if not self.left_out:
            return []
        named = [f"{name} ({why})" for name, why in list(self.left_out.items())[:LISTED]]
        more = f", and {len(self.left_out) - LISTED} more" if len(self.left_out) > LISTED else ""
        return [f"left out, because a longer run does not show a steady consensus distance: {', '.join(named)}{more}"]

    def _next(self, options: Sequence[CandidateSchedule]) -> CandidateSchedule | None:
        """What has to be run for longer next: what would be recommended, the best of a kind, what is on the front."""
        unsure = [option for option in options if option.longer is not None]
        if not unsure:
            return None
        with suppress(UndecidedError):
            chosen = recommend(options, self.job)
            if chosen.longer is not None:
                return chosen
        if not self.job.searches:  # a quick answer drops what would not be recommended
            return None
        able = {id(option) for option in permitted(options, self.job)}
        kinds = dict.fromkeys(option.facts.kind for option in unsure if option.facts is not None)
        for kind in sorted(kinds, key=lambda one: self._tries[one]):  # so that no kind uses up the time of the others
            alike = [one for one in options if one.facts is not None and one.facts.kind == kind]
            best = best_of([one for one in alike if id(one) in able] or alike)
            if best.longer is not None:
                return best
        shown = [option for option in front(options) if option.longer is not None]
        return best_of(shown) if shown else None

    def _longer(self, option: CandidateSchedule) -> CandidateSchedule | None:
        """The option with the prices of a run in which it is steady; None if there is none."""
        assert option.longer is not None, "it was chosen for that"
        self._tries[option.facts.kind if option.facts else ""] += 1
        rounds = option.longer.rounds
        for _ in range(1 + DOUBLINGS):
            if not self._has_time(option.longer.work(rounds)):
                self.left_out[option.name] = f"there was no time for {rounds} rounds"
                return None
            found = option.longer.run(rounds)
            if found is None:
                self.left_out[option.name] = "its workers wait for one another for ever"
                return None
            priced, distances = found
            if is_steady(distances):
                self.left_out.pop(option.name, None)
                return replace(priced, longer=None)
            reached = ", ".join(f"{distance:.3g}" for distance in distances)
            self.left_out[option.name] = f"{reached} after {rounds // 4}, {rounds // 2} and {rounds} rounds"
            quarter, half, whole = distances
            if not isfinite(whole) or (half >= GROWTH * quarter and whole >= GROWTH * half):
                return None
            rounds *= 2
        return None

    def _has_time(self, work: float) -> bool:
        """Whether there is time for a run; where nothing else is asked for, as long as there are seconds."""
        if work > self.clock.left(self.clock.limit):
            self.clock.capped = True
            return False
        if self._pay(work):
            return True
        if self.job.gap:
            self.clock.charge(work)
        return bool(self.job.gap)
