"""Pipe-SGD's timing model (Li et al., NeurIPS 2018, section 3.2, equations 4 to 6), which virtual time must reproduce.

Written from the model's parts (update, computing, communication) and the standard cost of a ring all-reduce.
"""


def ring_seconds(num_workers, num_bytes, *, latency, seconds_per_byte):
    """Return the seconds of a ring all-reduce: 2(p−1)α + 2(p−1)/p·nβ."""
    hops = num_workers - 1
    return 2 * hops * latency + 2 * hops / num_workers * num_bytes * seconds_per_byte


def pipelined_seconds(local, communicate, num_iterations, *, width):
    """Return the seconds of T iterations in a pipeline of width K ≥ 2 (equation 4): T·max(local, communicate).

    A worker computes and sends one iteration at a time, so a width above 2 gains nothing. The first communication is
    not hidden, and is added here. K = 1 is synchronous.
    """
    if width == 1:
        return num_iterations * (local + communicate)
    return local + (num_iterations - 1) * max(local, communicate) + communicate


def pipelined_layers_seconds(local, num_iterations, *, num_workers, num_bytes, num_layers, latency, seconds_per_byte):
    """Return the seconds by equation 6: T·max(local, ring), where each of L layers pays the latencies."""
    sent = ring_seconds(num_workers, num_bytes, latency=num_layers * latency, seconds_per_byte=seconds_per_byte)
    return num_iterations * max(local, sent)
