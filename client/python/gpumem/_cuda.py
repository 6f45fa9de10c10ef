"""The few calls of the CUDA driver that the package needs, where there is a driver.

By ctypes and the names of cuda.h. Nothing is loaded before somebody has memory of a GPU.
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
    """UUID ("GPU-…") -> the ordinal of this process's devices."""
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
    """The ordinal of a device as this process sees it.

    Raises NotFoundError where it does not see it (CUDA_VISIBLE_DEVICES).
    """
    found = ordinals().get(device_uuid)
    if found is None:
        raise NotFoundError(
            f"this process does not see device {device_uuid}: look at CUDA_VISIBLE_DEVICES")
    return found


def uuid_of(ordinal: int) -> str:
    """The UUID of one of this process's devices."""
    for name, number in ordinals().items():
        if number == ordinal:
            return name
    raise NotFoundError(f"this process has no CUDA device {ordinal}")


def ordinal_of_pointer(pointer: int) -> int:
    """The ordinal of the device whose memory it is (cuPointerGetAttribute)."""
    device_ordinal = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    driver = _driver()
    ordinal = ctypes.c_int()
    _check(driver, driver.cuPointerGetAttribute(ctypes.byref(ordinal), device_ordinal,
                                                ctypes.c_uint64(pointer)),
           "cuPointerGetAttribute")
    return ordinal.value


class _Context:
    """The primary context of a device, current in a with block."""

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
    """Waits for all work that was submitted to a device."""
    with _Context(ordinal) as driver:
        _check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize")


def copy(ordinal: int, to: int, source: int, count: int) -> None:
    """Copies bytes between a device's memory, and another's or the CPU's, after all work that was
    submitted to the device, and waits for it."""
    with _Context(ordinal) as driver:
        _check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize")
        _check(driver, driver.cuMemcpy(ctypes.c_uint64(to), ctypes.c_uint64(source),
                                       ctypes.c_size_t(count)), "cuMemcpy")
        _check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize")


def order(ordinal: int, first: int, then: int) -> None:
    """Makes stream `then` wait for what was submitted to stream `first`."""
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
