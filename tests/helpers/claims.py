"""What is stated of a schedule: by the checker of its document, and by the prover's tables."""

import json

from helpers.readings import read
from partreduce.files import dump_schedule
from partreduce.verify import checker, prove
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.payload import TABLES, as_tables_only
from partreduce.verify.prove import RUNS


def confirm_claims(schedule, certificate=None):
    """The claims that the checker confirms, of the prover's certificate or of another."""
    certificate = prove(schedule).certificate if certificate is None else certificate
    document, entries = (json.loads(json.dumps(part)) for part in (dump_schedule(schedule), dict(certificate)))
    return list(checker.check(entries, checker.read_schedule(document)))


def facts_of(raw):
    """The numbers of every fact, by its name."""
    return {fact.name: fact.numbers for fact in checker.facts(read(raw))}


def claims_of_runs(schedule):
    """The claims about its runs, without those about averaging."""
    return _claims(RUNS, schedule)


def claims_of_tables(schedule):
    """The claims about tables with their own route."""
    return _claims(TABLES, as_tables_only(schedule)) if schedule.routes else {}


def _claims(statements, schedule):
    facts = ScheduleFacts(schedule)
    found = [statement.claim(facts) for statement in statements]
    return {claim.claim: claim for claim in found if claim is not None}
