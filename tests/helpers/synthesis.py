"""A search with a clock of its own."""

from partreduce.schedulers.synthesis import search
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock


def synthesize(problem, *, time_limit=MANY_SECONDS, effort=None, seed=0):
    clock = Clock(seconds=time_limit, effort=effort)
    return search(problem, clock, clock.limit, seed=seed)
