"""What public functions return, and parts of what they take: plans, proofs, figures, predictions, step times."""

from partreduce.planner.lateness import Lateness as Lateness
from partreduce.planner.option import Option as Option
from partreduce.planner.plan import Plan as Plan
from partreduce.planner.predict import Prediction as Prediction
from partreduce.schedulers.simulator.timeline import Timeline as Timeline
from partreduce.topo.figures import Figure as Figure
from partreduce.topo.figures import FigureLimits as FigureLimits
from partreduce.topo.figures import Figures as Figures
from partreduce.topo.hardware import CodecSeconds as CodecSeconds
from partreduce.topo.hardware import Switch as Switch
from partreduce.topo.pilot import Pilot as Pilot
from partreduce.topo.timing.compute import ComputeTimes as ComputeTimes
from partreduce.topo.timing.compute import Disturbance as Disturbance
from partreduce.topo.timing.compute import RandomDelay as RandomDelay
from partreduce.topo.timing.compute import RandomSlowdown as RandomSlowdown
from partreduce.topo.timing.compute import ShiftingDelay as ShiftingDelay
from partreduce.topo.timing.tables import Touched as Touched
from partreduce.verify.base import Claim as Claim
from partreduce.verify.base import Proof as Proof
