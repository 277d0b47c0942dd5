# ruff: noqa: ANN401 - parsed JSON is Any until it is checked
"""Check a certificate of iteration gaps and queue capacities: `python -I checker_gaps.py certificate.json`.

Needs nothing but Python 3.11 and checker_documents.py beside it; shares no code with the prover. Prints `proved` for
every claim, or the first entry that is wrong: place, value and what was expected. Exit status: 0 every claim holds, 1
one is refuted, 65 the file cannot be read. Why these checks suffice stands in docs/certificates.md.
"""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any


def load(name: str) -> Any:
    """A file beside this one, by its path: an isolated Python (-I) looks nowhere near a script."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None  # noqa: PT018 - one thought
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


documents = load("checker_documents")
hold, match, need, same = documents.hold, documents.match, documents.need, documents.same
LIMIT, FAR, NONE = 2**31, 2**53, -1
Entry = dict[str, Any]


class Events:
    """The event graph of the certificate's graph and setting, built from the definition in docs/gaps.md.

    `needs[x]` lists (tokens, spare, sources): event x happens at most as often as the (spare+1)-th smallest of the
    counts of its sources, plus the tokens. Event v is worker v's enter, n + v its send, 2n + v its reduce.
    """

    def __init__(self, raw: Any) -> None:
        """Read and check graph and setting."""
        match(raw["graph"], {"num_workers": (1, LIMIT), "edges": [[(0, LIMIT)]]}, "graph")
        shape = {"staleness": (0, LIMIT), "backup": [(0, LIMIT)], "notify_ack": {0, 1}, "max_ig?": (0, LIMIT)}
        setting = match(raw["setting"], shape, "setting")
        self.n, self.edges, backup = raw["graph"]["num_workers"], raw["graph"]["edges"], setting["backup"]
        need(len(backup) == self.n, "setting.backup", f"needs a number for each of the {self.n} workers")
        good = all(len(e) == 2 and e[0] != e[1] and max(e) < self.n for e in self.edges)
        need(good, "graph.edges", "edges are pairs of two different ranks of workers")
        need(all(a < b for a, b in pairwise(self.edges)), "graph.edges", "must be sorted, each edge once")
        self.max_ig, stale = setting.get("max_ig"), setting["staleness"]
        fits = not (setting["notify_ack"] and (stale or any(backup)))
        need(fits, "setting", "NOTIFY-ACK goes with neither staleness nor backup workers")
        self.build(stale, backup, setting["notify_ack"])

    def build(self, stale: int, backup: list[int], notify_ack: int) -> None:
        """Every arc of the event graph."""
        n = self.n
        updates: list[list[int]] = [[] for _ in range(n)]
        for u, v in self.edges:
            updates[v].append(n + u)
        self.needs: list[list[tuple[int, int, list[int]]]] = [[(0, 0, [2 * n + v])] for v in range(n)]
        self.needs += [[(1, 0, [v])] for v in range(n)] + [[(0, 0, [n + v])] for v in range(n)]
        for v, spare in enumerate(backup):
            need(spare <= len(updates[v]), f"setting.backup[{v}]", f"worker {v} has {len(updates[v])} in-neighbours")
            if spare < len(updates[v]):
                self.needs[2 * n + v].append((stale, spare, updates[v]))
        for u, v in self.edges:
            if notify_ack:
                self.needs[n + u].append((1, 0, [2 * n + v]))
            if self.max_ig is not None:
                self.needs[u].append((self.max_ig, 0, [v]))

    def name(self, event: int) -> str:
        """As people say it: `enter 3`."""
        kind, worker = divmod(event, self.n)
        return f"{('enter', 'send', 'reduce')[kind]} {worker}"

    def distances(self, start: int, known: Mapping[int, int], place: str) -> None:
        """Every known distance from a worker's enter is the largest that its needs allow; unknown ones are infinite."""
        for event, value in known.items():
            lists = ((t, s, sorted(known.get(y, inf) for y in sources)) for t, s, sources in self.needs[event])
            expected = min(values[s] + t for t, s, values in lists) if event != start else 0
            shown = "no finite number" if expected == inf else int(expected)
            hold(value == expected, f"{place} ({self.name(event)})", value, shown)

    def dense(self, start: int, given: Any, place: str) -> list[int]:
        """Distances of all events, the infinite ones too; returns those of the enters."""
        match(given, [(NONE, FAR)], place)
        need(len(given) == 3 * self.n, place, f"needs {3 * self.n} numbers")
        known = {event: value for event, value in enumerate(given) if value != NONE}
        hold(start in known, f"{place} ({self.name(start)})", NONE, 0)
        self.distances(start, known, place)
        for event in (event for event, value in enumerate(given) if value == NONE):
            short = [1 for _, s, sources in self.needs[event] if sum(y in known for y in sources) > s]
            hold(not short, f"{place} ({self.name(event)})", NONE, "a finite number")
        return [int(value) for value in given[: self.n]]


def live(events: Events, entry: Entry, place: str, proved: list[str]) -> str:  # noqa: ARG001 - one signature for all
    """Every arc without a token goes to a later tick, so that every cycle carries one."""
    ticks = match(entry["ticks"], [(0, FAR)], f"{place}.ticks")
    need(len(ticks) == len(events.needs), f"{place}.ticks", f"needs {len(events.needs)} numbers")
    for event, needs in enumerate(events.needs):
        expected = 1 + max((ticks[y] for tokens, _, sources in needs if tokens == 0 for y in sources), default=-1)
        hold(ticks[event] == expected, f"{place}.ticks[{event}] ({events.name(event)})", ticks[event], expected)
    return "some event can always happen, and each that waits does"


