"""The group generator service: order of groups, kills, damaged logs, and unauthenticated peers."""

import contextlib
import json
import os
import re
import resource
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.generator_rig import (
    KILL_POINTS,
    ServiceProcess,
    check_orders,
    clients_of,
    fall_silent,
    randomized_run,
    run_workers,
    serving,
    setting_of,
    started_by,
)
from helpers.waiting import until
from helpers.warm import WARM
from partreduce.errors import EvictedError, FileError, InputError, UnavailableError
from partreduce.runtime.generator.client import GeneratorClient
from partreduce.runtime.generator.log import Log
from partreduce.runtime.generator.messages import (
    MAX_NUMBER,
    MAX_REQUEST_BYTES,
    SERVICE,
    FromWorker,
    Lease,
    Rejection,
    key_in,
    new_key,
    pack_reply,
    pack_state,
    read_key,
    unpack_reply,
    unpack_request,
    unpack_state,
    write_key,
)
from partreduce.runtime.generator.service import GeneratorService
from partreduce.runtime.transport.endpoint import USER, Seal, SealCheck, _derive_key
from partreduce.schedulers.protocols.group_generator.service import (
    Alone,
    Ask,
    Bye,
    Evicted,
    Grant,
    GroupGenerator,
    Later,
    Void,
)

zmq = pytest.importorskip("zmq")


@pytest.mark.parametrize("seed", range(9))
def test_executed_order_equals_the_log_over_a_faulty_network(seed):
    check_orders(*randomized_run(seed))


@pytest.mark.parametrize(("point", "after"), KILL_POINTS)
def test_sigkill_neither_loses_nor_duplicates_groups(tmp_path, point, after):
    key = new_key()
    write_key(tmp_path / "keys", key)
    first = ServiceProcess(tmp_path, seed=5, point=point, after=after)
    services, result = [first], {}

    def workers():
        result.update(run_workers(first.address, key, 4, rounds=6))

    thread = threading.Thread(target=workers)
    thread.start()
    try:
        assert first.killed(), f"never reached {point}"
        services.append(ServiceProcess(tmp_path, seed=5, address=first.address))
        assert services[1].generation == first.generation + 1 or point == "before append"
        thread.join(60)
        assert len(result) == 4
    finally:
        for service in services:
            service.end()
    check_orders(started_by(tmp_path / "log", setting_of(5)), result)


RECORDS = [b'{"a":1}', b'{"b":2}', b'{"c":3}']


class Files:
    """The files of a log of three records after a clean end and after a kill."""

    def __init__(self, folder):
        self.path, self.folder = folder / "log", folder
        log = Log(self.path)
        log.append(RECORDS[:2])
        log.append(RECORDS[2:])
        assert [path.stat().st_mode & 0o777 for path in (self.path, self.ahead)] == [0o600] * 2
        self.killed = (self.path.read_bytes(), self.ahead.read_bytes())
        log.close()
        assert not self.ahead.exists()
        self.closed = (self.path.read_bytes(), None)

    @property
    def ahead(self):
        return self.path.with_name("log-wal")

    def opened(self, main, ahead=None):
        """The records that a service reads from these files."""
        for path in self.folder.iterdir():
            path.unlink()
        self.path.write_bytes(main)
        if ahead is not None:
            self.ahead.write_bytes(ahead)
        log = Log(self.path)
        log.close()
        return log.records


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def test_log_returns_the_appended_records(files):
    assert files.opened(*files.closed) == RECORDS
    assert files.opened(*files.killed) == RECORDS


def test_truncated_tail_is_dropped_and_the_rest_kept(files):
    main, ahead = files.killed
    found = [files.opened(main, ahead[:cut]) for cut in [*range(0, len(ahead), 5), len(ahead)]]
    assert all(records == RECORDS[: len(records)] for records in found)
    lengths = [len(records) for records in found]
    assert lengths == sorted(lengths)
    assert set(lengths) == {0, 2, 3}, "batches are atomic"


def test_tail_of_zeros_is_dropped(files):
    main, ahead = files.killed
    for tail in (b"\0" * 5, b"\0" * 600, b"\0" * 5000):
        assert files.opened(main, ahead + tail) == RECORDS
    assert files.opened(main, ahead[:600] + bytes(len(ahead) - 600)) == RECORDS[:2]


