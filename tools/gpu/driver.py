"""A GPU by the driver's interface: memory, streams and copies, without a framework.

    gpu = Gpu(0)
    memory, host, stream = gpu.allocate(size), gpu.pinned(size), gpu.stream()
    gpu.to_device(memory, host, size, stream)
    gpu.synchronize(stream)

Addresses and handles are numbers. Threads: the one that made the Gpu, whose current context it sets. Errors: CudaError.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

LIBRARY = "libcuda.so.1"
NOT_READY = 600
_NON_BLOCKING = 1  # of streams
_NO_TIMING = 2  # of events
_PORTABLE = 1  # of pinned memory
_DEVICE_MAP = 2  # of memory that is registered: kernels reach it
_CAPTURE_RELAXED = 2
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # of CUdevice_attribute
_IS_ONE_ALLOCATION = 10  # of CUpointer_attribute
_COUNTS = 15  # of fake_gpu_counts
_RACES = 13


class CudaError(RuntimeError):
    """The driver has refused a call."""


class _MappedProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location_type", ctypes.c_int), ("location_id", ctypes.c_int), ("flags", ctypes.c_int))


class _Counts(ctypes.Structure):
    _fields_ = (("number", ctypes.c_uint64 * _COUNTS),)


class _Control(ctypes.Structure):
    """The beginning of fake_gpu_control, device_plugins/fake/control.h."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        ("reset", ctypes.c_void_p),
        ("counts", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Counts))),
        ("race", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t)),
    )


