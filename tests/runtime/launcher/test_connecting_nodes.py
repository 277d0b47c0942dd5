"""Rendezvous of the launchers of several nodes: accepted and rejected connections, and the messages."""

import dataclasses
import json
import threading
import time
from pathlib import Path

import pytest

from helpers.two_nodes import free_port, wait_until
from partreduce import Cluster, Schedule, write_schedule
from partreduce.__main__ import main
from partreduce.errors import EvictedError, InputError, UnavailableError
from partreduce.runtime.launcher import follower as follower_module
from partreduce.runtime.launcher import nodes as nodes_module
from partreduce.runtime.launcher.follower import Follower
from partreduce.runtime.launcher.nodes import Connection, Endpoint, Nodes, derive_key, key_of, same_on_all
from partreduce.strategies import AllReduce

FACTS = {"nnodes": 2, "tolerate_failures": 0, "max_restarts": 0}


def follower(port, *, rank=1, num_workers=2, run_id="run", schedule="", **options):
    """A launcher of another node, of which only the connection is tested."""
    facts = same_on_all(schedule, **(FACTS | options))
    place = Endpoint("127.0.0.1", port)
    return Follower(place, rank, num_workers, facts, run_id, Path("x"), [], None, {}, may_restart=False)


def is_listening(port):
    """Whether a process listens at a port of loopback, found without connecting to it."""
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return any(f"0100007F:{port:04X} 00000000:0000 0A" in line for line in lines)


@pytest.fixture
def node_0(monkeypatch):
    """Start node 0, which waits for node 1; return its port and a list that gets the cluster or the raised error."""
    for module in (nodes_module, follower_module):
        monkeypatch.setattr(module, "START_SECONDS", 20.0)
    monkeypatch.setattr(nodes_module, "END_SECONDS", 0.3)
    port, found, threads = free_port(), [], []

    def serve(**options):
        def gather():
            place = Endpoint("127.0.0.1", port)
            settings = {"num_nodes": 2, "placement": None, "num_workers": None} | options
            try:
                with Nodes(place, same_on_all("", **FACTS), "run", **settings) as nodes:
                    found.append(nodes.gathered(2, 0))
            except Exception as error:  # noqa: BLE001 - for the test
                found.append(error)

        threads.append(threading.Thread(target=gather))
        threads[-1].start()
        wait_until(lambda: found or is_listening(port))
        return port, found

    yield serve
    for thread in threads:
        thread.join(60)


def test_ranks_follow_node_order_with_unequal_workers_per_node(node_0):
    port, found = node_0()
    connection = follower(port, num_workers=3)._connect("")
    assert connection.next()[:4] == ["prepare", 1, [[0, 1], [2, 3, 4]], 0]
    assert connection.next() == ["end", 0, ""]
    connection.close()
    wait_until(lambda: found, seconds=30)
    assert found[0].num_workers == 5


@pytest.mark.parametrize(
    ("differs", "message"),
    [
        ({"nnodes": 3}, "node 1: it has --nnodes 3, and node 0 has 2; give every node the same command"),
        ({"max_restarts": 2}, "node 1: it has --max-restarts 2, and node 0 has 0"),
        ({"tolerate_failures": 1}, "node 1: it has --tolerate-failures 1, and node 0 has 0"),
        ({"schedule": "other"}, "node 1: it has another --schedule than node 0"),
    ],
)
def test_different_commands_raise_one_line_errors_on_both_nodes(node_0, differs, message):
    port, found = node_0()
    with pytest.raises(InputError) as refused:
        follower(port, **differs)._connect("")
    assert message.removeprefix("node 1: ") in str(refused.value)
    wait_until(lambda: found, seconds=30)
    assert isinstance(found[0], InputError)
    assert str(found[0]).startswith(message)
    assert "\n" not in str(found[0]) + str(refused.value)


