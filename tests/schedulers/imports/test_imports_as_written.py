"""Imports take what the file says, as it stands; what they change or recognize they note. References are NumPy's."""

import json
from fractions import Fraction

import numpy as np
import pytest

from partreduce import import_schedule
from partreduce.errors import InputError, ScheduleError
from partreduce.schedulers.imports.exact import exact


def dense(round_):
    matrix = np.zeros((round_.num_workers,) * 2)
    matrix[round_.targets, round_.sources] = round_.edge_weights()
    return matrix + np.diag(1 - matrix.sum(axis=1))


def base_2_of_6(dtype=np.float32):
    """The figure of the Base-(k+1) paper for 6 workers and one partner: 4 + 2, then pairs with shares 2/3."""
    rounds = [
        [(0, 1, 1 / 2), (2, 3, 1 / 2), (4, 5, 1 / 2)],
        [(0, 2, 1 / 2), (1, 3, 1 / 2)],
        [(0, 4, 2 / 3), (2, 5, 2 / 3)],
        [(0, 1, 1 / 2), (2, 3, 1 / 2)],
        [(0, 2, 1 / 2), (1, 3, 1 / 2)],
    ]
    stack = np.zeros((len(rounds), 6, 6), dtype=dtype)
    for matrix, pairs in zip(stack, rounds, strict=True):
        np.fill_diagonal(matrix, 1)
        for a, b, share in pairs:
            matrix[a, b] = matrix[b, a] = share
            matrix[a, a] = matrix[b, b] = 1 - share
    return stack


def product(matrices):
    result = np.eye(len(matrices[0]))
    for matrix in matrices:
        result = matrix @ result
    return result


@pytest.mark.parametrize("form", ["npy", "json", "npy by name"])
def test_a_stack_of_matrices_is_taken_round_by_round(tmp_path, form):
    stack = base_2_of_6()
    path = tmp_path / ("w.json" if form == "json" else "w.npy")
    if form == "json":
        path.write_text(json.dumps({"n_nodes": 6, "w_list": stack.tolist()}))
    else:
        np.save(path, stack)
    schedule = import_schedule(path, format="npy" if form == "npy by name" else None)
    rounds = [dense(round_) for round_ in schedule.strategy.rounds]
    assert schedule.name == "w"
    assert len(rounds) == len(stack)
    assert max(np.abs(ours - theirs).max() for ours, theirs in zip(rounds, stack, strict=True)) < 1e-7
    # The 32-bit matrices agree only up to their rounding; the fractions that they stand for do so exactly.
    assert np.abs(product(stack.astype(np.float64)) - 1 / 6).max() > 1e-9
    assert np.abs(product(rounds) - 1 / 6).max() < 1e-15
    assert {w for round_ in schedule.strategy.rounds for w in round_.weights} == {Fraction(1, 2), Fraction(2, 3)}


@pytest.mark.parametrize("seed", range(5))
def test_any_stack_of_doubly_stochastic_matrices_comes_through(tmp_path, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 9))
    stack = np.stack(
        [sum(c * np.eye(n)[rng.permutation(n)] for c in rng.dirichlet(np.ones(4))) for _ in range(4)]
    ).astype(rng.choice([np.float32, np.float64]))
    np.save(tmp_path / "w.npy", stack)
    notes = []
    rounds = [dense(r) for r in import_schedule(tmp_path / "w.npy", notes=notes).strategy.rounds]
    assert max(np.abs(a - b).max() for a, b in zip(rounds, stack, strict=True)) < 3e-7
    assert all(np.abs(matrix.sum(axis=0) - 1).max() < 1e-12 for matrix in rounds)
    assert any("sends as much as it hears" in note for note in notes)


def test_bad_stacks_are_refused_with_the_round(tmp_path):
    path = tmp_path / "w.npy"
    stack = base_2_of_6(np.float64)
    stack[3, 2] *= 2
    np.save(path, stack)
    with pytest.raises(ScheduleError, match="round 3: row 2: sums to 2"):
        import_schedule(path)
    np.save(path, np.ones((2, 3, 4)))
    with pytest.raises(InputError, match="is 3x4; a matrix over workers is square"):
        import_schedule(path)
    np.save(path, np.ones((2, 3, 3)))
    with pytest.raises(ScheduleError, match="a stack holds mixing weights"):
        import_schedule(path)
    other = tmp_path / "w.json"
    other.write_text('{"w_list": [[[1, 0], [0]]]}')
    with pytest.raises(InputError, match="w_list: is not a list of matrices of one size"):
        import_schedule(other)
    other.write_text('{"w_list": [[1, 0], [0, 1]]}')
    with pytest.raises(InputError, match="is 2x2; a stack is"):
        import_schedule(other)


@pytest.mark.parametrize("denominator", [3, 5, 6, 7, 12, 48, 100, 997, 1000])
def test_simple_fractions_survive_32_bits_and_their_shortest_decimals(denominator):
    for numerator in range(1, denominator):
        fraction = Fraction(numerator, denominator)
        single = np.float32(float(fraction))
        assert exact(float(single), "here") == fraction
        assert exact(str(single), "here") == fraction
        assert exact(float(fraction), "here") == fraction


def test_other_numbers_are_not_taken_for_fractions_of_32_bits():
    """64-bit numbers stay within 1e-8 of what they are; of random 32-bit ones few are near a simple fraction."""
    rng = np.random.default_rng(0)
    numbers = rng.random(2000)
    assert max(abs(exact(x, "here") - Fraction(x)) for x in numbers) < Fraction(1, 10**8)
    moved = [x for x in numbers.astype(np.float32).astype(float) if abs(exact(x, "here") - Fraction(x)) > 1e-8]
    assert len(moved) < 60


def test_what_is_recognized_and_repaired_is_noted(tmp_path):
    notes, path = [], tmp_path / "w.npy"
    np.save(path, base_2_of_6())
    import_schedule(path, notes=notes)
    assert any(note.startswith("8 weights are 32-bit numbers and were read as the fraction") for note in notes)
    assert any("such as 1/3 for 0.3333333432674408 (entry [0, 0])" in note for note in notes)
    notes.clear()
    np.save(path, base_2_of_6(np.float64))
    import_schedule(path, notes=notes)
    assert notes == []
    ring = np.roll(np.eye(5), 1, axis=1) / 2 + np.eye(5) / 2
    ring[0] = [0.5 + 4e-8, 0.5 - 4e-8, 0, 0, 0]
    np.save(path, ring)
    round_ = import_schedule(path, notes=notes).strategy.rounds[0]
    changes = np.abs(dense(round_) - ring)
    assert [note.split(",")[0] for note in notes] == [f"the weights of 1 edge changed by up to {changes.max():.2g}"]
