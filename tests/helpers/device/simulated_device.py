"""Devices for simulated ranks: a real GPU that threads share, and a simulated one on the CPU.

The simulated device orders operations as CUDA does: an operation that the host calls is queued in the current stream
and runs later in that stream's thread, in order. Streams run concurrently unless one waits for a mark of another. The
host continues until it asks for a value. If a stream fails to wait for something, its numbers come out wrong. The
device is a dispatch mode below autograd, so the tested code is the code that runs on a GPU, down to `torch.where(...,
out=...)`.

Both memories are the CPU's, so the simulated device records which arrays are the host's: arrays that are created
without a device, and results of operations on these alone, which run at once. Operations on arrays of both memories
raise an error, as on CUDA.

Memory is reused as by torch's allocator: when the host drops its last reference to an array, the next array of that
stream overwrites it, even if another stream still uses it. Only references prevent that, such as those that a running
operation holds until it is waited for.
"""

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from partreduce.runtime.transport import array_frames, server_allreduce, updates
from partreduce.runtime.transport.streams import CudaStreams, Streams

STUCK_SECONDS = 300.0
"""Seconds after which a simulated stream that waits for another continues; a test that needs this has a bug."""
LOOK_SECONDS = 0.05
"""How often a waiting simulated stream checks whether its mark was given up; a passed mark wakes it at once."""


_looking_up = threading.RLock()


def _one_at_a_time(look_up):
    """Return a `__getattr__` for torch's operations that threads may call at the same time: all get the same object.

    torch creates an operation's object on first access, and its C++ part keeps the address without a reference. If two
    threads create one each, the second replaces the first, and the address that the first thread gave to C++ is freed.
    """

    def get_one(self, name):
        with _looking_up:
            return self.__dict__[name] if name in self.__dict__ else look_up(self, name)

    return get_one


for _kind in (torch._ops._Ops, torch._ops._OpNamespace, torch._ops.OpOverloadPacket):
    _kind.__getattr__ = _one_at_a_time(_kind.__getattr__)  # type: ignore[method-assign]


_here = threading.local()


def _tensor_of_host(frame, dtype):
    """Return the tensor of a received frame, and register it as the host's: no dispatch mode sees its creation."""
    made = array_frames.tensor_of(frame, dtype)
    if (device := getattr(_here, "device", None)) is not None:
        device.note_host(made)
    return made


for _reader in (updates, server_allreduce):
    _reader.tensor_of = _tensor_of_host  # type: ignore[attr-defined]


class Mark:
    """A point in a simulated stream, like a CUDA event."""

    def __init__(self):
        self.passed = threading.Event()
        self.at = 0.0

    def query(self):
        return self.passed.is_set()

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e3

    def set(self):
        self.at = time.perf_counter()
        self.passed.set()


@contextlib.contextmanager
def without_versions():
    """Context manager: do not count writes in tensors' versions; autograd does not see those of a device or NCCL."""
    in_place = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(in_place):
        yield


class SimulatedStream:
    """A thread that runs queued tasks in order."""

    def __init__(self, device, name):
        self._device = device
        self.freed: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        """Freed memory to overwrite before the stream's next array is made."""
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"stream-{name}", daemon=True).start()

    def submit(self, task):
        self._tasks.put(task)

    def end(self):
        self._tasks.put(None)

    def _run(self):
        with without_versions():
            while (task := self._tasks.get()) is not None:
                try:
                    task()
                except Exception as error:  # noqa: BLE001 - shown where the host next waits
                    self._device.problem = self._device.problem or error
                del task


