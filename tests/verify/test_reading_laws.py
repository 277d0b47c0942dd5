"""Numbers that depend on the worker, and code that is read for all workers: both against the plain thing, everywhere.

The laws are tried at every value of the symbols. A function is read once for all workers and run by Python for each.
"""

from __future__ import annotations

import importlib.util
import re
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from partreduce.topo.phase import Group
from partreduce.topo.rule import Block, RuleView
from partreduce.verify import reading
from partreduce.verify.affine import Affine, GroupRead, Listed, Loop, Symbol, UnprovedError, is_plain, renamed, settled
from partreduce.verify.reading import Reader

X, Y, ROUND = Symbol("x", 3), Symbol("y", 4), Symbol("round", 50, orders=True)


def points(*symbols):
    """Every setting of some symbols."""
    for values in product(*(range(symbol.bound) for symbol in symbols)):
        yield dict(zip(symbols, values, strict=True))


def at(value, point):
    """What was read, at one setting of the symbols, as Python would return it."""
    if isinstance(value, Affine):
        return value.constant + sum(factor * point[symbol] for symbol, factor in value.terms)
    if isinstance(value, Listed):
        return spread(value.items, point)
    if isinstance(value, GroupRead):
        return ("group", at(value.members, point), value.relax)
    return tuple(at(item, point) for item in value) if type(value) is tuple else value


def spread(items, point):
    """A sequence with its loops written out."""
    result = []
    for item in items:
        if isinstance(item, Loop):
            for number in range(item.symbol.bound):
                result += spread(item.body, point | {item.symbol: number})
        else:
            result.append(at(item, point))
    return tuple(result)


def random_affine(chance):
    factors = [(symbol, chance.randint(-6, 12)) for symbol in (X, Y) if chance.random() < 0.7]
    return Affine(chance.randint(-5, 20), tuple((symbol, factor) for symbol, factor in factors if factor))


def test_sums_products_and_bounds_are_those_of_every_value():
    chance = Random(0)
    for _ in range(300):
        one, two, times = random_affine(chance), random_affine(chance), chance.randint(-3, 3)
        values = [at(one, point) for point in points(X, Y)]
        assert (one.least, one.most) == (min(values), max(values))
        total, number = one.plus(two, times), Affine(chance.randint(-3, 3))
        for point in points(X, Y):
            assert at(total, point) == at(one, point) + times * at(two, point)
            assert at(one.plus(two), point) == at(one, point) + at(two, point)
            for scaled in (one.times(number), number.times(one)):
                assert at(scaled, point) == at(one, point) * number.constant
        for result in (total, one.times(number), number.times(one), one.plus(one, -1)):
            assert all(factor for _, factor in result.terms), "no term that says nothing"
        if one.terms and two.terms:
            with pytest.raises(UnprovedError, match="not linear"):
                one.times(two)


def test_divisions_are_euclidean_for_every_value_or_stay_open():
    chance, shown = Random(1), 0
    for _ in range(2000):
        number, by = random_affine(chance), chance.randint(1, 12)
        try:
            quotient, remainder = number.divided(Affine(by))
        except UnprovedError:
            kept = [factor for _, factor in number.terms if factor % by]
            rest = Affine(number.constant % by, tuple(term for term in number.terms if term[1] % by))
            assert kept
            assert not all(0 <= at(rest, point) < by for point in points(X, Y)), "as long as it can be shown, it is"
            continue
        shown += 1
        for point in points(X, Y):
            assert divmod(at(number, point), by) == (at(quotient, point), at(remainder, point))
    assert 400 < shown < 1600
    for divisor in (Affine(0), Affine(-2), Affine(1, ((X, 1),))):
        with pytest.raises(UnprovedError, match="no positive number"):
            Affine(4).divided(divisor)


