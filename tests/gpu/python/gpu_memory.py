# SPDX-License-Identifier: Apache-2.0
"""The memory of a GPU that is in use by all processes, as NVML tells."""
import ctypes


class _Memory(ctypes.Structure):
    """nvmlMemory_t of nvml.h."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong)]


def used(index=0):
    """Returns the bytes in use on a GPU."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    memory, device = _Memory(), ctypes.c_void_p()
    for result in (nvml.nvmlInit_v2(),
                   nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)),
                   nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))):
        if result != 0:
            raise OSError(f"NVML returns {result}")
    return memory.used
