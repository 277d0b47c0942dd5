"""Values of two fields of every strategy: `sync`, when averages apply, and `transport`, how the payload is sent.

With `payload`, what is averaged, and a kind's groups they are the four axes of docs/internals/architecture.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice, Count, Exact, JsonObject, Rounds, take_numbers
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.strategies.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Synchronous(Waiting):
    """Every round waits for its average: x_{k+1} = W_k (x_k + u_k), with u_k the steps of round k, W_k its matrix."""

    word: ClassVar[str] = "synchronous"


@dataclass(frozen=True, slots=True)
class DelayedAveraging(Waiting):
    """The parameters at a round's start are averaged during its steps u_k: x_{k+1} = W_k x_k + u_k(x_k)."""

    word: ClassVar[str] = "delay"

    rounds: int = 1

    @property
    def lag(self) -> int:
        return self.rounds

    def check(self) -> None:
        if self.rounds != 1:
            raise ScheduleError(f"sync.delay: is {self.rounds}; an averaging is late by 1 round")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMerge(JsonObject, Waiting):
    """Average the models of `steps` steps before a round's end while workers compute, and merge the result at the end.

    x <- alpha * own + (1 - alpha) * global, where own is the model at the end and global the result of the average
    (Streaming DiLoCo, arXiv 2501.18512, section 3.2). Progress made during the averaging is kept with weight alpha.
    """

    word: ClassVar[str] = "merge"
    place: ClassVar[str] = "sync.merge."
    called: ClassVar[str] = "merging inside a round"

    steps: Rounds = 0
    alpha: Exact = Fraction(0)

    def __post_init__(self) -> None:
        JsonObject.__post_init__(self)
        take_numbers(self, "alpha")

    @property
    def late_steps(self) -> int:
        return self.steps

    @property
    def kept(self) -> Fraction:
        return self.alpha

    def check(self) -> None:
        if not 0 <= self.alpha < 1:
            raise ScheduleError(f"sync.merge.alpha: is {self.alpha}; a worker keeps at least 0 and less than all")
        if not self.steps and not self.alpha:
            raise ScheduleError("sync.merge: has steps 0 and alpha 0, which is synchronous; leave it out")


class DrainPolicy(Choice):
    """How a pipeline handles the gradients that are still in flight when it ends."""

    APPLY = "apply"
    """The remaining gradients are applied one after another."""
    DROP = "drop"
    """The remaining gradients are discarded, as in the published algorithm."""


class GradientReduction(Choice):
    """How the gradients of all workers are combined for a step."""

    MEAN = "mean"
    SUM = "sum"
    """The sum, as in the published algorithm: the learning rate must be the mean's divided by the number of workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(JsonObject, Waiting):
    """Pipe-SGD: a step applies the gradients of `width` - 1 steps before, which are all-reduced during later steps.

    w[t] = w[t-1] - U(g[t-K]) with K = `width`, U the optimizer's update, g[t] the mean (or sum) of all workers'
    gradients at w[t], and g[t] = 0 for t <= 0 (Li et al., NeurIPS 2018, Algorithm 1). The first `warm_up` steps are
    synchronous.

    A width beyond 2 hides no more communication, since a worker computes one step and sends one gradient at a time: a
    step takes max(computing, communicating) for each K >= 2, while gradients get older. `run` and `verify` warn about
    it.
    """

    word: ClassVar[str] = "pipeline"
    place: ClassVar[str] = "sync.pipeline."
    called: ClassVar[str] = "pipeline of gradients"
    delays_gradients: ClassVar[bool] = True

    width: Count = 2
    warm_up: Rounds = 0
    drain: DrainPolicy = DrainPolicy.APPLY
    total: GradientReduction = GradientReduction.MEAN

    @property
    def lag(self) -> int:
        """The delay of a gradient in steps, K - 1."""
        return self.width - 1

    def check(self) -> None:
        if self.width < 2:
            raise ScheduleError(
                f"sync.pipeline.width: is {self.width}; a pipeline is 2 wide, and a width of 1 is synchronous"
            )


WIDER = (
    "beyond 2 a step still takes the longer of computing and communicating, as a worker does one of each at a time, "
    "while gradients get older (Pipe-SGD, section 3.2)"
)
"""The end of a warning about `Pipeline.width` above 2: the paper's argument against it."""

SYNCHRONOUS = Synchronous()
Sync = Synchronous | DelayedAveraging | DelayedMerge | Pipeline | IterationGap | PartialAllReduce
"""The type of the field `sync`: when the average of a round applies, and how old it may be."""


class AllReduceAlgorithm(Choice):
    """The algorithm of an all-reduce; hierarchical: inside nodes, then across them (costs: `topo.timing.cost`)."""

    RING = "ring"
    HIERARCHICAL = "hierarchical"


class Codec(Choice):
    """The number format of an all-reduce on the wire (error bounds: docs/codecs.md)."""

    NONE = "none"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    """Integers from -127 to 127, times one scale per block of numbers."""
    INT4 = "int4"
    """Integers from -7 to 7, two in a byte, times one scale per block of numbers."""

    @property
    def has_blocks(self) -> bool:
        """Whether each block of numbers shares a scale (int8, int4)."""
        return self in {Codec.INT8, Codec.INT4}

    @property
    def rounds(self) -> bool:
        """Whether the codec is lossy."""
        return self is not Codec.NONE


class CodecScope(Choice):
    """Which parts of an all-reduce are encoded."""

    ALL = "all"
    ACROSS_NODES = "across-nodes"
    """Only the parts sent between nodes; inside a node numbers keep their precision."""


class GradientBuckets(Choice):
    """When a gradient is sent: in one piece, or layer by layer."""

    SINGLE = "single"
    """The whole gradient in one piece, after the backward pass."""
    PER_LAYER = "per_layer"
    """Layer by layer during the backward pass, which hides the communication, at the cost of one latency per layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport(JsonObject):
    """How an all-reduce is sent: algorithm, codec, and buckets of gradients.

    `block` is how many numbers share one scale of the codecs int8 and int4. With `error_feedback` a worker adds the
    rounding error of its contribution to an all-reduce of all workers to its next contribution.
    """

    place: ClassVar[str] = "transport."

    algorithm: AllReduceAlgorithm = AllReduceAlgorithm.RING
    codec: Codec = Codec.NONE
    where: CodecScope = CodecScope.ALL
    block: Count = 256
    error_feedback: bool = False
    gradient_buckets: GradientBuckets = GradientBuckets.SINGLE

    def check(self) -> None:
        default = Transport()
        if not self.codec.has_blocks:
            for name in ("block", "error_feedback"):
                if getattr(self, name) != getattr(default, name):
                    value = getattr(self, name)
                    rule = f"only the codecs int8 and int4 have it (the codec is {self.codec})"
                    raise ScheduleError(f"transport.{name}: is {str(value).lower()}; {rule}")
        if self.where is not CodecScope.ALL and self.codec is Codec.NONE:
            raise ScheduleError(f"transport.where: is {self.where}; there is no codec whose place it could say")
        if self.where is CodecScope.ACROSS_NODES and self.algorithm is not AllReduceAlgorithm.HIERARCHICAL:
            rule = f"algorithm {self.algorithm} has no separate stage across nodes, hierarchical has"
            raise ScheduleError(f"transport.where: is {self.where}; {rule}")


RING = Transport()
