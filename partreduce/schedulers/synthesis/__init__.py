"""Synthesis: schedules decided by a solver for a cluster and its limits, with what is proved about all others.

`problem` says what can be asked and what comes back, `cluster_shape` what follows from the cluster, `choices` which
groups there are. `front.search`, the entry, asks `schedule_model` (CP-SAT) for short periods as wholes and for the
phases of long ones, which `compositions` puts together between full averages and `exchanges` improves one by one.
"""

from partreduce.schedulers.synthesis.front import search as search
from partreduce.schedulers.synthesis.problem import Candidate as Candidate
from partreduce.schedulers.synthesis.problem import Front as Front
from partreduce.schedulers.synthesis.problem import Limits as Limits
from partreduce.schedulers.synthesis.problem import Objective as Objective
from partreduce.schedulers.synthesis.problem import Problem as Problem
from partreduce.schedulers.synthesis.problem import Status as Status