def pair(events: Events, entry: Entry, place: str, proved: list[str]) -> str:
    """One pair of workers, by the distances from the one that stands still."""
    start, end = match(entry["from"], (0, events.n), f"{place}.from"), match(entry["to"], (0, events.n), f"{place}.to")
    found = events.dense(start, entry["distances"], f"{place}.distances")
    same(f"{place}.bound", match(entry["bound"], (NONE, FAR), f"{place}.bound"), found[end])
    return said(f"Step({end}) - Step({start})", found[end], place, proved)


def every_pair(events: Events, entry: Entry, place: str, proved: list[str]) -> str:
    """All pairs of workers, by the distances from every worker."""
    rows = match(entry["distances"], list, f"{place}.distances")
    need(len(rows) == events.n, f"{place}.distances", f"needs {events.n} lists")
    found = [events.dense(start, row, f"{place}.distances[{start}]") for start, row in enumerate(rows)]
    largest = NONE if any(NONE in row for row in found) else max(map(max, found))
    same(f"{place}.bound", match(entry["bound"], (NONE, FAR), f"{place}.bound"), largest)
    return said("the largest Step(i) - Step(j)", largest, place, proved)


def said(what: str, bound: int, place: str, proved: list[str]) -> str:
    """The statement that was proved; that a bound is attained, or that there is none, rests on liveness."""
    hold(bound != NONE or "live" in proved, f"{place}.bound", bound, "the claim live before one of no bound")
    return f"{what} has no bound" if bound == NONE else f"{what} <= {bound}" + ", attained" * ("live" in proved)


def queues(events: Events, entry: Entry, place: str, proved: list[str]) -> str:  # noqa: ARG001 - one signature for all
    """Both gaps over every edge, by the part of the distances from each worker that they rest on; the capacities."""
    support = match(entry["support"], [[[(0, FAR)]]], f"{place}.support")
    known: list[dict[int, int]] = []
    need(len(support) == events.n, f"{place}.support", f"needs {events.n} lists")
    for start, rows in enumerate(support):
        at = f"{place}.support[{start}]"
        good = all(len(row) == 2 and row[0] < 3 * events.n and row[0] != start for row in rows)
        need(good, at, "holds pairs of an event, not the one that it starts from, and a distance")
        need(all(a[0] < b[0] for a, b in pairwise(rows)), at, "must be sorted, each event once")
        known.append({start: 0, **dict(rows)})
        events.distances(start, known[start], at)
    bounds = [[known[v].get(u, NONE), known[u].get(v, NONE)] for u, v in events.edges]
    same(f"{place}.bounds", match(entry["bounds"], [[(NONE, FAR)]], f"{place}.bounds"), bounds)
    update = [NONE if ahead == NONE else ahead + 1 for ahead, _ in bounds]
    same(f"{place}.update", match(entry["update"], [(NONE, FAR)], f"{place}.update"), update)
    need(("token" in entry) == (events.max_ig is not None), place, "token goes with max_ig in the setting")
    if events.max_ig is not None:
        token = [NONE if back == NONE else back + events.max_ig for _, back in bounds]
        same(f"{place}.token", match(entry["token"], [(NONE, FAR)], f"{place}.token"), token)
    return f"every bound and capacity given; {sum(b.count(NONE) for b in bounds)} of {2 * len(bounds)} gaps have none"


CLAIMS: dict[str, tuple[Any, str]] = {
    "live": (live, "ticks"),
    "queues": (queues, "bounds support update token?"),
    "pair": (pair, "from to bound distances"),
    "every-pair": (every_pair, "bound distances"),
}


def check(raw: Any) -> Iterator[tuple[str, str]]:
    """The name of each claim once it holds, and what it says."""
    shape = {key: object for key in ("graph", "setting", "claims")}
    match(raw, {"format": {"preduce.gaps-certificate"}, "version": {1}, **shape}, "certificate")
    events = Events(raw)
    need(type(raw["claims"]) is list and raw["claims"], "claims", "must be a list of at least 1")
    proved: list[str] = []
    for i, entry in enumerate(raw["claims"]):
        match(entry, {"claim": str, **{key: object for key in entry if key != "claim"}}, f"claims[{i}]")
        name, place = entry["claim"], f"claims[{i}] ({entry['claim'][:40]})"
        need(name in CLAIMS and name not in proved, place, "is unknown or repeated")
        method, keys = CLAIMS[name]
        match(entry, {"claim": str, **{key: object for key in keys.split()}}, place)
        statement = method(events, entry, place, proved)
        proved.append(name)
        yield name, statement


def main(arguments: list[str]) -> int:
    """Run on one file; returns the exit status."""
    try:
        need(len(arguments) == 1, "usage", "python -I checker_gaps.py certificate.json")
        for name, statement in check(documents.read(arguments[0], plain=True)):
            print(f"{name}: proved: {statement}", flush=True)  # noqa: T201 - this is a program
        return 0
    except documents.Refusal as refusal:
        print(("unreadable: ", "refuted: ")[refusal.args[1] == 1] + refusal.args[0])  # noqa: T201
        return int(refusal.args[1])
    except Exception as error:  # noqa: BLE001 - whatever a stranger's file holds, the answer is one sentence
        print(f"unreadable: {type(error).__name__}: {error}"[:300])  # noqa: T201
        return 65


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