class SimulatedDevice:
    """The simulated device of one rank, on the CPU: the stream of the user's operations, and others."""

    def __init__(self, name):
        self.name = name
        self.device = torch.device("cpu")
        self.problem: Exception | None = None
        self.host_waits = 0
        """How often the host asked for a value and had to wait for the device."""
        self.sleeps = 0
        """How often one of its streams was delayed."""
        self._ended = threading.Event()
        self._memory: dict[int, torch.Tensor] = {}
        """The bytes of the arrays that operations made, by address, as long as the host has references to them."""
        self._host: dict[int, torch.UntypedStorage] = {}
        """The host's arrays by address of the storage; kept until the end of a run, so that no address is reused."""
        self._numbers: dict[int, torch.UntypedStorage] = {}
        """The same for arrays of one number that the device's operations made."""
        self._thread = 0
        self._streams: list[SimulatedStream] = []
        self.user = self.current = self.stream("user")

    def stream(self, name):
        made = SimulatedStream(self, f"{self.name}-{name}")
        self._streams.append(made)
        return made

    @contextlib.contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def mark(self, stream=None):
        """Return a mark after everything that a stream has queued."""
        mark = Mark()
        (stream or self.current).submit(mark.set)
        return mark

    def wait(self, mark, *, aborted=None):
        """Let the current stream wait for a mark, or until the event `aborted` is set."""
        ends = [self._ended, *([] if aborted is None else [aborted])]

        def task():
            deadline = time.monotonic() + STUCK_SECONDS
            while not mark.passed.wait(LOOK_SECONDS):
                if any(end.is_set() for end in ends) or time.monotonic() > deadline:
                    return

        self.current.submit(task)

    def sleep(self, seconds):
        self.sleeps += seconds > 0
        self.current.submit(lambda: time.sleep(seconds))

    def stall(self, aborted):
        """Stop the current stream until the event `aborted` is set by an abort."""
        self.current.submit(lambda: aborted.wait(STUCK_SECONDS))

    def settle(self):
        """Wait for all streams, and raise the first error of their tasks."""
        for stream in self._streams:
            self.mark(stream).passed.wait()
        if self.problem is not None:
            raise self.problem

    def end(self):
        self._ended.set()
        for stream in self._streams:
            stream.end()

    @contextlib.contextmanager
    def running(self):
        """Context manager: the calling thread is this rank's host, and its operations are queued."""
        self._thread, _here.device = threading.get_ident(), self
        with _Reads(self), _DispatchToDevice(self):
            yield

    @property
    def is_current(self):
        """Whether the calling thread is this rank's host; gloo's threads inherit its modes but work on the host."""
        return self._thread == threading.get_ident()

    def streams(self):
        return _SimulatedStreams(self)

    def ask(self):
        """Let the host wait for the current stream, because it needs a value."""
        self.host_waits += 1
        self.mark().passed.wait()

    def note_host(self, value):
        for tensor in _tensors_in(value):
            if _has_memory(tensor):
                storage = tensor.untyped_storage()
                self._host[storage._cdata] = storage

    def is_host(self, tensor):
        return _has_memory(tensor) and tensor.untyped_storage()._cdata in self._host

    def _is_number(self, tensor):
        """Return whether an array is a single number that no operation of the device made."""
        return tensor.dim() == 0 and tensor.untyped_storage()._cdata not in self._numbers

    def _copies(self, func, args):
        """Return whether an operation is a blocking copy between the two memories, for which the host waits."""
        if func not in _COPIES or any(args[2:]):
            return False
        targets, sources = map(_tensors_in, args[:2])
        return any(
            self.is_host(target) != self.is_host(source) for target, source in zip(targets, sources, strict=True)
        )

    def _check_mixed(self, func, tensors):
        """Raise RuntimeError for arrays of both memories in operations in which CUDA rejects them."""
        if func in _CROSSING:
            return
        from_host = [tensor for tensor in tensors if self.is_host(tensor) and tensor.dim()]
        if from_host and not all(self.is_host(tensor) or self._is_number(tensor) for tensor in tensors):
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, but some lie on the host")

    def call(self, func, args, kwargs):
        """Run one operation that the host calls.

        Views, and operations on the host's arrays, run at once; all others are queued in the current stream.
        """
        tensors = list(_tensors_in((args, kwargs)))
        # The indexed array decides the device: a list of indices or a number becomes a new array there.
        stored = [tensor for tensor in (tensors[:1] if func in _INDEXING else tensors) if _has_memory(tensor)]
        if any(map(self.is_host, stored)) and all(self.is_host(one) or self._is_number(one) for one in stored):
            result = func(*args, **kwargs)
            self.note_host(result)
            return result
        self._check_mixed(func, stored)
        if func is torch.ops.aten._local_scalar_dense.default or _waits(func, tensors) or self._copies(func, args):
            self.ask()
            return func(*args, **kwargs)
        views, writes = _returns_of(func)
        if views or func in _VIEWS:
            return func(*args, **kwargs)
        if not tensors:
            return _with_tensors(self._filled, func(*args, **kwargs))
        # As a kernel does, the operation gets the memory of now: a parameter's `data` may be another's when it runs.
        now, named = _with_tensors(self._memory_of, (args, kwargs))
        if writes:
            self.current.submit(lambda: func(*now, **named))
            return _written(func, args, kwargs)
        results = _with_tensors(self._room, _shapes_of(func, args, kwargs))
        for room in _tensors_in(results):
            if room.dim() == 0:
                self._numbers[room.untyped_storage()._cdata] = room.untyped_storage()
        rooms = list(_tensors_in(_with_tensors(self._memory_of, results)))

        def task():
            for room, value in zip(rooms, _tensors_in(func(*now, **named)), strict=True):
                if room.numel():
                    room.copy_(value)

        self.current.submit(task)
        return results

    def _room(self, shape):
        """Return an array of this shape whose memory the current stream reuses once the host has no reference to it."""
        if not _has_memory(shape):
            return torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype, device=shape.device)
        while not self.current.freed.empty():
            self.current.submit(partial(self.current.freed.get().fill_, 255))  # NaN in every float dtype
        memory = np.empty(max(1, _extent(shape) * shape.element_size()), dtype=np.uint8)
        lent, address, stream = memory.view(), memory.ctypes.data, self.current
        self._memory[address] = torch.from_numpy(memory)
        weakref.finalize(lent, lambda: stream.freed.put(self._memory.pop(address))).atexit = False
        return _array_in(torch.from_numpy(lent), shape)

    def _filled(self, made):
        """Return a copy of the array in memory that can be freed and reused."""
        if not _has_memory(made):
            return made
        room = self._room(made)
        room.copy_(made)
        return room

    def memory_of(self, tensor):
        """Return the array's memory as a kernel gets it, whichever memory it belongs to."""
        with _disable_current_modes():
            return self._memory_of(tensor)

    def _memory_of(self, tensor):
        bytes_ = self._memory.get(tensor.untyped_storage().data_ptr()) if _has_memory(tensor) else None
        return tensor.detach() if bytes_ is None else _array_in(bytes_, tensor, tensor.storage_offset())


