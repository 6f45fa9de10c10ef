# SPDX-License-Identifier: Apache-2.0
"""gpumem.numba over the host backend, with a stand-in for Numba's driver."""
import ctypes
import gc
import os
import pickle
import warnings

import gpumem
import pytest
from conftest import MIB, daemon_for_fakes, run_python

LIMIT = 64 * MIB


@pytest.fixture(scope="module", name="daemon")
def _daemon():
    with daemon_for_fakes() as daemon:
        yield daemon


class _Device:
    id = 0

    @staticmethod
    def get_device_identity():
        return {"pci_bus_id": 1}


class _Context:
    device = _Device()


@pytest.fixture(name="driver")
def _driver(daemon):
    del daemon
    from numba.cuda.cudadrv import driver  # pylint: disable=import-outside-toplevel,import-error
    return driver


@pytest.fixture(name="manager")
def _manager(driver):
    import gpumem.numba  # pylint: disable=import-outside-toplevel
    from numba import cuda  # pylint: disable=import-outside-toplevel,import-error
    gpumem.numba.use()
    context = _Context()
    manager = cuda.chosen(context=context)
    manager.kept = context
    manager.initialize()
    yield manager
    manager.reset()
    gc.collect()
    assert manager.pool.stats().used_blocks == 0
    manager.reset()


def test_memory_is_the_pools(manager):
    memory = manager.memalloc(MIB)
    address = memory.device_pointer_value
    assert manager.pool.find(address)[1] == MIB and memory.size == MIB
    ctypes.memset(address, 5, MIB)


def test_nothing_has_a_place_too(manager):
    assert manager.memalloc(0).size == 0


def test_what_is_freed_waits_for_more(manager):
    for _ in range(5):
        manager.memalloc(MIB)
    assert len(manager.deallocations) == 5 and manager.pool.stats().used_blocks == 5
    for _ in range(20):
        manager.memalloc(1)
    assert manager.pool.stats().used_blocks <= 11
    manager.deallocations.clear()
    assert manager.pool.stats().used_blocks == 0 and not manager.allocations


def test_cleanup_can_be_deferred(manager):
    with manager.defer_cleanup():
        for _ in range(30):
            manager.memalloc(1000)
        assert manager.pool.stats().used_blocks == 30
    manager.deallocations.clear()
    assert manager.pool.stats().used_blocks == 0


def test_what_waits_makes_room(manager):
    manager.deallocations.memory_capacity = 100 * LIMIT
    manager.memalloc(40 * MIB)
    assert manager.pool.stats().used_blocks == 1
    assert manager.memalloc(41 * MIB).size == 41 * MIB


@pytest.mark.parametrize("size", [LIMIT + MIB, 1 << 42])
def test_a_refusal_is_the_drivers(manager, driver, size):
    with pytest.raises(driver.CudaAPIError) as refused:
        manager.memalloc(size)
    assert refused.value.code == 2 and isinstance(refused.value.__cause__, gpumem.Error)


def test_memory_info(manager):
    assert manager.get_memory_info().total == LIMIT


def test_pinned_and_mapped(manager):
    pinned = manager.memhostalloc(5000)
    mapped = manager.memhostalloc(7000, mapped=True)
    ctypes.memset(pinned.host_pointer.value, 1, 5000)
    ctypes.memset(mapped.host_pointer.value, 1, 7000)
    assert manager.pinned_pool.stats().used_blocks == 2
    del pinned, mapped
    manager.deallocations.clear()
    assert manager.pinned_pool.stats().used_blocks == 0
    assert manager.memhostalloc(10, wc=True)[0] == "the driver's own"
    assert manager.mempin(None, 1, 2)[0] == "pinned by the driver"