def test_the_truth_and_the_length_of_what_depends_on_the_worker_are_refused():
    for value in (Affine(0), Affine(1, ((X, 1),)), Listed((Loop(X, ()),))):
        with pytest.raises(UnprovedError):
            bool(value)
    with pytest.raises(UnprovedError):
        len(Listed(()))
    assert str(Affine(2, ((X, 3),))) == "3·x + 2"


def test_a_symbol_is_renamed_wherever_it_stands():
    own, z = Affine(1, ((X, 2), (Y, 5))), Symbol("z", 3)
    nested = (own, Listed((Loop(Y, (own, 4)),), is_tuple=True), Loop(Y, (own,)), "a", None)
    changed = renamed(nested, X, z)
    for point in points(X, Y):
        moved = {z: point[X], Y: point[Y]}
        assert at(changed[0], moved) == at(own, point)
        assert at(changed[1], moved) == at(nested[1], point)
        assert spread((changed[2],), moved) == spread((nested[2],), point)
    assert changed[1].is_tuple
    assert changed[3:] == ("a", None)
    with pytest.raises(UnprovedError, match="a loop over set"):
        renamed({1}, X, z)


def test_what_is_the_same_for_all_workers():
    assert all(map(is_plain, (1, True, "a", None, Fraction(1), (1, (2, "b")))))
    assert not any(map(is_plain, (1.0, [1], Affine(1), (1, Affine(2)), Listed(()), int)))
    assert settled([1, 2]) == (1, 2)
    assert isinstance(settled([1, Loop(X, ())]), Listed)


# Code that is read, in files of its own. `w` is 4·x + y, `four` a number that may not be looked at.

HEAD = "from math import prod\nfrom partreduce.topo.phase import Group\nfrom partreduce.topo.rule import Block\n\n"

INSIDE = """
def sums(w, four):
    "A docstring, which does nothing."
    pass
    return w + 3 - (2 * w - four) * 2 + -w

def digits(w, four):
    node, local = w // four, w % four
    again: int = node * four + local
    return again, node, local, w // 1, 7 // 2, 7 % 4

def plain_tests(w, four):
    found = ()
    for number in (0, 1, 2, 3):
        if number == 1 or (number > 2 and not number != 3):
            found = (found, number)
        found = (found, 1 < number <= 2, number >= 3 or number, number and 5, 0 < number < 3 < 2)
    return found, w

def membership_tests(w, four):
    return (
        2 in (1, 2), 2 not in (1, 2), 3 in (1, 2), 3 not in (1, 2), w is None, w is not None, None is None,
        4 if 1 < 0 else w, 1 != 2, 2 <= 2, 2 < 2, 2 > 2, 2 >= 2, not 1, not 0,
    )

def indices(w, four):
    both = [w, four, 7, w + 1]
    return both[0], both[-1], both[1:], both[:2], both[::2], both[3:0:-1]

def added_up(w, four):
    total = 0
    for number in (1, 2, 3):
        total += number * w
    total -= 1
    total *= 2
    return total

def comprehensions(w, four):
    return (
        [w * number + other for number in range(3) for other in range(2) if number != 1 if other < 5],
        tuple(w + number for number in range(2)), tuple([w, 2]),
        sum(w + number for number in range(3)), prod([2, 3, w]), sorted([3, 1, 2]), sum(()), prod(()),
        len([1, w]), sorted(number * number for number in (3, 1)), sum([w, 1]), list((w, 1)),
    )

def long_loops(w, four):
    return [w + 2 * number + other for number in range(70) for other in range(2)], range(64), range(0), range(-2)

def loops_in_loops(w, four):
    bases = [w + number * 100 for number in range(65)]
    return [base + other * 7000 for base in bases for other in range(66)]

def loops_over_hidden_numbers(w, four):
    return [w + number for number in range(four)]

def defaults(w, four, times=3, plus=1):
    return w * times + plus

def calls(w, four):
    return defaults(w, four), defaults(w, four, 5), defaults(w, four, plus=7, times=2), defaults(four=four, w=w)

def nothing(w, four):
    w = w + 1

def nothing_said(w, four):
    return

def unpacked(w, four):
    (one, (two, three)) = w, (four, 3)
    return three, two, one
"""

