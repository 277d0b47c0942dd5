"""Search schedules for a cluster.

`front.search` is the entry. `problem` defines the request and the result. Then, in the order of the work:

* `cluster_shape`: what evenness, speeds and cuts of the cluster imply before any search;
* `alphabet`: the phases to choose among, listed by `rule_alphabet` (even clusters) or `explicit_alphabet` (any, with
  costs by `partitions`);
  `hints` spell known schedules in them;
* `schedule_model`: schedules decided by CP-SAT (`cp_sat`) where a limit says which groups may be used, as more hints;
* `scoring`: thousands of periods at once, through the covariance that phases pass on;
* `period_search` over one alphabet, which fills an `archive`: hints, `segments` between full averages put together, and
  `windows` of schedules on the front rebuilt;
* `candidates`: the remaining ones as schedules with metrics of `topo`, and the choice among them.
"""

from partreduce.schedulers.synthesis.front import search as search
from partreduce.schedulers.synthesis.problem import Candidate as Candidate
from partreduce.schedulers.synthesis.problem import Front as Front
from partreduce.schedulers.synthesis.problem import Limits as Limits
from partreduce.schedulers.synthesis.problem import Objective as Objective
from partreduce.schedulers.synthesis.problem import Problem as Problem
from partreduce.schedulers.synthesis.problem import Status as Status
