"""What is stated of a schedule: by the checker of its document, and by the prover's tables."""

from helpers.readings import read
from partreduce.verify import checker
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.payload import TABLES, as_tables_only
from partreduce.verify.prove import RUNS


def facts_of(raw):
    """The numbers of every fact, by its name."""
    return {fact.name: fact.numbers for fact in checker.facts(read(raw))}


def claims_of_runs(schedule):
    """What is said of its runs, without what is said of averaging."""
    return _claims(RUNS, schedule)


def claims_of_tables(schedule):
    """What is said of the tables that go their own way."""
    return _claims(TABLES, as_tables_only(schedule)) if schedule.routes else {}


def _claims(statements, schedule):
    facts = ScheduleFacts(schedule)
    found = [statement.claim(facts) for statement in statements]
    return {claim.claim: claim for claim in found if claim is not None}
