"""Name the environment variables that the runtime reads or sets: its own, torchrun's, and those of other launchers."""

from __future__ import annotations

# Set by `partreduce run` for its workers.
SCHEDULE = "PARTREDUCE_SCHEDULE"  # the path of the schedule file
MAX_FAILED = "PARTREDUCE_MAX_FAILURES"  # how many workers may fail if the launcher decides which continue
MAX_RESTARTS = "PARTREDUCE_MAX_RESTARTS"  # how many restarts of failed workers the run allows
RESTARTED = "PARTREDUCE_RESTARTED"  # set for the replacement of a failed worker: its number among the run's restarts
RUN_SECRET = "PARTREDUCE_RUN_SECRET"  # noqa: S105 - the name of the variable
"""Secret of the run, part of the mailboxes' keys, so that access to the store is not enough to write to a mailbox.

Users may set it for the launchers of all nodes, which then authenticate each other and derive a secret for each run.
"""
GENERATOR = "PARTREDUCE_GENERATOR"  # the address of the group generator
GENERATOR_KEYS = "PARTREDUCE_GENERATOR_KEYS"  # the key of the group generator

# Set by users.
OVER_GLOO = "PARTREDUCE_CUDA_OVER_GLOO"  # set to 1, CUDA tensors go over gloo, for tests of several processes on a GPU

CHECK = "PARTREDUCE_CHECK"  # set to `always`, every check for misuse runs in every step (see `guard.table`)

# Set by torchrun and by `partreduce run`.
RANK, WORLD_SIZE = "RANK", "WORLD_SIZE"
LOCAL_RANK, LOCAL_WORLD_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
GROUP_RANK, GROUP_WORLD_SIZE = "GROUP_RANK", "GROUP_WORLD_SIZE"
ROLE_RANK, ROLE_WORLD_SIZE, ROLE_NAME = "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"
MASTER_ADDR, MASTER_PORT = "MASTER_ADDR", "MASTER_PORT"
RENDEZVOUS = (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)  # what a worker needs to find the others
RUN_ID = "TORCHELASTIC_RUN_ID"
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # `True` if the launcher hosts the store
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
AGENT_MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"

# Set or read by other launchers and libraries.
SIZES_OF_LAUNCHERS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # number of processes, by other launchers
SLURM_NODEID = "SLURM_NODEID"
NODE_RANKS = (GROUP_RANK, SLURM_NODEID, "JOB_COMPLETION_INDEX")  # of torchrun, SLURM and an indexed Kubernetes Job
SLURM_TOPOLOGY = ("SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN")
SLURM_JOB = (
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION",
)
"""Variables that a profile records about the job in which it was measured."""
OMP_NUM_THREADS = "OMP_NUM_THREADS"
TORCH_CPP_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
GLOO_SOCKET_IFNAME = "GLOO_SOCKET_IFNAME"
NCCL_TEARS_DOWN = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
