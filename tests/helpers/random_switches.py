"""Hypothesis strategies for switches that nest or are disjoint."""

from hypothesis import strategies as st

from partreduce import Link
from partreduce.topo.hardware import Switch


@st.composite
def switches_over(draw, num_nodes, links=None):
    """Draw a random forest of switches over the nodes; `links` draws the uplinks of some."""
    numbers = st.builds(Link, st.integers(0, 3).map(float), st.integers(0, 4).map(float)) if links is None else links
    order = draw(st.permutations(range(num_nodes)))
    found = {}

    def split(part):
        if draw(st.booleans()):
            found.setdefault(frozenset(part), draw(numbers))
        if len(part) > 1 and draw(st.booleans()):
            cut = draw(st.integers(1, len(part) - 1))
            split(part[:cut])
            split(part[cut:])

    split(order)
    return tuple(Switch(tuple(nodes), uplink) for nodes, uplink in found.items())
