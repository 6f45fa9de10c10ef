# SPDX-License-Identifier: Apache-2.0
"""Calls of the CUDA driver that the benchmarks compare with: plain memory, copies, and the
checkpoints of processes."""
import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

LOCK_TIMEOUT_MS = 10_000


class CudaError(Exception):
    """A call of the driver failed."""


class Cuda:
    """The driver. Any thread may use it. Addresses and sizes are numbers."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")
        self._context = c_void_p()
        self._call("cuInit", c_uint(0))

    def _call(self, name, *arguments):
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise CudaError(f"the driver has no {name}") from None
        result = function(*arguments)
        if result != 0:
            raise CudaError(f"{name}: error {result}")

    def device_count(self):
        count = c_int()
        self._call("cuDeviceGetCount", byref(count))
        return count.value

    # ---- Memory. Needs use_context() in each thread.

    def use_context(self):
        """Makes the primary context of GPU 0, which frameworks use, current in this thread."""
        if not self._context:
            self._call("cuDevicePrimaryCtxRetain", byref(self._context), c_int(0))
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, size):
        pointer = c_uint64()
        self._call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        return pointer.value

    def free(self, pointer):
        self._call("cuMemFree_v2", c_uint64(pointer))

    def pinned(self, size):
        """Returns pinned host memory as a ctypes array of bytes. It stays until the process ends."""
        address = c_void_p()
        self._call("cuMemHostAlloc", byref(address), c_size_t(size), c_uint(0))
        return (ctypes.c_ubyte * size).from_address(address.value)

    def stream(self):
        made = c_void_p()
        self._call("cuStreamCreate", byref(made), c_uint(1))  # waits for no other stream
        return made

    def copy_out(self, host, pointer, size, stream):
        self._call("cuMemcpyDtoHAsync_v2", c_void_p(ctypes.addressof(host)), c_uint64(pointer),
                   c_size_t(size), stream)

    def copy_in(self, pointer, host, size, stream):
        self._call("cuMemcpyHtoDAsync_v2", c_uint64(pointer), c_void_p(ctypes.addressof(host)),
                   c_size_t(size), stream)

    def synchronize(self, stream):
        self._call("cuStreamSynchronize", stream)

    # ---- Checkpoints. Need no context, and root or the uid of the process.

    def _of_process(self, step, pid, first=0):
        # All arguments of all steps have 64 bytes; the first of a lock is its timeout.
        self._call(f"cuCheckpointProcess{step}", c_int(pid), (c_uint64 * 8)(first))

    def checkpoint(self, pid):
        """Moves all CUDA state of a process to its host memory."""
        self._of_process("Lock", pid, LOCK_TIMEOUT_MS)
        self._of_process("Checkpoint", pid)

    def restore(self, pid):
        self._of_process("Restore", pid)
        self._of_process("Unlock", pid)


def why_not():
    """Returns the reason why CUDA cannot be used, or ""."""
    try:
        return "" if Cuda().device_count() > 0 else "no GPU"
    except (OSError, CudaError) as error:
        return str(error)
