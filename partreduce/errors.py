"""Everything that partreduce raises of its own. The tree, with the exit code of each, is drawn in `topo/errors.py`."""

from partreduce.topo.errors import DocumentError as DocumentError
from partreduce.topo.errors import FencedError as FencedError
from partreduce.topo.errors import FileProblem as FileProblem
from partreduce.topo.errors import HandshakeError as HandshakeError
from partreduce.topo.errors import InfeasibleError as InfeasibleError
from partreduce.topo.errors import InputError as InputError
from partreduce.topo.errors import MissingFeatureError as MissingFeatureError
from partreduce.topo.errors import PartreduceError as PartreduceError
from partreduce.topo.errors import PeerLostError as PeerLostError
from partreduce.topo.errors import RefutedError as RefutedError
from partreduce.topo.errors import ScheduleError as ScheduleError
from partreduce.topo.errors import StoreLostError as StoreLostError
from partreduce.topo.errors import UnavailableError as UnavailableError
from partreduce.topo.errors import UnknownError as UnknownError