def _array_in(bytes_, shape, offset=0):
    """Return an array of this shape in the given bytes."""
    empty = torch.empty(0, dtype=shape.dtype, device=shape.device)
    return empty.set_(bytes_.untyped_storage(), offset, shape.size(), shape.stride())


def _has_memory(tensor):
    return tensor.layout is torch.strided and not tensor.is_meta


def _waits(func, tensors):
    """Return whether the host waits in this operation: the result's size depends on values, or arrays are sparse."""
    if func in _INDEXING:
        return any(tensor.dtype is torch.bool for tensor in tensors[1:])
    is_sparse = "sparse_coo" in str(func) or any(tensor.layout is not torch.strided for tensor in tensors)
    return is_sparse or func in _SIZED


_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}
_COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default}
_CROSSING = _INDEXING | _COPIES | {torch.ops.aten._to_copy.default}
_SIZED = {
    torch.ops.aten._unique2.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.nonzero.default,
}
_VIEWS = {torch.ops.aten._unsafe_view.default, torch.ops.aten.lift_fresh.default}


def _extent(tensor):
    """Return how many numbers lie from an array's first to its last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True) if size)


def _zeros(tensor):
    numbers = torch.zeros(_extent(tensor), dtype=tensor.dtype, device=tensor.device)
    return numbers.as_strided(tensor.size(), tensor.stride())


def _shapes_of(func, args, kwargs):
    """Return what an operation's results have the shapes, strides and dtypes of: those of a run on zeros."""
    key = func, _form_of(args), _form_of(kwargs)
    if key not in _shapes:
        zeros, named = _with_tensors(_zeros, (args, kwargs))
        _shapes[key] = func(*zeros, **named)
    return _shapes[key]


