# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes
import threading

from . import memory, memory_hook


class runtime:
    class CUDARuntimeError(RuntimeError):
        def __init__(self, status):
            super().__init__(status)
            self.status = status

    @staticmethod
    def getDevice():
        return 0


class Stream:
    current = None

    def __init__(self, ptr=0):
        self.ptr = ptr

    def __enter__(self):
        self._before, Stream.current = Stream.current, self
        return self

    def __exit__(self, *_):
        Stream.current = self._before
        self._before = None


class ExternalStream(Stream):
    pass


null = Stream()
Stream.current = null


def get_current_stream():
    return Stream.current


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = 0


class _CFunctionMemory:
    def __init__(self, size, param, malloc, free):
        self._param, self._free, self.size = param, free, size
        self._device = runtime.getDevice()
        self.ptr = malloc(param, size, self._device) or 0 if size else 0

    def __del__(self):
        if self.ptr:
            self._free(self._param, self.ptr, self._device)


class CFunctionAllocator:
    """Calls with the interpreter's lock held (PYFUNCTYPE), as CuPy does."""

    def __init__(self, param, malloc, free, owner):
        pointer = ctypes.c_void_p
        self._malloc = ctypes.PYFUNCTYPE(pointer, pointer, ctypes.c_size_t, ctypes.c_int)(malloc)
        self._free = ctypes.PYFUNCTYPE(None, pointer, pointer, ctypes.c_int)(free)
        self._param, self._owner = param, owner

    def malloc(self, size):
        return MemoryPointer(_CFunctionMemory(size, self._param, self._malloc, self._free), 0)


class MemoryPool:
    def __init__(self, allocator=None):
        self.malloc = allocator


default_pool = MemoryPool(lambda size: None)
_allocator = default_pool.malloc
_of_thread = threading.local()
pinned_allocator = None


def set_allocator(allocator):
    global _allocator
    if getattr(_of_thread, "allocator", None) is not None:
        raise ValueError("Can't change the global allocator inside `using_allocator`")
    _allocator = allocator


def get_allocator():
    return getattr(_of_thread, "allocator", None) or _allocator


def alloc(size):
    return get_allocator()(size)


@contextlib.contextmanager
def using_allocator(allocator):
    before = getattr(_of_thread, "allocator", None)
    _of_thread.allocator = allocator
    try:
        yield
    finally:
        _of_thread.allocator = before


class PinnedMemoryPointer:
    def __init__(self, mem, offset):
        self.mem = mem
        self.ptr = mem.ptr + offset


def set_pinned_memory_allocator(allocator):
    global pinned_allocator
    pinned_allocator = allocator


def alloc_pinned_memory(size):
    return pinned_allocator(size)