OUTSIDE = """
def truth(w, four):
    return 1 if w else 2

def truth_of_or(w, four):
    return w or 1

def truth_in_a_filter(w, four):
    return [number for number in range(3) if w]

def truth_of_not(w, four):
    return not w

def compared(w, four):
    return w < 100

def compared_with_a_hidden_number(w, four):
    return four == 4

def compared_for_membership(w, four):
    return w in (1, 2)

def compared_in_a_chain(w, four):
    return 0 < 1 < w

def divided_by_a_number_in_the_code(w, four):
    return w // 4

def remainder_by_a_number_in_the_code(w, four):
    return w % 4

def divided_by_too_little(w, four):
    return w // (four - 1)

def divided_by_zero(w, four):
    return w // (four - four)

def other_operators(w, four):
    return w**2

def bits(w, four):
    return w & 3

def floats(w, four):
    return w * 1.0

def texts(w, four):
    return "a" + "b"

def product_of_workers(w, four):
    return w * w

def sets(w, four):
    return {1, 2}

def dictionaries(w, four):
    return {1: w}[1]

def stars(w, four):
    return (*range(3), w)

def star_call(w, four):
    return defaults(*(w, four))

def double_star_call(w, four):
    return defaults(w, **{"four": 4})

def a_generator_kept(w, four):
    again = (number for number in range(3))
    return tuple(again)

def a_generator_for_another_function(w, four):
    return nothing((number for number in range(3)), four)

def index_by_the_worker(w, four):
    return (1, 2, 3)[w]

def index_by_a_hidden_number(w, four):
    return (1, 2, 3, 4, 5)[four]

def slice_by_the_worker(w, four):
    return (1, 2, 3)[:w]

def index_of_a_loop(w, four):
    return [number for number in range(100)][3]

def index_out_of_range(w, four):
    return (1, 2)[2]

def index_of_text(w, four):
    return "abc"[0]

def slice_of_step_zero(w, four):
    return (1, 2)[::0]

def length_of_a_loop(w, four):
    return len([number for number in range(100)])

def sum_of_a_loop(w, four):
    return sum([number for number in range(100)])

def sorted_by_the_worker(w, four):
    return sorted([w, 1])

def sorted_with_a_key(w, four):
    return sorted([1, 2], reverse=True)

def range_of_the_worker(w, four):
    return range(w)

def range_of_two(w, four):
    return range(1, 3)

def range_of_nothing(w, four):
    return range()

def for_over_a_loop(w, four):
    total = 0
    for number in range(100):
        total += number
    return total

def for_with_else(w, four):
    for number in (1, 2):
        w = w + number
    else:
        w = w + 1
    return w

def while_loop(w, four):
    while False:
        pass
    return w

def exceptions(w, four):
    try:
        return w
    finally:
        pass

def imports_something(w, four):
    import os

    return os

def local_function(w, four):
    return (lambda: 3)()

def state(w, four):
    global CALLS
    CALLS = 1
    return w

CALLS = 7
BLOCKS = Block((0, 1))

def value_of_the_module(w, four):
    return w + CALLS

def unknown_name(w, four):
    return w + missing

def added_to_nothing(w, four):
    number += 1
    return w

def attribute_of_a_number(w, four):
    return w.real

def attribute_of_a_plain_number(w, four):
    return (3).real

def attribute_of_a_value_of_the_module(w, four):
    return BLOCKS.local

def attribute_target(w, four):
    four.other = 1
    return w

def unequal_parts(w, four):
    one, two = (1, 2, 3)
    return w

def parts_of_a_loop(w, four):
    one, two = range(100)
    return w

def other_builtins(w, four):
    return abs(w)

def the_type(w, four):
    return isinstance(w, int)

def many_arguments(w, four):
    return defaults(1, 2, 3, 4, 5)

def few_arguments(w, four):
    return defaults(1)

def an_argument_twice(w, four):
    return defaults(w, four, w=3)

def other_keywords(w, four):
    return defaults(w, four, minus=3)

def keyword_only(w, *, four=4):
    return w

def with_keyword_only(w, four):
    return keyword_only(w)

def a_list_as_members(w, four):
    return Group([w + number for number in range(100)])

def fails_its_assertion(w, four):
    if 1 > 2:
        return w
    return nothing_said(w, four) + 1

def orders_of_text(w, four):
    return "a" < 3

def loop_over_the_worker(w, four):
    return [number for number in w]

def loop_over_none(w, four):
    return [number for number in None]

def for_over_none(w, four):
    for _ in None:
        pass

async def a_coroutine(w, four):
    return w

def any_number(*w):
    return w

def positional(w, four, /):
    return w

def defaults(w, four, times=3, plus=1):
    return w * times + plus

def nothing(w, four):
    w = w + 1
"""

