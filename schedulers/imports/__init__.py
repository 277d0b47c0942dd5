"""Schedules from other tools' files and from networkx graphs; what they say is verified like any other schedule."""

from preduce.schedulers.imports.bluefog import one_peer as one_peer
from preduce.schedulers.imports.bluefog import sampled_generator as sampled_generator
from preduce.schedulers.imports.load import formats as formats
from preduce.schedulers.imports.load import import_schedule as import_schedule
from preduce.schedulers.imports.networkx_graphs import from_networkx as from_networkx
