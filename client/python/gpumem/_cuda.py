# SPDX-License-Identifier: Apache-2.0
"""The few calls of the CUDA driver that the package needs, where there is a driver.

By ctypes and the names of cuda.h. Loads nothing until the process uses a GPU's memory.
"""
from __future__ import annotations

import ctypes
import functools
import uuid
from typing import Any, Dict

from .errors import InternalError, NotFoundError, UnavailableError


@functools.lru_cache(maxsize=None)
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UnavailableError(f"this process has no CUDA driver: {error}") from error
    _check(driver, driver.cuInit(0), "cuInit")
    return driver


def _check(driver: Any, result: int, what: str) -> None:
    if result == 0:
        return
    name = ctypes.c_char_p()
    driver.cuGetErrorName(result, ctypes.byref(name))
    said = name.value.decode() if name.value else str(result)
    raise InternalError(f"{what}: {said}")


@functools.lru_cache(maxsize=None)
def ordinals() -> Dict[str, int]:
    """Returns UUID ("GPU-…") -> ordinal of this process's devices."""
    driver = _driver()
    count = ctypes.c_int()
    _check(driver, driver.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    found = {}
    for ordinal in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        _check(driver, driver.cuDeviceGetUuid_v2(raw, ordinal), "cuDeviceGetUuid")
        found[f"GPU-{uuid.UUID(bytes=bytes(raw))}"] = ordinal
        found[f"MIG-{uuid.UUID(bytes=bytes(raw))}"] = ordinal
    return found


def ordinal_of(device_uuid: str) -> int:
    """Returns the ordinal of a device in this process.

    Raises NotFoundError if the process does not see the device (CUDA_VISIBLE_DEVICES), and for the
    device of host memory, which is no GPU.
    """
    if not device_uuid.startswith(("GPU-", "MIG-")):
        raise NotFoundError(f"device {device_uuid} is no GPU: gpumem does not know which GPU uses "
                            "its memory")
    found = ordinals().get(device_uuid)
    if found is None:
        raise NotFoundError(
            f"this process does not see device {device_uuid}: check CUDA_VISIBLE_DEVICES")
    return found


def uuid_of(ordinal: int) -> str:
    """Returns the UUID of one of this process's devices."""
    for name, number in ordinals().items():
        if number == ordinal:
            return name
    raise NotFoundError(f"this process has no CUDA device {ordinal}")


def ordinal_of_pointer(pointer: int) -> int:
    """Returns the ordinal of the device that the memory is on (cuPointerGetAttribute)."""
    device_ordinal = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    driver = _driver()
    ordinal = ctypes.c_int()
    _check(driver, driver.cuPointerGetAttribute(ctypes.byref(ordinal), device_ordinal,
                                                ctypes.c_uint64(pointer)),
           "cuPointerGetAttribute")
    return ordinal.value


class _Context:
    """Makes the primary context of a device current in a with block."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._context = ctypes.c_void_p()

    def __enter__(self) -> Any:
        driver = _driver()
        _check(driver, driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), self._ordinal),
               "cuDevicePrimaryCtxRetain")
        _check(driver, driver.cuCtxPushCurrent_v2(self._context), "cuCtxPushCurrent")
        return driver

    def __exit__(self, *_: object) -> None:
        driver = _driver()
        driver.cuCtxPopCurrent_v2(ctypes.byref(self._context))
        driver.cuDevicePrimaryCtxRelease_v2(self._ordinal)


def synchronize(ordinal: int) -> None:
    """Blocks until all work submitted to a device is done."""
    with _Context(ordinal) as driver:
        _check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize")


def copy(ordinal: int, to: int, source: int, count: int) -> None:
    """Copies bytes between a device's memory and another's or the CPU's. Starts after all work
    submitted to the device, and blocks until done."""
    with _Context(ordinal) as driver:
        _check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize")
        _check(driver, driver.cuMemcpy(ctypes.c_uint64(to), ctypes.c_uint64(source),
                                       ctypes.c_size_t(count)), "cuMemcpy")
        _check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize")


def order(ordinal: int, first: int, then: int) -> None:
    """Makes stream `then` wait for the work submitted to stream `first`."""
    if first == then:
        return
    event = ctypes.c_void_p()
    with _Context(ordinal) as driver:
        disable_timing = 2
        _check(driver, driver.cuEventCreate(ctypes.byref(event), disable_timing), "cuEventCreate")
        try:
            _check(driver, driver.cuEventRecord(event, ctypes.c_void_p(first)), "cuEventRecord")
            _check(driver, driver.cuStreamWaitEvent(ctypes.c_void_p(then), event, 0),
                   "cuStreamWaitEvent")
        finally:
            driver.cuEventDestroy_v2(event)
