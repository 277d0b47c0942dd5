"""The planner: from a cluster to the schedules worth choosing between, and the one to take."""

from preduce.planner.job import Data as Data
from preduce.planner.job import Job as Job
from preduce.planner.job import Objective as Objective
from preduce.planner.option import Option as Option
from preduce.planner.plan import Plan as Plan
from preduce.planner.plan import plan as plan
