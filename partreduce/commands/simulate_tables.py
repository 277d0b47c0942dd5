"""What `partreduce simulate` says of tables that go their own way."""

from typing import Any

from rich.markup import escape

from partreduce.commands import options
from partreduce.console import console, seconds, size
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.tables import RowAccess, exchange_of, steady_seconds
from partreduce.topo.units import parse_share


def touched_of(entries: list[str], cluster: Cluster) -> dict[str, RowAccess]:
    """`words.weight:0.8%:2%:5%` for each table; what is left out is as if workers touched rows independently."""
    result: dict[str, RowAccess] = {}
    for entry in entries:
        name, *shares = entry.split(":")
        if not name or not 1 <= len(shares) <= 3:
            raise InputError(f"--set touched: {entry!r}: write TABLE:WORKER[:NODE[:ALL]], as in words:0.8%:2%:5%")
        if name in result:
            raise InputError(f"--set touched: {entry!r}: {name} is given twice")
        known = [options.quantity("--set touched", parse_share, share) for share in shares]
        alone = RowAccess.independent(known[0], cluster)
        node = known[1] if len(known) > 1 else alone.node
        result[name] = RowAccess(known[0], node, known[2] if len(known) > 2 else max(node, alone.everyone))
    return result


def table_facts(
    schedule: Schedule,
    hardware: Hardware,
    times: ComputeTimes,
    touched: dict[str, RowAccess] | None,
    *,
    algorithm: AllReduceAlgorithm | None,
    free: bool,
) -> dict[str, Any]:
    """What tables that go their own way add to a step, and the steady step with them where speeds are fixed."""
    exchange = exchange_of(schedule, hardware, touched)
    assert exchange is not None, "asked only where there are tables"
    routes = schedule.routes.tables
    facts: dict[str, Any] = {
        "tables": {
            "ways": {route.parameter: str(route.way) for route in routes},
            "codecs": {route.parameter: str(route.codec) for route in routes},
        }
    }
    if times.is_fixed:
        slowest = times.fixed(schedule.num_workers)
        facts["steady_seconds_per_step"] = steady_seconds(schedule, hardware, times, exchange, algorithm=algorithm)
        facts["critical_workers"] = [int(worker) for worker in (slowest == slowest.max()).nonzero()[0][:16]]
    if free:
        return facts
    sent = communication(schedule, hardware, algorithm=algorithm)
    facts["tables"] |= {"seconds_per_step": exchange.seconds, "nic_bytes_per_step": exchange.nic_bytes}
    return facts | {
        "communication_seconds_per_step": sent.per_step + exchange.seconds,
        "nic_bytes_per_step": sent.nic_bytes_per_step + exchange.nic_bytes,
    }


def print_tables(tables: dict[str, Any]) -> None:
    """The ways, and what the exchange takes where that is known."""
    codecs = {name: f" in {codec}" for name, codec in tables["codecs"].items() if codec != "none"}
    ways = ", ".join(f"{escape(name)} {way}{codecs.get(name, '')}" for name, way in tables["ways"].items())
    took = "takes no time here: give --model-bytes and --set touched"
    if "seconds_per_step" in tables:
        took = f"takes {seconds(tables['seconds_per_step'])} and {size(tables['nic_bytes_per_step'])} out of a node"
    console().print(f"tables: {ways}; their exchange in every step {took}")
