"""The checker: confirms a certificate, trusting neither its author nor the prover.

    python -I verify/checker certificate.json schedule.json

It needs only this folder, which may be copied and renamed, and Python 3.11. It computes with integers and fractions
only and imports nothing of the prover; the prover gets the numbers of facts and the classes of failures from it. Read
it in this order; every theorem stands above the lines that depend on it. All theorems suppose that groups are disjoint,
which is checked first. Every check computes groups, matrices and their classes from the schedule itself; the witness in
an entry may come from anywhere.

1. Files. `refusal.py`: the exceptions, and the budget of work. `strict_json.py`: reading files strictly. `schema.py`:
   the form of both files. `schedule.py`: a schedule, its hash, and the premises of the proofs about its members.
   `claims.py`: every claim and fact by its name. `program.py`: the command line.
2. Averages as matrices. `groups.py`: groups are disjoint, workers find their groups, rows and columns sum to 1.
   `period.py`: a period as a matrix, and as a few small ones for a rule of any size. `linear_algebra.py`: a matrix is
   positive semidefinite. `consensus.py`: consensus, its rate, and exact consensus. `consensus_distance.py`: its
   bound in the steady state. `outer_steps.py`: separate outer parameters of workers.
3. Failures. `survives.py`: equivalent failures, the survivors' schedule and its rate of consensus.
4. Waiting. `rounds.py`: the rounds until all workers have met, deadlocks, the age of averages, and equal replicas.
   `events.py`: the event graph of iteration gaps. `gaps.py`: their bounds. `quorum.py`: rounds that a quorum starts.
5. Traffic. `traffic.py`: arrays and bytes. `codec_error.py`: rounding errors. `tables.py`: separately exchanged tables
   and the owners of their rows.

From Python: `check(certificate, read_schedule(document))` yields the claims that hold, and raises Refusal at the first
entry that does not; `facts(read_schedule(document))` yields the facts.
"""

from __future__ import annotations

from .claims import CLAIMS, Fact, check, facts
from .program import main
from .refusal import Refusal
from .schedule import read_schedule

__all__ = ["CLAIMS", "Fact", "Refusal", "check", "facts", "main", "read_schedule"]
