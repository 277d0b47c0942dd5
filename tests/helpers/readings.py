"""One schedule document, as loader, writer and checker read it, and a check that they agree."""

import json
import re
from copy import deepcopy
from dataclasses import replace

from partreduce import PartreduceError
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.schedule import dump_schedule, parse_schedule
from partreduce.verify import checker
from partreduce.verify.checker.schema import ONE_FORM

NOT_ASKED = (
    r"^name: ",  # 1 line of printable text; the checker prints no name
    r"transport\.(where|gradient_buckets|error_feedback|block|algorithm): is",  # goes with another setting
    r"payload\.fragments: has 1 entries|payload\.fragments\[\d\]: (is empty|has 'a', as)",  # what a program sees to
    r"sync\.partial\.(seed|staleness|synchronize_every): is",  # goes with another
    r"sync: strategy '\w+' has no merging|sync\.merge: has steps 0 and alpha 0, which is synchronous",
    r"sync\.pipeline\.width: is 1; a pipeline is 2 wide",  # nothing is late
    r"iteration_gap\.weights: is iteration; without staleness|skip\.limit: is",  # the weights are asked; never skips
    r"tables\[\d\](\.partitions|\.gradient)?: (is|way \w+ has no)",  # other ways have none of them
    r"payload\.(average|average_dense|local_aggregation): is false",
    r"outer\.(outer_params: is per_worker; plain|nesterov: is true)",  # it is the same without
    r"failure_plan: expected at most|failure_plan\.rule: expected groups that share no worker",  # conflict-free asks it
)
"""Patterns of the loader's errors for documents that the checker accepts, because no proof depends on them."""


def document(strategy, num_nodes=2, workers_per_node=2):
    cluster = {"num_nodes": num_nodes, "workers_per_node": workers_per_node}
    return {"format": "partreduce.schedule", "version": 1, "name": "s", "cluster": cluster, "strategy": strategy}


def with_change(raw, path, *value):
    """Return a copy of a document with the value at a path replaced, or removed if no value is given."""
    copied = inner = deepcopy(raw)
    *parents, last = path
    for key in parents:
        inner = inner[key]
    if value:
        (inner[last],) = value
    else:
        del inner[last]
    return copied


def written(raw):
    """Return a document in the canonical form that partreduce writes."""
    return dump_schedule(parse_schedule(json.dumps(raw)))


def in_order(schedule):
    """Return the schedule that is read back from its file, in which members without an order are sorted."""
    strategy = schedule.strategy
    changed = {}
    if isinstance(steps := strategy.steps_per_round, tuple) and len(set(steps)) == 1:
        changed["steps_per_round"] = steps[0]
    if schedule.rule() is not None and strategy.kind == "static":
        changed["phases"] = replace(strategy.phases, phases=schedule.rule().canonical.phases)
    if strategy.kind == "pairwise":
        edges = strategy.edges and tuple(sorted(tuple(sorted(edge)) for edge in strategy.edges))
        changed |= {"active": tuple(sorted(strategy.active)), "edges": edges}
    return replace(schedule, strategy=replace(strategy, **changed))


def read(raw):
    """Return the checker's schedule of a document, after it was written in canonical form."""
    return checker.read_schedule(written(raw))


def refusal(raw):
    """Return the checker's objection to a document as it is; None if it reads it."""
    try:
        checker.read_schedule(json.loads(json.dumps(raw)))
    except checker.Refusal as found:
        return found.sentence
    return None


def agree(raw):
    """Return whether a document can be read; assert that loader, writer and checker agree on it.

    The checker must read what the loader reads once it is written again, with the same hash, kind of average and lag,
    and the original only if it is canonical. It must reject what the loader rejects, except for rules that no proof
    needs.
    """
    text = json.dumps(raw)
    message, why = refusal(raw), ""
    try:
        schedule = parse_schedule(text)
    except PartreduceError as error:
        why = str(error)
    if why:
        assert message or any(re.search(words, why) for words in NOT_ASKED), (text, why)
        return False
    again, strategy = dump_schedule(schedule), schedule.strategy
    found = checker.read_schedule(again)
    assert found.sha256 == schedule_sha256(schedule), text
    if not found.quorum:
        assert (found.averages_gradients, found.lag) == (strategy.averages_gradients, strategy.sync.lag), text
    is_canonical = json.dumps(unroll(raw), sort_keys=True) == json.dumps(unroll(again), sort_keys=True)
    assert (message is None) == is_canonical, (text, message)
    assert message is None or ONE_FORM in message, (text, message)
    if is_canonical:
        assert checker.read_schedule(json.loads(text)).sha256 == schedule_sha256(schedule)
    return True


def unroll(raw):
    """Return a document without its certificate, and with repeated phases written out."""
    strategy = raw["strategy"]
    if "phases" in strategy:
        entries = ((one["phase"], one["repeat"]) if isinstance(one, dict) else (one, 1) for one in strategy["phases"])
        strategy = strategy | {"phases": [phase for phase, count in entries for _ in range(count)]}
    return {name: part for name, part in raw.items() if name != "certificate"} | {"strategy": strategy}
