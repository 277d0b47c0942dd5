"""What a schedule may say about how workers synchronise: one strategy kind a file."""

from topo.strategies.allreduce import AllReduce as AllReduce
from topo.strategies.base import Averaging as Averaging
from topo.strategies.base import Pace as Pace
from topo.strategies.base import Strategy as Strategy
from topo.strategies.generated import Division as Division
from topo.strategies.generated import Generated as Generated
from topo.strategies.generated import InitiatorRule as InitiatorRule
from topo.strategies.neighbor import Neighbor as Neighbor
from topo.strategies.neighbor import Round as Round
from topo.strategies.pairwise import Pairwise as Pairwise
from topo.strategies.server import Server as Server
from topo.strategies.static import Static as Static
