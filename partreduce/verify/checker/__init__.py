"""The checker: confirms a certificate, trusting neither its author nor the prover.

    python -I verify/checker certificate.json schedule.json

It needs this folder, which may be copied and renamed, and Python 3.11; it imports nothing of the prover, which takes
the numbers of facts and the classes of failures from it, and computes with integers and fractions only. Read it in this
order; every theorem stands above the lines that rest on it. All suppose that groups are disjoint, which is seen first.
Every check computes groups, matrices and their classes from the schedule itself: what an entry holds besides, a
witness, may come from anywhere.

1. What is asked. `refusal.py`: the two ways to say no, and the budget of work. `strict_json.py`: reading files
   strictly. `schema.py`: the form of both files. `schedule.py`: what a schedule says, its hash, and what proofs suppose
   of its members together. `claims.py`: every claim and fact by its name. `program.py`: the command line.
2. Averages as matrices. `groups.py`: groups are disjoint, workers find their own, rows and columns sum to 1.
   `period.py`: a period as a matrix, and why a rule of any size is a few small ones. `linear_algebra.py`: a matrix is
   positive semidefinite. `consensus.py`: all come to one value, by what factor, and when to the mean exactly.
   `consensus_distance.py`: how far apart steps keep workers. `outer_steps.py`: outer parameters of each worker's own.
3. Failures. `survives.py`: which failures are equivalent, what survivors run, by what factor they come to agree, and
   how far a failure moves the mean.
4. Who waits for whom. `rounds.py`: after how many rounds all workers have met, no worker waits for ever, how old
   averages are, and what is equal. `events.py`: workers that keep a gap. `gaps.py`: how far apart they are.
   `quorum.py`: rounds that start when enough workers have come.
5. What is sent. `traffic.py`: arrays and bytes. `codec_error.py`: what rounding takes. `tables.py`: rows that go their
   own way, and who owns them.

From Python: `check(certificate, read_schedule(document))` yields the claims that hold, and raises Refusal at the first
entry that does not; `facts(read_schedule(document))` yields the rest.
"""

from __future__ import annotations

from .claims import CLAIMS, Fact, check, facts
from .program import main
from .refusal import Refusal
from .schedule import read_schedule

__all__ = ["CLAIMS", "Fact", "Refusal", "check", "facts", "main", "read_schedule"]