HELPERS = {"keyword_only", "defaults", "nothing"}
READ = sorted(set(re.findall(r"^def (\w+)", INSIDE, re.MULTILINE)))
REFUSED = sorted(set(re.findall(r"^(?:async )?def (\w+)", OUTSIDE, re.MULTILINE)) - HELPERS)


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """Both texts as modules."""
    modules = []
    for name, text in (("inside", INSIDE), ("outside", OUTSIDE)):
        path = tmp_path_factory.mktemp("code") / f"{name}.py"
        path.write_text(HEAD + text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"partreduce_{name}", path)
        modules.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(modules[-1])
    return modules


def as_tuples(value):
    return tuple(map(as_tuples, value)) if isinstance(value, tuple | list | range) else value


@pytest.mark.parametrize("name", READ)
def test_code_that_is_read_returns_for_every_worker_what_python_returns(code, name):
    function, worker = getattr(code[0], name), Affine(0, ((X, 4), (Y, 1)))
    result = Reader().call(function, (worker, Affine(4)))
    for point in points(X, Y):
        expected = function(4 * point[X] + point[Y], 4)
        assert repr(at(result, point)) == repr(as_tuples(expected))


@pytest.mark.parametrize("name", REFUSED)
def test_code_outside_the_language_is_refused(code, name):
    worker = Affine(0, ((X, 4), (Y, 1)))
    with pytest.raises(UnprovedError) as refusal:
        Reader().call(getattr(code[1], name), (worker, Affine(4)))
    assert "None" not in str(refusal.value).replace("NoneType", "")
    assert str(refusal.value).count(" ") > 2


def test_a_closure_is_refused():
    def inside(w, four):
        return w + hidden

    hidden = 3
    with pytest.raises(UnprovedError, match="closure"):
        Reader().call(inside, (1, 2))


# What belongs to a schedule


def numbers_of(rule, block, w):
    if rule.phases[0][0].relax != 1 or block.makes_groups:
        return Group((rule.num_nodes * w, rule.radices[0] + rule.workers_per_node), relax=block.relax)
    return None


def hidden_is_compared(rule, block, w):
    return rule.num_nodes == 6


def hidden_radices_are_compared(rule, block, w):
    return rule.radices[1] == 3


def again(rule, block, w):
    other = RuleView(rule.radices, rule.phases, rule.workers_per_node)
    return Group((other.num_digits + w, 1)), Group(relax=block.relax, members=(1, 2)), Group((1, w), block.relax)


BLOCK = Block((0, 1), (0,), Fraction(1, 2))
RULE = RuleView((2, 3), ((BLOCK,),), 2)


