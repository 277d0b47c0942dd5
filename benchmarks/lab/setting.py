"""Setting: the links and slow workers under which all contestants run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`rate` in `tc` syntax; `slow` lists (rank, factor on its compute time); `data` shuffled or sorted.

    `steps` is a multiple of 16 and of 24, so that a cell holds whole periods of the usual schedules. The Prague paper
    slows a worker by *adding* 2 or 5 step times, which is a factor of 3 or 6.
    """

    name: str
    rate: str = "200mbit"
    slow: tuple[tuple[int, float], ...] = ()
    random_factor: float = 1.0
    random_chance: float = 0.0
    data: str = "shuffled"
    task: str = "digits"
    steps: int = 48

    @property
    def megabits(self) -> float:
        """The rate in Mbit/s."""
        number = self.rate.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}[self.rate[len(number) :]]
        return float(number) * unit

    def free_step(self, compute: float, num_workers: int) -> float:
        """Seconds per step (workers ÷ steps of all per second) over a free network on which nobody waits."""
        mean = 1 + self.random_chance * (self.random_factor - 1)
        factors = dict(self.slow)
        return compute * mean * num_workers / sum(1 / factors.get(rank, 1.0) for rank in range(num_workers))


SLOW_RANK = 6


def settings(num_workers: int) -> dict[str, Setting]:
    """All named settings; on each the contestants are interleaved."""
    slow = SLOW_RANK % num_workers
    made = []
    for rate in ("200mbit", "1gbit"):
        made += [
            Setting(name=f"{rate} homogeneous", rate=rate),
            Setting(name=f"{rate} slow x2", rate=rate, slow=((slow, 2.0),)),
            Setting(name=f"{rate} slow x5", rate=rate, slow=((slow, 5.0),)),
            Setting(name=f"{rate} slow +2", rate=rate, slow=((slow, 3.0),)),
            Setting(name=f"{rate} slow +5", rate=rate, slow=((slow, 6.0),)),
            Setting(name=f"{rate} random x6", rate=rate, random_factor=6.0, random_chance=1 / num_workers),
        ]
    made += [
        Setting(name="200mbit sorted", data="sorted", steps=96),
        Setting(name="200mbit text", task="text", steps=96),
    ]
    return {setting.name: setting for setting in made}
