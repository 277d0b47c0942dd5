"""Corruptions of certificates and schedules: half of them blind, half well-formed and aimed at the meaning."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from partreduce.verify import checker

if TYPE_CHECKING:
    import random


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401 - parsed JSON
    """The paths to all numbers and texts of a document."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, (*path, i))]
    return [path]


def at(value: Any, path: tuple[Any, ...]) -> Any:  # noqa: ANN401 - parsed JSON
    for key in path:
        value = value[key]
    return value


def blind(draw: random.Random, document: Any) -> None:  # noqa: ANN401 - parsed JSON
    """Change one place of a document in any way."""
    path = draw.choice(leaves(document))
    where, key, old = at(document, path[:-1]), path[-1], at(document, path)
    kind = draw.randrange(6)
    if kind == 0:
        where[key] = draw.choice([-1, 2**70, True, 1.5, None, "", "1/0", "1e99999", [], {}, "x" * 50])
    elif kind == 1 and isinstance(where, list):
        where.insert(draw.randrange(len(where) + 1), copy.deepcopy(old))
    elif kind == 2:
        del where[key]
    elif kind == 3 and isinstance(where, list) and len(where) > 1:
        other = draw.randrange(len(where))
        where[key], where[other] = where[other], where[key]
    elif kind == 4 and isinstance(where, dict):
        where[str(key) + "_"] = where.pop(key)
    else:
        aimed_leaf(draw, where, key)


def aimed_leaf(draw: random.Random, where: Any, key: Any) -> None:  # noqa: ANN401 - parsed JSON
    """A well-formed change of one number or text."""
    old = where[key]
    if isinstance(old, int):
        where[key] = max(0, old + draw.choice([-2, -1, 1, 2, 5]))
    elif isinstance(old, str) and old.lstrip("-").replace("/", "").isdigit():
        new = Fraction(old) + Fraction(draw.choice([-1, 1]), draw.choice([1, 2, 3, 7, 10**6, 2**50]))
        where[key] = str(new)
    else:
        where[key] = draw.choice([*checker.CLAIMS, "trees", "pivots"]).split("/")[0]


def aimed_entry(draw: random.Random, entry: dict[str, Any]) -> None:
    """A well-formed change of the meaning of one entry."""
    if "trees" in entry and any(entry["trees"]):
        tree = draw.choice([tree for tree in entry["trees"] if tree])
        edge = draw.randrange(len(tree))
        tree[edge] = draw.choice(
            [tree[draw.randrange(len(tree))], [draw.randrange(3), *sorted(draw.sample(range(6), 2))]]
        )
        return
    if "form" in entry and draw.random() < 0.7:
        aimed_limit(draw, entry)
        return
    if entry["claim"] == "survives" and entry["classes"] and draw.random() < 0.6:
        aimed_class(draw, entry["classes"])
        return
    if isinstance(entry.get("squared"), str) and draw.random() < 0.5:
        entry["squared"] = str(Fraction(entry["squared"]) * Fraction(draw.randrange(999_999), 10**6))
        return
    if "at_most" in entry and draw.random() < 0.5:
        part = Fraction(draw.randrange(10**6 - 9, 10**6 + 9) if draw.random() < 0.5 else draw.randrange(10**6), 10**6)
        entry["at_most"] = str(Fraction(entry["at_most"]) * part)
        return
    if "at_least" in entry and draw.random() < 0.5:
        entry["at_least"] = str(Fraction(entry["at_least"]) + Fraction(1, 10 ** draw.randrange(9)))
        return
    paths = [path for path in leaves(entry) if path[0] not in ("claim", "method")]
    if not paths:
        entry["method"] = draw.choice(["labels", "power", "graph", "trees"])
        return
    path = draw.choice(paths)
    where = at(entry, path[:-1])
    if isinstance(where, list) and len(where) > 1 and draw.random() < 0.4:
        draw.shuffle(where)
    else:
        aimed_leaf(draw, where, path[-1])


