"""Every kind with delayed averages, codecs and error feedback matches its reference, or is rejected in one line."""

import pytest

from helpers.conformance.cells import problems_of, run_reference, run_time
from helpers.conformance.idioms import IDIOMS
from helpers.conformance.kinds import KINDS, N
from helpers.conformance.variants import CHANGES, REFUSED, cells_to_run, change, schedule_of
from partreduce.errors import ScheduleError
from partreduce.runtime.elastic.support import elastic_blocker


@pytest.mark.parametrize(("variant", "kind"), list(cells_to_run()))
def test_variant_of_a_kind_matches_its_reference(ranks, variant, kind):
    """Values are float64, but float32 with a codec, where the last digit may differ."""
    cell = change(variant, kind)
    near = {} if variant == "delay" else {"rtol": 1e-5, "atol": 1e-6}
    for idiom in ("plain", "uneven data"):
        loop = IDIOMS[idiom].loop
        notes = [notes for notes, _ in run_time(ranks, loop, cell)]
        assert problems_of(cell, notes, run_reference(loop, cell), **near) == [""] * N


@pytest.mark.parametrize(("variant", "kind"), [(v, kind) for v in (*CHANGES, "failure") for kind in REFUSED[v]])
def test_unsupported_variant_is_rejected_in_one_line(variant, kind):
    with pytest.raises(ScheduleError) as refused:
        schedule_of(variant, kind)
    assert REFUSED[variant][kind] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_other_kinds_support_failures():
    blockers = {kind: elastic_blocker(KINDS[kind].schedule) for kind in KINDS if kind not in REFUSED["failure"]}
    assert not any(blockers.values()), blockers
