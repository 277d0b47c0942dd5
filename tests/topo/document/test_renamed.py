"""An older file is refused with what its keys and words are called now."""

import json
from copy import deepcopy

import pytest

from partreduce.errors import DocumentError
from partreduce.files import parse_schedule
from partreduce.topo.renamed import KEYS, VALUES

GROUP = {"group": [0, 1, 2, 3]}
PARAMS = {"lr": "1/2", "momentum": "1/2"}
RING = {"edges": [[0, 1], [1, 2], [2, 3], [3, 0], [1, 0], [2, 1], [3, 2], [0, 3]], "weights": "1/3"}
STRATEGIES = [
    {"kind": "static", "phases": [[{"group": [0, 1], "relaxation": "1/2"}, {"group": [2, 3]}]], "sync": {"delay": 1}},
    {"kind": "static", "node_radices": [2], "phases": [[{"local": [0, 1], "across": [], "relaxation": "1/2"}]]},
    {"kind": "static", "phases": [[GROUP]], "sync": "synchronous", "averaging": "step-normalized"},
    {"kind": "static", "phases": [[GROUP]], "payload": {"outer": PARAMS | {"outer_params": "per_worker"}}},
    {"kind": "static", "phases": [[GROUP]], "payload": {"outer": PARAMS | {"outer_params": "shared"}}},
    {"kind": "allreduce", "steps_per_round": 2, "transport": {"algorithm": "ring", "gradient_buckets": "single"}},
    {"kind": "allreduce", "transport": {"gradient_buckets": "per_layer"}},
    {"kind": "allreduce", "sync": {"partial": {"quorum": 2, "missed": "latest", "synchronize_every": 9}}},
    *(
        {"kind": "neighbor", "rounds": [RING], "sync": {"iteration_gap": {"max_ig": 2, "update_order": order}}}
        for order in ("adapt_then_combine", "dpsgd")
    ),
    *({"kind": "dynamic_groups", "slow_worker_policy": policy} for policy in ("pair_locally", "defer")),
]


def document(strategy):
    cluster = {"num_nodes": 2, "workers_per_node": 2}
    plan = {"failure_plan": {"rule": "keep_groups", "failures": 1}} if strategy == STRATEGIES[0] else {}
    return {
        "format": "partreduce.schedule",
        "version": 1,
        "name": "s",
        "cluster": cluster,
        "strategy": strategy,
        **plan,
    }


DOCUMENTS = [document(strategy) for strategy in STRATEGIES]


def places(value, *path):
    """Every object of a document, as the keys that lead to it."""
    if isinstance(value, dict):
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, *path, key)


def changed(raw, path, edit):
    """A copy in which one object is edited."""
    copied = deepcopy(raw)
    inner = copied
    for key in path:
        inner = inner[key]
    edit(inner)
    return json.dumps(copied).encode()


def refusals(applies, edit):
    """What the loader says of every document with one object of it, to which the edit applies, made old."""
    for raw in DOCUMENTS:
        for path in places(raw):
            inner = raw
            for key in path:
                inner = inner[key]
            if applies(inner):
                with pytest.raises(DocumentError) as caught:
                    parse_schedule(changed(raw, path, edit))
                yield caught.value.problem


@pytest.mark.parametrize("raw", DOCUMENTS)
def test_the_documents_are_of_today(raw):
    parse_schedule(json.dumps(raw).encode())


@pytest.mark.parametrize(("old", "new"), KEYS.items())
def test_an_old_key_is_answered_with_the_new_one(old, new):
    said = list(refusals(lambda inner: new in inner, lambda inner: inner.update({old: inner.pop(new)})))
    assert said
    assert set(said) == {f'"{old}" is called "{new}" now; rename it'}


@pytest.mark.parametrize(
    ("key", "old", "new"), [(key, *pair) for key, words in VALUES.items() for pair in words.items()]
)
def test_an_old_word_is_answered_with_the_new_one(key, old, new):
    said = list(refusals(lambda inner: inner.get(key) == new, lambda inner: inner.update({key: old})))
    assert said
    assert set(said) == {f'"{old}" is called "{new}" now; rename it'}


def test_an_old_key_is_unknown_where_its_new_name_may_not_stand():
    raw = document({"kind": "allreduce", "order": "serial"})
    with pytest.raises(DocumentError, match='strategy: has the unknown key "order"'):
        parse_schedule(json.dumps(raw).encode())
