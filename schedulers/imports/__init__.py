"""Schedules from other tools' files and from networkx graphs, one format a file; verified like any other schedule."""

from preduce.schedulers.imports.bluefog import one_peer as one_peer
from preduce.schedulers.imports.bluefog import sampled_generator as sampled_generator
from preduce.schedulers.imports.load import formats as formats
from preduce.schedulers.imports.load import import_schedule as import_schedule
from preduce.schedulers.imports.networkx_graph import from_networkx as from_networkx
