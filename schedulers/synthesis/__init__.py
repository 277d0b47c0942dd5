"""Synthesis: schedules searched for a cluster, with proved bounds; exact consensus in the fewest rounds."""

from preduce.schedulers.synthesis.front import synthesise as synthesise
from preduce.schedulers.synthesis.problem import Candidate as Candidate
from preduce.schedulers.synthesis.problem import Front as Front
from preduce.schedulers.synthesis.problem import Limits as Limits
from preduce.schedulers.synthesis.problem import Objective as Objective
from preduce.schedulers.synthesis.problem import Problem as Problem
from preduce.schedulers.synthesis.problem import Status as Status
