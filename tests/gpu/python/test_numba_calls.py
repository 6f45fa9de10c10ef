# SPDX-License-Identifier: Apache-2.0
"""Numba's documented calls with gpumem.numba that test_numba.py does not make."""
import warnings

import numpy as np
import pytest

import gpumem
from numba_calls import manager, settle
from support import charged, child

cuda = pytest.importorskip("numba.cuda")
import gpumem.numba as adapter  # noqa: E402

adapter.use()


def context():
    """Returns Numba's current context."""
    return cuda.current_context()


def test_the_plugin_interface():
    """memalloc, memhostalloc, get_memory_info, get_ipc_handle, initialize, interface_version and
    defer_cleanup, as Numba calls them."""
    plugin = manager()
    plugin.initialize()
    assert isinstance(plugin, adapter.MemoryManager) and plugin.interface_version == 1
    memory = context().memalloc(1000)
    assert plugin.pool.find(int(memory.device_pointer_value))[1] >= 1000
    assert plugin.get_ipc_handle(memory) is not None
    pinned = context().memhostalloc(1000)
    assert plugin.pinned_pool.stats().used_bytes >= 1000
    assert plugin.get_memory_info().total == plugin.pool.mem_info()[1]
    with plugin.defer_cleanup():
        del memory, pinned


def test_mempin_and_memunpin():
    """Pinning memory of the program works, and is not charged; memunpin undoes it."""
    from numba.cuda.cudadrv.driver import driver
    before = charged()
    host = np.zeros(1 << 16, dtype="uint8")
    pinned = context().mempin(host, host.ctypes.data, host.nbytes)
    assert charged() <= before
    del pinned
    settle()
    other = np.zeros(1 << 16, dtype="uint8")
    for _ in range(2):  # the second fails if memunpin has not undone the first
        driver.cuMemHostRegister(other.ctypes.data, other.nbytes, 0)
        manager().memunpin(other.ctypes.data)


METHODS_OF_MAPPED_ARRAYS = """
    {use}
    from numba import cuda
    import numpy as np
    def told(call):
        try:
            return call()
        except Exception as error:
            return type(error).__name__
    mapped = cuda.mapped_array(10, dtype="int64")
    mapped[:] = 5
    print(told(lambda: mapped.copy_to_host().sum()))
    print(told(lambda: mapped.copy_to_device(np.full(10, 7)) or np.asarray(mapped).sum()))
    print([part.size for part in mapped.split(4)])
    print(told(lambda: list(mapped.split(4))[2].copy_to_host().tolist()))
"""


def test_methods_of_mapped_arrays():
    """MappedNDArray.copy_to_host, copy_to_device and split give what they give without gpumem.
    Numba-cuda 0.30 raises AttributeError for the two copies in both cases."""
    own = child(METHODS_OF_MAPPED_ARRAYS.format(use=""))
    brokered = child(METHODS_OF_MAPPED_ARRAYS.format(use="import gpumem.numba; gpumem.numba.use()"))
    assert brokered == own and brokered.splitlines()[2] == "[4, 4, 2]"


def test_split_of_a_mapped_array():
    """mapped_array lies in gpumem's pinned pool, and MappedNDArray.split works on it."""
    used = manager().pinned_pool.stats().used_bytes
    mapped = cuda.mapped_array(10, dtype="int64")
    assert manager().pinned_pool.stats().used_bytes > used
    mapped[:] = np.arange(10)
    parts = list(mapped.split(4))
    assert [part.size for part in parts] == [4, 4, 2]
    assert parts[2].copy_to_host().tolist() == [8, 9]


def test_a_record_is_copied_both_ways():
    """DeviceRecord.copy_to_device and copy_to_host."""
    dtype = np.dtype([("a", "int32"), ("b", "float64")])
    record, back = np.zeros(1, dtype), np.zeros(1, dtype)
    device = cuda.to_device(record[0])
    record["a"], record["b"] = 7, 2.5
    device.copy_to_device(record[0])
    device.copy_to_host(back)
    assert back[0]["a"] == 7 and back[0]["b"] == 2.5


def test_managed_array():
    """Works past the broker, with a warning; refused where that is asked for."""
    adapter._has_warned_of_managed = False
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        before = charged()
        managed = cuda.managed_array(1000, dtype="float32")
        managed[:] = 1
    assert charged() <= before
    assert [one for one in told if "not charged" in str(one.message)]
    said = child("""
        import gpumem.numba
        gpumem.numba.use(managed="refuse")
        from numba import cuda
        from numba.cuda.cudadrv.driver import CudaAPIError
        try:
            cuda.managed_array(10)
        except CudaAPIError as error:
            print(error.code)
    """)
    assert int(said) == 801


def test_open_ipc_array():
    """numba.cuda.open_ipc_array opens the 64 bytes of a segment of kind ipc without gpumem."""
    segment = gpumem.default_client().acquire(2 << 20, kind="ipc")
    cuda.as_cuda_array(segment.array(10, "float32")).copy_to_device(np.arange(10, dtype="float32"))
    cuda.synchronize()
    said = child("""
        import sys
        from numba import cuda
        with cuda.open_ipc_array(bytes.fromhex(sys.argv[1]), shape=10, dtype="float32") as array:
            print(array.copy_to_host().sum())
    """, segment.ipc_handle().hex())
    assert float(said) == 45


def test_write_combined_memory_is_charged():
    """Numba passes no wc on to its memory manager: mapped_array(wc=True) is ordinary pinned memory."""
    used = manager().pinned_pool.stats().used_bytes
    mapped = cuda.mapped_array(1000, dtype="int64", wc=True)
    with_mapped = manager().pinned_pool.stats().used_bytes
    assert with_mapped > used
    pinned = cuda.pinned_array(1000, dtype="int64")
    assert manager().pinned_pool.stats().used_bytes > with_mapped
    del mapped, pinned
