"""Reading the certificate of a schedule: its claims in order, each with the check that decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .claims import (
    after_a_loss,
    apart,
    codec_error,
    conflict_free,
    consensus,
    consensus_distance,
    contraction,
    deadlock_free,
    drift,
    end,
    equal_replicas,
    exact_consensus,
    lag,
    limit,
    membership,
    memory,
    queues,
    quorum,
    quorum_groups,
    rounds,
    spectral_gap,
    staleness,
    stochastic,
    tables,
    without_backup,
)
from .refusal import confirm, confirm_equal, require
from .strict_json import as_choice, as_list, as_object, as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .schedule import Schedule

FORMAT = "partreduce.certificate"


class Claim(NamedTuple):
    """The check of one kind of claim, and the members that its entry must, or may, have.

    `of_events`: it speaks about workers that keep a gap, and about nothing else; `of_quorum`: likewise about rounds of
    all that a quorum starts, and `of_quorum_groups` about groups that one starts. `of_matrices`: it speaks about what
    the matrices of a period do, one after the other, at whatever times. `of_rounds`: it speaks about rounds in which
    all meet. `of_any`: it needs no matrix that is known before the job runs, as all others do.
    """

    check: Callable[[Schedule, dict[str, Any], str], None]
    members: tuple[str, ...]
    optional: tuple[str, ...] = ()
    of_events: bool = False
    of_rounds: bool = False
    of_quorum: bool = False
    of_quorum_groups: bool = False
    of_matrices: bool = False
    of_any: bool = False

    def fits(self, schedule: Schedule) -> bool:
        """Whether it can be claimed of a schedule at all."""
        if schedule.quorum is not None:
            return (self.of_matrices or self.of_quorum_groups) if schedule.phases else self.of_quorum
        if self.of_quorum or self.of_quorum_groups:
            return False
        if schedule.gap is None:
            return not self.of_events
        return not self.of_rounds and (self.of_events or self.of_any or schedule.has_matrices)


DRIFT_MEMBERS = ("at_most", "squared", "bits", "state")
GAP_MEMBERS = ("at_least", "less_than", "measure")

CLAIMS: dict[str, Claim] = {
    "conflict-free": Claim(conflict_free.check, ("phases",), of_matrices=True),
    "membership": Claim(membership.check, ("answers",), of_matrices=True),
    "doubly-stochastic": Claim(stochastic.check_doubly_stochastic, ("smallest_weight",), of_matrices=True),
    "unit-sums": Claim(stochastic.check_unit_sums, ("smallest_weight",), of_matrices=True),
    "consensus/trees": Claim(consensus.check_by_trees, ("trees",), of_matrices=True),
    "consensus/graph": Claim(consensus.check_by_graph, ("root", "tree"), of_any=True),
    "consensus/degrees": Claim(without_backup.check_by_degrees, (), of_events=True),
    "consensus/search": Claim(without_backup.check_by_search, (), of_events=True),
    "consensus/power": Claim(consensus.check_by_power, ("periods", "squared", "classes", "pivots"), of_matrices=True),
    "deadlock-free": Claim(deadlock_free.check, ("ticks", "height", "prologue"), of_rounds=True),
    "deadlock-free/events": Claim(apart.check_live, ("ticks",), of_events=True),
    "deadlock-free/quorum": Claim(quorum.check_live, ("needed",), of_quorum=True),
    "rounds-in-order": Claim(quorum.check_rounds, ("threads",), of_quorum=True),
    "quorum": Claim(quorum.check_contributors, ("at_least",), of_quorum=True),
    "conservation": Claim(quorum.check_conservation, ("buffers",), of_quorum=True),
    "staleness/quorum": Claim(quorum.check_staleness, ("rounds",), of_quorum=True),
    "equal-replicas/quorum": Claim(quorum.check_equal_replicas, ("of", "every"), of_quorum=True),
    "rounds-in-order/groups": Claim(quorum.check_rounds, ("threads",), of_quorum_groups=True),
    "deadlock-free/groups": Claim(quorum_groups.check_live, ("needed",), of_quorum_groups=True),
    "quorum/groups": Claim(quorum.check_contributors, ("at_least",), of_quorum_groups=True),
    "conservation/groups": Claim(quorum.check_conservation, ("buffers",), of_quorum_groups=True),
    "mean-preserved": Claim(quorum_groups.check_mean, ("shadows",), of_quorum_groups=True),
    "staleness/groups": Claim(quorum_groups.check_staleness, ("rounds",), of_quorum_groups=True),
    "end": Claim(end.check, ("steps", "behind")),
    "contraction/pivots": Claim(
        contraction.check_by_pivots, ("squared", "classes", "pivots", "operator"), of_matrices=True
    ),
    "contraction/factor": Claim(contraction.check_by_factor, ("squared", "operator"), of_matrices=True),
    "contraction/norms": Claim(
        contraction.check_by_norms, ("squared", "one", "infinity", "operator"), of_matrices=True
    ),
    "limit": Claim(limit.check, ("weights", "error", "rate", "form", "floor")),
    "consensus-distance": Claim(consensus_distance.check, ("at_most", "bits", "covariance")),
    "drift-worker": Claim(drift.check, DRIFT_MEMBERS),
    "drift-node": Claim(drift.check, DRIFT_MEMBERS),
    "exact-consensus/product": Claim(exact_consensus.check_by_product, ("classes",), of_matrices=True),
    "exact-consensus/labels": Claim(exact_consensus.check_by_labels, ("first", "radices", "labels"), of_matrices=True),
    "exact-consensus-probable": Claim(exact_consensus.check_probable, ("trials",), of_matrices=True),
    "rounds": Claim(rounds.check, ("group", "bound", "at_least", "prime")),
    "staleness": Claim(staleness.check, ("late", "steps", "reach", "age", "age_steps")),
    "lag": Claim(lag.check, ("lag", "warm_up", "idle", "in_flight", "left_out")),
    "equal-replicas": Claim(equal_replicas.check, ("of", "rounds")),
    "codec-error": Claim(codec_error.check, ("relative", "absolute", "roundings")),
    "queues": Claim(queues.check, ("gap", "capacities"), of_rounds=True),
    "queues/events": Claim(apart.check_queues, ("bounds", "support", "update"), ("token",), of_events=True),
    "gap": Claim(apart.check_gap, ("bound",), of_events=True),
    "gap-of-pairs": Claim(apart.check_pair, ("from", "to", "bound", "distances"), of_events=True),
    "skip": Claim(apart.check_skip, ("longest",), of_events=True),
    "staleness/events": Claim(apart.check_staleness, ("steps", "ahead"), of_events=True),
    "memory/events": Claim(apart.check_memory, ("places", "connections"), of_events=True),
    "consensus-after-a-loss/order": Claim(after_a_loss.check_by_order, ("order",)),
    "consensus-after-a-loss/roots": Claim(after_a_loss.check_by_roots, ("roots",)),
    "memory": Claim(memory.check, ("groups", "connections", "splits", "arrays"), of_rounds=True),
    "one-route": Claim(tables.check_one_route, ("ways",)),
    "one-owner": Claim(tables.check_one_owner, ("tables",)),
    "table-order": Claim(tables.check_order, ("lookup", "gradients", "step")),
    "nic-bytes": Claim(tables.check_nic_bytes, ("tables",)),
    "row-error": Claim(tables.check_row_error, ("rows", "gradients")),
    "spectral-gap-hop": Claim(spectral_gap.check, GAP_MEMBERS),
    "spectral-gap-slem": Claim(spectral_gap.check, GAP_MEMBERS),
    "spectral-gap-sigma": Claim(spectral_gap.check, GAP_MEMBERS),
}
"""Every claim by its name, or its name and method."""


def check(certificate: object, schedule: Schedule) -> Iterator[str]:
    """The name of each claim of a parsed certificate, once it is seen to hold for the schedule.

    The certificate must name the schedule's own hash. No claim stands twice, and for groups `conflict-free` comes
    first, because there is no mixing matrix to speak about without it.

    Raises:
        Refusal: the certificate is not what it must be, or an entry does not hold.
    """
    members = ("format", "version", "schedule_sha256", "num_workers", "period", "claims")
    document = as_object(certificate, "certificate", members)
    as_choice(document["format"], "certificate.format", (FORMAT,))
    as_choice(document["version"], "certificate.version", (1,))
    confirm_equal("schedule_sha256", document["schedule_sha256"], schedule.sha256)
    confirm_equal("num_workers", document["num_workers"], schedule.num_workers)
    confirm_equal("period", document["period"], schedule.period)
    entries = as_list(document["claims"], "claims")
    require(entries, "claims", "must be a list of at least 1")
    proved: set[str] = set()
    for number, entry in enumerate(entries):
        place = f"claims[{number}]"
        require(isinstance(entry, dict) and "claim" in entry, place, "must be an object with a claim")
        claim = as_text(entry["claim"], f"{place}.claim")
        name = claim if "method" not in entry else f"{claim}/{as_text(entry['method'], f'{place}.method')}"
        place = f"{place} ({name[:60]})"
        is_known = "/" not in claim and name in CLAIMS and claim not in proved
        require(is_known, place, "is unknown or repeated")
        has_ground = proved or not schedule.phases or name == "conflict-free"
        confirm(has_ground, place, name, "conflict-free, on which all else rests")
        fits = CLAIMS[name].fits(schedule)
        confirm(fits, place, name, f"a claim about {schedule.kept}")
        as_object(entry, place, ("claim", *CLAIMS[name].members), ("method", *CLAIMS[name].optional))
        CLAIMS[name].check(schedule, entry, place)
        proved.add(claim)
        yield claim
