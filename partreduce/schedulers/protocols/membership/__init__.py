"""Define membership: which workers continue after a failure, or join, from which round, with which operation.

A *generation* is a set of members with what they run. In it a worker goes through its operations one after the other:
it enters one, has its sum (it is *prepared*), hears that all members have (the *confirm*), and commits. A worker that
hears of a loss destroys its groups and votes: where it stands, and in which operation it is prepared, if in any. From
then on it does nothing in the old generation. The *authority* waits for all members that have not failed, decides one
view, writes it down, and sends it. Survivors connect among themselves and continue.

Commit rule: what any survivor has committed, all have prepared, and each commits it from what it holds. What no worker
committed all drop. A view names the place from which all average again: the furthest at which a survivor stands then.
A worker before it goes there without averaging; one that is there repeats what was dropped, with the survivors.

A sum may be begun before its operation is entered, where that one is late. Such a sum is no part of the machine: it is
of one generation, is lost with it, and no worker commits it but by its operation, which is entered where it is due.

Who wants to *join* says so and waits outside. The authority then asks for votes as after a loss. Where all that are
furthest stand in an operation of their rounds, the view takes the joiner in: it has the state of one of them, the
*donor*, repeats that operation with all, and no worker averages before it has it. Who is lost before that takes nothing
along; a joiner without a state whose donor is lost gets another's, if any other stands there. Elsewhere (in a mean that
is no round's, at the end) the view is without it, and it asks again later.

Who has committed everything says so, and has *left* once the authority answers. One that was given up gets no such
answer but the view without it, so that no worker ends well with a mean that the others did again without it.

A worker that is given up may live: it is stopped, or behind a link that is cut. Nothing need end it before the others
continue. It commits at most the operation that it was in, since those who vote have destroyed its groups and add to no
other, and it can neither vote nor leave. Its own end is the affair of its lease, which lets it live no longer for
long without a word from the authority.

The view without members ends the run: no worker was lost and no worker joins, so that something else broke the
operation; or more are lost than may be at a time; or no worker is left who has a state.
"""
