# SPDX-License-Identifier: Apache-2.0
from .cudadrv import driver
from .cudadrv.driver import (AutoFreePointer, HostOnlyCUDAMemoryManager, IpcHandle, MappedMemory,
                             MemoryInfo, MemoryPointer, PinnedMemory)

chosen = None


def set_memory_manager(plugin):
    global chosen
    if plugin(context=None).interface_version != 1:
        raise RuntimeError("EMM Plugin interface has version 1 required")
    chosen = plugin
