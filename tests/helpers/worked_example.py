"""The worked example: 16 workers on 4 nodes, 552 MB, 10 GB/s inside nodes, 5 GB/s between them; Prague's Figure 10."""

from helpers.golden import GOLDEN
from partreduce import Cluster, Hardware, Link
from partreduce.strategies import Block

METRICS = GOLDEN["worked_example_16_workers"]
CLUSTER = Cluster.regular(4, 4)
HARDWARE = Hardware(
    inside=Link.of_bandwidth(METRICS["intra_node_bytes_per_second"]),
    nic=Link.of_bandwidth(METRICS["nic_bytes_per_second"]),
    model_bytes=METRICS["model_bytes"],
)
NODE = (Block((0, 1, 2, 3)),)
"""A block of all workers of each node."""
EVERYBODY = (Block((0, 1, 2, 3), (0, 1)),)
FIGURE_10 = ((Block((0,), (0, 1)), Block((2, 3))), NODE, (Block((0, 3)), Block((1,), (0,))), NODE)
"""Prague's Figure 10 as rule phases over node radices (2, 2)."""
