"""What a schedule may say about how workers synchronise: one strategy kind a file."""

from preduce.topo.round import Round as Round
from preduce.topo.strategies.allreduce import AllReduce as AllReduce
from preduce.topo.strategies.axes import Form as Form
from preduce.topo.strategies.axes import How as How
from preduce.topo.strategies.axes import Late as Late
from preduce.topo.strategies.axes import Lockstep as Lockstep
from preduce.topo.strategies.axes import When as When
from preduce.topo.strategies.base import Averaging as Averaging
from preduce.topo.strategies.base import Mixing as Mixing
from preduce.topo.strategies.base import Pace as Pace
from preduce.topo.strategies.base import Phased as Phased
from preduce.topo.strategies.base import Strategy as Strategy
from preduce.topo.strategies.generated import Division as Division
from preduce.topo.strategies.generated import Generated as Generated
from preduce.topo.strategies.generated import InitiatorRule as InitiatorRule
from preduce.topo.strategies.neighbor import Neighbor as Neighbor
from preduce.topo.strategies.pairwise import Pairwise as Pairwise
from preduce.topo.strategies.server import Server as Server
from preduce.topo.strategies.static import GroupPhases as GroupPhases
from preduce.topo.strategies.static import RulePhases as RulePhases
from preduce.topo.strategies.static import Static as Static
