"""Mutations of plain JSON: of any number, text, key or list, half of them well-formed and near the truth.

The code knows no kinds of claims or schedules: a value is well-formed in a place if other documents have it there.
"""

from __future__ import annotations

import marshal
from collections import defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

ODD = (-1, 2**70, True, 1.5, None, "", "1/0", "1e99999", [], {}, "x" * 50)
"""Values that are valid nowhere."""
STEPS = (-5, -2, -1, 1, 2, 5)
FINE = (1, 2, 3, 7, 10**6, 2**50)
Place = tuple[Any, Any, str]
"""An object or list, a key or position in it, and the nearest key."""


def fresh(document: Any) -> Any:
    """Return a deep copy of plain JSON, in a tenth of the time of `copy.deepcopy`."""
    return marshal.loads(marshal.dumps(document))


class Donors:
    """The content of documents: values by their key, and the keys of objects by the object's own key."""

    def __init__(self, documents: Iterable[Any]) -> None:
        self.values: dict[str, list[Any]] = defaultdict(list)
        self.keys: dict[str, dict[str, None]] = defaultdict(dict)
        for document in documents:
            for where, key, name in places(document):
                item = name if isinstance(where, dict) else f"{name}[]"
                if where[key] not in self.values[item]:
                    self.values[item].append(where[key])
                if isinstance(where[key], dict):
                    self.keys[name].update(dict.fromkeys(where[key]))

    def value(self, draw: random.Random, item: str, default: Any = None) -> Any:
        return fresh(draw.choice(self.values[item])) if self.values.get(item) else default


def places(value: Any, name: str = "") -> Iterator[Place]:
    """Yield every member of every object and list, at any depth."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            own = key if isinstance(key, str) else name
            yield value, key, own
            yield from places(value[key], own)


def mutate(draw: random.Random, document: Any, donors: Donors, name: str = "") -> None:
    """Change one place of a document, an object that has this name in its parent."""
    found = list(places(document, name))
    if not found:
        return
    leaves = [place for place in found if not isinstance(place[0][place[1]], dict | list)]
    where, key, own = draw.choice(leaves if leaves and draw.random() < 0.6 else found)
    item = own if isinstance(where, dict) else f"{own}[]"
    kind = draw.randrange(10)
    if kind == 0:
        where[key] = fresh(draw.choice(ODD))
    elif kind == 1:
        _structure(draw, where, key)
    elif kind == 2 and isinstance(where, dict):
        objects = [(document, name), *((w[k], n) for w, k, n in found if isinstance(w[k], dict))]
        chosen, its_name = draw.choice(objects)
        if donors.keys.get(its_name):
            added = draw.choice(list(donors.keys[its_name]))
            chosen[added] = donors.value(draw, added)
    elif kind in (3, 4, 5):
        where[key] = donors.value(draw, item, where[key])
    elif kind == 6 and isinstance(where, list):
        _within(draw, where)
    else:
        where[key] = _neighbor(draw, where[key], donors, item)


def _structure(draw: random.Random, where: Any, key: Any) -> None:
    """Remove a member, repeat one, exchange two, or rename a key."""
    kind = draw.randrange(3)
    if kind == 0:
        del where[key]
    elif isinstance(where, dict):
        where[f"{key}_"] = where.pop(key)
    elif kind == 1:
        where.insert(draw.randrange(len(where) + 1), fresh(where[key]))
    else:
        other = draw.randrange(len(where))
        where[key], where[other] = where[other], where[key]


def _within(draw: random.Random, where: list[Any]) -> None:
    """Shuffle a list, or increase one of its numbers by the amount by which another one decreases."""
    numbers = [place for place, value in enumerate(where) if number_of(value) is not None]
    if len(numbers) < 2 or draw.random() < 0.5:
        draw.shuffle(where)
        return
    one, other = draw.sample(numbers, 2)
    change = Fraction(1, 10 ** draw.randrange(18)) if isinstance(where[one], str) else Fraction(1)
    for place, by in ((one, change), (other, -change)):
        changed = (number_of(where[place]) or Fraction(0)) + by
        where[place] = str(changed) if isinstance(where[place], str) else int(changed)


def number_of(value: Any) -> Fraction | None:
    """Return the value of an integer or a text with a fraction, None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    is_text = isinstance(value, str) and value.lstrip("-").replace("/", "", 1).isdigit() and not value.endswith("/0")
    try:
        return Fraction(value) if is_text else None
    except (ValueError, ZeroDivisionError):
        return None


def _neighbor(draw: random.Random, old: Any, donors: Donors, item: str) -> Any:
    """Return a well-formed value near the old one."""
    number = number_of(old)
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return max(0, old + draw.choice(STEPS))
    if number is None:
        return donors.value(draw, item, old)
    kind = draw.randrange(3)
    if kind == 0:
        return str(number + Fraction(draw.choice((-1, 1)), draw.choice(FINE)))
    if kind == 1:
        return str(number * Fraction(draw.randrange(10**6 - 9, 10**6 + 9), 10**6))
    return str(number * Fraction(draw.randrange(10**6), 10**6))
