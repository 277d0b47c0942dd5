"""The claims about a schedule, as the checker confirms them and as the prover lists them."""

import json

from helpers.readings import read
from partreduce.files import dump_schedule
from partreduce.verify import checker, prove
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.payload import TABLES, as_tables_only
from partreduce.verify.prove import RUNS


def confirm_claims(schedule, certificate=None):
    """Return the claims that the checker confirms in the prover's certificate, or in the given one."""
    certificate = prove(schedule).certificate if certificate is None else certificate
    document, entries = (json.loads(json.dumps(part)) for part in (dump_schedule(schedule), dict(certificate)))
    return list(checker.check(entries, checker.read_schedule(document)))


def facts_of(raw):
    """Return the numbers of every fact of a schedule document, by the fact's name."""
    return {fact.name: fact.numbers for fact in checker.facts(read(raw))}


def claims_of_runs(schedule):
    """Return the claims about runs (such as deadlocks and memory), without those about averaging."""
    return _claims(RUNS, schedule)


def claims_of_tables(schedule):
    """Return the claims about separately placed embedding tables."""
    return _claims(TABLES, as_tables_only(schedule)) if schedule.routes else {}


def _claims(statements, schedule):
    facts = ScheduleFacts(schedule)
    found = [statement.claim(facts) for statement in statements]
    return {claim.claim: claim for claim in found if claim is not None}