_shapes: dict[tuple[object, ...], object] = {}


def _form_of(value):
    """Return all of an operation's arguments on which the form of its results depends."""
    if isinstance(value, torch.Tensor):
        return value.size(), value.stride(), value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return tuple(map(_form_of, value))
    if isinstance(value, dict):
        return tuple((name, _form_of(one)) for name, one in value.items())
    return type(value), value


def _tensors_in(value):
    """Return an iterator over the tensors in an operation's arguments or results; torch's takes ten times as long."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors_in(one)
    elif isinstance(value, dict):
        yield from _tensors_in(list(value.values()))


def _with_tensors(change, value):
    """Return an operation's arguments or results with each tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_with_tensors(change, one) for one in value])
    if isinstance(value, dict):
        return {name: _with_tensors(change, one) for name, one in value.items()}
    return value


@cache
def _returns_of(func):
    """Return whether an operation returns a view, and whether it returns only arguments that it writes."""
    aliases = [one.alias_info for one in func._schema.returns]
    return any(one is not None and not one.is_write for one in aliases), None not in aliases


@cache
def _outputs_of(func):
    """Return the (position, name) of the arguments that an operation writes, and how many it returns."""
    schema = func._schema
    arguments = [(place, one.name, one.alias_info) for place, one in enumerate(schema.arguments)]
    return [(place, name) for place, name, alias in arguments if alias and alias.is_write], len(schema.returns)


def _written(func, args, kwargs):
    """Return the arguments that an operation writes and returns."""
    outputs, count = _outputs_of(func)
    given = [args[place] if place < len(args) else kwargs.get(name) for place, name in outputs]
    written = [one for one in given if one is not None]
    if not count:
        return None
    return written[0] if count == 1 else tuple(written[:count])


class _DispatchToDevice(TorchDispatchMode):
    """Dispatch mode that sends operations to the device."""

    def __init__(self, device):
        super().__init__()
        self.simulated_device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        plain = not isinstance(func, torch._ops.OpOverload) or func.namespace == "profiler"
        if plain or not self.simulated_device.is_current:
            return func(*args, **(kwargs or {}))
        return self.simulated_device.call(func, args, kwargs or {})


_TO_HOST = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu)


