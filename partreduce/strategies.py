"""The parts of a schedule: the kinds of strategy, the values of payload, sync and transport, groups, rules, rounds.

`import partreduce` does not load them; `partreduce.strategies.StaticGroups` does. docs/strategies/ explains them,
docs/file-format.md how files hold them.
"""

from partreduce.topo.failure_plan import FailurePlan as FailurePlan
from partreduce.topo.failure_plan import SurvivorRule as SurvivorRule
from partreduce.topo.phase import Group as Group
from partreduce.topo.phase import Phase as Phase
from partreduce.topo.rule import Block as Block
from partreduce.topo.strategies import AllReduce as AllReduce
from partreduce.topo.strategies import AllReduceAlgorithm as AllReduceAlgorithm
from partreduce.topo.strategies import Averaging as Averaging
from partreduce.topo.strategies import Codec as Codec
from partreduce.topo.strategies import CodecScope as CodecScope
from partreduce.topo.strategies import DelayedAveraging as DelayedAveraging
from partreduce.topo.strategies import DelayedMerge as DelayedMerge
from partreduce.topo.strategies import DrainPolicy as DrainPolicy
from partreduce.topo.strategies import DynamicGroups as DynamicGroups
from partreduce.topo.strategies import EdgeWeighting as EdgeWeighting
from partreduce.topo.strategies import Gradient as Gradient
from partreduce.topo.strategies import GradientBuckets as GradientBuckets
from partreduce.topo.strategies import GradientReduction as GradientReduction
from partreduce.topo.strategies import GroupPhases as GroupPhases
from partreduce.topo.strategies import GroupSplit as GroupSplit
from partreduce.topo.strategies import HasGroups as HasGroups
from partreduce.topo.strategies import HasMixingMatrix as HasMixingMatrix
from partreduce.topo.strategies import IterationGap as IterationGap
from partreduce.topo.strategies import LateGradientPolicy as LateGradientPolicy
from partreduce.topo.strategies import MissedResultPolicy as MissedResultPolicy
from partreduce.topo.strategies import NeighborAveraging as NeighborAveraging
from partreduce.topo.strategies import OuterOptimizer as OuterOptimizer
from partreduce.topo.strategies import OuterParams as OuterParams
from partreduce.topo.strategies import OuterStep as OuterStep
from partreduce.topo.strategies import Pairwise as Pairwise
from partreduce.topo.strategies import PartialAllReduce as PartialAllReduce
from partreduce.topo.strategies import Payload as Payload
from partreduce.topo.strategies import Pipeline as Pipeline
from partreduce.topo.strategies import Placement as Placement
from partreduce.topo.strategies import QuorumStart as QuorumStart
from partreduce.topo.strategies import Round as Round
from partreduce.topo.strategies import RulePhases as RulePhases
from partreduce.topo.strategies import Server as Server
from partreduce.topo.strategies import SkipPolicy as SkipPolicy
from partreduce.topo.strategies import SlowWorkerPolicy as SlowWorkerPolicy
from partreduce.topo.strategies import StaticGroups as StaticGroups
from partreduce.topo.strategies import Strategy as Strategy
from partreduce.topo.strategies import Synchronous as Synchronous
from partreduce.topo.strategies import TablePlacement as TablePlacement
from partreduce.topo.strategies import Transport as Transport
from partreduce.topo.strategies import UpdateOrder as UpdateOrder
