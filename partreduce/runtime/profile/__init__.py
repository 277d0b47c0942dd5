"""Measures a cluster from inside a job: links, what nodes share, and the time of a step."""

from partreduce.runtime.profile.fit import Fit as Fit
from partreduce.runtime.profile.fit import fit_hardware as fit_hardware
from partreduce.runtime.profile.measure import Measurement as Measurement
from partreduce.runtime.profile.measure import measure_phases as measure_phases
from partreduce.runtime.profile.profile import Profile as Profile
from partreduce.runtime.profile.profile import profile as profile