def test_attributes_of_a_schedule_are_read_and_its_sizes_hidden():
    reader, worker = Reader(), Affine(0, ((X, 1),))
    found = reader.call(numbers_of, (RULE, BLOCK, worker))
    assert (found.relax, at(found.members, {X: 2})) == (Fraction(1, 2), (12, 4))
    assert reader.call(numbers_of, (RULE, Block((0,)), worker)) is not None
    plain = RuleView((2, 3), ((Block((0, 1)),),), 2)
    assert reader.call(numbers_of, (plain, Block((0,)), worker)) is None
    for function in (hidden_is_compared, hidden_radices_are_compared):
        with pytest.raises(UnprovedError, match="depends on the worker or the radices"):
            reader.call(function, (RULE, BLOCK, worker))
    one, two, three = reader.call(again, (RULE, BLOCK, worker))
    assert (at(one.members, {X: 1}), one.relax) == ((3, 1), 1)
    assert (two.members, two.relax, three.relax) == ((1, 2), Fraction(1, 2), Fraction(1, 2))


def before(round_, prologue):
    return "early" if round_ < prologue else "late"


def not_before(round_, prologue):
    return "late" if round_ >= prologue else "early"


def equal(round_, prologue):
    return round_ == prologue


def at_most(round_, prologue):
    return round_ <= prologue


def test_only_rounds_are_compared_and_only_where_their_bounds_decide():
    round_ = Affine(3, ((ROUND, 2),))  # from 3 to 101
    for function in (before, not_before):
        for prologue, answer in ((3, "late"), (2, "late"), (102, "early"), (200, "early")):
            assert Reader().call(function, (round_, prologue)) == answer
            assert Reader().call(function, (round_, Affine(prologue))) == answer
        for prologue in (4, 50, 101):
            with pytest.raises(UnprovedError, match="depends on the worker"):
                Reader().call(function, (round_, prologue))
        with pytest.raises(UnprovedError, match="depends on the worker"):
            Reader().call(function, (Affine(300, ((X, 1), (ROUND, 1))), 2))
        with pytest.raises(UnprovedError, match="depends on the worker"):
            Reader().call(function, (Affine(7), 2))
    for function in (equal, at_most):
        with pytest.raises(UnprovedError):
            Reader().call(function, (round_, 200))


def position(round_, period):
    return round_ % 4, round_ // 4


def test_rounds_may_be_divided_by_a_number_in_the_code():
    assert Reader().call(position, (Affine(3, ((ROUND, 4),)), 0))[0] == 3


def with_a_local_rank(w, four):
    return (10, 20, 30, 40)[w % four]


def test_the_local_rank_of_a_general_node_is_a_number():
    assert Reader().call(with_a_local_rank, (Affine(2, ((X, 4),)), Affine(4))) == 30


# How it is read


def same(value):
    return value


def twice(value):
    return same(value), same(value)


def repeats(value):
    for _ in range(40):
        value = same(value)
    return value


def forever(value):
    return forever(value + 1)


def test_equal_calls_are_read_once_and_types_are_told_apart(monkeypatch):
    reader = Reader()
    for value in (1, True, Fraction(1), "a", None, (1, 2), (True, 2), (), (1, None)):
        again = reader.call(same, (value,))
        assert again == value
        assert repr(again) == repr(value)
    steps = reader.steps
    assert reader.call(same, (1,)) == 1
    assert reader.steps == steps
    assert reader.call(same, (Affine(1, ((X, 1),)),)).terms == ((X, 1),)
    assert reader.steps == steps + 1
    known = reader.call(same, ([Affine(1)],))
    assert known[0] == Affine(1)
    reader = Reader()
    assert reader.call(repeats, (1,)) == 1
    monkeypatch.setattr(reading, "MAX_STEPS", reader.steps)
    assert Reader().call(repeats, (1,)) == 1
    monkeypatch.setattr(reading, "MAX_STEPS", reader.steps - 1)
    with pytest.raises(UnprovedError, match="steps to read"):
        Reader().call(repeats, (1,))
    with pytest.raises((RecursionError, UnprovedError)):
        Reader().call(forever, (1,))


def test_divisions_are_counted(code):
    reader = Reader()
    reader.call(code[0].digits, (Affine(0, ((X, 4), (Y, 1))), Affine(4)))
    assert reader.divisions == 5
