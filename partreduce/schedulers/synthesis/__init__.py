"""Synthesize schedules: CP-SAT decides them for a cluster and its limits, with a bound on all others.

`problem` defines the request and the result, `cluster_shape` what the cluster implies before any search, `choices` the
groups. `front.search`, the entry point, asks `schedule_model` (CP-SAT) for short periods and for the phases of long
ones, which `long_periods` composes between full averages and improves one by one.
"""

from partreduce.schedulers.synthesis.front import search as search
from partreduce.schedulers.synthesis.problem import Candidate as Candidate
from partreduce.schedulers.synthesis.problem import Front as Front
from partreduce.schedulers.synthesis.problem import Limits as Limits
from partreduce.schedulers.synthesis.problem import Objective as Objective
from partreduce.schedulers.synthesis.problem import Problem as Problem
from partreduce.schedulers.synthesis.problem import Status as Status
