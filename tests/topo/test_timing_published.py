"""Pipe-SGD's timing model and Parallax's transfer table."""

import pytest

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.phase import Phase
from partreduce.topo.timing import parallax_per_machine, pipe_sgd
from partreduce.topo.timing.cost import group_seconds

IT = pipe_sgd.Iteration(update=1.0, forward=2.0, backward=4.0, communicate=5.0)


def test_synchronous_time_is_the_sum_and_pipelined_time_the_larger_part():
    assert pipe_sgd.synchronous_seconds(IT, 10) == 120.0
    assert pipe_sgd.pipelined_seconds(IT, 10) == 7 + 9 * 7 + 5
    slow_link = pipe_sgd.Iteration(update=1.0, forward=2.0, backward=4.0, communicate=9.0)
    assert pipe_sgd.pipelined_seconds(slow_link, 1000) / 1000 == pytest.approx(9.0, rel=1e-2)


def test_a_width_beyond_two_gains_nothing_and_one_is_synchronous():
    assert pipe_sgd.pipelined_seconds(IT, 10, width=3) == pipe_sgd.pipelined_seconds(IT, 10, width=2)
    assert pipe_sgd.pipelined_seconds(IT, 10, width=1) == pipe_sgd.synchronous_seconds(IT, 10)
    assert pipe_sgd.ideal_pipelined_seconds(IT, 10, width=2) <= pipe_sgd.pipelined_seconds(IT, 10)


def test_pipelining_at_most_halves_the_time():
    for communicate in (0.1, 3.0, 7.0, 20.0):
        it = pipe_sgd.Iteration(update=1.0, forward=2.0, backward=4.0, communicate=communicate)
        gain = pipe_sgd.synchronous_seconds(it, 500) / pipe_sgd.pipelined_seconds(it, 500)
        assert 1.0 <= gain <= 2.0


def test_the_ring_is_the_ring_of_the_cost_model():
    hardware = Hardware(inside=Link(0.25, 0.5), model_bytes=64)
    mine = pipe_sgd.ring_seconds(8, 64, latency=0.25, seconds_per_byte=0.5)
    assert group_seconds(Phase.from_groups(8, [range(8)]), Cluster.regular(1, 8), hardware).tolist() == [mine]
    assert pipe_sgd.ring_seconds(4, 8, latency=0, seconds_per_byte=0, add_seconds_per_byte=1.0, synchronise=2.0) == 8.0


def test_layerwise_sending_hides_communication_but_pays_latency_for_each_layer():
    assert pipe_sgd.ddp_seconds(IT, 1, num_layers=1, latency_part=1.0) == 1 + 2 + 5
    assert pipe_sgd.ddp_seconds(IT, 1, num_layers=4, latency_part=1.0) == 1 + 2 + 8


def test_a_pipeline_with_layers_pays_a_latency_for_each():
    """Equation 6 by hand: 4 workers, 3 layers: 2·3·3·0.5 = 9, 2·3/4·8·2 = 24, 3/4·8·1 = 6, 3·0.25 = 0.75."""
    arguments = {"num_workers": 4, "num_bytes": 8, "latency": 0.5, "seconds_per_byte": 2.0}
    arguments |= {"add_seconds_per_byte": 1.0, "synchronise": 0.25}
    assert pipe_sgd.pipelined_layers_seconds(20.0, 10, num_layers=3, **arguments) == 10 * (9 + 24 + 6 + 0.75)
    assert pipe_sgd.pipelined_layers_seconds(90.0, 10, num_layers=3, **arguments) == 900.0
    ring = pipe_sgd.ring_seconds(**arguments)
    assert pipe_sgd.pipelined_layers_seconds(0.0, 1, num_layers=1, **arguments) == ring == 3 + 24 + 6 + 0.25


def test_scaling_efficiency_is_speedup_per_worker():
    assert pipe_sgd.scaling_efficiency(IT) == 1.0, "5 s of communication hide behind 7 s"
    assert pipe_sgd.scaling_efficiency(IT, width=1) == 7 / 12
    slow = pipe_sgd.Iteration(update=1.0, forward=2.0, backward=4.0, communicate=14.0)
    assert pipe_sgd.scaling_efficiency(slow) == 0.5
    many = pipe_sgd.pipelined_seconds(slow, 10_000) / 10_000
    assert pipe_sgd.scaling_efficiency(slow) == pytest.approx(7 / many, rel=1e-3)


def test_compression_shrinks_messages_and_costs_time():
    assert pipe_sgd.compressed(8.0, 4.0, compress_seconds_per_byte=1.0) == 3.0
    with pytest.raises(InputError, match="do not grow"):
        pipe_sgd.compressed(8.0, 0.5)


def test_transfer_table():
    n, w, a = 8, 100.0, 0.1
    assert parallax_per_machine.machine_server_bytes(n, w, is_server=True) == 1400.0
    assert parallax_per_machine.machine_server_bytes(n, w, is_server=False) == 200.0
    assert parallax_per_machine.machine_server_bytes(n, w, touched=a, is_server=True) == pytest.approx(140.0)
    assert parallax_per_machine.machine_allreduce_bytes(n, w) == 350.0
    assert parallax_per_machine.machine_allgather_bytes(n, w, touched=a) == pytest.approx(140.0)


def test_spread_servers_move_the_mean_of_server_and_worker():
    n, w, a = 6, 30.0, 0.25
    as_server = parallax_per_machine.machine_server_bytes(n, w, touched=a, is_server=True)
    as_worker = parallax_per_machine.machine_server_bytes(n, w, touched=a, is_server=False)
    assert parallax_per_machine.machine_spread_server_bytes(n, w, touched=a) == pytest.approx(
        (as_server + (n - 1) * as_worker) / n
    )


@pytest.mark.parametrize(
    ("machines", "touched", "is_sparse", "route"),
    [
        (8, 0.01, True, parallax_per_machine.Route.SERVER),
        (8, 1.0, True, parallax_per_machine.Route.ALLREDUCE),
        (8, 0.01, False, parallax_per_machine.Route.ALLREDUCE),
        (2, 0.5, True, parallax_per_machine.Route.SERVER),
    ],
)
def test_sparse_goes_to_servers_and_dense_to_allreduce(machines, touched, is_sparse, route):
    assert parallax_per_machine.cheapest_per_machine(machines, 1e6, touched=touched, is_sparse=is_sparse)[0] is route


def test_more_than_two_machines_make_servers_cheaper_than_gathering():
    for machines in range(2, 20):
        servers = parallax_per_machine.machine_spread_server_bytes(machines, 1.0, touched=0.1)
        gathered = parallax_per_machine.machine_allgather_bytes(machines, 1.0, touched=0.1)
        assert (servers < gathered) == (machines > 2)


@pytest.mark.parametrize("arguments", [{"touched": 1.5}, {"num_bytes": -1.0}, {"num_machines": 0}])
def test_impossible_quantities_are_refused(arguments):
    with pytest.raises(InputError):
        parallax_per_machine.machine_spread_server_bytes(
            **({"num_machines": 2, "num_bytes": 1.0, "touched": 0.5} | arguments)
        )
    with pytest.raises(InputError, match="times are >= 0"):
        pipe_sgd.Iteration(update=-1.0, forward=0, backward=0, communicate=0)
