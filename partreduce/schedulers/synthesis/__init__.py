"""Search for schedules with a CP-SAT solver, for a cluster and limits, with a proved bound on all other schedules.

`problem` defines the request and the result, `cluster_shape` what the cluster implies before any search, `choices` the
groups that a phase may have. `front.search`, the entry point, lets `schedule_model` (CP-SAT) find short periods, and
the phases of long periods. `long_periods` composes long periods of these phases and improves them one phase at a time.
"""

from partreduce.schedulers.synthesis.front import search as search
from partreduce.schedulers.synthesis.problem import Candidate as Candidate
from partreduce.schedulers.synthesis.problem import Front as Front
from partreduce.schedulers.synthesis.problem import Limits as Limits
from partreduce.schedulers.synthesis.problem import Objective as Objective
from partreduce.schedulers.synthesis.problem import Problem as Problem
from partreduce.schedulers.synthesis.problem import Status as Status
