"""The group generator as a service: order, kills, damage to its log, and strangers at its port."""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from helpers.generator_rig import (
    KILL_POINTS,
    ServiceProcess,
    check_orders,
    randomized_run,
    run_workers,
    serving,
    setting_of,
    started_by,
)
from partreduce.runtime.generator.client import GeneratorClient
from partreduce.runtime.generator.keys import JobKeys
from partreduce.runtime.generator.log import MAGIC, Log
from partreduce.runtime.generator.service import GeneratorService
from partreduce.runtime.generator.wire import (
    MAX_REQUEST_BYTES,
    FromWorker,
    Heard,
    pack_reply,
    pack_request,
    pack_state,
    unpack_reply,
    unpack_request,
    unpack_state,
)
from partreduce.schedulers.protocols.group_generator.service import Ask, Grant, GroupGenerator, Void
from partreduce.topo.errors import EvictedError, FileError, InputError, UnavailableError

zmq = pytest.importorskip("zmq")


@pytest.mark.parametrize("seed", range(9))
def test_executed_order_equals_the_log_over_a_rough_wire(seed):
    check_orders(*randomized_run(seed))


@pytest.mark.parametrize(("point", "after"), KILL_POINTS)
def test_sigkill_loses_and_doubles_nothing(tmp_path, point, after):
    keys = JobKeys.make()
    keys.write(tmp_path / "keys")
    first = ServiceProcess(tmp_path, keys, seed=5, point=point, after=after)
    services, result = [first], {}

    def workers():
        result.update(run_workers(first.address, keys, 4, rounds=6))

    thread = threading.Thread(target=workers)
    thread.start()
    try:
        assert first.killed(), f"never reached {point}"
        services.append(ServiceProcess(tmp_path, keys, seed=5, address=first.address))
        assert services[1].generation == first.generation + 1 or point == "before append"
        thread.join(60)
        assert len(result) == 4
    finally:
        for service in services:
            service.end()
    check_orders(started_by(tmp_path / "log", setting_of(5)), result)


@pytest.fixture
def filled(tmp_path):
    """A log of three records."""
    log = Log(tmp_path / "log")
    log.append([b'{"a":1}', b'{"b":2}'])
    log.append([b'{"c":3}'])
    log.close()
    return tmp_path / "log"


def reopened(path):
    log = Log(path)
    log.close()
    return log.records


def test_a_log_gives_back_what_was_appended(filled):
    assert reopened(filled) == [b'{"a":1}', b'{"b":2}', b'{"c":3}']


def test_a_tail_cut_off_anywhere_is_dropped_and_the_rest_kept(filled):
    whole = filled.read_bytes()
    ends = [len(MAGIC), len(MAGIC) + 19, len(MAGIC) + 38, len(MAGIC) + 57]
    for cut in range(len(whole) + 1):
        filled.write_bytes(whole[:cut])
        assert len(reopened(filled)) == max(0, sum(end <= cut for end in ends) - 1)
        assert filled.stat().st_size in ends


def test_a_tail_of_zeros_is_dropped(filled):
    whole = filled.read_bytes()
    for tail in (b"\0" * 5, b"\0" * 600):
        filled.write_bytes(whole + tail)
        assert len(reopened(filled)) == 3


def test_a_flipped_bit_anywhere_is_refused(filled):
    whole = bytearray(filled.read_bytes())
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        filled.write_bytes(damaged)
        with pytest.raises(FileError, match=r"damaged|is not a group generator's log"):
            Log(filled)


def test_a_log_is_open_once(filled):
    log = Log(filled)
    with pytest.raises(UnavailableError, match="another group generator has this log open"):
        Log(filled)
    log.replace([b"new"])
    with pytest.raises(UnavailableError, match="another group generator"):
        Log(filled)
    log.append([b"more"])
    log.close()
    assert reopened(filled) == [b"new", b"more"]


def test_a_full_disk_is_named_and_nothing_is_answered(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    log = Log(tmp_path / "log")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._file)
    with pytest.raises(FileError, match="cannot be written: No space left"):
        log.append([b"x"])
    os.close(full)
    log.close()


@pytest.fixture
def service():
    with serving(setting_of(1), lease=6.0) as (made, _):
        yield made


def test_a_second_service_on_one_port_is_refused(service):
    with pytest.raises(UnavailableError, match="cannot listen"):
        GeneratorService(setting_of(1), service.keys, address=service.address)


