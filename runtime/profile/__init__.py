"""Measures a cluster from inside a job: links, what nodes share, and the time of a step."""

from runtime.profile.fit import Fit as Fit
from runtime.profile.fit import fit_hardware as fit_hardware
from runtime.profile.measure import Measurement as Measurement
from runtime.profile.measure import measure_phases as measure_phases
from runtime.profile.profile import Profile as Profile
from runtime.profile.profile import profile as profile