def test_wrong_run_id_or_secret_is_rejected_and_the_run_keeps_waiting(node_0, monkeypatch):
    port, found = node_0()
    with pytest.raises(InputError, match="its --rdzv-id or PARTREDUCE_RUN_SECRET is not that of node 0"):
        follower(port, run_id="other")._connect("")
    monkeypatch.setenv("PARTREDUCE_RUN_SECRET", "guessed")
    with pytest.raises(InputError, match="its --rdzv-id or PARTREDUCE_RUN_SECRET is not that of node 0"):
        follower(port)._connect("")
    monkeypatch.delenv("PARTREDUCE_RUN_SECRET")
    assert not found
    follower(port)._connect("").close()
    wait_until(lambda: found, seconds=30)
    assert isinstance(found[0], Cluster)


def test_duplicate_node_rank_is_rejected_and_the_first_node_stays(node_0):
    port, found = node_0(num_nodes=3)
    first = follower(port)._connect("")
    with pytest.raises(InputError, match="--node-rank 1 is taken by another launcher; give each node its own"):
        follower(port)._connect("")
    assert not found
    assert not first.problem
    second = follower(port, rank=2)._connect("")
    wait_until(lambda: found, seconds=30)
    assert found[0].num_nodes == 3
    for connection in (first, second):
        connection.close()


def test_reconnecting_node_waits_until_node_0_drops_its_old_connection(node_0):
    """After a connection was cut, either side may notice first."""
    port, found = node_0(num_nodes=3)
    first = follower(port)._connect("")
    again = []
    thread = threading.Thread(target=lambda: again.append(follower(port)._connect("the connection ended")))
    thread.start()
    thread.join(1.0)
    assert thread.is_alive(), "its rank is still taken"
    first.close()
    thread.join(60)
    assert again
    follower(port, rank=2)._connect("").close()
    wait_until(lambda: found, seconds=30)
    assert found[0].num_nodes == 3
    again[0].close()


def test_connections_during_an_attempt_affect_neither_it_nor_the_next():
    """A wrong command is rejected, and a returning node waits: it starts no worker of the attempt."""
    place, raised = Endpoint("127.0.0.1", free_port()), []

    def connect(**options):
        try:
            raised.append(follower(place.port, **options)._connect(""))
        except InputError as error:
            raised.append(error)

    with Nodes(place, same_on_all("", **FACTS), "run", num_nodes=2, placement=None, num_workers=None) as nodes:
        wrong, right = threading.Thread(target=connect, kwargs={"max_restarts": 2}), threading.Thread(target=connect)
        wrong.start()
        wait_until(lambda: nodes.take(0) and not wrong.is_alive(), seconds=30)
        assert "it has --max-restarts 2" in str(raised[0])
        assert nodes.started(2, 1) is None
        right.start()
        assert nodes.gathered(2, 0).num_workers == 4
        right.join(30)
        raised[1].close()


@pytest.fixture
def pair():
    """Node 0's end of a connection, and a follower's."""
    with nodes_module.socket.create_server(("127.0.0.1", 0)) as server:
        ends = [nodes_module.socket.create_connection(server.getsockname()), server.accept()[0]]
    pair = [Connection(end) for end in ends]
    yield pair
    for connection in pair:
        connection.close()


EVICTION = [["signal", 3, 0, 9], ["given up"], ["over"], ["end", EvictedError.exit_code, ""]]
"""The records that node 0 sends to a suspended launcher while the run evicts its worker and node and ends."""


