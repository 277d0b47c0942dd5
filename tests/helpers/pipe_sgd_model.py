"""Pipe-SGD's timing model (Li et al., NeurIPS 2018, section 3.2, equations 4 to 6): what virtual time has to give.

Written from the model's parts (update, computing, communication) and the standard cost of a ring all-reduce, and
checked against notes from a reading of the paper.
"""


def ring_seconds(num_workers, num_bytes, *, latency, seconds_per_byte):
    """A ring all-reduce: 2(p−1)α + 2(p−1)/p·nβ."""
    hops = num_workers - 1
    return 2 * hops * latency + 2 * hops / num_workers * num_bytes * seconds_per_byte


def pipelined_seconds(local, communicate, num_iterations, *, width):
    """T iterations of a pipeline of `width` K: T·max(local, communicate) once it is full (equation 4), K ≥ 2.

    One worker computes one iteration at a time and sends one at a time, so a width beyond 2 gains nothing. The first
    communication is not hidden, which is added here; K = 1 is synchronous.
    """
    if width == 1:
        return num_iterations * (local + communicate)
    return local + (num_iterations - 1) * max(local, communicate) + communicate


def pipelined_layers_seconds(local, num_iterations, *, num_workers, num_bytes, num_layers, latency, seconds_per_byte):
    """Equation 6: as equation 5, T·max(local, ring), but each of L layers pays the latencies."""
    sent = ring_seconds(num_workers, num_bytes, latency=num_layers * latency, seconds_per_byte=seconds_per_byte)
    return num_iterations * max(local, sent)
