"""Search problems on even links, and a function that runs the search."""

from dataclasses import replace

from partreduce.schedulers.synthesis import Limits, Objective, Problem, search
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link

EVEN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000)


def problem(shape, hardware=EVEN, objective=Objective.CONSENSUS_DISTANCE, **limits):
    cluster = replace(Cluster.parse(shape), hardware=hardware)
    return Problem(cluster=cluster, objective=objective, limits=Limits(**limits))


def synthesize(problem, *, time_limit=MANY_SECONDS, effort=None, seed=0):
    clock = Clock(seconds=time_limit, effort=effort)
    return search(problem, clock, clock.limit, seed=seed)