def aimed_class(draw: random.Random, classes: list[dict[str, Any]]) -> None:
    """A smaller bound, a class left out, one twice, or another failure in its place."""
    one, kind = draw.choice(classes), draw.randrange(5)
    if kind == 0:
        classes.remove(one)
    elif kind == 1:
        other = draw.choice(classes)
        other["failed"] = list(one["failed"])
    elif kind == 2:
        one["failed"] = sorted({*one["failed"][1:], draw.randrange(8)})
    else:
        one["squared"] = str(Fraction(one["squared"]) * Fraction(draw.randrange(999_999), 10**6))


def aimed_limit(draw: random.Random, entry: dict[str, Any]) -> None:
    """Weights that still sum to 1, a smaller error, a smaller rate, another form."""
    kind = draw.randrange(4)
    if kind == 0:
        one, other = draw.sample(range(len(entry["weights"])), 2)
        change = Fraction(1, 10 ** draw.randrange(1, 18))
        entry["weights"][one] = str(Fraction(entry["weights"][one]) + change)
        entry["weights"][other] = str(Fraction(entry["weights"][other]) - change)
        entry["error"] = str(draw.choice([Fraction(0), change / 2, change, Fraction(entry["error"])]))
    elif kind == 1:
        entry["rate"] = str(Fraction(entry["rate"]) * Fraction(draw.randrange(999_000, 10**6), 10**6))
    elif kind == 2:
        entry["error"] = str(Fraction(entry["error"]) * Fraction(draw.randrange(1000), 1000))
    else:
        row = draw.choice(entry["form"])
        row[draw.randrange(len(row))] *= draw.choice([-1, 0, 2, 3])


def aimed_payload(draw: random.Random, strategy: dict[str, Any]) -> None:
    """Another delay, codec, algorithm, steps_per_round or turns; it need not go together."""
    kind = draw.randrange(5)
    if kind == 0:
        members = {"width": draw.choice([2, 2, 3, 4]), "drain": draw.choice(["apply", "drop"])}
        members |= {"warm_up": draw.choice([0, 1, 50]), "total": draw.choice(["mean", "sum"])}
        strategy["sync"] = draw.choice(["synchronous", {"delay": 1}, {"pipeline": members}, {"pipeline": {}}])
    elif kind == 1:
        strategy["transport"] = {"codec": draw.choice(["none", "float16", "bfloat16", "int8", "int4"])}
        strategy["transport"]["algorithm"] = draw.choice(["ring", "hierarchical"])
    elif kind == 2:
        transport = strategy.setdefault("transport", {})
        changes = [("where", "across-nodes"), ("block", draw.randrange(1, 9))]
        name, value = draw.choice(
            [*changes, ("error_feedback", True), ("gradient_buckets", "per_layer"), ("codec", "int8")]
        )
        transport[name] = value
    elif kind == 3:
        strategy.setdefault("payload", {})["fragments"] = draw.choice([1, 2, 3, 5, [["a.*"], ["b", "c"]]])
        strategy["sync"] = {"merge": {"steps": draw.randrange(4), "alpha": draw.choice([0, "1/3", "9/10", 1])}}
    else:
        strategy["steps_per_round"] = draw.randrange(1, 9)


def aimed_gap(draw: random.Random, gap: dict[str, Any]) -> None:
    """Another setting for workers that keep a gap; it need not go together."""
    changes: list[tuple[str, Any]] = [("max_ig", draw.randrange(1, 5)), ("staleness", draw.randrange(3))]
    changes += [("backup", draw.randrange(3)), ("backup", [draw.randrange(2) for _ in range(5)])]
    changes += [("skip", {"limit": draw.randrange(2, 6)}), ("update_order", "dpsgd"), ("notify_ack", True)]
    changes += [("weights", draw.choice(["uniform", "iteration", "graph"])), ("skip", None), ("max_ig", None)]
    name, value = draw.choice(changes)
    gap[name] = value


def aimed_tables(draw: random.Random, payload: dict[str, Any]) -> None:
    """Another way, owner, size or order of tables; it need not go together."""
    tables = payload["tables"]
    table, kind = draw.choice(tables), draw.randrange(5)
    if kind == 0:
        draw.shuffle(tables)
    elif kind == 1:
        name = draw.choice(["local_aggregation", "average"])
        payload[name] = not payload.get(name, True)
    elif kind == 2 and len(tables) > 1:
        tables.remove(table)
    else:
        changes: list[tuple[str, Any]] = [("way", draw.choice(["sharded", "gather", "dense"]))]
        changes += [("hosts", draw.sample(range(5), draw.randrange(4))), ("partitions", draw.randrange(1, 9))]
        changes += [("partitions", None), ("rows", draw.randrange(1, 30)), ("columns", draw.randrange(1, 5))]
        changes += [("parameter", draw.choice(["words", "tags", "other"]))]
        changes += [("codec", draw.choice(["none", "float16", "bfloat16", "int8"]))]
        for name, value in draw.sample(changes, draw.randrange(1, 3)):
            table[name] = value


