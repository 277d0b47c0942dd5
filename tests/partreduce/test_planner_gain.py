"""The gain over the best plain alternative, within which error, and that the simpler of equals is recommended."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from partreduce import Data, Job, Objective, plan
from partreduce.planner.competitors import competitors
from partreduce.planner.front import baselines, front
from partreduce.planner.gain import beats, best_plain, gain, simplest_as_good, simplicity, unbeaten
from partreduce.planner.lateness import Lateness
from partreduce.planner.measuring import Label, measure
from partreduce.planner.recommend import gain_of, reasons, recommend
from partreduce.planner.shorter import shorter
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import RulePhases, Static
from partreduce.topo.strategies.axes import Form

if TYPE_CHECKING:
    from partreduce.types import Option

HARDWARE = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)
JOB = Job(cluster=replace(Cluster.parse("4x4"), hardware=HARDWARE), time_limit=2.0)


@pytest.fixture(scope="module")
def options() -> list[Option]:
    return competitors(JOB, until=0.0)


def named(options: list[Option], name: str) -> Option:
    return next(option for option in options if option.name == name)


def test_the_interval_holds_both_predictions_errors(options: list[Option]) -> None:
    figure_10, every_step = named(options, "prague-figure-10"), named(options, "allreduce")
    against = gain(figure_10, every_step, Data.SHUFFLED)
    assert against.ratio == pytest.approx(every_step.time / figure_10.time)
    error = figure_10.steps_ratio_error(Data.SHUFFLED)
    assert against.high / against.ratio == pytest.approx(1 + error), "gradients averaged in every step define 1"
    assert against.low * against.high == pytest.approx(against.ratio**2)
    twice = gain(figure_10, named(options, "allreduce(every=8) hierarchical"), Data.SHUFFLED)
    assert math.log(twice.high / twice.ratio) == pytest.approx(math.sqrt(2) * math.log(1 + error))
    sampled = gain(replace(figure_10, step_error=0.1), every_step, Data.SHUFFLED)
    assert sampled.high > against.high


def test_nothing_is_gained_over_itself(options: list[Option]) -> None:
    same = gain(options[0], options[0], Data.SHUFFLED)
    assert (same.ratio, same.low, same.high) == (1.0, 1.0, 1.0)
    assert not same.is_certain


def test_an_option_within_the_error_loses_to_all_reduce_and_one_beyond_it_wins(options: list[Option]) -> None:
    plain = best_plain(options)
    assert plain is not None
    known = [option for option in options if option.is_plain]

    def made(name: str, faster: float) -> Option:
        """The faster its steps, the more it disagrees, so that neither is better whatever consensus distance costs."""
        seconds, spread = plain.step_seconds / faster, replace(plain.consensus_distance, value=9.0 * faster)
        return replace(
            named(options, name), step_seconds=seconds, steps_ratio=plain.steps_ratio, consensus_distance=spread
        )

    near = made("pairs-pairs-all hierarchical", 1.1)
    assert simplest_as_good([*known, near], Data.SHUFFLED) is plain
    far = made("pairs-pairs-all hierarchical", 1.5)
    assert simplest_as_good([*known, far], Data.SHUFFLED) is far
    assert gain_of(far, [*known, far], JOB).is_certain
    # Between two that both beat it, and that cannot be told apart, fewer phases win, though they are slower.
    more = "pairs-pairs-all(pair_rounds=15) hierarchical"
    assert simplest_as_good([*known, far, made(more, 1.55)], Data.SHUFFLED) is far
    # One that cannot be told from the fastest, but from All-Reduce neither, is no reason to leave All-Reduce.
    only = made(more, 1.35)
    assert simplest_as_good([*known, near, only], Data.SHUFFLED) is only


def test_an_option_that_beats_all_reduce_in_every_cost_is_recommended_though_the_prediction_cannot_tell(
    options: list[Option],
) -> None:
    """On 4x4 node-digits every 3 steps, late, communicates, disagrees and drifts less than All-Reduce every 4."""
    plain, chosen = best_plain(options), recommend(options, JOB)
    assert plain is not None
    assert beats(chosen, plain)
    assert not beats(plain, chosen)
    assert not gain_of(chosen, options, JOB).is_certain
    assert "not distinguishable, but it is better in every cost" in " ".join(reasons(chosen, options, JOB))
    assert plain not in unbeaten([plain, chosen])
    equal = replace(chosen, communication=chosen.communication * (1 + 1e-12))
    assert unbeaten([equal, chosen]) == [equal, chosen], "rounding beats nobody"


def test_the_recommendation_is_never_beaten_in_everything(options: list[Option]) -> None:
    for objective in Objective:
        chosen = recommend(options, replace(JOB, objective=objective))
        rivals = [option for option in options if option.is_exact] if objective is Objective.EXACT else options
        assert not any(beats(option, chosen) for option in rivals), objective


def test_the_text_says_what_cannot_be_told_apart() -> None:
    asked = replace(JOB, cluster=replace(Cluster.parse("3,3,2"), hardware=HARDWARE), when=Lateness.LOCKSTEP)
    options = competitors(asked, until=0.0)
    chosen = recommend(options, asked)
    fastest = min(options, key=lambda option: option.time)
    said = " ".join(reasons(chosen, options, asked))
    assert chosen.is_plain
    assert fastest.time < chosen.time
    assert f"{fastest.name} is predicted to be" in said
    assert "not distinguishable, and the recommendation is simpler" in said
    other = named(options, "prague-figure-10")
    assert "as fast as the best plain alternative" in " ".join(reasons(other, options, asked))


def test_simple_is_all_reduce_then_few_phases_then_a_short_period(options: list[Option]) -> None:
    names = ["allreduce(every=4) hierarchical", "node-digits hierarchical", "pairs-pairs-all hierarchical"]
    ordered = [simplicity(named(options, name)) for name in [*names, "prague-figure-10"]]
    assert ordered == sorted(ordered)
    assert ordered[0][0] == 0


@pytest.mark.parametrize("cluster", ["2x1", "1x2", "4x4"])
def test_all_baselines_are_kept_beside_the_front_also_where_they_are_beaten(cluster: str) -> None:
    answer = plan(replace(JOB, cluster=replace(Cluster.parse(cluster), hardware=HARDWARE)))
    assert answer.recommendation.is_plain or cluster == "4x4"
    kept = {id(option) for option in answer.front}
    names = {option.name for option in answer.baselines}
    assert "allreduce" in names
    assert {option.name for option in answer.baselines if not option.late and option.pace != 1}
    assert {option.name for option in answer.baselines if option.late}
    if cluster == "4x4":
        assert "prague-figure-10" in names
        assert any(id(option) not in kept for option in answer.baselines), "Figure 10 is beaten in everything"


def test_baselines_are_the_best_of_their_kind(options: list[Option]) -> None:
    kept = baselines(options)
    plain = [option for option in options if option.is_plain]
    for kind in (
        [o for o in plain if o.pace == 1],
        [o for o in plain if not o.late],
        [o for o in plain if o.late],
        [o for o in plain if o.pace == 1 and not o.late and o.form is Form.RING],
    ):
        assert min(option.time for option in kind) in {option.time for option in kept}
    assert len({id(option) for option in kept}) == len(kept)
    assert len(front(options)) > len(kept)


def test_figures_that_are_asked_for_are_told_apart_up_to_rounding_only() -> None:
    asked = replace(JOB, objective=Objective.DRIFT)
    options = competitors(asked, until=0.0)
    chosen = recommend(options, asked)
    assert float(chosen.drift) == 0
    assert chosen.is_plain
    assert chosen.form is Form.HIERARCHICAL, "of equal drift the one that communicates less"


def test_a_period_that_holds_a_shorter_one_as_good_is_shortened() -> None:
    """Figure-10-like phases, written out over 21 rounds: six of them have the same figures."""
    inside, pairs, everybody = (Block((0, 1, 2, 3)),), (Block((0, 1, 2, 3), (0,)),), (Block((0, 1, 2, 3), (0, 1)),)
    six = (pairs, inside, everybody, inside, inside, everybody)
    asked = replace(JOB, objective=Objective.CONSENSUS_DISTANCE, form=Form.RING)
    schedules = [Schedule("s", JOB.cluster, Static(phases=RulePhases((2, 2), six * times))) for times in (1, 3)]
    once, thrice = (measure(one, asked, label=Label(name="s", status="feasible")) for one in schedules)
    part = shorter(thrice, asked)
    assert part is not None
    assert part.period <= 6
    assert part.communication <= once.communication * (1 + 1e-9)
    assert float(part.consensus_distance) <= float(once.consensus_distance) + 1e-9
    assert part.name == f"synthesised-{part.period}-phases-{1e3 * part.communication:.4g}ms"
    assert shorter(part, asked) is None
    assert shorter(replace(thrice, status="catalogue"), asked) is None