def test_flipped_bit_raises_or_changes_nothing(files):
    """SQLite pages have unused bytes; a flipped bit in a record, or in a commit of the write-ahead log, raises."""
    refused = {"closed": [], "killed": []}
    for name, (main, ahead), place in (("closed", files.closed, 0), ("killed", files.killed, 1)):
        for byte in range(0, len((main, ahead)[place]), 3):
            damaged = [main, ahead]
            damaged[place] = bytearray(damaged[place])
            damaged[place][byte] ^= 1 << byte % 8
            try:
                assert files.opened(*damaged) == RECORDS
            except FileError as error:
                refused[name].append(str(error))
    lines = refused["closed"] + refused["killed"]
    assert all(re.fullmatch(r".*(is damaged \(.+\); groups|is not a group generator's log).*", line) for line in lines)
    assert len(refused["closed"]) > 30
    assert len(refused["killed"]) == len(range(0, len(files.killed[1]), 3))


def test_foreign_file_raises_and_stays_unchanged(files):
    with contextlib.closing(sqlite3.connect(files.folder / "other")) as other:
        other.execute("CREATE TABLE mine (x)")
        other.commit()
    foreign = (files.folder / "other").read_bytes()
    old = b"partreduce.generator.log 2\n"
    for content, line in (
        (b"hello", "is not a group generator's log"),
        (os.urandom(5000), "is not a group generator's log"),
        (foreign, "is not a group generator's log"),
        (old, "is a log of an earlier version.*name a new log"),
        (old + bytes(900), "is a log of an earlier version.*name a new log"),
    ):
        with pytest.raises(FileError, match=line):
            files.opened(content)
        assert files.path.read_bytes() == content
    with pytest.raises(FileError, match="cannot be opened as the generator's log: No such file"):
        Log(files.folder / "missing" / "log")
    assert files.opened(b"") == []


def test_log_is_opened_exclusively(tmp_path):
    path = tmp_path / "log"
    log = Log(path)
    log.append([b"old"])
    with pytest.raises(UnavailableError, match="another group generator has this log open"):
        Log(path)
    opened_elsewhere = WARM.run("-c", OPEN, path)
    assert "another group generator has this log open" in opened_elsewhere.stderr
    log.append([b"new"], instead=True)
    assert log.size() == 0
    with pytest.raises(UnavailableError, match="another group generator"):
        Log(path)
    log.append([b"more"])
    log.close()
    again = Log(path)
    again.close()
    assert again.records == [b"new", b"more"]


OPEN = "import sys; from partreduce.runtime.generator.log import Log; Log(sys.argv[1])"


