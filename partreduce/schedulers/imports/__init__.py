"""Import schedules from other tools' files and from networkx graphs; `verify` treats them like any other schedule."""

from partreduce.schedulers.imports.graphs import from_networkx as from_networkx
from partreduce.schedulers.imports.load import formats as formats
from partreduce.schedulers.imports.load import import_schedule as import_schedule