class _Reads(TorchFunctionMode):
    """Function mode that notices reads of memory which never become operations."""

    def __init__(self, device):
        super().__init__()
        self.simulated_device = device

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _TO_HOST and not self.simulated_device.is_host(args[0]):
            self.simulated_device.ask()
        if func is torch.Tensor.to and self._crosses(*args[:2], **(kwargs or {})):
            self.simulated_device.ask()
            with _disable_current_modes():
                copied = args[0].detach().clone()
            if args[1] == "cpu":
                self.simulated_device.note_host(copied)
            return copied
        if func is torch.Tensor.backward:
            return self._backward(args[0], **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        # The string "cpu" means the host; code that copies the device of an array passes an object.
        if func in _device_constructors() and isinstance((kwargs or {}).get("device"), (str, type(None))):
            self.simulated_device.note_host(result)
        return result

    def _crosses(self, tensor, target=None, *, copy=False, **_):
        """Return whether `to` copies to the other memory.

        With the target "cpu", code of the host means host memory, and code that asks for a copy means the device: here
        both have that name.
        """
        if self.simulated_device.is_host(tensor):
            return copy and isinstance(target, torch.device)
        return isinstance(target, str) and target == "cpu"

    def _backward(self, loss, gradient=None, retain_graph=None, create_graph=False, inputs=None):
        """Call `backward`, noticing reads in hooks, too: a mode is off inside the function that it handles."""
        seed = torch.ones_like(loss) if gradient is None else gradient
        retain = create_graph if retain_graph is None else retain_graph
        engine = torch.autograd.Variable._execution_engine
        options = {"allow_unreachable": True, "accumulate_grad": True}
        with self:
            engine.run_backward((loss,), (seed,), retain, create_graph, (), **options)


class _SimulatedStreams(Streams):
    """The interface of `CudaStreams` on a simulated device."""

    runs_ahead = True

    def __init__(self, device):
        self._device, self._side = device, device.stream("side")

    def another(self):
        return _SimulatedStreams(self._device)

    def follow(self, mark):
        assert isinstance(mark, Mark)
        self._device.wait(mark)

    @contextlib.contextmanager
    def side(self):
        device = self._device
        before = device.mark()
        with device.on(self._side):
            device.wait(before)
            yield

    def rejoin(self):
        self._device.wait(self._device.mark(self._side))

    def upload(self, numbers, dtype):
        return self.stage(torch.tensor(numbers, dtype=dtype), self._device.device)

    def download(self, values):
        host = torch.zeros(values.shape, dtype=values.dtype)  # which is what a host sees that does not wait
        return host.copy_(values, non_blocking=True)

    def stage(self, values, device):
        pinned = values.clone()  # at once, if it is the host's
        return torch.empty(values.shape, dtype=values.dtype, device=device).copy_(pinned, non_blocking=True)

    def mark(self, *, timed=False):
        return self._device.mark()

    def settle(self):
        self._device.settle()


class Plain:
    """The reference without a device: every operation is complete when its call returns."""

    def __init__(self, device):
        self.device = device
        self.user = self.current = None
        self.host_waits = 0

    def stream(self, name):
        """None."""

    def on(self, stream):
        return contextlib.nullcontext()

    def mark(self):
        return _NoStreams().mark()

    def wait(self, mark, *, aborted=None):
        """Do nothing."""

    def memory_of(self, tensor):
        return tensor

    def sleep(self, seconds):
        """Do nothing."""

    def stall(self, aborted):
        """Do nothing, since nothing can stall here."""

    def settle(self):
        """Do nothing."""

    def end(self):
        """Do nothing."""

    def running(self):
        return contextlib.nullcontext()

    def streams(self):
        return _NoStreams()


class _NoStreams(Streams):
    """Streams without a device: every operation is complete when its call returns."""

    def mark(self, *, timed=False):
        mark = Mark()
        mark.set()
        return mark


class Cuda:
    """One rank's streams on a GPU that all ranks share."""

    def __init__(self, name, device):
        self.name, self.device = name, device
        self.host_waits = 0
        self.user = torch.cuda.Stream(device)

    @property
    def current(self):
        return torch.cuda.current_stream(self.device)

    def stream(self, name):
        return torch.cuda.Stream(self.device)

    def on(self, stream):
        return torch.cuda.stream(stream)

    def mark(self):
        """Return a mark after everything that the current stream has queued."""
        event = torch.cuda.Event()
        event.record(self.current)
        return event

    def wait(self, mark, *, aborted=None):
        self.current.wait_event(mark)

    def memory_of(self, tensor):
        return tensor.detach()

    def sleep(self, seconds):
        """Delay the current stream by about this many seconds: cycles are counted at 1.5 GHz."""
        torch.cuda._sleep(int(seconds * 1.5e9))

    def stall(self, aborted):
        """Delay the current stream for longer than any test waits; no abort can end it."""
        self.sleep(20.0)

    def settle(self):
        torch.cuda.synchronize(self.device)

    def end(self):
        """Do nothing."""

    @contextlib.contextmanager
    def running(self):
        """Context manager: the calling thread uses this rank's stream."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.user):
            yield

    def streams(self):
        return CudaStreams(self.device)


def device_of(kind, rank):
    """Return a rank's device of a kind: `plain`, `simulated` or `cuda`."""
    if kind == "cuda":
        return Cuda(f"rank{rank}", torch.device("cuda", 0))
    return SimulatedDevice(f"rank{rank}") if kind == "simulated" else Plain(torch.device("cpu"))
