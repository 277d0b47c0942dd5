"""`equal-replicas`, by the rules of rounds: after these rounds all workers hold the same parameters, bit for bit.

**Gradients** (`of` = "gradients"). Each round is one step of every worker, and what it averages over all of them are
gradients, synchronously or in a pipeline. *Theorem:* all workers hold the same parameters and the same optimizer state
after every step. For they start so; in each step all apply the same bits or none (in a pipeline the queues of all hold
the same averages in the same order), at the same learning rate; and an update that is a function of
parameters, state and gradient makes equal out of equal. So do the updates that drain a pipeline, or their absence.

**Parameters** (`of` = "parameters"). *Theorem:* after a round t of the period that is one plain average over all
workers (relaxation 1), synchronously, all hold the same parameters: the average, or what an outer step makes of it,
from an outer parameters and a momentum that are the same for all, since only such rounds change them. With a codec the
average is decoded from the same bytes by all, and added to a reference that is the same for all. In the other rounds,
and after steps, they may differ; so may optimizer state, always. Nothing is said of fragments in turn, which are never
equal all at once (`fragments` says when each is). The rounds of the prologue are such averages as well.

Why all take the same bits. A sum is made once for each part of the array and copied to all, in the ring (each part has
one end of its way around, from where it goes round finished) as in the hierarchical form; with the codec int8 a part is
summed by one member, rounded once, and its bytes go to all: the member that made the sum decodes its own bytes too, and
does not keep the sum that it had before rounding. In 16 bits the finished sum is a 16-bit number, which everybody
widens alike. So a codec is no exception.

*Assumed of the program:* the same parameters and state at the start (the runtime broadcasts them), and a deterministic
optimizer that is set up in the same way on all workers. Groups are disjoint (`conflict-free`). Nothing is said about
what is not averaged, such as buffers of the model.
"""

from __future__ import annotations

from ..refusal import Work
from ..schedule import Numbers, Schedule


def numbers(schedule: Schedule, _: Work) -> Numbers | None:
    """`of` what the averages are, `rounds` of the period after which all are equal."""
    rounds = [t for t, relaxation in schedule.averages_of_all.items() if relaxation == 1]
    if not rounds or schedule.is_late or schedule.tables.num_fragments > 1:
        return None
    return {"of": "gradients" if schedule.averages_gradients else "parameters", "rounds": rounds}
