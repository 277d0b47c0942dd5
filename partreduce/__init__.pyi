# The public names and their homes, the only list of them: `partreduce/__init__.py` imports each on its first use.

from . import errors as errors
from . import files as files
from . import strategies as strategies
from . import types as types
from .api import catalogue as catalogue
from .api import design as design
from .planner.job import Data as Data
from .planner.job import PlanRequest as PlanRequest
from .planner.parallelize import parallelize_embeddings as parallelize_embeddings
from .planner.predict import predict as predict
from .runtime.adapters.averager import ScheduleAverager as ScheduleAverager
from .runtime.adapters.averager import ScheduleHookState as ScheduleHookState
from .runtime.adapters.averager import ScheduleLocalSGD as ScheduleLocalSGD
from .runtime.adapters.averager import schedule_hook as schedule_hook
from .runtime.adapters.framework import attach as attach
from .runtime.adapters.managed_schedule import TorchftSchedule as TorchftSchedule
from .runtime.averaging.p_reduce import p_reduce as p_reduce
from .runtime.checkpoint import load_checkpoint as load_checkpoint
from .runtime.checkpoint import save_checkpoint as save_checkpoint
from .runtime.clipping import clip_grad_norm_ as clip_grad_norm_
from .runtime.data.sampler import RoundSampler as RoundSampler
from .runtime.data.sampler import shard_dataset as shard_dataset
from .runtime.optimizer import DistributedOptimizer as DistributedOptimizer
from .runtime.pilot.job import PilotJob as PilotJob
from .runtime.recorder import merge_traces as merge_traces
from .schedulers.imports.load import import_schedule as import_schedule
from .schedulers.simulator.simulate import simulate as simulate
from .schedulers.synthesis.problem import Limits as Limits
from .schedulers.synthesis.problem import Objective as Objective
from .topo.cluster import Cluster as Cluster
from .topo.describe import describe as describe
from .topo.document.cluster import load_cluster as load_cluster
from .topo.document.schedule import load_schedule as load_schedule
from .topo.document.writer import write_schedule as write_schedule
from .topo.errors import PartreduceError as PartreduceError
from .topo.hardware import Hardware as Hardware
from .topo.hardware import Link as Link
from .topo.metrics import metrics as metrics
from .topo.schedule import Schedule as Schedule
from .verify import verify as verify

__version__: str
