"""Facts about separately exchanged embedding tables: `one-owner`, `table-order` and `nic-bytes`.

`one-owner`: for each sharded table its number of owners H, and the least and the most rows that one of them has.
*Proof.* Row r lies in part r mod P and part p on the host at place p mod H of a list that names no worker twice: one
part, one place, one worker. The host at place h has the parts h, h + H, … below P, and part p has ⌊R/P⌋ rows, one more
if p < R mod P. Both numbers do not grow with h: so the first host has the most rows, the last one the least.

`table-order`: no worker waits for ever. *Proof.* Every worker does the same lookups, backward passes and steps in one
order, each of them the same list of operations of all workers or of those of each node, on communicators that nothing
else uses. Their places in the list are ticks as `deadlock-free` needs them; a worker that is alone on its node has no
operation there, and is missing in none. An operation is left out where data that all its members received say so.

`nic-bytes`: for each separate table the most bytes that leave a node through its NICs in one step with one lookup:
`lookup` and `gradients`, of float32 or in the table's codec. The maximum is reached when all workers look up all rows.
Not counted: the messages that state how many rows follow, and whether they fit their codec.

*Proof.* Let R_A rows of a table be on node A, and m_A be the number of workers there, or 1 if they combine their rows
first; M is the sum of all m. At most m_A(R − R_A) rows are requested from A, 4 bytes each, and of the rows of A others
request at most (M − m_A)R_A, each of 4c bytes for c columns, 2c in 16 bits, c + 4 in int8. The gradients of the
requested rows are sent back, each row with its number. The rows of a gathered table are sent around a ring of all
workers in the order of their ranks, in n − 1 messages as long as the longest contribution of a worker: all R rows; or,
if the workers of a node combine their rows first, the rows r that the worker at place r mod k of k collects, at most
R/k rounded up, k the smallest node. They leave node A as often as a worker of A has its successor on another node.

*Assumed of the program:* all workers make the same lookups in the same order (the runtime compares them before rows are
sent, and ends the run if they differ), and rows are placed and operations divided as described.
"""

from __future__ import annotations

from collections import Counter

from .refusal import Work
from .schedule import Numbers, Schedule, Table


def one_owner(schedule: Schedule, _: Work) -> Numbers | None:
    """Return for every sharded table [parameter, number of owners, least rows, most rows]; None without such tables."""
    rows = [(table, len(table.hosts)) for table in schedule.tables if table.way == "sharded"]
    listed = [[table.parameter, hosts, table.rows_of(hosts - 1), table.rows_of(0)] for table, hosts in rows]
    return {"tables": listed} if listed else None


def table_order(schedule: Schedule, _: Work) -> Numbers | None:
    """Fact `table-order`: return no numbers, {}, or None if no table is exchanged separately."""
    return {} if _apart(schedule) else None


def nic_bytes(schedule: Schedule, _: Work) -> Numbers | None:
    """Fact `nic-bytes`: return `tables`, for every separate table [parameter, lookup bytes, gradient bytes]."""
    listed = [[table.parameter, *_most_bytes(schedule, table)] for table in _apart(schedule)]
    return {"tables": listed} if listed else None


def _apart(schedule: Schedule) -> list[Table]:
    return [table for table in schedule.tables if table.way != "dense"]


def _aggregates(schedule: Schedule) -> bool:
    """Return whether workers of a node combine rows: the schedule asks for it, and some node has several workers."""
    return schedule.aggregates and 1 < max(schedule.node_sizes) < schedule.num_workers


def _most_bytes(schedule: Schedule, table: Table) -> tuple[int, int]:
    """Return the bytes (of a lookup, of its gradients) that leave the busiest node through its NICs."""
    row, rows, n = table.row_bytes, table.rows, schedule.num_workers
    if schedule.num_nodes == 1:
        return 0, 0
    aggregates = _aggregates(schedule)
    if table.way == "gather":
        longest = -(-rows // min(schedule.node_sizes)) if aggregates else rows
        around = (sum((worker + 1) % n not in node for worker in node) for node in map(frozenset, schedule.nodes))
        crossings = max(around, default=1)  # workers of one node with a successor elsewhere; equal nodes hold neighbors
        return 0, crossings * (n - 1) * longest * (row + 4)
    everyone = schedule.num_nodes if aggregates else n
    lookups, gradients = [], []
    for size, held in _nodes(schedule, table):
        asking = 1 if aggregates else size
        requested, given = asking * (rows - held), (everyone - asking) * held
        lookups.append(4 * requested + row * given)
        gradients.append((4 + row) * requested)
    return max(lookups), max(gradients)


def _nodes(schedule: Schedule, table: Table) -> list[tuple[int, int]]:
    """Return (workers, rows of the table) of each node, or of only those nodes with the most and the fewest rows.

    If all workers of equal nodes are hosts, no host has more rows than the previous one, and no node either.
    """
    size = schedule.node_size
    if not schedule.nodes and isinstance(table.hosts, range):
        ends = (0, schedule.num_nodes - 1)
        return [(size, sum(table.rows_of(size * node + local) for local in range(size))) for node in ends]
    held: Counter[int] = Counter()
    for place, node in enumerate(schedule.nodes_of(table.hosts)):
        held[node] += table.rows_of(place)
    if schedule.nodes:
        return [(len(workers), held[node]) for node, workers in enumerate(schedule.nodes)]
    return [(size, rows) for rows in held.values()] + [(size, 0)] * (len(held) < schedule.num_nodes)
