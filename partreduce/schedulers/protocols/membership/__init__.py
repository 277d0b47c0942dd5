"""Membership: which workers continue after a failure, or join, from which round on and with which operation.

A *generation* is a set of members with their schedule. In it a worker goes through its operations (all-reduces) one
after another: it enters an operation, receives the sum (it is *prepared*), learns that all members have the sum (the
*confirm*), and commits. A worker that learns of a failure destroys its groups and votes: the vote names its place and
the operation in which it is prepared, if any. From then on it does nothing in the old generation. The *authority* waits
for the votes of all members that have not failed, decides one view, logs it, and sends it. Survivors connect with each
other and continue.

Commit rule: if any survivor has committed an operation, all have prepared it, and each commits it from its own copy of
the sum. An operation that no worker committed is dropped by all. A view names the place from which all average again:
the furthest that a survivor has reached. A worker before it advances to it without averaging; a worker that has reached
it repeats the dropped operation with the survivors.

The all-reduce of a late operation may be started before the operation is entered. It is not part of the machine:
it belongs to one generation, is lost with it, and is only committed by its operation, which is entered at its usual
place.

A worker that wants to *join* sends a request and waits outside. The authority then calls a vote as after a failure. If
all that are furthest are in an operation of their rounds, the view includes the joiner: it gets the state of one of
them, the *donor*, repeats that operation with all, and no worker averages before the joiner has the state. If the
donor fails first, the joiner gets the state of another worker at that place, if there is one. Otherwise (in an
operation outside the rounds, or at the end of the run) the view excludes the joiner, and it asks again later.

A worker that has committed everything reports so, and has *left* once the authority answers. An evicted worker gets,
instead of the answer, the view without it, so that no worker ends with a mean that the others repeated without it.

An evicted worker may be alive: stopped, or behind a broken link. The others continue without waiting for its end.
It commits at most the operation that it was in, since voters have destroyed its groups and add to no
other, and it can neither vote nor leave. Its lease ends it after a bounded time without a message from the authority.

A view without members ends the run. Its reason is that no worker failed and none joins, so that something else broke
the operation; or that more workers have failed than may at a time; or that no worker is left that has a state.
"""
