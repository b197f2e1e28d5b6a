"""Tensors in the memory of simulated GPUs, for tests of the PyTorch binding on machines without one.

    gpu = FakeCuda.install()                        # in a worker whose BYTEPS_DEVICE is the plugin "fake"
    x = gpu.tensor(torch.ones(3))                   # a tensor that the host cannot read: a touch is SIGSEGV
    bps.push_pull_inplace(x, name="x")
    assert gpu.read(x).tolist() == [2, 2, 2]        # waits for the GPU
    gpu.expect_no_races()

PyTorch's CPU build has no CUDA tensors, so these are tensors of a class of their own. Each operation of PyTorch on them
is put as a kernel into the current stream and runs when the simulation's schedule says so; every access is seen by its
race detector. Memory comes from an allocator that gives it to the next of the same stream as soon as it is freed, as
PyTorch's does: also while kernels that use it have not run. What the binding asks of torch.cuda
(byteps.torch.device_streams) is answered here.

What is not as with CUDA: to PyTorch itself the tensors are on the device "cpu", so the backward pass runs on the
calling thread, and whatever PyTorch does with is_cuda is not seen.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import byteps.torch as bps
import byteps.torch.device_streams as device_streams
import byteps.torch.held_parameter as held_parameter
import torch
from torch.utils._pytree import tree_flatten, tree_map_only

_P, _I32, _U64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64
_NOT_READY = -1  # BPS_DEVICE_NOT_READY
# Of fake_gpu_counts and bps_device_table, in their order.
_COUNTS = tuple(
    """synchronisations allocations host_allocations registrations streams events copies_to_host copies_to_device
    copies_within bytes_to_host bytes_to_device remote_reads flushes races conversions""".split()  # noqa: SIM905
)
_VERBS = tuple(
    """open close allocate release allocate_host release_host register_host unregister_host pointer stream_create
    stream_destroy stream_state stream_wait event_create event_destroy event_record event_query copy_to_host
    copy_to_device copy_within fill synchronize""".split()  # noqa: SIM905
)

_BUILT = Path(__file__).parents[3] / "bazel-bin/device_plugins/fake/libbyteps_device_fake.so"
# tools/test keeps a copy of its own, which other builds leave alone.
_PLUGIN = Path(os.environ.get("FAKE_GPU_PLUGIN") or _BUILT)


def fake_gpus(schedule: str, devices: int = 2) -> dict[str, str]:
    """What makes the workers of a job use simulated GPUs: variables of their environment."""
    assert _PLUGIN.exists(), f"{_PLUGIN} is missing: bazel build //device_plugins/fake"
    return {"BYTEPS_DEVICE": str(_PLUGIN), "BYTEPS_FAKE_GPU": f"devices={devices},seed=3,schedule={schedule}"}


class _OpenArgs(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("config", _P), ("log", _P), ("index", _I32), ("reserved", _I32))


class _Table(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), *((verb, _P) for verb in _VERBS))


class _StreamState(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("id", _I32), ("capturing", _I32))


class _Access(ctypes.Structure):
    _fields_ = (("address", _P), ("size", _U64), ("write", _I32), ("reserved", _I32))


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, _U64) for name in _COUNTS)


_RUN = ctypes.CFUNCTYPE(None, _P, ctypes.POINTER(_P))
_LAUNCH = ctypes.CFUNCTYPE(_I32, _I32, _P, _RUN, _P, ctypes.POINTER(_Access), ctypes.c_size_t)


class _Control(ctypes.Structure):
    """fake_gpu_control of device_plugins/fake/control.h."""

    _fields_ = (
        ("table", ctypes.POINTER(_Table)),
        ("reset", _P),
        ("counts", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Counts))),
        ("race", ctypes.CFUNCTYPE(_I32, _U64, ctypes.c_char_p, ctypes.c_size_t)),
        ("host_access", _P),
        ("peek", ctypes.CFUNCTYPE(_I32, _P, _P, _U64)),
        ("fail", ctypes.CFUNCTYPE(None, ctypes.c_char_p, _U64, _I32)),
        ("lose", ctypes.CFUNCTYPE(None, _I32)),
        ("capture", ctypes.CFUNCTYPE(None, _P, _I32)),
        ("launch", _LAUNCH),
        ("remote_access", _P),
        ("hold", ctypes.CFUNCTYPE(_I32, _I32, _P, ctypes.POINTER(_I32))),
    )


@contextlib.contextmanager
def gpus_of_job(races: bool = False) -> Iterator[FakeCuda]:
    """The GPUs of a worker of a job, from init() to shutdown(). `races`: the program is wrong; they are reported."""
    torch.set_num_threads(1)
    gpu = FakeCuda.install()
    bps.init()
    yield gpu
    bps.shutdown()
    gpu.close()
    assert not gpu.errors, gpu.errors
    assert bool(gpu.races()) == races, gpu.races()[:3]


class _Block:
    """Memory of a GPU, of one stream."""

    def __init__(self, gpu: FakeCuda, index: int, stream: int, size: int) -> None:
        self.index, self.stream, self.size = index, stream, size
        self.address = gpu.take(index, stream, size)
        self.users: set[int] = set()  # other streams
        # One storage for all tensors in it; tells views from new tensors.
        self.meta = torch.empty(size, dtype=torch.uint8, device="meta").untyped_storage()
        weakref.finalize(self, gpu.give_back, index, stream, size, self.address, self.users)


def _span(meta: torch.Tensor) -> int:
    if meta.numel() == 0:
        return 0
    last = sum((extent - 1) * stride for extent, stride in zip(meta.shape, meta.stride()))
    return (last + 1) * meta.element_size()


def _inside(meta: torch.Tensor, address: int | None) -> torch.Tensor:
    if address is None or _span(meta) == 0:
        return torch.empty(meta.shape, dtype=meta.dtype)
    memory = (ctypes.c_uint8 * _span(meta)).from_address(address)
    return torch.frombuffer(memory, dtype=meta.dtype).as_strided(meta.shape, meta.stride())


class _Place:
    """A tensor as a kernel sees it: the number of its access (None: it has no elements), and its shape."""

    def __init__(self, number: int | None, meta: torch.Tensor) -> None:
        self.number, self.meta = number, meta

    def inside(self, addresses: Any) -> torch.Tensor:
        return _inside(self.meta, None if self.number is None else addresses[self.number])


class FakeCudaTensor(torch.Tensor):
    """A tensor in a block. `meta` says which part, in which shape."""

    block: _Block
    meta: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[FakeCudaTensor], block: _Block, meta: torch.Tensor) -> FakeCudaTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device="cpu",
            requires_grad=False,
        )
        made.block, made.meta = block, meta
        return made

    @property
    def address(self) -> int:
        return self.block.address + self.meta.storage_offset() * self.meta.element_size()

    @property
    def span(self) -> int:
        """Bytes from its first element to behind its last."""
        return _span(self.meta)

    def inside(self, address: int | None) -> torch.Tensor:
        """It as an ordinary tensor, of memory that begins at `address`."""
        return _inside(self.meta, address)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu = FakeCuda.instance
        assert gpu is not None
        return gpu.run(function, args, kwargs or {})

    def __repr__(self, **options: Any) -> str:
        return f"FakeCudaTensor({tuple(self.shape)}, {self.dtype}, GPU {self.block.index})"


class FakeSparseCudaTensor(torch.Tensor):
    """A sparse tensor whose indices and values are FakeCudaTensors."""

    indices_there: torch.Tensor
    values_there: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls: type[FakeSparseCudaTensor], indices: torch.Tensor, values: torch.Tensor, shape: Any
    ) -> FakeSparseCudaTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=values.dtype, device="cpu", layout=torch.sparse_coo, requires_grad=False
        )
        made.indices_there, made.values_there = indices, values
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        first = args[0]
        if isinstance(first, FakeSparseCudaTensor):
            there = first.indices_there, first.values_there
            if name in ("_indices", "_values"):
                return there[name == "_values"].detach()
            if name == "sparse_dim":
                return there[0].shape[0]
            if name in ("detach", "clone"):
                return FakeSparseCudaTensor(*(getattr(one, name)() for one in there), first.shape)
            if name == "mul":
                return FakeSparseCudaTensor(there[0], there[1] * args[1], first.shape)
            if name == "to_dense":
                made = there[1].new_zeros(first.shape)
                return made.add_(first)
        if name == "add_" and isinstance(args[1], FakeSparseCudaTensor):
            rows = args[1].indices_there[0]
            return first.index_add_(0, rows, args[1].values_there, **(kwargs or {}))
        raise NotImplementedError(f"{function} of sparse tensors of the fake GPU")

    def __repr__(self, **options: Any) -> str:
        return f"FakeSparseCudaTensor({tuple(self.shape)}, {self.dtype})"


class _HeldFakeCudaTensor(FakeCudaTensor):
    """A parameter whose update is on its way, see byteps.torch.held_parameter."""

    __torch_function__ = classmethod(held_parameter._torch_function)  # type: ignore[assignment]


class FakeCuda(device_streams.DeviceStreams):
    """The GPUs of this process, and which stream is current on which thread."""

    instance: FakeCuda | None = None

    def __init__(self, plugin: str) -> None:
        super().__init__()
        library = ctypes.CDLL(plugin)
        library.bps_fake_gpu.restype = ctypes.POINTER(_Control)
        self._control = library.bps_fake_gpu().contents
        self._current = threading.local()
        self._devices: dict[int, int] = {}
        self._free: dict[tuple[int, int, int], list[tuple[int, set[int]]]] = {}
        self._kernels: dict[int, Callable[[Any], None]] = {}
        self._private: dict[tuple[str, int], int] = {}
        self._holds: list[Any] = []
        self._number = 0
        self._lock = threading.RLock()
        self.errors: list[BaseException] = []  # of kernels
        self.own_events = self.own_allocations = 0
        self._run = _RUN(self._run_kernel)  # as long as a kernel may run

    @classmethod
    def install(cls) -> FakeCuda:
        """Before bps.init(); close() after bps.shutdown()."""
        gpu = cls(os.environ["BYTEPS_DEVICE"])
        cls.instance = device_streams.STREAMS = gpu
        held_parameter._HELD[FakeCudaTensor] = _HeldFakeCudaTensor
        held_parameter._ORIGINAL[_HeldFakeCudaTensor] = FakeCudaTensor
        return gpu

    # The table.

    def _code(self, verb: str, index: int, *arguments: Any) -> int:
        function = ctypes.CFUNCTYPE(_I32, _P, *(_U64 if isinstance(a, int) else _P for a in arguments), _P)
        return int(function(getattr(self._control.table.contents, verb))(self._device(index), *arguments, None))

    def _call(self, verb: str, index: int, *arguments: Any) -> None:
        code = self._code(verb, index, *arguments)
        assert code == 0, f"{verb}: code {code}"

    def _device(self, index: int) -> int:
        with self._lock:
            if index not in self._devices:
                device, args = _P(), _OpenArgs(struct_size=ctypes.sizeof(_OpenArgs), index=index)
                function = ctypes.CFUNCTYPE(_I32, _P, _P, _P)(self._control.table.contents.open)
                assert function(ctypes.byref(args), ctypes.byref(device), None) == 0
                assert device.value is not None
                self._devices[index] = device.value
            return self._devices[index]

    def _made(self, verb: str, index: int, *arguments: Any) -> int:
        made = _P()
        self._call(verb, index, *arguments, ctypes.byref(made))
        assert made.value is not None
        return made.value

    def new_stream(self, index: int = 0) -> int:
        made = _P()
        function = ctypes.CFUNCTYPE(_I32, _P, _I32, _P, _P)(self._control.table.contents.stream_create)
        assert function(self._device(index), 0, ctypes.byref(made), None) == 0
        assert made.value is not None
        return made.value

    def order(self, first: int, second: int, index: int = 0) -> None:
        """What is put into the second stream from now on waits for what the first one holds."""
        event = self._made("event_create", index)
        self.own_events += 1
        self._call("event_record", index, event, first)
        self._call("stream_wait", index, second, event)
        self._call("event_destroy", index, event)

    @contextlib.contextmanager
    def stream(self, handle: int, index: int = 0) -> Iterator[None]:
        """This stream is current on this thread meanwhile."""
        before = self.current(index)
        self._streams()[index] = handle
        try:
            yield
        finally:
            self._streams()[index] = before

    def _streams(self) -> dict[int, int]:
        if not hasattr(self._current, "streams"):
            self._current.streams = {}
        streams: dict[int, int] = self._current.streams
        return streams

    def close(self) -> None:
        """Gives the devices back; runs what is still in the streams."""
        for device in self._devices.values():
            ctypes.CFUNCTYPE(None, _P)(self._control.table.contents.close)(device)
        self._devices.clear()

    # The allocator.

    def take(self, index: int, stream: int, size: int) -> int:
        """Memory that is the next's of this stream."""
        with self._lock:
            free = self._free.get((index, stream, size))
            address, users = free.pop() if free else (0, set())
            if not address:
                self.own_allocations += 1
        for user in users:
            self.order(user, stream, index)
        return address or self._made("allocate", index, max(size, 1))

    def give_back(self, index: int, stream: int, size: int, address: int, users: set[int]) -> None:
        """Calls nothing of the GPU: it may run wherever Python lets go of a tensor, within kernels, too."""
        with self._lock:
            self._free.setdefault((index, stream, size), []).append((address, users))

    def _new(self, meta: torch.Tensor, index: int) -> FakeCudaTensor:
        block = _Block(self, index, self.current(index), meta.numel() * meta.element_size())
        return FakeCudaTensor(block, self._part(block, meta.contiguous()))

    @staticmethod
    def _part(block: _Block, like: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(0, dtype=like.dtype, device="meta")
        return whole.set_(block.meta, 0, like.shape, like.stride())  # type: ignore[call-overload]

    # DeviceStreams.

    def is_device(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, FakeCudaTensor)

    def gpu(self, tensor: torch.Tensor) -> int | None:
        return tensor.block.index if isinstance(tensor, FakeCudaTensor) else None

    def index(self, tensor: torch.Tensor) -> int:
        assert isinstance(tensor, FakeCudaTensor)
        return tensor.block.index

    def address(self, tensor: torch.Tensor) -> int:
        assert isinstance(tensor, FakeCudaTensor)
        return tensor.address if tensor.numel() else 0  # as PyTorch's

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        assert isinstance(like, FakeCudaTensor)
        return self._new(torch.empty(like.shape, dtype=like.dtype, device="meta"), like.block.index)

    def nothing(self, like: torch.Tensor) -> torch.Tensor:
        assert isinstance(like, FakeCudaTensor)
        return self._new(torch.empty(0, dtype=like.dtype, device="meta"), like.block.index)

    def from_host(self, host: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        assert isinstance(like, FakeCudaTensor)
        return self.tensor(host, index=like.block.index)

    def to_host(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
        index = self.index(tensors[0])
        stream = self.private_stream(index, "copies")
        self.order(self.current(index), stream, index)
        copies = [torch.empty(one.shape, dtype=one.dtype) for one in tensors]
        with self.stream(stream, index):
            for one, copy in zip(tensors, copies):
                self._copy_later(one, copy)
            event = self._made("event_create", index)
            self.own_events += 1
            self._call("event_record", index, event, stream)
        return copies, (index, event)

    def _copy_later(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        assert isinstance(tensor, FakeCudaTensor)
        meta = tensor.meta
        if tensor.span:
            # It does not hold the tensor's memory: PyTorch's copy in another stream does not, either.
            self.launch(
                lambda inside: copy.copy_(_inside(meta, inside[0])),
                [(tensor.address, tensor.span, False)],
                tensor.block.index,
            )

    def copied(self, mark: Any) -> None:
        index, event = mark
        while (code := self._code("event_query", index, event)) == _NOT_READY:
            time.sleep(1e-4)
        assert code == 0, f"event_query: code {code}"
        self._call("event_destroy", index, event)

    def private_stream(self, index: int, purpose: str) -> int:
        with self._lock:
            if (purpose, index) not in self._private:
                self._private[purpose, index] = self.new_stream(index)
            return self._private[purpose, index]

    def current_stream(self, index: int) -> int:
        return self.current(index)

    @contextlib.contextmanager
    def within(self, streams: Mapping[int, int]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for index, stream in streams.items():
                stack.enter_context(self.stream(stream, index))
            yield

    def is_capturing(self, index: int) -> bool:
        state = _StreamState(struct_size=ctypes.sizeof(_StreamState))
        self._call("stream_state", index, self.current(index), ctypes.byref(state))
        return bool(state.capturing)

    def memory(self, tensor: torch.Tensor) -> Any:
        assert isinstance(tensor, FakeCudaTensor)
        return tensor.block

    def new_event(self, index: int) -> int:
        return self._made("event_create", index)  # counted, as those of the library

    def record(self, event: int, index: int) -> None:
        self._call("event_record", index, event, self.current(index))

    def wait_for(self, mark: device_streams.Mark, index: int) -> None:
        self._call("stream_wait", index, self.current(index), mark.event)

    def current(self, index: int) -> int:
        return self._streams().get(index, 0)

    def keep(self, tensor: torch.Tensor) -> None:
        assert isinstance(tensor, FakeCudaTensor)
        stream = self.current(tensor.block.index)
        if stream != tensor.block.stream:
            tensor.block.users.add(stream)

    def synchronize(self, index: int) -> None:
        self._call("synchronize", index, self.current(index))

    # Kernels.

    def run(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation of PyTorch, as a kernel of the current stream."""
        flat, _ = tree_flatten((args, kwargs))
        if any(isinstance(one, FakeSparseCudaTensor) for one in flat):
            return FakeSparseCudaTensor.__torch_dispatch__(function, (), args, kwargs)
        if "sparse_coo_tensor" in function.name():
            indices, values = [one for one in flat if isinstance(one, torch.Tensor)]
            shape = next(one for one in args if not isinstance(one, (torch.Tensor, int)))
            return FakeSparseCudaTensor(indices, values, shape)
        ours = [one for one in flat if isinstance(one, FakeCudaTensor)]
        index = ours[0].block.index
        assert all(one.block.index == index for one in ours), "tensors of different GPUs"
        if function is torch.ops.aten._local_scalar_dense.default:
            return self.read(ours[0]).item()
        if "device" in kwargs:
            kwargs = {**kwargs, "device": None}

        def as_meta(one: torch.Tensor) -> torch.Tensor:
            return one.meta if isinstance(one, FakeCudaTensor) else one.to("meta")

        def on_meta(value: Any) -> Any:
            return tree_map_only(torch.Tensor, as_meta, value)

        factory = {**on_meta(kwargs), "device": torch.device("meta")} if "device" in kwargs else on_meta(kwargs)
        metas = function(*on_meta(args), **factory)
        blocks = {one.block.meta._cdata: one.block for one in ours}
        by_meta = {id(one.meta): one for one in ours}
        fresh: list[FakeCudaTensor] = []
        views = True

        def wrapped(meta: torch.Tensor) -> torch.Tensor:
            nonlocal views
            if id(meta) in by_meta:
                views = False
                return by_meta[id(meta)]
            block = blocks.get(meta.untyped_storage()._cdata)
            if block is not None:
                return FakeCudaTensor(block, meta)
            fresh.append(self._new(meta, index))
            return fresh[-1]

        result = tree_map_only(torch.Tensor, wrapped, metas)
        written = {id(one) for one in self._written(function, args, kwargs)}
        if fresh or written or not views:
            self._launch(function, args, kwargs, ours, fresh, written, index)
        return result

    @staticmethod
    def _written(function: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
        found: list[Any] = []
        for number, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[number] if number < len(args) else kwargs.get(argument.name)
                found.extend(value if isinstance(value, (list, tuple)) else [value])
        return found

    def _launch(
        self,
        function: Any,
        args: Any,
        kwargs: dict[str, Any],
        ours: list[FakeCudaTensor],
        fresh: list[FakeCudaTensor],
        written: set[int],
        index: int,
    ) -> None:
        used = {id(one): one for one in (*ours, *fresh)}
        accesses = [one for one in used.values() if one.span]
        writes = written | {id(one) for one in fresh}
        # What the kernel knows of the tensors: it holds no memory, and nothing of autograd.
        numbers = {id(one): number for number, one in enumerate(accesses)}
        places = {key: _Place(numbers.get(key), one.meta) for key, one in used.items()}
        host = [one for one in tree_flatten((args, kwargs))[0] if id(one) in written and id(one) not in used]

        def constant(one: torch.Tensor) -> Any:
            if id(one) in written and id(one) not in used:
                return one
            return places[id(one)] if id(one) in used else one.detach().clone()

        args, kwargs = tree_map_only(torch.Tensor, constant, (args, kwargs))
        targets = [places[id(one)] for one in fresh]

        def kernel(inside: Any) -> None:
            def there(values: Any) -> Any:
                return tree_map_only(_Place, lambda place: place.inside(inside), values)

            with torch.no_grad():
                results = function(*there(args), **there(kwargs))
                made = [one for one in tree_flatten(results)[0] if isinstance(one, torch.Tensor)]
                for target, one in zip(targets, made[-len(targets) :] if targets else ()):
                    if target.number is not None:
                        target.inside(inside).copy_(one)

        self.launch(kernel, [(one.address, one.span, id(one) in writes) for one in accesses], index)
        if host:
            self.synchronize(index)

    def launch(self, kernel: Callable[[Any], None], accesses: list[tuple[int, int, bool]], index: int = 0) -> None:
        """Puts a kernel into the current stream; it gets an address for each access (address, size, write)."""
        with self._lock:
            self._number += 1
            number = self._number
            self._kernels[number] = kernel
        array = (_Access * max(len(accesses), 1))(*[_Access(a, size, int(write), 0) for a, size, write in accesses])
        self._device(index)
        code = self._control.launch(index, self.current(index), self._run, number, array, len(accesses))
        assert code == 0, f"launch: code {code}"

    def _run_kernel(self, number: int, inside: Any) -> None:
        try:
            with self._lock:
                kernel = self._kernels.pop(number)
            if inside:
                kernel(inside)
        except BaseException as error:  # no exception leaves a callback
            self.errors.append(error)

    # What tests do.

    def model(self, model: torch.nn.Module) -> torch.nn.Module:
        """A copy of a model with its parameters on a GPU."""
        model = copy.deepcopy(model)
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(self.tensor(parameter))
        return model

    def tensor(self, values: torch.Tensor, index: int = 0) -> FakeCudaTensor:
        """A tensor with these values, written by a kernel of the current stream."""
        made = self._new(torch.empty(values.shape, dtype=values.dtype, device="meta"), index)
        values = values.detach().clone()
        place = _Place(0 if made.span else None, made.meta)
        self.launch(
            lambda inside: place.inside(inside).copy_(values),
            [(made.address, made.span, True)] if made.span else [],
            index,
        )
        return made

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its values, after what the current stream holds: the host waits."""
        assert isinstance(tensor, FakeCudaTensor)
        self.synchronize(tensor.block.index)
        return self.peek(tensor)

    def later(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """A list that gets its values when the current stream comes there: the host does not wait."""
        assert isinstance(tensor, FakeCudaTensor)
        values: list[torch.Tensor] = []
        meta = tensor.meta
        self.launch(
            lambda inside: values.append(_inside(meta, inside[0]).clone()),
            [(tensor.address, tensor.span, False)],
            tensor.block.index,
        )
        return values

    def counts(self) -> dict[str, int]:
        """fake_gpu_counts, without what is made here."""
        counts = _Counts()
        self._control.counts(ctypes.byref(counts))
        found = {name: int(getattr(counts, name)) for name in _COUNTS}
        found["events"] -= self.own_events
        found["allocations"] -= self.own_allocations
        return found

    def races(self) -> list[str]:
        found: list[str] = []
        text = ctypes.create_string_buffer(1000)
        while self._control.race(len(found), text, len(text)):
            found.append(text.value.decode())
        return found

    def expect_no_races(self) -> None:
        assert not self.errors, self.errors
        assert not self.races(), self.races()[:5]

    def peek(self, tensor: torch.Tensor) -> torch.Tensor:
        """What its memory holds now, whatever is under way."""
        assert isinstance(tensor, FakeCudaTensor)
        memory = ctypes.create_string_buffer(max(tensor.span, 1))
        assert tensor.span == 0 or self._control.peek(tensor.address, memory, tensor.span) == 1
        return tensor.inside(ctypes.addressof(memory)).clone()

    def capture(self, stream: int, on: bool) -> None:
        self._control.capture(stream, int(on))

    def hold(self, stream: int, index: int = 0) -> Callable[[], None]:
        """What is put into the stream from now on waits for a call of what is returned."""
        go = _I32(0)
        self._holds.append(go)  # the stream reads it when it comes there
        assert self._control.hold(index, stream, ctypes.byref(go)) == 0

        def release() -> None:
            go.value = 1

        return release

    def lose(self, index: int) -> None:
        self._control.lose(index)
