"""The smallest training: strategies of listed groups, and models under a strategy on one worker of a world."""

import torch

from partreduce import Cluster, DistributedOptimizer, Schedule
from partreduce import strategies as st


def group_phases(num_workers, *phases):
    """Each of the phases a list of groups."""
    return st.GroupPhases(tuple(st.Phase.from_groups(num_workers, groups) for groups in phases))


def static_groups(num_workers, *phases, **axes):
    return st.StaticGroups(phases=group_phases(num_workers, *phases), **axes)


def wrapped(world, model, strategy, inner=None, *, lr=0.1, timeout=60, **options):
    """A model's optimizer, SGD by default, under a schedule, or under a strategy of all workers on one node."""
    inner = torch.optim.SGD(model.parameters(), lr=lr) if inner is None else inner
    is_schedule = isinstance(strategy, Schedule)
    schedule = strategy if is_schedule else Schedule("trained", Cluster.regular(1, world.size), strategy)
    return DistributedOptimizer(inner, model, schedule, world=world, timeout=timeout, **options)


class Quadratic(torch.nn.Module):
    """Parameters whose gradient is decay · x − push."""

    def __init__(self, start, dtype):
        super().__init__()
        self.first = torch.nn.Parameter(torch.tensor(start[:1], dtype=dtype))
        self.rest = torch.nn.Parameter(torch.tensor(start[1:], dtype=dtype))

    def values(self):
        return torch.cat([self.first, self.rest]).detach()

    def set_gradient(self, decay, push):
        gradient = decay * self.values() - torch.tensor(push, dtype=self.first.dtype)
        self.first.grad, self.rest.grad = gradient[:1].clone(), gradient[1:].clone()
