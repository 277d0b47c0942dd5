"""Synthesis: schedules searched for a cluster, with proved bounds; exact consensus in the fewest rounds."""

from schedulers.synthesis.front import synthesise as synthesise
from schedulers.synthesis.problem import Candidate as Candidate
from schedulers.synthesis.problem import Front as Front
from schedulers.synthesis.problem import Limits as Limits
from schedulers.synthesis.problem import Objective as Objective
from schedulers.synthesis.problem import Problem as Problem
from schedulers.synthesis.problem import Status as Status
