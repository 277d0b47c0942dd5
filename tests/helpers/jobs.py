"""Requests to the planner with short arguments."""

from dataclasses import fields, replace

from helpers import worked_example
from partreduce import Cluster, Hardware, Limits, Link, PlanRequest

HARDWARE = replace(worked_example.HARDWARE, compute=0.05)
LIMITS = {field.name for field in fields(Limits)}


def with_links(inside, nic, latency=0.0, **more):
    return Hardware(inside=Link.of_bandwidth(inside, latency), nic=Link.of_bandwidth(nic, latency), **more)


def jobs(cluster, hardware, **given):
    """Return a function that makes a PlanRequest; `given` are defaults, and limits are passed by their own names."""

    def job(cluster=cluster, hardware=hardware, **options):
        options = given | options
        limits = {name: options.pop(name) for name in LIMITS & options.keys()}
        place = cluster if isinstance(cluster, Cluster) else replace(Cluster.parse(cluster), hardware=hardware)
        return PlanRequest(cluster=place, **{"limits": Limits(**limits)} | options)

    return job


def find_option(options, name):
    return next(option for option in options if option.name == name)