def test_a_log_of_another_job_is_refused(tmp_path):
    keys = JobKeys.make()
    GeneratorService(setting_of(1), keys, log=tmp_path / "log", job="one").close()
    with pytest.raises(InputError, match="log of another job"):
        GeneratorService(setting_of(1), keys, log=tmp_path / "log", job="two")


def dealer(context, service, keys=None):
    """A raw socket at the service's port."""
    made = context.socket(zmq.DEALER)
    if keys is not None:
        made.curve_serverkey = keys.service_public.encode()
        made.curve_publickey, made.curve_secretkey = keys.worker_public.encode(), keys.worker_secret.encode()
    made.setsockopt(zmq.LINGER, 0)
    made.connect(service.address)
    return made


def test_strangers_get_nothing_and_workers_notice_nothing(service):
    context = zmq.Context()
    other = JobKeys.make()
    mixed = JobKeys(service.keys.service_public, other.worker_public, other.worker_secret)
    strangers = [dealer(context, service), dealer(context, service, other), dealer(context, service, mixed)]
    for stranger in strangers:
        for _ in range(20):
            with contextlib.suppress(zmq.Again):  # who was turned away already would wait for ever
                stranger.send(pack_request(FromWorker(0, "thief", Ask(0))), zmq.NOBLOCK)
    host, port = service.address.removeprefix("tcp://").split(":")
    for data in (os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", b"\xff" + b"\0" * 8 + b"\x01\x7f", b""):
        with socket.create_connection((host, int(port)), 5) as raw:
            raw.sendall(data)
    executed = run_workers(service.address, service.keys, 4, rounds=5)
    assert sum(map(len, executed.values())) > 0
    assert all(stranger.poll(50) == 0 for stranger in strangers)
    assert set(service.sessions.values()).isdisjoint({"thief"})
    for stranger in strangers:
        stranger.close()
    context.term()


def test_what_breaks_the_rules_is_refused_and_changes_nothing(service):
    context = zmq.Context()
    member = dealer(context, service, service.keys)
    before = service.state
    for data in (b"", b"\xff\xfe", b"[]", b"{}", b'{"rank":9,"session":"a"}', b'{"rank":true,"session":"a"}',
                 b'{"rank":0,"session":""}', b'{"rank":0,"session":"a","ask":[0]}', b'{"rank":0,"session":"a","x":1}',
                 b'{"rank":0,"session":"a","ask":[-1,0,0]}', b"[" * 900):  # fmt: skip
        member.send(data)
        assert member.poll(60_000)
        assert b"refused" in member.recv()
    assert service.state == before
    member.send_multipart([b"one", b"two"])
    assert member.poll(60_000)
    assert b"refused" in member.recv()
    member.send(b"x" * (MAX_REQUEST_BYTES + 1))
    assert member.poll(200) == 0
    member.close()
    context.term()
    assert service.state == before
    run_workers(service.address, service.keys, 4, rounds=2)


def test_replayed_requests_and_a_second_process_of_a_rank_change_nothing(service):
    context = zmq.Context()
    member = dealer(context, service, service.keys)
    for _ in range(3):
        member.send(pack_request(FromWorker(0, "one", Ask(0))))
        time.sleep(0.02)
    member.send(pack_request(FromWorker(0, "two", Ask(1))))
    answers = []
    while member.poll(500 if any(b"belongs to" in answer for answer in answers) else 60_000):
        answers.append(member.recv())
    assert service.state.requests[0] == 0
    assert sum(b"belongs to another process" in answer for answer in answers) == 1
    assert len({answer for answer in answers if b"refused" not in answer}) <= 1
    member.close()
    context.term()


def test_a_silent_worker_is_given_up_after_its_lease_and_fenced(service):
    options = {"lease": 6.0, "retry": 0.05}
    clients = [GeneratorClient(service.address, service.keys.for_workers(), rank, **options) for rank in range(4)]
    for client in clients:
        client.begin()
    deadline = time.monotonic() + 60
    while min(service.state.requests) < 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    silent = clients[3]
    silent._closing = True  # its thread ends without a word, as a killed process does
    silent._thread.join(60)
    while service.state.status[3] != "dead" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert service.state.status[3] == "dead"
    assert all(3 not in group.members for group in service.state.buffers.groups)

    def end(client):
        while client.leave() is not None:
            pass

    threads = [threading.Thread(target=end, args=(client,)) for client in clients[:3]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "the others still wait for the lost worker"
    context = zmq.Context()
    woken = dealer(context, service, service.keys)
    woken.send(pack_request(FromWorker(3, silent._session, Ask(1))))
    assert woken.poll(60_000)
    assert b"fenced" in woken.recv()
    woken.close()
    context.term()
    for client in clients[:3]:
        client.close()


def test_a_fenced_client_says_so(service):
    client = GeneratorClient(service.address, service.keys.for_workers(), 0, lease=1000.0, retry=1000.0)
    client.begin()
    deadline = time.monotonic() + 60
    while service.state.status[0] != "dead" and time.monotonic() < deadline:
        time.sleep(0.05)
    client._retry = 0.01
    while client._error is None and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(EvictedError, match="gave worker 0 up"):
        client.begin()
    client.close()


def test_a_client_without_a_service_names_the_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    client = GeneratorClient(address, JobKeys.make().for_workers(), 0, timeout=0.5, retry=0.1)
    client.begin()
    with pytest.raises(UnavailableError, match="gave worker 0 no answer"):
        client.group()
    client.close()


def test_a_reply_of_a_former_life_is_not_executed():
    from partreduce.schedulers.protocols.group_generator.worker import GroupWorker

    worker = GroupWorker(-1, collective=False)
    state, _ = worker.start(0, None)
    state, _ = worker.received(0, state, -1, Void(2, 99))
    after, _ = worker.received(0, state, -1, Grant(1, 0, 5, (0, 1)))
    assert after == state
    after, _ = worker.received(0, state, -1, Grant(2, 0, 5, (0, 1)))
    assert after.stage == "granted"


def test_keys_are_refused_where_others_can_read_them(tmp_path):
    path = tmp_path / "keys"
    JobKeys.make().write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert JobKeys.read(path).service_secret
    path.chmod(0o640)
    with pytest.raises(FileError, match="others can read"):
        JobKeys.read(path)
    for text in ("", "{}", "[1]", '{"service_public": "short"}', "\x00"):
        with pytest.raises(InputError, match="does not hold the keys"):
            JobKeys.parse(text, "PARTREDUCE_GENERATOR_KEYS")


def test_the_workers_part_of_the_keys_has_no_secret_of_the_service():
    keys = JobKeys.make()
    assert keys.service_secret not in keys.for_workers().text()


def test_messages_and_states_survive_the_wire_and_the_log():
    for ask in (Ask(7, 5, last=True), Ask(8, 6, failed=True)):
        message = FromWorker(3, "abc", ask)
        assert unpack_request(pack_request(message), 4) == message
    assert unpack_reply(pack_reply(Heard((1, 3), 1500))) == Heard((1, 3), 1500)
    grant = Grant(1, 2, 3, (0, 1))
    assert unpack_reply(pack_reply(grant)) == grant
    machine = GroupGenerator(setting_of(2))
    state = machine.initial()
    for worker in (0, 1, 2, 3, 0, 1):
        state, _ = machine.handle(state, worker, Ask(state.requests[worker] + 1))
        assert unpack_state(json.loads(json.dumps(pack_state(state)))) == state


def test_a_compacted_log_restores_the_same_state(tmp_path):
    keys = JobKeys.make()
    first = GeneratorService(setting_of(3), keys, log=tmp_path / "log")
    thread = threading.Thread(target=first.run, args=(30,))
    thread.start()
    run_workers(first.address, keys, 4, rounds=5)
    first.stop()
    thread.join(60)
    first._compact()
    state, sessions = first.state, first.sessions
    first.close()
    second = GeneratorService(setting_of(3), keys, log=tmp_path / "log")
    second.close()
    assert (second.state.buffers, second.state.answers, second.sessions) == (state.buffers, state.answers, sessions)
    assert second.state.generation == state.generation + 1


def test_a_key_file_is_the_old_one_or_the_new_one(tmp_path, monkeypatch):
    """A full disk left an empty file, which the next start took for the keys."""
    path, old = tmp_path / "keys", JobKeys.make()
    old.write(path)
    assert path.stat().st_mode & 0o777 == 0o600

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FileError, match="keys: cannot be written: No space left on device"):
        JobKeys.make().write(path)
    assert JobKeys.read(path) == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys"]


@pytest.mark.parametrize("text", ["", "[" * 4000, "{}", '{"service_public": ""}', '{"other": "x"}', "[1]", "\ud800"])
def test_what_are_no_keys_is_said_without_showing_them(text):
    with pytest.raises(InputError, match="k: does not hold the keys of a job"):
        JobKeys.parse(text, "k")
    keys = JobKeys.make()
    assert JobKeys.parse(keys.text(), "k") == keys
    assert JobKeys.parse(keys.for_workers().text(), "k") == keys.for_workers()
    with pytest.raises(InputError):
        JobKeys.parse(keys.text().replace(keys.worker_secret, ""), "k")
