"""Functions for schedules as text, for their hashes, and for cluster and pilot files, which few scripts need."""

from partreduce.topo.document.canonical import schedule_sha256 as schedule_sha256
from partreduce.topo.document.cluster import write_cluster as write_cluster
from partreduce.topo.document.pilot import load_pilot as load_pilot
from partreduce.topo.document.schedule import dump_schedule as dump_schedule
from partreduce.topo.document.schedule import parse_schedule as parse_schedule
