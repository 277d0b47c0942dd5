"""More functions for files than `load_schedule` and `write_schedule`: texts, hashes, cluster and pilot files."""

from partreduce.topo.document.canonical import schedule_sha256 as schedule_sha256
from partreduce.topo.document.cluster import write_cluster as write_cluster
from partreduce.topo.document.pilot import load_pilot as load_pilot
from partreduce.topo.document.schedule import dump_schedule as dump_schedule
from partreduce.topo.document.schedule import parse_schedule as parse_schedule
