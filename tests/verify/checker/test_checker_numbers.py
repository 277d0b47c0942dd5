"""The checker's arithmetic: the smallest accepted bounds, which are never below the true value."""

import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.forgery.schedules import SCHEDULES
from helpers.edges import EDGES, HALF, check_entry, graph, groups, own, rule
from helpers.readings import read
from helpers.refusals import check_error
from partreduce.files import dump_schedule
from partreduce.verify import checker, prove
from partreduce.verify.checker import consensus_distance, linear_algebra, outer_steps, period, survives
from partreduce.verify.checker.claims import FACTS
from partreduce.verify.checker.consensus_distance import rounded_after_phase, with_places
from partreduce.verify.checker.refusal import MAX_WORK, Refusal, TooLarge, Work, confirm, confirm_equal, one_line
from partreduce.verify.checker.schedule import Average


def accepts(check, *arguments):
    try:
        check(*arguments)
    except Refusal:
        return False
    return True


def identity(n):
    return [[int(i == j) for j in range(n)] for i in range(n)]


def smallest_accepted(accepted, low, high):
    """The smallest integer in (low, high] that is accepted, given that all above it are."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if accepted(middle) else (middle, high)
    return high


# Rounded factors


@pytest.mark.parametrize(
    ("matrix", "holds"),
    [
        ([[4, 2], [2, 2]], True),  # nothing is left over
        ([[9, 10], [10, 10]], False),  # its determinant is −10, and only what is left over tells
        ([[4, 3], [3, 6]], False),  # row 0 has more off its diagonal than on it, though the quotient was rounded up
        ([[5, 3], [3, 5]], False),  # so has row 1
        ([[5, 3], [3, 6]], True),  # what the diagonals leave makes up for it
        ([[5, -2, -5], [-2, 4, 2], [-5, 2, 5]], False),  # what is left over along a row adds up
        ([[4, -5, 0], [-5, 5, 2], [0, 2, 5]], False),  # and down a column; a determinant below 0
        ([[1, 2], [2, 1]], False),
        ([[0]], False),
        ([[1]], True),
    ],
)
def test_semidefinite_check_counts_every_remainder_without_spare_bits(monkeypatch, matrix, holds):
    """Without spare bits and shift every remainder decides; with 60 bits none does."""
    monkeypatch.setattr(linear_algebra, "FACTOR_BITS", 0)
    monkeypatch.setattr(linear_algebra, "SHIFT_BITS", 1000)
    assert accepts(linear_algebra.confirm_semidefinite, matrix, "here", Work("here")) == holds


def test_indefinite_matrix_is_refused_with_its_place(monkeypatch):
    monkeypatch.setattr(linear_algebra, "FACTOR_BITS", 0)
    with pytest.raises(Refusal) as refused:
        linear_algebra.confirm_semidefinite([[9, 10], [10, 10]], "here", Work("here"))
    assert refused.value.sentence == (
        'here is "a matrix"; expected a positive semidefinite one: the matrix is indefinite, or nearly so'
    )


def test_semidefinite_check_accepts_margins_from_the_shift():
    """[[1, x], [x, 1]] · 2^50 is accepted for x up to about 1 − 2⁻⁴⁵."""
    size = 2**50
    off = smallest_accepted(
        lambda x: not accepts(linear_algebra.confirm_semidefinite, [[size, x], [x, size]], "here", Work("here")),
        0,
        size,
    )
    assert size - off == pytest.approx(2**5, abs=1)
    assert accepts(linear_algebra.confirm_semidefinite, [[2**300, 0], [0, 2**256]], "here", Work("here"))
    assert not accepts(linear_algebra.confirm_semidefinite, [[2**300, 0], [0, 2**255]], "here", Work("here"))


@pytest.mark.parametrize(
    ("rows", "squared", "holds"),
    [
        ([[0, 1], [3, 1]], 28, True),  # 1 is left on the diagonal
        ([[2, 2], [0, -2]], 29, False),  # nothing is
        ([[1, -1], [-1, 0]], 13, False),  # half of n·m is rounded up
        ([[-1, 4], [3, -1]], 48, False),  # a quotient is rounded to the nearest
        ([[2]], 13, False),  # with one bit more it would hold
    ],
)
def test_norm_check_with_few_bits(monkeypatch, rows, squared, holds):
    """With so few bits one unit decides; with 32 bits it never does."""
    monkeypatch.setattr(linear_algebra, "NORM_BITS", 0)
    assert accepts(linear_algebra.confirm_norm, Fraction(squared), rows, 1, "here", Work("here")) == holds


@pytest.mark.parametrize(("rows", "true", "over"), [
    ([[1]], 1, 932), ([[2]], 4, 3726), ([[1, 0], [0, 1]], 1, 932), ([[0, 3], [1, 0]], 9, 8380), (identity(4), 1, 1863),
    (identity(9), 1, 3726),
])  # fmt: skip
def test_smallest_accepted_norm_bounds(rows, true, over):
    """Pinned in units of 10⁻¹²: a smaller margin is not covered by the proof of the method."""

    def holds(units):
        return accepts(linear_algebra.confirm_norm, Fraction(units, 10**12), rows, 1, "here", Work("here"))

    assert smallest_accepted(holds, 0, 10**14) - true * 10**12 == over


def test_gram_is_exact():
    draw = random.Random("gram")
    for _ in range(60):
        n, size = draw.randrange(1, 6), draw.choice([1, 2, 127, 128, 255, 256, 10**9, 2**70])
        rows = [[draw.choice([draw.randint(-size, size), size, -size]) for _ in range(n)] for _ in range(n)]
        columns = list(zip(*rows, strict=True))
        assert linear_algebra.gram(rows) == [[sum(map(int.__mul__, a, b)) for b in columns] for a in columns]
    assert linear_algebra.gram([[0]]) == [[0]]


def test_pivots_have_the_signs_of_eigenvalues():
    draw = random.Random("pivots")
    for _ in range(60):
        n = draw.randrange(1, 6)
        half = [[draw.randint(-4, 4) for _ in range(n)] for _ in range(n)]
        matrix = [[Fraction(half[i][j] + half[j][i]) for j in range(n)] for i in range(n)]
        values = np.linalg.eigvalsh(np.array(matrix, dtype=float))
        if min(abs(values)) < 1e-9:
            continue
        try:
            found = linear_algebra.pivots([list(row) for row in matrix], "here", Work("here"))
        except Refusal:
            continue
        assert sum(pivot < 0 for pivot in found) == sum(values < 0)
        product = Fraction(1)
        for pivot in found:
            product *= pivot
        assert float(product) == pytest.approx(np.prod(values), rel=1e-6)


# Steady states: no certificate data yields a bound below the metric


def test_too_small_covariance_is_refused():
    for name in ("rule", "explicit", "graph"):
        schedule = SCHEDULES[name]
        raw = dump_schedule(schedule)
        entry = next(dict(e) for e in prove(schedule).certificate["claims"] if e["claim"] == "consensus-distance")
        smaller = [[number - number // 200 for number in listed] for listed in entry["covariance"]]
        assert "more than a period makes of it" in check_entry(raw, {**entry, "covariance": smaller, "at_most": "1000"})


@pytest.mark.parametrize(
    ("after", "before", "digits", "holds"),
    [
        ([[1]], [[1]], [0], False),
        ([[1]], [[2]], [0], True),
        ([[0, 0], [0, 0]], [[1, 1], [1, 1]], [0], False),  # as much off the diagonal as on it
        ([[0, 0], [0, 0]], [[2, 1], [1, 2]], [0], True),
        ([[9, 9], [9, 9]], [[2, 1], [1, 2]], [], True),  # the mean does not count
        ([[2, 0], [0, 2]], [[2, 0], [0, 2]], [], False),
    ],
)
def test_period_must_strictly_shrink_the_covariance(after, before, digits, holds):
    assert accepts(consensus_distance._confirm_smaller, after, before, digits, "here") == holds


def test_covariances_are_rounded_to_the_nearest_unit():
    pair = checker.read_schedule(groups(2, [([0, 1], "2/3")]))
    w = np.array([[2, 1], [1, 2]])  # times 3
    for a, b, c in ((1, 0, 0), (2, -1, 5), (-7, 3, 8), (100, 99, -98)):
        covariance = [[a, b], [b, c]]
        rounded = np.array(rounded_after_phase(pair, 0, [], covariance))
        assert np.abs(2 * (9 * rounded - w @ covariance @ w)).max() <= 9


# Outer steps


@pytest.mark.parametrize(("n", "lr", "momentum", "nesterov"), [
    (2, "1/8", 0, False), (2, "64", 0, False), (3, "34", 0, False), (3, "34", "99/100", False),
    (3, "34", "99/100", True), (2, "1/1000", "7/8", True), (5, "999/1000", "1/3", True),
])  # fmt: skip
def test_joint_period_integers_stay_within_the_bit_limit(monkeypatch, n, lr, momentum, nesterov):
    joint = read(own(n, [list(range(n))], lr=lr, momentum=momentum, nesterov=nesterov))
    growth, step = outer_steps._step(joint, 0, [])
    draw = random.Random(n)
    signs = [draw.choices((-1, 1), k=2 * n) for _ in range(200)]
    columns = [*([int(i == j) for i in range(2 * n)] for j in range(2 * n)), *signs]
    rows, factor = step(list(map(list, zip(*columns, strict=True))))
    longest = max(factor, *(abs(entry) for row in rows for entry in row)).bit_length()
    assert longest <= growth <= longest + 4
    monkeypatch.setattr(period, "MAX_ENTRY_BITS", 1 + growth + 1)
    outer_steps.joint_period(joint, [], Work("here"))
    monkeypatch.setattr(period, "MAX_MATRIX_BITS", (2 * n) ** 2 * (1 + growth))
    outer_steps.joint_period(joint, [], Work("here"))
    few_bits = {"MAX_MATRIX_BITS": (2 * n) ** 2 * (1 + growth) - 1, "MAX_ENTRY_BITS": 1 + growth}
    for name, bits in few_bits.items():
        with monkeypatch.context() as limited:
            limited.setattr(period, name, bits)
            with pytest.raises(Refusal) as refused:
                outer_steps.joint_period(joint, [], Work("here"))
        assert refused.value.sentence == "here: too large for this check; use another method"


# Work, refusals, places


@pytest.mark.parametrize("raw", [
    groups(64, [list(range(64))]), groups(3, [([0, 1], "1/1000")], [([1, 2], "999/1000")]),
    graph(3, [(0, 1, "1/1000"), (1, 2, 5000)], [(2, 0, "-1/3")]), rule([2], 2, [([0, 1], [0], "3/7")], [([0], [])]),
    graph(2, [(0, 1, "-3/4")]),
], ids=["all", "factors", "weights", "blocks", "negative"])  # fmt: skip
def test_phase_grows_integers_within_the_predicted_bits(raw):
    schedule = read(raw)
    rows = [[(-1) ** (i + j) * (2**20 - 1) for j in range(schedule.width)] for i in range(schedule.width)]
    for t in range(schedule.period):
        after, factor = period.after_phase(schedule, t, [], rows)
        longest = max(max(map(abs, row)) for row in after).bit_length()
        assert max(longest, factor.bit_length() + 20) <= 20 + period.growth_bits(schedule, t)


def test_work_is_counted_up_to_its_limit():
    work = Work("here", 10)
    work.spend(4)
    work.spend(6)
    check_error(TooLarge, "here: too large", work.spend, 1)
    assert Work("here").limit == MAX_WORK == 10**10


def test_counted_cost_of_every_check_is_pinned(monkeypatch):
    """The verdict "too large" must not depend on the machine, so the counted work is part of the interface."""
    spent = Counter()

    def spend(self, amount):
        assert self.place, "the place is printed"
        spent[name] += amount

    monkeypatch.setattr(Work, "spend", spend)
    for edge in EDGES:
        name = edge.file
        assert check_entry(*edge.true) is None
    for schedule in ("rule", "explicit", "graph", "gap-robust", "gap-searched"):
        read = checker.read_schedule(dump_schedule(SCHEDULES[schedule]))
        name = f"facts of {schedule}"
        for stated in FACTS[read.mode].values():
            stated(read, Work("here"))
    assert dict(spent) == COSTS


COSTS = {
    "groups.py": 43200, "consensus.py": 3257176, "linear_algebra.py": 1744, "consensus_distance.py": 45720,
    "period.py": 1026, "outer_steps.py": 228507111, "claims.py": 80, "strict_json.py": 684, "survives.py": 5807681,
    "facts of rule": 9600, "facts of explicit": 12200, "facts of graph": 3040, "facts of gap-robust": 7600,
    "facts of gap-searched": 15220,
}  # fmt: skip


def test_first_difference_of_two_lists_is_reported():
    confirm_equal("place", [1, [2, 3]], [1, [2, 3]])
    check_error(Refusal, r"place\[1\]\[0\] is 9; expected 2", confirm_equal, "place", [1, [9, 3]], [1, [2, 3]])
    check_error(Refusal, r"place is \[1\]; expected a list of 2: \[1, 2\]", confirm_equal, "place", [1], [1, 2])
    check_error(Refusal, r'place is "ab"; expected a list of 2: \["a", "c"\]', confirm_equal, "place", "ab", ["a", "c"])
    check_error(Refusal, r'place is \["a", "c"\]; expected "ab"', confirm_equal, "place", ["a", "c"], "ab")
    check_error(Refusal, f'place is 1; expected "{"x" * 159}[^x]', confirm_equal, "place", 1, "x" * 200)
    check_error(Refusal, f"place is 1; expected {'x' * 200}[^x]", confirm, False, "place", 1, "x" * 300)
    check_error(Refusal, '2192"; expected 1', confirm_equal, "place", "→", 1)
    assert one_line("a\nb→~ \x7f") == "a\\u000ab\\u2192~ \\u007f"
    assert (Refusal("s", 65).status, Refusal("s\n", 1).sentence) == (65, "s\\u000a")


def test_rule_with_uneven_steps_per_round_expands_to_groups():
    raw = {
        "kind": "static",
        "node_radices": [2, 2],
        "steps_per_round": [1, 2, 1, 2, 1, 2, 3, 2],
        "phases": [[{"local": [0], "across": [1]}, {"local": [1], "across": [0, 1], "relaxation": "1/2"}],
            [{"local": [0, 1], "across": []}]],
    }  # fmt: skip
    cluster = {"num_nodes": 4, "workers_per_node": 2}
    document = {"format": "partreduce.schedule", "version": 1, "name": "x", "cluster": cluster, "strategy": raw}
    spelled = read(document)
    seen = with_places(spelled, "here")
    assert (seen.form, seen.width) == ("groups", 8)
    listed = [[(list(members), str(relaxation)) for members, _, relaxation in phase] for phase in seen.phases]
    assert [sorted(phase) for phase in listed] == [
        [([0, 2], "1"), ([1, 3, 5, 7], "1/2"), ([4, 6], "1")],
        [([0, 1], "1"), ([2, 3], "1"), ([4, 5], "1"), ([6, 7], "1")],
    ]
    same = checker.read_schedule({**document, "strategy": {**raw, "steps_per_round": [1, 2] * 4}})
    assert with_places(same, "here") is same
    assert with_places(checker.read_schedule(dict(HALF)), "here").form == "groups"
    assert (
        with_places(checker.read_schedule(rule([2], 1, [([0], [0])], steps_per_round=[1, 2])), "here").form == "groups"
    )
    check_error(Refusal, "over 1024 rows", with_places, checker.read_schedule(groups(1025, [[0, 1]])), "here")


def added_bits(monkeypatch, module, compute, *arguments):
    """Return the growth bits per step that `module` passes to the product of a period."""
    listed = []

    def multiply(size, steps, work):
        steps = list(steps)
        listed.extend(bits for bits, _ in steps)
        return period.multiply(size, steps, work)

    monkeypatch.setattr(module, "multiply", multiply)
    compute(*arguments, Work("it"))
    return listed


def test_growth_bits_of_edges_depend_only_on_weights():
    """Both weights are 1/2, so the largest entry of 2·W is below 2·(1 + 2·(1/2 + 1/2))."""
    assert period.growth_bits(read(graph(2, [(0, 1, "1/2"), (1, 0, "1/2")])), 0) == (2 * 3).bit_length()


def test_growth_bits_of_outer_steps_cover_rate_and_momentum(monkeypatch):
    """k = 2, q = 3, r/s = 5/7: below k·q²·(3·s + 5·r)."""
    schedule = own(2, [[0, 1]], lr="5/7", momentum="1/3")
    assert added_bits(monkeypatch, outer_steps, outer_steps.joint_period, read(schedule), ()) == [
        (2 * 9 * (3 * 7 + 5 * 5)).bit_length()
    ]


def test_growth_bits_of_cells_cover_their_sizes(monkeypatch):
    """Cells of 1 and 3 workers: 4 in the denominator, where two cells of one worker would have 2."""
    cells = survives.Cells([1, 3], [[Average([0, 1], (), Fraction(1))]], [])
    assert added_bits(monkeypatch, survives, survives.off_mean, cells) == [(3 * 4).bit_length()]
