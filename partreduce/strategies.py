"""What a schedule says: one value for each kind of strategy, the values of its axes, and groups, rules and rounds.

`import partreduce` does not load them; `partreduce.strategies.Static` does. docs/strategies.md says what each means,
docs/file-format.md how it is written in a file.
"""

from partreduce.topo.failure_plan import FailurePlan as FailurePlan
from partreduce.topo.failure_plan import SurvivorRule as SurvivorRule
from partreduce.topo.phase import Group as Group
from partreduce.topo.phase import Phase as Phase
from partreduce.topo.rule import Block as Block
from partreduce.topo.strategies import AllReduce as AllReduce
from partreduce.topo.strategies import Anchor as Anchor
from partreduce.topo.strategies import Averaging as Averaging
from partreduce.topo.strategies import Codec as Codec
from partreduce.topo.strategies import CodecScope as CodecScope
from partreduce.topo.strategies import Counting as Counting
from partreduce.topo.strategies import Division as Division
from partreduce.topo.strategies import Drain as Drain
from partreduce.topo.strategies import Form as Form
from partreduce.topo.strategies import Gap as Gap
from partreduce.topo.strategies import Generated as Generated
from partreduce.topo.strategies import Gradient as Gradient
from partreduce.topo.strategies import GradientTotal as GradientTotal
from partreduce.topo.strategies import GroupPhases as GroupPhases
from partreduce.topo.strategies import How as How
from partreduce.topo.strategies import InitiatorRule as InitiatorRule
from partreduce.topo.strategies import Late as Late
from partreduce.topo.strategies import Lockstep as Lockstep
from partreduce.topo.strategies import Merge as Merge
from partreduce.topo.strategies import MissedResults as MissedResults
from partreduce.topo.strategies import Mixing as Mixing
from partreduce.topo.strategies import Neighbor as Neighbor
from partreduce.topo.strategies import Order as Order
from partreduce.topo.strategies import Outer as Outer
from partreduce.topo.strategies import OuterOptimizer as OuterOptimizer
from partreduce.topo.strategies import Pairwise as Pairwise
from partreduce.topo.strategies import Phased as Phased
from partreduce.topo.strategies import Pipeline as Pipeline
from partreduce.topo.strategies import Quorum as Quorum
from partreduce.topo.strategies import QuorumStart as QuorumStart
from partreduce.topo.strategies import Round as Round
from partreduce.topo.strategies import Route as Route
from partreduce.topo.strategies import Routes as Routes
from partreduce.topo.strategies import RulePhases as RulePhases
from partreduce.topo.strategies import Sending as Sending
from partreduce.topo.strategies import Server as Server
from partreduce.topo.strategies import Skip as Skip
from partreduce.topo.strategies import Static as Static
from partreduce.topo.strategies import Strategy as Strategy
from partreduce.topo.strategies import TableWay as TableWay
from partreduce.topo.strategies import Weights as Weights