def test_full_disk_raises_and_keeps_nothing_of_the_batch(tmp_path):
    log = Log(tmp_path / "log")
    log.append([b"kept"])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.size() + 1000, before[1]))
    try:
        with pytest.raises(FileError, match="log: cannot be written"):
            log.append([b"x" * 5000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.append([b"after"])
    log.close()
    again = Log(tmp_path / "log")
    again.close()
    assert again.records == [b"kept", b"after"]


@pytest.fixture
def service():
    with serving(setting_of(1), lease=6.0) as (made, _):
        yield made


def test_second_service_on_one_port_raises(service):
    with pytest.raises(UnavailableError, match="cannot listen"):
        GeneratorService(setting_of(1), service.key, address=service.address)


def test_log_of_another_job_raises(tmp_path):
    key = new_key()
    GeneratorService(setting_of(1), key, log=tmp_path / "log", job="one").close()
    with pytest.raises(InputError, match="log of another job"):
        GeneratorService(setting_of(1), key, log=tmp_path / "log", job="two")


class Raw:
    """A raw socket connected to the service, with separately chosen keys for password and seal, or without either."""

    def __init__(self, context, service, password=None, key=None, rank=0):
        self.socket = context.socket(zmq.DEALER)
        self.rank, self.seal, self.check = rank, Seal(key or new_key(), SERVICE), SealCheck(key or "", rank)
        if password is not None:
            self.socket.plain_username = USER
            self.socket.plain_password = _derive_key(password, "password").hex().encode()
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(service.address)

    def packed(self, message):
        return json.dumps([message.rank, *message.packed()]).encode()

    def send(self, header, *frames):
        self.socket.send_multipart([self.seal(header), *frames], zmq.NOBLOCK)

    def answer(self, milliseconds=60_000):
        """The next reply; None after the timeout."""
        if not self.socket.poll(milliseconds):
            return None
        header = self.check(self.socket.recv())
        assert header is not None, "the service sealed it for this rank"
        source, kind, numbers = json.loads(header)
        assert source == SERVICE
        return unpack_reply(kind, numbers)


@pytest.fixture
def raw(service):
    """Create raw sockets connected to the service; the fixture closes them."""
    with zmq.Context() as context:
        made = []

        def make(*arguments, **options):
            made.append(Raw(context, service, *arguments, **options))
            return made[-1]

        yield make
        for one in made:
            one.socket.close()


def test_unauthenticated_peers_get_no_answer_and_do_not_disturb_workers(service, raw):
    other = new_key()
    peers = [raw(), raw(None, service.key), raw(other, other), raw(service.key, other), raw(other, service.key)]
    for peer in peers:
        for _ in range(20):
            with contextlib.suppress(zmq.Again):  # a rejected connection would block forever
                peer.send(peer.packed(FromWorker(0, 13, Ask(0))))
    host, port = service.address.removeprefix("tcp://").split(":")
    for data in (os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", b"\xff" + b"\0" * 8 + b"\x01\x7f", b""):
        with socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(data)
    executed = run_workers(service.address, service.key, 4, rounds=5)
    assert sum(map(len, executed.values())) > 0
    assert all(peer.socket.poll(50) == 0 for peer in peers)
    assert set(service.sessions.values()).isdisjoint({13})


def test_invalid_requests_are_rejected_and_change_nothing(service, raw):
    member = raw(service.key, service.key)
    before = service.state
    for rank, kind, numbers in (
        (9, "alive", [1, 0]), (-1, "alive", [1, 0]), (0, "alive", []), (0, "alive", [1]), (0, "alive", [-1, 0]),
        (0, "alive", [1, -1]), (0, "alive", [1, 0, 0]), (0, "else", [1, 0]), (0, "ask", [1, 0, 0]),
        (0, "ask", [1, 0, -1, 0, 0, 0, 0, 0]), (0, "ask", [1, 0, 0, 0, 2, 0, 0, 0]), (0, "ask", [MAX_NUMBER, 0]),
        (0, "ask", [1, 0, 0, MAX_NUMBER, 0, 0, 0, 0]),
    ):  # fmt: skip
        reader = member if rank == 0 else raw(service.key, service.key, rank)
        reader.send(json.dumps([rank, kind, numbers]).encode())
        assert isinstance(reader.answer(), Rejection), (rank, kind, numbers)
    for header in (b"", b"\xff\xfe", b"[]", b"{}", b"[true,\"alive\",[1,0]]", b'[0,1,[1,0]]', b'[0,"alive",[1,0.5]]',
                   b'[0,"alive",[1,true]]', b'[0,"alive",[[1],0]]', b'[0,"alive"]', b'["0","alive",[]]',
                   b'[0,"alive",{"x":1}]', b"[" * 900):  # fmt: skip
        member.send(header)
    assert member.answer(300) is None
    assert service.state == before
    assert service.sessions == {}
    member.send(member.packed(FromWorker(0, 1)), b"two")
    assert isinstance(member.answer(), Rejection)
    member.send(b"x" * (MAX_REQUEST_BYTES + 1))
    assert member.answer(200) is None
    assert service.state == before
    run_workers(service.address, service.key, 4, rounds=2)


def test_repeated_requests_and_duplicate_ranks_change_nothing(service, raw):
    member = raw(service.key, service.key)
    for _ in range(3):
        member.send(member.packed(FromWorker(0, 1, Ask(0))))
        time.sleep(0.02)
    member.send(member.packed(FromWorker(0, 2, Ask(1))))
    answers = []
    while (answer := member.answer(500 if Rejection in map(type, answers) else 60_000)) is not None:
        answers.append(answer)
    assert service.state.requests[0] == 0
    refused = [answer.why for answer in answers if isinstance(answer, Rejection)]
    assert refused == ["rank 0: belongs to another process of this job"]
    assert len({answer for answer in answers if not isinstance(answer, Rejection)}) <= 1


def test_replayed_messages_are_dropped(service, raw):
    """A replay from another connection, which would receive the later replies, is dropped too."""
    member, thief = raw(service.key, service.key), raw(service.key)
    for number in range(2):
        frame = member.seal(member.packed(FromWorker(0, 1, patience=10_000 * number)))
        member.socket.send(frame)
        assert isinstance(member.answer(), Lease)
        for sender in (thief, thief, member):
            sender.socket.send(frame)
    assert thief.answer(300) is None
    assert member.answer(0) is None


def test_silent_worker_is_evicted_after_its_lease(service, raw):
    def end(client):
        while client.leave() is not None:
            pass

    with clients_of(service, lease=6.0, retry=0.05) as clients, ThreadPoolExecutor() as pool:
        for client in clients:
            client.begin()
        until(lambda: min(service.state.requests) >= 0)
        fall_silent(clients[3])
        until(lambda: service.state.status[3] == "dead")
        assert all(3 not in group.members for group in service.state.buffers.groups)
        list(pool.map(end, clients[:3], timeout=60))
        woken = raw(service.key, service.key, 3)
        woken.send(woken.packed(FromWorker(3, clients[3]._session, Ask(1))))
        assert isinstance(woken.answer(), Evicted)


def test_evicted_client_raises(service):
    with clients_of(service, 1, lease=1000.0, retry=1000.0) as (client,):
        client.begin()
        until(lambda: service.state.status[0] == "dead")
        client._retry = 0.01
        until(lambda: client._error is not None)
        with pytest.raises(EvictedError, match="gave worker 0 up"):
            client.begin()


def test_client_without_a_service_raises():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    client = GeneratorClient(address, new_key(), 0, timeout=0.5, retry=0.1)
    client.begin()
    with pytest.raises(UnavailableError, match="gave worker 0 no answer"):
        client.group()
    client.close()


def test_keys_readable_by_others_raise(tmp_path):
    path = tmp_path / "keys"
    key = new_key()
    write_key(path, key)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(path) == key
    path.chmod(0o640)
    with pytest.raises(FileError, match="others can read"):
        read_key(path)


def test_sealed_messages_do_not_reveal_the_key():
    key = new_key()
    sealed = Seal(key, SERVICE)(b"header")
    assert key.encode() not in sealed
    assert bytes.fromhex(key) not in sealed
    assert key != _derive_key(key, "password").hex()


def test_messages_and_states_roundtrip():
    for ask in (Ask(7, 5, last=True), Ask(8, 6, failed=True), None):
        message = FromWorker(3, 77, ask, goodbye=ask is None, patience=9)
        assert unpack_request(3, *message.packed(), 4) == message
    for reply in (
        Lease((1, 3), 1500), Lease((), 0), Rejection("for a reason"), Grant(1, 2, 3, (0, 1)), Alone(1, 2), Later(1, 2),
        Bye(1, 2), Void(1, 2), Evicted(1),
    ):  # fmt: skip
        assert unpack_reply(*pack_reply(reply)) == reply
    for kind, numbers in (("grant", [1, 2]), ("bye", [1, 2, 3]), ("evicted", []), ("else", [1]), ("lease", [])):
        with pytest.raises(InputError):
            unpack_reply(kind, numbers)
    machine = GroupGenerator(setting_of(2))
    state = machine.initial()
    for worker in (0, 1, 2, 3, 0, 1):
        state, _ = machine.handle(state, worker, Ask(state.requests[worker] + 1))
        assert unpack_state(json.loads(json.dumps(pack_state(state)))) == state


def test_compacted_log_restores_the_same_state(tmp_path):
    key = new_key()
    first = GeneratorService(setting_of(3), key, log=tmp_path / "log")
    thread = threading.Thread(target=first.run, args=(30,))
    thread.start()
    run_workers(first.address, key, 4, rounds=5)
    first.stop()
    thread.join(60)
    first._compact()
    state, sessions = first.state, first.sessions
    first.close()
    second = GeneratorService(setting_of(3), key, log=tmp_path / "log")
    second.close()
    assert (second.state.buffers, second.state.answers, second.sessions) == (state.buffers, state.answers, sessions)
    assert second.state.generation == state.generation + 1


def test_failed_write_keeps_the_previous_key_file(tmp_path, monkeypatch):
    """A full disk must not leave an empty file that the next start would read as the key."""
    path, old = tmp_path / "keys", new_key()
    write_key(path, old)
    assert path.stat().st_mode & 0o777 == 0o600

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FileError, match="keys: cannot be written: No space left on device"):
        write_key(path, new_key())
    assert read_key(path) == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys"]


OLD_KEYS = json.dumps({name: "x" * 40 for name in ("service_public", "worker_public", "worker_secret")})


@pytest.mark.parametrize(
    "text", ["", "[" * 4000, "{}", "[1]", "\x00", "\ud800", "0" * 63, "0" * 65, "G" * 64, OLD_KEYS]
)
def test_invalid_key_raises_without_showing_the_key(text):
    with pytest.raises(InputError, match="k: does not hold the keys of a job") as error:
        key_in(text, "k")
    assert not text or text not in str(error.value)
    key = new_key()
    assert key_in(key, "k") == key_in(f"{key}\n", "k") == key
