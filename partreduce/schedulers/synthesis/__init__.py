"""Synthesis: schedules searched for a cluster.

`front.search` is the entry. `problem` says what can be asked and what comes back. Then, in the order of the work:

* `cluster_shape`: what evenness, speeds and cuts of the cluster imply before any search;
* `alphabet`: the phases to choose among, listed by `rule_alphabet` (even clusters) or `explicit_alphabet` (any, with
  costs by `partitions`);
  `hints` spell known schedules in them;
* `schedule_model`: schedules decided by CP-SAT (`cp_sat`) where a limit says which groups may be used, as more hints;
* `scoring`: thousands of periods at once, through the covariance that phases pass on;
* `period_search` over one alphabet, which fills an `archive`: hints, `segments` between full averages put together, and
  `windows` of what is on the front rebuilt;
* `candidates`: what is left as schedules with metrics of `topo`, and the choice among them.
"""

from partreduce.schedulers.synthesis.front import search as search
from partreduce.schedulers.synthesis.problem import Candidate as Candidate
from partreduce.schedulers.synthesis.problem import Front as Front
from partreduce.schedulers.synthesis.problem import Limits as Limits
from partreduce.schedulers.synthesis.problem import Objective as Objective
from partreduce.schedulers.synthesis.problem import Problem as Problem
from partreduce.schedulers.synthesis.problem import Status as Status
