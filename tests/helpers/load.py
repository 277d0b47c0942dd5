"""How much longer things take here than on a machine that does nothing else."""

import os


def stretched(seconds):
    """A limit that holds on an idle machine, for one that has other work: by how many want each of its cores.

    A test that asks how soon something is noticed measures those others, too.
    """
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