def why_none() -> str:
    """Why there is no GPU here; empty if there is one."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return str(error)
    count = ctypes.c_int(0)
    result = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if result == 0 and count.value > 0 else f"the driver gives no GPU (CUDA error {result})"


def count() -> int:
    """How many GPUs this process sees."""
    driver = ctypes.CDLL(LIBRARY)
    number = ctypes.c_int(0)
    return number.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(number)) == 0 else 0


def version() -> str:
    """Of CUDA, as the driver has it."""
    number = ctypes.c_int(0)
    ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


class Gpu:
    """One GPU, in its primary context, which all libraries of a process share."""

    def __init__(self, index: int = 0) -> None:
        self._driver = ctypes.CDLL(LIBRARY)
        self._call("cuInit", ctypes.c_uint(0))
        number = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(index))
        self.index = index
        self._number = number.value
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(self._number))
        self._call("cuCtxPushCurrent_v2", context)

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._driver, name, None)
        if function is None:
            raise CudaError(f"this driver lacks {name}")
        result = function(*arguments)
        if result != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(result, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'CUDA error').decode()} ({result})")

    # What it is.

    def name(self) -> str:
        """As its maker calls it."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, ctypes.c_int(256), ctypes.c_int(self._number))
        return text.value.decode()

    def pci(self) -> str:
        """Its place on the bus."""
        text = ctypes.create_string_buffer(32)
        self._call("cuDeviceGetPCIBusId", text, ctypes.c_int(32), ctypes.c_int(self._number))
        return text.value.decode()

    def total_memory(self) -> int:
        """Bytes."""
        size = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(size), ctypes.c_int(self._number))
        return size.value

    # Memory.

    def allocate(self, size: int) -> int:
        """Of the GPU."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def release(self, address: int) -> None:
        """What allocate() has made."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def pinned(self, size: int) -> int:
        """Of the host."""
        address = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_uint(_PORTABLE))
        assert address.value is not None
        return address.value

    def release_pinned(self, address: int) -> None:
        """What pinned() has made."""
        self._call("cuMemFreeHost", ctypes.c_void_p(address))

    def register(self, memory: mmap.mmap) -> int:
        """Pins memory of the host that is there already, such as shared memory; its address."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        size = ctypes.c_size_t(len(memory))
        flags = ctypes.c_uint(_PORTABLE | _DEVICE_MAP)
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(address), size, flags)
        return address

    def unregister(self, address: int) -> None:
        """What register() has pinned."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def mapped(self, size: int, piece: int = 2 << 20) -> int:
        """Memory of the GPU that is mapped piece by piece, as PyTorch's expandable segments; never given back."""
        size = -(-size // piece) * piece
        address = ctypes.c_uint64()
        zero, whole = ctypes.c_size_t(0), ctypes.c_size_t(4 * size)  # more is reserved than is mapped, as PyTorch does
        self._call("cuMemAddressReserve", ctypes.byref(address), whole, zero, ctypes.c_uint64(0), ctypes.c_uint64(0))
        pinned, on_device = 1, 1  # CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE
        properties = _MappedProperties(type=pinned, location_type=on_device, location_id=self._number)
        for offset in range(0, size, piece):
            handle = ctypes.c_uint64()
            length = ctypes.c_size_t(piece)
            self._call("cuMemCreate", ctypes.byref(handle), length, ctypes.byref(properties), ctypes.c_uint64(0))
            self._call("cuMemMap", ctypes.c_uint64(address.value + offset), length, zero, handle, ctypes.c_uint64(0))
        access = _Access(location_type=on_device, location_id=self._number, flags=3)  # read and write
        self._call("cuMemSetAccess", address, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
        return address.value

    def is_one_allocation(self, address: int) -> bool:
        """Not so memory that is mapped piece by piece, of which the CUDA plugin tells no identity."""
        whole = ctypes.c_uint(0)
        self._call("cuPointerGetAttribute", ctypes.byref(whole), _IS_ONE_ALLOCATION, ctypes.c_uint64(address))
        return whole.value != 0

    # Streams.

    def stream(self) -> int:
        """One that the default stream does not wait for."""
        made = ctypes.c_void_p()
        priority = ctypes.c_int(0)
        self._call("cuStreamCreateWithPriority", ctypes.byref(made), ctypes.c_uint(_NON_BLOCKING), priority)
        assert made.value is not None
        return made.value

    def synchronize(self, stream: int) -> None:
        """Waits until the stream has done what it holds."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def event(self) -> int:
        """For has_come() and wait()."""
        made = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(made), ctypes.c_uint(_NO_TIMING))
        assert made.value is not None
        return made.value

    def record(self, event: int, stream: int) -> None:
        """The event comes when the stream has done what it holds now."""
        self._call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))

    def has_come(self, event: int) -> bool:
        """Without waiting."""
        result = self._driver.cuEventQuery(ctypes.c_void_p(event))
        if result not in (0, NOT_READY):
            raise CudaError(f"cuEventQuery: {result}")
        return bool(result == 0)

    def wait(self, stream: int, event: int) -> None:
        """What is put into the stream from now on waits for the event."""
        self._call("cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event), ctypes.c_uint(0))

    def begin_capture(self, stream: int) -> None:
        """The stream takes down what is put into it, for a CUDA graph."""
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_CAPTURE_RELAXED))

    def end_capture(self, stream: int) -> None:
        """What was captured is thrown away."""
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        if graph.value is not None:
            self._call("cuGraphDestroy", graph)

    # Copies.

    def to_host(self, to: int, source: int, size: int, stream: int) -> None:
        """`to`: pinned memory."""
        self._call(
            "cuMemcpyDtoHAsync_v2", _address(to), ctypes.c_uint64(source), ctypes.c_size_t(size), _address(stream)
        )

    def to_device(self, to: int, source: int, size: int, stream: int) -> None:
        """`source`: pinned memory."""
        self._call(
            "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(to), _address(source), ctypes.c_size_t(size), _address(stream)
        )

    def fast_copies(self) -> tuple[Callable[..., int], Callable[..., int]]:
        """cuMemcpyDtoHAsync and cuMemcpyHtoDAsync as they are, for loops whose own time counts; arguments that are
        numbers. What is wrong is told by the next synchronize()."""
        out, back = self._driver.cuMemcpyDtoHAsync_v2, self._driver.cuMemcpyHtoDAsync_v2
        out.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
        back.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        return out, back

    # The simulated GPU.

    def races(self) -> str:
        """The first access that nothing orders, where the GPU is simulated; empty: none."""
        find = getattr(self._driver, "bps_fake_gpu", None)
        if find is None:
            return ""
        find.restype = ctypes.POINTER(_Control)
        control = find().contents
        counts = _Counts()
        control.counts(ctypes.byref(counts))
        if counts.number[_RACES] == 0:
            return ""
        text = ctypes.create_string_buffer(400)
        control.race(0, text, 400)
        return text.value.decode()


def _address(number: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(number)