@pytest.mark.parametrize("ends", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize(("num_early", "num_heard"), [(2, 2), (2, 3), (3, 3), (2, 4), (3, 4), (4, 4)])
def test_evicted_launcher_raises_in_every_order_of_events(pair, tmp_path, num_early, num_heard, ends):
    """For any number of received and already read records, and with the connection open or closed."""
    node_0, here = pair
    for record in EVICTION[:num_early]:
        node_0.send(*record)
    wait_until(lambda: here.read() or len(here.records) == num_early)
    for record in EVICTION[num_early:num_heard]:
        node_0.send(*record)
    if ends:
        node_0.close()
    (tmp_path / "train.py").touch()
    suspended = dataclasses.replace(follower(1), script=tmp_path / "train.py")
    with pytest.raises(EvictedError, match=r"node 1: did not answer node 0 at .* and was evicted; its workers"):
        suspended._follow_orders(here, set())


@pytest.mark.parametrize("ends", [False, True], ids=["attempt ends", "run ends"])
def test_evicted_launcher_with_restarts_waits_for_the_next_attempt(pair, tmp_path, ends):
    node_0, here = pair
    (tmp_path / "train.py").touch()
    for record in EVICTION[: None if ends else -1]:
        node_0.send(*record)
    suspended = dataclasses.replace(follower(1), script=tmp_path / "train.py", may_restart=True)
    if ends:
        assert suspended._follow_orders(here, set()) == EvictedError.exit_code
    else:
        node_0.close()
        with pytest.raises(follower_module._LostError):
            suspended._follow_orders(here, set())


def test_evicted_node_receives_the_end_of_the_attempt_and_may_reconnect(monkeypatch):
    """Node 0 keeps the connection to an evicted launcher open until the next attempt begins."""
    monkeypatch.setattr(nodes_module, "END_SECONDS", 0.3)
    place, connections = Endpoint("127.0.0.1", free_port()), []

    def start_suspended(nodes):
        thread = threading.Thread(target=lambda: connections.append(follower(place.port)._connect("")))
        thread.start()
        nodes.gathered(2, 0)
        thread.join(30)
        connections[-1].send("ready", len(connections))
        workers = nodes.prepared()
        nodes.release({})
        return connections[-1], workers

    with Nodes(place, same_on_all("", **FACTS), "run", num_nodes=2, placement=None, num_workers=None) as nodes:
        suspended, workers = start_suspended(nodes)
        for worker in workers:
            worker.give_up()
        assert [worker.reap() and worker.code for worker in workers] == [UnavailableError.exit_code] * 2
        suspended.send("ended", 1, 2, 0, -9, False)
        nodes._look(30)
        nodes.end_attempt()
        assert [suspended.next()[0] for _ in range(4)] == ["prepare", "go", "given up", "over"]
        again, _ = start_suspended(nodes)
        assert suspended.next(time.monotonic() + 30) is None
        assert suspended.problem
        nodes.end(0)
        assert [again.next()[0] for _ in range(3)] == ["prepare", "go", "end"]
    for connection in connections:
        connection.close()


def test_garbage_from_strangers_does_not_disturb_a_run(node_0):
    port, found = node_0()
    for text in (
        b"GET / HTTP/1.1\r\n\r\n",
        b'["join"]\n',
        b'["join",1,2,{},"",""]\n',
        b"[" * 100_000 + b"\n",
        '["join",1,2,{},"","\u00e9"]\n'.encode(),
        b"7\n",
        b"x" * 100,
    ):
        with nodes_module.socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(text)
            stranger.settimeout(30)
            stranger.recv(100)
    follower(port)._connect("").close()
    wait_until(lambda: found, seconds=30)
    assert isinstance(found[0], Cluster)


def test_worker_secret_is_never_sent(node_0, monkeypatch):
    """An eavesdropper sees only a nonce, from which the secret follows only with the run's name or secret."""
    seen = []
    read = Connection.read
    monkeypatch.setattr(Connection, "read", lambda self: (read(self), seen.extend(map(json.dumps, self.records)))[0])
    port, found = node_0()
    connection = follower(port)._connect("")
    nonce = connection.next()[4]
    wait_until(lambda: found, seconds=30)
    secret = derive_key(key_of("run"), "run", nonce)
    assert len(seen) >= 3
    assert all(secret not in record for record in seen)
    assert secret != derive_key(key_of("other"), "run", nonce)
    connection.close()


def test_foreign_or_missing_node_0_is_named(monkeypatch):
    monkeypatch.setattr(follower_module, "START_SECONDS", 1.0)
    with nodes_module.socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            with other.accept()[0] as taken:
                taken.sendall(b"SSH-2.0\n")
                taken.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(InputError, match="what answers there is not node 0 of this version"):
            follower(other.getsockname()[1])._connect("")
        thread.join()
    with pytest.raises(UnavailableError, match=r"node 1: node 0 cannot be reached at 127.0.0.1:\d+ within 1 s"):
        follower(free_port())._connect("")


def test_occupied_port_is_named():
    with nodes_module.socket.create_server(("127.0.0.1", 0)) as taken:
        place = Endpoint("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(UnavailableError, match="node 0 cannot listen there: Address already in use"):
            Nodes(place, {}, "", num_nodes=2, placement=None, num_workers=None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1", ("gpu1", 29400)),
        ("gpu1:5", ("gpu1", 5)),
        ("[fd00::1]:7", ("fd00::1", 7)),
        ("fd00::1", ("fd00::1", 29400)),
    ],
)
def test_endpoint_is_parsed_as_torchrun_parses_it(text, expected):
    assert Endpoint.parse(text) == expected
    assert Endpoint.parse(str(Endpoint.parse(text))) == expected


@pytest.mark.parametrize(
    "text", ["", "[]", "[::1", "::1]:7", "a..b", f"{'x' * 70}.y:7", "a b", "a\0", "tcp://a:7", "a:0"]
)
def test_invalid_endpoints_raise(text):
    with pytest.raises(InputError, match="name where all nodes reach node 0, as HOST:PORT"):
        Endpoint.parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--nnodes 2 --workers 1 --node-rank 2 --rdzv-endpoint a", "--node-rank: is 2; 2 nodes are 0 to 1"),
        ("--nnodes 2 --workers 1 --rdzv-endpoint a", "--node-rank: is needed with --nnodes"),
        ("--workers 1 --node-rank 1 --rdzv-endpoint a", "--node-rank: is 1, and --nnodes is 1; add --nnodes N"),
        (
            "--nnodes 2 --workers 1 --node-rank 0",
            "--rdzv-endpoint: is needed with --nnodes: where all nodes reach node 0",
        ),
        ("--nnodes 2 --workers 1 --node-rank 0 --rdzv-endpoint a:b", "--rdzv-endpoint 'a:b': name where all"),
        ("--nnodes 0 --workers 1", "--nnodes"),
        ("--nnodes 2 --node-rank 0 --rdzv-endpoint a", "--workers: expected --workers N or --schedule FILE"),
        ("--nnodes 2 --simulate-nodes 2 --node-rank 0 --rdzv-endpoint a --workers 2", "--simulate-nodes: simulates"),
    ],
)
def test_wrong_values_are_usage_errors_of_one_line(monkeypatch, capsys, options, message):
    for name in ("GROUP_RANK", "SLURM_NODEID", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    assert main(["run", *options.split(), "train.py"]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("name", ["SLURM_NODEID", "JOB_COMPLETION_INDEX", "GROUP_RANK"])
def test_node_rank_defaults_to_the_variable_of_the_cluster_launcher(monkeypatch, capsys, name):
    monkeypatch.setenv(name, "5")
    assert main(["run", "--nnodes", "2", "-n", "1", "--rdzv_endpoint", "a", "train.py"]) == 2
    assert "--node-rank: is 5; 2 nodes are 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cluster", "options", "message"),
    [
        ("3x1", ["--nnodes", "2"], "--nnodes 2: the schedule is for 3 nodes"),
        ("1x3", ["--nnodes", "2"], "3 workers of the schedule do not spread evenly over the nodes"),
        ("2x2", ["--nnodes", "2", "-n", "1"], "--nproc-per-node 1: node 0 of the schedule has 2 workers"),
    ],
)
def test_nodes_that_do_not_match_the_schedule_are_rejected(tmp_path, capsys, cluster, options, message):
    write_schedule(tmp_path / "s.json", Schedule("all", Cluster.parse(cluster), AllReduce()))
    place = ["--node-rank", "0", "--rdzv-endpoint", "127.0.0.1:1", "--schedule", str(tmp_path / "s.json")]
    assert main(["run", *options, *place, "train.py"]) in (2, 65)
    assert message in capsys.readouterr().err


def test_total_workers_of_all_nodes_must_match_the_schedule(node_0):
    port, found = node_0(num_workers=5)
    connection = follower(port)._connect("")
    wait_until(lambda: found, seconds=30)
    connection.close()
    assert "--nproc-per-node: the nodes have 2 + 2 workers; the schedule is for 5" in str(found[0])
