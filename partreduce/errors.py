"""All exceptions that partreduce raises. `topo/errors.py` draws their hierarchy, with the exit code of each."""

from partreduce.topo.errors import DocumentError as DocumentError
from partreduce.topo.errors import EvictedError as EvictedError
from partreduce.topo.errors import FileError as FileError
from partreduce.topo.errors import HandshakeError as HandshakeError
from partreduce.topo.errors import InfeasibleError as InfeasibleError
from partreduce.topo.errors import InputError as InputError
from partreduce.topo.errors import MissingDependencyError as MissingDependencyError
from partreduce.topo.errors import PartreduceError as PartreduceError
from partreduce.topo.errors import PeerFailedError as PeerFailedError
from partreduce.topo.errors import RefutedError as RefutedError
from partreduce.topo.errors import ScheduleError as ScheduleError
from partreduce.topo.errors import StoreLostError as StoreLostError
from partreduce.topo.errors import UnavailableError as UnavailableError
from partreduce.topo.errors import UndecidedError as UndecidedError
