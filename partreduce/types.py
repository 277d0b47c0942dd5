"""The types of results and arguments of public functions: plans, proofs, metrics, predictions, step times."""

from partreduce.planner.job import Delay as Delay
from partreduce.planner.option import CandidateSchedule as CandidateSchedule
from partreduce.planner.plan import Plan as Plan
from partreduce.planner.predict import Prediction as Prediction
from partreduce.schedulers.simulator.timeline import Timeline as Timeline
from partreduce.topo.hardware import CodecSeconds as CodecSeconds
from partreduce.topo.hardware import Switch as Switch
from partreduce.topo.metrics import Metric as Metric
from partreduce.topo.metrics import MetricLimits as MetricLimits
from partreduce.topo.metrics import ScheduleMetrics as ScheduleMetrics
from partreduce.topo.pilot import Pilot as Pilot
from partreduce.topo.timing.compute import ComputeTimes as ComputeTimes
from partreduce.topo.timing.compute import RandomDelay as RandomDelay
from partreduce.topo.timing.compute import RandomSlowdown as RandomSlowdown
from partreduce.topo.timing.compute import RotatingDelay as RotatingDelay
from partreduce.topo.timing.compute import StragglerModel as StragglerModel
from partreduce.topo.timing.tables import RowAccess as RowAccess
from partreduce.verify.base import Claim as Claim
from partreduce.verify.base import Proof as Proof
