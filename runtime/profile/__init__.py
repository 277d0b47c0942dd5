"""Measures a cluster from inside a job: links, what nodes share, and the time of a step."""

from preduce.runtime.profile.fit import Fit as Fit
from preduce.runtime.profile.fit import fit_hardware as fit_hardware
from preduce.runtime.profile.measure import Measurement as Measurement
from preduce.runtime.profile.measure import measure_phases as measure_phases
from preduce.runtime.profile.profile import Profile as Profile
from preduce.runtime.profile.profile import profile as profile
