"""Replicas of torchft as threads of one process, each with a Manager and a gloo group; prints results as JSON."""

import itertools
import json
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from fractions import Fraction

import torch
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import LocalSGD

from helpers.training import build_seeded, static_groups
from partreduce import Cluster, Schedule, TorchftSchedule
from partreduce import strategies as st
from partreduce.errors import InputError

LIMIT = timedelta(seconds=120)
REPLICAS, STEPS, STEPS_PER_ROUND = 3, 12, 4
DILOCO = st.OuterStep(lr=Fraction(7, 10), momentum=Fraction(9, 10), nesterov=True)


def schedule(**members):
    return Schedule("together", Cluster.regular(1, REPLICAS), st.AllReduce(steps_per_round=STEPS_PER_ROUND, **members))


def network(seed=0):
    return build_seeded(
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)), seed
    )


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches(replica):
    generator = torch.Generator().manual_seed(100 + replica)
    return [torch.randn(16, 4, generator=generator) for _ in range(STEPS)]


def step(model, optimizer, x):
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True).sin()).square().mean().backward()
    optimizer.step()


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


class Replica:
    def __init__(self, lighthouse, number, seed=0, **options):
        self.number, self.model = number, network(seed)
        self.optimizer = sgd(self.model)
        self._store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=LIMIT),
            load_state_dict=self._load,
            state_dict=lambda: {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()},
            min_replica_size=2,
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=self._store.port,
            lighthouse_addr=lighthouse.address(),
            replica_id=f"replica_{number}",
            timeout=LIMIT,
            quorum_timeout=LIMIT,
            connect_timeout=LIMIT,
            **{"use_async_quorum": False, **options},
        )

    def _load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def together(body, *, least=REPLICAS):
    """Return what `body(lighthouse, number)` returns for each replica."""
    lighthouse = LighthouseServer(
        bind="[::]:0", min_replicas=least, join_timeout_ms=60_000, heartbeat_timeout_ms=20_000
    )
    try:
        with ThreadPoolExecutor(REPLICAS) as threads:
            return list(threads.map(lambda number: body(lighthouse, number), range(REPLICAS)))
    finally:
        lighthouse.shutdown()


def train_replica(averaging, **options):
    """Return all replicas' weights after STEPS steps inside `averaging(manager, model, optimizer)`."""

    def body(lighthouse, number):
        replica = Replica(lighthouse, number, **options)
        try:
            with averaging(replica.manager, replica.model, replica.optimizer):
                for x in batches(number):
                    step(replica.model, replica.optimizer, x)
            return weights(replica.model).tolist()
        finally:
            replica.manager.shutdown(wait=False)

    return together(body)


def by_hand(outer, num_fragments):
    """Return the same weights from a plain loop, in which the fragments are the two layers."""
    models = [network() for _ in range(REPLICAS)]
    optimizers = [sgd(model) for model in models]
    layers = [[(model[0], model[2])[f::num_fragments] for model in models] for f in range(num_fragments)]
    cut = [[list(torch.nn.ModuleList(one).parameters()) for one in layer] for layer in layers]
    outer_params = [[p.detach().clone() for p in part[0]] for part in cut]
    momenta = [[torch.zeros_like(p) for p in part] for part in outer_params]
    for taken in range(1, STEPS + 1):
        for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            step(model, optimizer, batches(number)[taken - 1])
        for f in range(num_fragments):
            if (taken - 1) % STEPS_PER_ROUND + 1 != (f + 1) * STEPS_PER_ROUND // num_fragments:
                continue
            for i, (start, momentum) in enumerate(zip(outer_params[f], momenta[f], strict=True)):
                mine = [part[i] for part in cut[f]]
                movement = torch.stack([p.detach() for p in mine]).mean(0) - start
                momentum.mul_(float(outer.momentum)).add_(movement)
                start.add_(
                    movement + float(outer.momentum) * momentum if outer.nesterov else momentum, alpha=float(outer.lr)
                )
                for p in mine:
                    p.detach().copy_(start)
    return [weights(model).tolist() for model in models]


def lost_and_back():
    """End replica 2 after six steps; the others continue, and a new replica 2 joins with another model."""
    met, back = [threading.Event() for _ in range(2)], threading.Event()

    def body(lighthouse, number):
        replica = Replica(lighthouse, number)
        managed = TorchftSchedule(replica.manager, replica.model, replica.optimizer, schedule())
        with managed:
            for taken, x in enumerate(itertools.cycle(batches(number)), start=1):
                step(replica.model, replica.optimizer, x)
                if number == 2 and taken == 6:
                    break
                if taken == 8:
                    members_then = replica.manager.num_participants()
                    met[number].set()
                    assert back.wait(LIMIT.total_seconds())
                # A meeting of all who were there before waits for no other replica.
                if taken > 8 and taken % STEPS_PER_ROUND == 0 and replica.manager.num_participants() == REPLICAS:
                    break
        if number < 2:
            replica.manager.shutdown(wait=False)
            return {"then": members_then, "steps": managed.steps, "weights": weights(replica.model).tolist()}
        replica.manager.shutdown(wait=False)
        assert all(one.wait(LIMIT.total_seconds()) for one in met)
        again = Replica(lighthouse, number, seed=1)
        managed = TorchftSchedule(again.manager, again.model, again.optimizer, schedule())
        back.set()
        with managed:
            entered = managed.steps
        again.manager.shutdown(wait=False)
        return {"entered": entered, "steps": managed.steps, "weights": weights(again.model).tolist()}

    return together(body, least=2)


def check_errors():
    """Return the error messages for unsupported schedules, by case."""
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1)
    replica = Replica(lighthouse, 0)
    late = Replica(lighthouse, 1, use_async_quorum=True)
    cluster = Cluster.regular(1, REPLICAS)
    groups = static_groups(REPLICAS, [(0, 1)], steps_per_round=2)
    cases = {
        "groups": (replica, Schedule("groups", cluster, groups)),
        "gradients": (replica, Schedule("gradients", cluster, st.AllReduce())),
        "worker_steps": (replica, Schedule("worker_steps", cluster, st.AllReduce(steps_per_round=(1, 2, 2)))),
        "late": (replica, schedule(sync=st.DelayedAveraging())),
        "merged": (
            replica,
            schedule(sync=st.DelayedMerge(steps=1, alpha=Fraction(1, 2)), payload=st.Payload(fragments=2)),
        ),
        "asynchronous": (late, schedule()),
    }
    messages = {}
    for name, (one, its) in cases.items():
        try:
            TorchftSchedule(one.manager, one.model, one.optimizer, its)
        except InputError as error:
            messages[name] = str(error)
    for one in (replica, late):
        one.manager.shutdown(wait=False)
    lighthouse.shutdown()
    return messages


def main():
    outer = {"payload": st.Payload(outer=DILOCO, fragments=2)}
    result = {
        "plain": train_replica(lambda m, model, opt: TorchftSchedule(m, model, opt, schedule())),
        # Theirs would begin with one model at the first meeting only, and drop what the others had trained.
        "theirs": train_replica(lambda m, model, opt: LocalSGD(m, model, opt, STEPS_PER_ROUND), init_sync=False),
        "plain by hand": by_hand(st.OuterStep(), 1),
        "outer": train_replica(lambda m, model, opt: TorchftSchedule(m, model, opt, schedule(**outer))),
        "outer by hand": by_hand(DILOCO, 2),
        "lost": lost_and_back(),
        "refused": check_errors(),
    }
    sys.stdout.write(f"\nRESULT {json.dumps(result)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        raise
