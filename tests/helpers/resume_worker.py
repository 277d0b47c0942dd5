"""Workers that train, save, may be killed and resume, or that are compared with torch's averagers and hooks."""

import json
import os
import signal
from collections import OrderedDict
from datetime import timedelta

import numpy as np
import torch

from helpers.scenarios import main, report
from partreduce import (
    Cluster,
    DistributedOptimizer,
    Schedule,
    ScheduleAverager,
    ScheduleHookState,
    load_checkpoint,
    save_checkpoint,
    schedule_hook,
)
from partreduce import strategies as st


def schedule(kind, n):
    if kind == "allreduce":
        return Schedule(kind, Cluster.regular(1, n), st.AllReduce())
    coded = "coded" in kind
    groups_of = ([[0, 1]], [[0, 1, 2]]) if coded else ([[0, 1]], [[1, 2]], [[0, 2]])
    phases = tuple(st.Phase.from_groups(n, groups) for groups in groups_of)
    overlap, steps_per_round = "overlap" in kind, (1, 2, 1) if kind == "steps_per_round" else 1
    transport = st.Transport(codec=st.Codec.INT8, block=32) if coded else st.Transport()
    return Schedule(
        kind,
        Cluster.regular(1, n),
        st.StaticGroups(
            phases=st.GroupPhases(phases),
            sync=st.DelayedAveraging() if overlap else st.Synchronous(),
            steps_per_round=steps_per_round,
            transport=transport,
        ),
    )


def work():
    request = json.loads(os.environ["REQUEST"])
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(rank)
    np.random.seed(rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
    )
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if request.get("adam"):
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(inner, T_max=40)
    optimizer = DistributedOptimizer(inner, model, schedule(request["kind"], n), timeout=60)
    resumed = load_checkpoint(optimizer, request["directory"]) if request["resume"] else None
    if resumed is not None:
        scheduler.load_state_dict(resumed.extra["scheduler"])
    steps_per_round = optimizer.schedule.steps_per_round_of(rank)
    for step in range(optimizer.steps, request["rounds"] * steps_per_round):
        if rank == request.get("victim") and step == request["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(8, 4) + torch.from_numpy(np.random.normal(size=(8, 4))).float()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if (step + 1) % (3 * steps_per_round) == 0 and request["save"]:
            save_checkpoint(optimizer, request["directory"], extra={"scheduler": scheduler.state_dict()})
    weights = torch.cat(
        [p.detach().reshape(-1) for p in model.parameters()] + [b.reshape(-1).float() for b in model.buffers()]
    )
    optimizer.finish()
    started = resumed.steps if resumed else 0
    report(weights=weights.tolist(), begun=started)


def averagers():
    """Compare torch's hierarchical averager with ours on the same schedule, and DDP with our hooks with plain DDP."""
    import torch.distributed as dist
    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager

    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    nested = (st.Phase.from_groups(4, [[0, 1], [2, 3]]), st.Phase.from_groups(4, [range(4)]))
    plan = Schedule("nested", Cluster.regular(1, 4), st.StaticGroups(phases=st.GroupPhases(nested), steps_per_round=2))
    theirs = HierarchicalModelAverager(period_group_size_dict=OrderedDict([(2, 2), (4, 4)]))
    theirs.step = 1  # it averages before counting; this moves its averages behind the second and fourth step
    ours = ScheduleAverager(plan)

    def train(wrap, average):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        wrapped, generator = wrap(model), torch.Generator().manual_seed(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        if average is None:
            optimizer = DistributedOptimizer(optimizer, model, plan, timeout=60)
        for _ in range(8):
            x = torch.randn(8, 4, generator=generator)
            optimizer.zero_grad()
            (wrapped(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            if average is not None:
                average(model.parameters())
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def add_hooks(schedule, **options):
        def wrap(model):
            ddp = torch.nn.parallel.DistributedDataParallel(model)
            ddp.register_comm_hook(ScheduleHookState(schedule, **options), schedule_hook)
            return ddp

        return wrap

    every = Schedule("every step", Cluster.regular(1, 4), st.AllReduce())
    results = {
        "hierarchical": train(lambda m: m, theirs.average_parameters),
        "averager": train(lambda m: m, ours.average_parameters),
        "optimizer": train(lambda m: m, None),
        "hook and averager": train(add_hooks(plan), ScheduleAverager(plan).average_parameters),
        "ddp": train(torch.nn.parallel.DistributedDataParallel, lambda _: None),
        "hook, every step": train(add_hooks(every), lambda _: None),
        "hook, warm-up": train(add_hooks(plan, all_reduce_steps=8), lambda _: None),
        "hook, groups": train(add_hooks(plan, gradients="group"), lambda _: None),
    }
    report(**{name: x.tolist() for name, x in results.items()})
    dist.destroy_process_group()


SCENARIOS = {"training": (3, work), "averagers": (4, averagers)}

if __name__ == "__main__":
    main(SCENARIOS)
