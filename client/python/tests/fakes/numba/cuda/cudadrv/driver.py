# SPDX-License-Identifier: Apache-2.0
import collections
import contextlib
import weakref

from . import drvapi

USE_NV_BINDING = False
MemoryInfo = collections.namedtuple("MemoryInfo", "free,total")


class CudaAPIError(Exception):
    def __init__(self, code, message):
        super().__init__(code, message)
        self.code, self.message = code, message


class MemoryPointer:
    """Freed with the object, by its finalizer."""

    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.context, self.device_pointer, self.size, self._owner = context, pointer, size, owner
        self.refct = 1
        self.is_managed = finalizer is not None
        if finalizer is not None:
            self._finalizer = weakref.finalize(self, finalizer)

    @property
    def device_pointer_value(self):
        return self.device_pointer.value

    def own(self):
        return OwnedPointer(weakref.proxy(self))

    def free(self):
        if not self._finalizer.alive:
            raise RuntimeError("Freeing dead memory")
        self._finalizer()


class AutoFreePointer(MemoryPointer):
    """Freed when the last that own() gave is gone."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.refct -= 1


class MappedMemory(AutoFreePointer):
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.host_pointer = pointer
        super().__init__(context, drvapi.cu_device_ptr(pointer.value), size, owner, finalizer)


class PinnedMemory:
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.host_pointer, self.size = pointer, size
        weakref.finalize(self, finalizer)


class OwnedPointer:
    def __init__(self, memory):
        self._mem = memory
        memory.refct += 1

        def deref():
            try:
                memory.refct -= 1
                if memory.refct == 0:
                    memory.free()
            except ReferenceError:
                pass
        weakref.finalize(self, deref)

    def __getattr__(self, name):
        return getattr(self._mem, name)


class IpcHandle:
    def __init__(self, base, handle, size, source_info=None, offset=0):
        self.base, self.handle, self.size = base, handle, size
        self.source_info, self.offset = source_info, offset


class _Unique(dict):
    def __setitem__(self, key, value):
        assert key not in self, "key already in dictionary"
        super().__setitem__(key, value)


class _PendingDeallocs:
    def __init__(self):
        self._items, self._size, self._disabled = collections.deque(), 0, 0
        self.memory_capacity = 0

    def add_item(self, dtor, handle, size=0):
        dtor.__name__
        self._items.append((dtor, handle))
        self._size += size
        if len(self._items) > 10 or self._size > self.memory_capacity * 0.2:
            self.clear()

    def clear(self):
        while self._items and not self._disabled:
            dtor, handle = self._items.popleft()
            dtor(handle)
        if not self._items:
            self._size = 0

    @contextlib.contextmanager
    def disable(self):
        self._disabled += 1
        try:
            yield
        finally:
            self._disabled -= 1

    def __len__(self):
        return len(self._items)


class HostOnlyCUDAMemoryManager:
    def __init__(self, *args, **kwargs):
        self.context = kwargs.pop("context")
        self.allocations, self.deallocations = _Unique(), _PendingDeallocs()

    def _attempt_allocation(self, allocator):
        try:
            return allocator()
        except CudaAPIError as error:
            if error.code != 2:
                raise
            self.deallocations.clear()
            return allocator()

    def memhostalloc(self, size, mapped=False, portable=False, wc=False):
        return ("the driver's own", size, mapped, portable, wc)

    def memallocmanaged(self, size, attach_global):
        return ("managed by the driver", size, attach_global)

    def mempin(self, owner, pointer, size, mapped=False):
        return ("pinned by the driver", owner, pointer, size, mapped)

    def reset(self):
        self.allocations.clear()
        self.deallocations.clear()

    def defer_cleanup(self):
        return self.deallocations.disable()
