"""The collectives that are compared with bare transfers return the sum."""

from benchmarks import transport
from benchmarks.kit import take_turns
from helpers.thread_ranks import ThreadRanks


def test_every_algorithm_and_codec_is_close_to_the_exact_sum():
    def work(world):
        world.create(tuple(range(4)), name="everyone")
        errors = {}
        ways = transport.sums(world, 0.01, 2, errors)
        times = take_turns(ways, lambda: None, 1, warm_up=1)
        return errors, times

    for errors, times in ThreadRanks(4).run(4, work):
        assert set(errors) == set(times) == set(transport.SUMS)
        assert max(errors.values()) < 0.05
        assert errors[transport.PLAIN] < 1e-6
