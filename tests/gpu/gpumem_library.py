# SPDX-License-Identifier: Apache-2.0
"""libgpumem.so, as any language sees it (gpumem/gpumem.h): what frameworks.py needs of it."""
import ctypes


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in (
        "reserved_bytes", "used_bytes", "free_bytes", "used_blocks", "free_blocks", "segments",
        "reserved_peak_bytes", "used_peak_bytes", "allocations", "frees", "growths",
        "reused_after_event", "dependencies", "out_of_memory")]


class PoolInfo(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("device_uuid", ctypes.c_char_p),
                ("kind", ctypes.c_int32), ("backend", ctypes.c_int32),
                ("limit_bytes", ctypes.c_uint64)]


class TenantUsage(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("tenant", ctypes.c_char_p),
                ("charged_bytes", ctypes.c_uint64), ("segments", ctypes.c_uint32),
                ("sessions", ctypes.c_uint32), ("device_count", ctypes.c_size_t)]


class Gpumem:
    """libgpumem.so. Handles are integers."""

    def __init__(self, path):
        self.path = path
        self._lib = ctypes.CDLL(path)
        pointer = ctypes.c_void_p
        for name, result, arguments in (
                ("gpumem_last_error", ctypes.c_char_p, []),
                ("gpumem_client_connect", ctypes.c_int, [pointer, pointer]),
                ("gpumem_client_destroy", ctypes.c_int, [pointer]),
                ("gpumem_client_get_usage", ctypes.c_int, [pointer, pointer]),
                ("gpumem_usage_get_tenant", ctypes.c_int, [pointer, pointer]),
                ("gpumem_usage_destroy", ctypes.c_int, [pointer]),
                ("gpumem_default_pool", ctypes.c_int, [ctypes.c_int, pointer]),
                ("gpumem_pool_create", ctypes.c_int, [pointer, pointer, pointer]),
                ("gpumem_pool_destroy", ctypes.c_int, [pointer]),
                ("gpumem_pool_get_info", ctypes.c_int, [pointer, pointer]),
                ("gpumem_pool_get_stats", ctypes.c_int, [pointer, pointer]),
                ("gpumem_rmm_allocate", pointer, [ctypes.c_size_t, pointer, pointer]),
                ("gpumem_rmm_deallocate", None, [pointer, ctypes.c_size_t, pointer, pointer])):
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments
        self.rmm_allocate = self._lib.gpumem_rmm_allocate
        self.rmm_deallocate = self._lib.gpumem_rmm_deallocate

    def address(self, name):
        return ctypes.cast(getattr(self._lib, name), ctypes.c_void_p).value

    def last_error(self):
        return self._lib.gpumem_last_error().decode()

    def call(self, name, *arguments):
        if getattr(self._lib, name)(*arguments) != 0:
            raise RuntimeError(f"{name}: {self.last_error()}")

    def make(self, name, *arguments):
        """Calls a function whose last parameter gets a handle."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle.value

    def ask(self, name, handle, kind):
        """Calls a function that fills in a struct."""
        answer = kind(struct_size=ctypes.sizeof(kind))
        self.call(name, handle, ctypes.byref(answer))
        return answer

    def stats(self, pool=None):
        return self.ask("gpumem_pool_get_stats", pool or self.make("gpumem_default_pool", 0), Stats)