def test_managed_memory_is_warned_of_once(manager, monkeypatch):
    monkeypatch.delenv("GPUMEM_NUMBA_MANAGED", raising=False)
    with pytest.warns(RuntimeWarning, match="not charged"):
        assert manager.memallocmanaged(10, True) == ("managed by the driver", 10, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert manager.memallocmanaged(20, False)[1:] == (20, False)


def test_managed_memory_is_allowed_or_refused(manager, driver, monkeypatch):
    monkeypatch.setattr(gpumem.numba, "_has_warned_of_managed", False)
    monkeypatch.setenv("GPUMEM_NUMBA_MANAGED", "allow")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert manager.memallocmanaged(10, True)
    gpumem.numba.use(managed="refuse")
    with pytest.raises(driver.CudaAPIError) as refused:
        manager.memallocmanaged(10, True)
    assert refused.value.code == 801
    assert isinstance(refused.value.__cause__, gpumem.UnimplementedError)
    monkeypatch.setenv("GPUMEM_NUMBA_MANAGED", "perhaps")
    for call in (lambda: manager.memallocmanaged(10, True),
                 lambda: gpumem.numba.use(managed="perhaps")):
        with pytest.raises(gpumem.InvalidArgumentError):
            call()


def test_a_reset_ends_what_lives(manager):
    held = [manager.memalloc(1000) for _ in range(3)]
    manager.reset()
    assert manager.pool.stats().used_blocks == 0
    del held
    manager.deallocations.clear()
    assert manager.memalloc(10)


def test_what_was_reset_does_not_end_what_came_to_its_place(manager):
    old = manager.memhostalloc(MIB)
    there = old.host_pointer.value
    manager.reset()
    new = manager.memhostalloc(MIB, mapped=True)
    here = new.device_pointer_value
    # As if the new pool's memory lay at the old one's address, as it often does.
    blocks, allocations = manager._blocks, manager.allocations
    if here != there:
        blocks[there], allocations[there] = blocks[here], allocations[here]
    del old
    gc.collect()
    manager.deallocations.clear()
    assert manager.pinned_pool.stats().used_blocks == 1
    assert there in blocks and there in allocations
    if here != there:
        del blocks[there], allocations[there]
    del new
    gc.collect()
    manager.deallocations.clear()
    assert manager.pinned_pool.stats().used_blocks == 0 and not blocks and not allocations


def test_after_a_reset_there_is_another_pool(manager):
    """The device may be reset meanwhile: nothing that was made before it is used after it."""
    held, pinned = manager.memalloc(1000), manager.memhostalloc(1000)
    before, before_pinned = manager.pool, manager.pinned_pool
    manager.reset()
    assert before_pinned.closed
    assert before.closed or before.stats().reserved_bytes == 0  # the default pool never ends
    again = manager.memalloc(1000)
    assert manager.pool is not before and manager.pool.kind == before.place.kind
    assert manager.pool.find(again.device_pointer_value)
    assert manager.get_memory_info().total == LIMIT
    del held, pinned, again


def test_a_handle_opens_elsewhere(manager, daemon):
    memory = manager.memalloc(1000)
    ctypes.memmove(memory.device_pointer_value, bytes(range(200)), 200)
    handle = manager.get_ipc_handle(memory)
    with pytest.raises(ValueError):
        handle.open(manager.kept)
    said = run_python("""
import ctypes, pickle, sys
class Context: pass
handle = pickle.loads(bytes.fromhex(sys.argv[1]))
assert handle.base is None and handle.size == 1000
context = Context()
memory = handle.open(context)
print(list(ctypes.string_at(memory.device_pointer_value, 3)), memory.size)
try:
    handle.open(context)
except ValueError as error:
    print(error)
handle.close()
try:
    handle.close()
except ValueError as error:
    print(error)
class Float: itemsize = 4
print(handle.open_array(context, 250, Float).strides)
""", pickle.dumps(handle).hex(), runtime_dir=daemon.runtime_dir, fakes=True)
    assert said.splitlines() == ["[0, 1, 2] 1000", "IpcHandle is already opened",
                                 "IpcHandle not opened", "4"]


def test_foreign_memory_has_no_handle(manager, driver):
    foreign = driver.MemoryPointer(None, ctypes.c_uint64(12345), 10)
    with pytest.raises(gpumem.NotFoundError):
        manager.get_ipc_handle(foreign)


@pytest.mark.parametrize("before", [None, "vmm"])
def test_another_kind_is_refused_once_there_is_a_pool(manager, monkeypatch, before):
    del manager
    import gpumem.numba  # pylint: disable=import-outside-toplevel
    if before is not None:
        monkeypatch.setenv("GPUMEM_POOL_KIND", before)
    monkeypatch.setenv("GPUMEM_NUMBA_MANAGED", "warn")
    with pytest.raises(gpumem.FailedPreconditionError):
        gpumem.numba.use(kind="ipc", managed="refuse")
    assert os.environ.get("GPUMEM_POOL_KIND") == before
    assert os.environ["GPUMEM_NUMBA_MANAGED"] == "warn"


def test_a_pool_of_kind_ipc_gives_real_handles(daemon):
    said = run_python("""
import gpumem, gpumem.numba
from numba import cuda
from numba.cuda.cudadrv.driver import IpcHandle

class Device:
    id = 0
    def get_device_identity(self): return "this one"
class Context: device = Device()
context = Context()
gpumem.numba.use(kind="ipc")
manager = cuda.chosen(context=context)
one, other = manager.memalloc(1000), manager.memalloc(1000)
first, second = manager.get_ipc_handle(one), manager.get_ipc_handle(other)
assert isinstance(first, IpcHandle) and manager.pool.kind == "ipc"
print(bytes(first.handle) == bytes(second.handle), len(bytes(first.handle)), first.source_info,
      second.size)
print(other.device_pointer_value - one.device_pointer_value == second.offset - first.offset)
""", runtime_dir=daemon.runtime_dir, fakes=True)
    assert said.splitlines() == ["True 64 this one 1000", "True"]
