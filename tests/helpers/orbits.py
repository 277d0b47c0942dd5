"""Compare the explorer's folded states with the orbits of all states, computed without the machine's own renaming."""

from itertools import permutations

from benchmarks.explore.explorer import Ended
from benchmarks.explore.search import Breadth
from benchmarks.explore.system import StoppedProcess
from partreduce.schedulers.protocols.hop import HopState


def search(machine, network, *, symmetry):
    search = Breadth(machine, network, properties=(), max_states=200_000, symmetry=symmetry, within=None)
    search.run()
    assert search.complete
    return search


def renamings(graph, labels):
    """Return every permutation of the workers that maps edges to edges and preserves labels, by trying all."""
    edges = set(graph.edges)
    return [
        p
        for p in permutations(range(graph.num_workers))
        if {(p[u], p[v]) for u, v in edges} == edges and all(labels[p[v]] == labels[v] for v in range(len(p)))
    ]


class Facts:
    """States as sets of numbered facts (what, workers that it names, value); a renaming changes only the workers."""

    def __init__(self, graph, group):
        self.graph, self.numbers, self.listed = graph, {}, []
        self.group, self.images = group, [[] for _ in group]

    def number(self, fact):
        if fact not in self.numbers:
            self.numbers[fact] = len(self.listed)
            self.listed.append(fact)
        return self.numbers[fact]

    def renamed(self, state, index):
        """Return a state under the renaming with this index."""
        images, p = self.images[index], self.group[index]
        while len(images) < len(self.listed):
            what, workers, value = self.listed[len(images)]
            images.append(self.number((what, tuple(p[w] for w in workers), value)))
        return frozenset([images[fact] for fact in state])

    def of(self, search):
        """Yield all states of a search as sets of facts."""
        system, known = search.system, {}
        width = system.size + len(system.channels)
        for state in search.states:
            facts = [self.number(("left", (), state[width:]))]
            for place, content in enumerate(state[:width]):
                if (place, content) not in known:
                    found = (
                        self.worker(place, system.locals.values[content])
                        if place < system.size
                        else self.channel(system, system.channels[place - system.size], content)
                    )
                    known[place, content] = tuple(map(self.number, found))
                facts += known[place, content]
            yield frozenset(facts)

    def channel(self, system, ends, content):
        messages = system.content(content)
        return [("on its way", ends, tuple(sorted(map(repr, messages))) if system.network.reorder else messages)]

    def worker(self, v, local):
        if isinstance(local, Ended | StoppedProcess):
            return [(type(local).__name__, (v,), None)]
        if not isinstance(local, HopState):
            waits = (v, local.waits_for) if local.waits_for >= 0 else (v,)
            return [("waits", waits, None), ("asked by", (v, *local.askers), None)]
        facts = [("step", (v,), (local.step, local.stage))]
        facts += [("queue", (v, u), bits) for u, bits in zip(self.graph.sources[v], local.updates, strict=True)]
        facts += [
            ("fresh", (v, u), new) for u, new in zip(self.graph.sources[v], local.fresh, strict=bool(local.fresh))
        ]
        for what, values in (("tokens", local.tokens), ("acked", local.acked)):
            facts += [(what, (v, u), value) for u, value in zip(self.graph.targets[v], values, strict=bool(values))]
        return facts


def fold_problem(machine, graph, labels, network):
    """Return what is wrong with a machine's folded states; None if they are one state of each orbit."""
    facts = Facts(graph, renamings(graph, labels))
    states, orbit_of, orbits = set(facts.of(search(machine, network, symmetry=False))), {}, 0
    for state in states:
        if state not in orbit_of:
            for index in range(len(facts.group)):
                image = facts.renamed(state, index)
                if image not in states:
                    return "a renamed state is none that can be reached"
                orbit_of[image] = orbits
            orbits += 1
    folded = [orbit_of.get(state) for state in facts.of(search(machine, network, symmetry=True))]
    if None in folded:
        return "a folded state is none that can be reached"
    if sorted(folded) != list(range(orbits)):
        return f"{len(states)} states have {orbits} orbits; folded they are {len(folded)}, of {len(set(folded))} orbits"
    return None
