"""What a file of tests asks the planner."""

from dataclasses import fields, replace

from partreduce import Cluster, Limits, PlanRequest

LIMITS = {field.name for field in fields(Limits)}


def jobs(cluster, hardware, **given):
    """What makes a request of these values where no others are given; limits go by their own names."""

    def job(cluster=cluster, hardware=hardware, **options):
        options = given | options
        limits = {name: options.pop(name) for name in LIMITS & options.keys()}
        place = replace(Cluster.parse(cluster), hardware=hardware)
        return PlanRequest(cluster=place, **{"limits": Limits(**limits)} | options)

    return job