def aimed_quorum(draw: random.Random, quorum: dict[str, Any]) -> None:
    """Another setting for rounds that a quorum starts; it need not go together."""
    changes: list[tuple[str, Any]] = [("quorum", draw.choice([2, 3, 4, 5, "solo", "majority"]))]
    changes += [("staleness", draw.randrange(1, 6)), ("missed", "latest"), ("count", "call")]
    changes += [("synchronize_every", 3), ("seed", 1), ("grace", 7)]
    name, value = draw.choice(changes)
    quorum[name] = value


def aimed_axis(draw: random.Random, strategy: dict[str, Any]) -> bool:
    """Perhaps a change of a value besides the kind; whether there was one."""
    if isinstance(strategy.get("sync"), dict) and "iteration_gap" in strategy["sync"] and draw.random() < 0.5:
        aimed_gap(draw, strategy["sync"]["iteration_gap"])
    elif isinstance(strategy.get("sync"), dict) and "partial" in strategy["sync"] and draw.random() < 0.5:
        aimed_quorum(draw, strategy["sync"]["partial"])
    elif "tables" in strategy.get("payload", {}) and draw.random() < 0.6:
        aimed_tables(draw, strategy["payload"])
    elif draw.random() < (0.7 if "payload" in strategy else 0.2) and strategy["kind"] != "neighbor":
        aimed_payload(draw, strategy)
    else:
        return False
    return True


def aimed_failure_plan(draw: random.Random, plan: dict[str, Any]) -> None:
    """Another rule, or another number of failures."""
    if draw.random() < 0.5:
        plan["rule"] = draw.choice(["keep_groups", "reapply_rule", "all_reduce"])
    else:
        plan["failures"] = draw.randrange(1, 4)


def aimed_schedule(draw: random.Random, raw: dict[str, Any]) -> None:
    """A well-formed change of one phase of a schedule."""
    strategy = raw["strategy"]
    if "failure_plan" in raw and draw.random() < 0.5:
        aimed_failure_plan(draw, raw["failure_plan"])
        return
    if aimed_axis(draw, strategy):
        return
    if strategy["kind"] == "allreduce":
        raw["strategy"] = draw.choice(
            [
                {"kind": "allreduce", "steps_per_round": draw.randrange(1, 9)},
                {
                    "kind": "static",
                    "phases": [
                        [{"group": draw.sample(range(5), draw.randrange(2, 6))}] for _ in range(draw.randrange(1, 3))
                    ],
                },
            ]
        )
        return
    items = strategy.get("phases") or strategy["rounds"]
    phase = draw.choice(items)
    kind = draw.randrange(4)
    if kind == 0 and len(items) > 1:
        items.remove(phase)
    elif kind == 1 and isinstance(phase, list) and phase:
        draw.choice(phase)["relaxation"] = draw.choice([0, 2, 3, -1, "1/2", "5/4", "4000001/1000000", 1])
    elif kind == 2 and isinstance(phase, list) and len(phase):
        phase.remove(draw.choice(phase))
    elif isinstance(phase, dict):
        edge = draw.choice(phase["edges"]) if phase["edges"] else [0, 1]
        if draw.random() < 0.5:
            edge[draw.randrange(2)] = draw.randrange(5)
        else:
            phase["weights"] = draw.choice(["1/2", "1/4", 1, 0, "-1/5", "2/5"])
    elif phase:
        item = draw.choice(phase)
        key = draw.choice([key for key in ("group", "local", "across") if key in item])
        bound = 16 if key == "group" else 4 if key == "local" else 2
        listed = item[key]
        if listed and draw.random() < 0.5:
            listed[draw.randrange(len(listed))] = draw.randrange(bound)
        else:
            listed.append(draw.randrange(bound))
