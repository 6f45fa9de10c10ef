# SPDX-License-Identifier: Apache-2.0
"""CuPy's documented calls over gpumem's memory that test_cupy.py does not make."""
import ctypes
import gc

import numpy
import pytest

import gpumem
from support import MIB, charged, child

cupy = pytest.importorskip("cupy")
import gpumem.cupy as adapter  # noqa: E402

pytestmark = pytest.mark.usefixtures("cupy_restored")


def busy():
    """Returns an array of 1 whose filling takes the current stream some 20 ms."""
    array = cupy.empty(256 * MIB, dtype="uint8")
    array.fill(1)  # compiled before
    for _ in range(300):
        array.fill(0)
    array.fill(1)
    return array


def test_the_default_pool_is_gpumems():
    own = cupy.get_default_memory_pool()
    used = adapter.use()
    assert cupy.get_default_memory_pool() is used
    before = cupy.get_default_memory_pool().used_bytes()
    x = cupy.ones(MIB, dtype="uint8")
    assert cupy.get_default_memory_pool().used_bytes() == before + x.nbytes
    adapter.unuse()
    assert cupy.get_default_memory_pool() is own


def test_the_limit_of_the_environment():
    said = child("""
        import cupy, gpumem.cupy
        gpumem.cupy.use()
        print(cupy.get_default_memory_pool().get_limit())
        try:
            cupy.empty(65 << 20, dtype="uint8")
        except cupy.cuda.memory.OutOfMemoryError:
            print("refused")
    """, environment={"CUPY_GPU_MEMORY_LIMIT": str(64 * MIB)})
    assert said.split() == [str(64 * MIB), "refused"]


def test_memory_info_of_the_quota_and_of_the_device():
    free, total = adapter.mem_info()
    assert 0 < free <= total
    assert total <= cupy.cuda.Device(0).mem_info[1]


def test_the_current_device():
    """Device.use, `with Device`, Device.id: arrays lie in the pool of the device in force."""
    adapter.use()
    for ordinal in range(cupy.cuda.runtime.getDeviceCount()):
        device = cupy.cuda.Device(ordinal)
        with device:
            x = cupy.ones(1000)
        assert device.id == x.device.id == ordinal
        assert gpumem.Pool.default(ordinal).find(x.data.ptr)[1] >= x.nbytes
        device.use()
        assert cupy.cuda.runtime.getDevice() == ordinal
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            y = busy()
        assert not stream.done
        device.synchronize()
        assert stream.done
        assert gpumem.Pool.default(ordinal).find(y.data.ptr)[1] >= y.nbytes
        del x, y
    cupy.cuda.Device(0).use()


def test_free_all_free(pool):
    shaped = adapter.MemoryPool(pool)
    with adapter.using(shaped):
        cupy.ones(MIB)
    cupy.cuda.Device().synchronize()
    assert shaped.total_bytes() > 0
    shaped.free_all_free()
    assert shaped.total_bytes() == 0


def test_pinned_allocation():
    """alloc_pinned_memory, cupyx.empty_pinned: the memory is found in gpumem's pool."""
    from cupyx import empty_pinned
    adapter.use(pinned=True)
    pinned = cupy.get_default_pinned_memory_pool()
    assert isinstance(pinned, adapter.PinnedMemoryPool)
    memory = cupy.cuda.alloc_pinned_memory(5000)
    assert isinstance(memory, cupy.cuda.PinnedMemoryPointer)
    assert pinned.pool.find(memory.ptr)[1] >= 5000 and memory.mem.size >= 5000
    array = empty_pinned(1000, dtype="float32")
    assert pinned.pool.find(array.ctypes.data)[1] >= 4000
    array[:] = 2
    assert float(cupy.asarray(array).sum()) == 2000
    used = pinned.used_bytes()
    del memory, array
    gc.collect()
    assert pinned.used_bytes() < used


def test_set_pinned_memory_allocator():
    """And PinnedMemoryPool's figures and free_all_blocks."""
    pinned = adapter.PinnedMemoryPool()
    cupy.cuda.set_pinned_memory_allocator(pinned.malloc)
    memory = cupy.cuda.alloc_pinned_memory(5000)
    assert pinned.pool.find(memory.ptr)[1] >= 5000
    assert pinned.used_bytes() >= 5000
    assert pinned.total_bytes() == pinned.used_bytes() + pinned.free_bytes()
    del memory
    assert pinned.used_bytes() == 0 and pinned.free_bytes() > 0 and pinned.n_free_blocks() > 0
    pinned.free_all_blocks()
    assert pinned.total_bytes() == 0 and pinned.n_free_blocks() == 0


def test_an_allocator_of_c_functions():
    """CFunctionAllocator over libgpumem's own functions, without gpumem.cupy."""
    library = ctypes.CDLL(gpumem.library_path())

    def address(name):
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    allocator = cupy.cuda.CFunctionAllocator(
        0, address("gpumem_cupy_malloc"), address("gpumem_cupy_free"), library)
    before = gpumem.Pool.default(0).stats().used_blocks
    with cupy.cuda.using_allocator(allocator.malloc):
        x = cupy.ones(1000)
        assert gpumem.Pool.default(0).find(x.data.ptr)[1] >= x.nbytes
        assert float(x.sum()) == 1000
        assert gpumem.Pool.default(0).stats().used_blocks > before
        del x
    assert gpumem.Pool.default(0).stats().used_blocks == before


def test_memory_is_for_the_current_stream():
    """get_current_stream, Stream.use: what one stream freed is not another's under same_stream."""
    with gpumem.default_client().pool(reuse=["same_stream"]) as pool, adapter.using(pool):
        one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        with one:
            assert cupy.cuda.get_current_stream() == one
            where = cupy.empty(MIB, dtype="uint8").data.ptr
        with other:
            assert cupy.cuda.get_current_stream() == other
            x = cupy.empty(MIB, dtype="uint8")
            assert x.data.ptr != where
        one.use()
        assert cupy.cuda.get_current_stream() == one
        y = cupy.empty(MIB, dtype="uint8")
        assert y.data.ptr == where
        cupy.cuda.Stream.null.use()
        del x, y


def test_streams_and_events_tell_when_they_are_done(pool):
    """Event.done, Stream.done (CuPy has no query()), Event.record, Event.synchronize, ptr,
    Stream.wait_event."""
    stream, reader = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    event = cupy.cuda.Event()
    with adapter.using(pool):
        y = cupy.zeros(1000, dtype="uint8")
        y += y  # compiled before
        cupy.cuda.Device().synchronize()
        with stream:
            x = busy()
            event.record(stream)
        assert not event.done and not stream.done
        reader.wait_event(event)
        with reader:
            y += x[-1000:]
        event.synchronize()
        assert event.done and event.ptr and stream.ptr
        stream.synchronize()
        reader.synchronize()
        assert stream.done and reader.done
        assert int(y.sum(dtype="int64")) == 1000


def test_a_graph(pool):
    """Stream.begin_capture, is_capturing and end_capture, and Graph.launch."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with adapter.using(pool), stream:
        x, y = cupy.ones(1000), cupy.empty(1000)
        cupy.multiply(x, 2, out=y)
        stream.synchronize()
        assert not stream.is_capturing()
        stream.begin_capture()
        assert stream.is_capturing()
        cupy.multiply(x, 3, out=y)
        graph = stream.end_capture()
        assert not stream.is_capturing()
        assert isinstance(graph, cupy.cuda.Graph)
        assert int(y.sum()) == 2000  # it has not run yet
        graph.launch(stream)
        stream.synchronize()
    assert int(y.sum()) == 3000


def test_asnumpy_with_its_options(pool):
    """asnumpy(stream=, out=, blocking=), ndarray.get and ndarray.set."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with adapter.using(pool), stream:
        x = cupy.arange(MIB, dtype="int32")
        out = numpy.zeros(MIB, dtype="int32")
        assert cupy.asnumpy(x, stream=stream, out=out, blocking=False) is out
        stream.synchronize()
        assert (out == numpy.arange(MIB)).all()
        assert (cupy.asnumpy(x, stream=stream, blocking=True) == out).all()
        assert (x.get(stream=stream) == out).all()
        x.set(out[::-1].copy(), stream=stream)
        stream.synchronize()
        assert int(x[0]) == MIB - 1


def test_what_is_not_charged():
    """Calls that succeed and take memory past the broker: Memory, malloc_managed, ManagedMemory,
    malloc_async, MemoryAsync, MemoryAsyncPool, PinnedMemory."""
    adapter.use()
    before, used = charged(), gpumem.Pool.default(0).stats().used_bytes
    held = [cupy.cuda.Memory(4 * MIB), cupy.cuda.malloc_managed(4 * MIB),
            cupy.cuda.ManagedMemory(4 * MIB), cupy.cuda.pinned_memory.PinnedMemory(4 * MIB)]
    if cupy.cuda.runtime.deviceGetAttribute(115, 0):  # cudaDevAttrMemoryPoolsSupported
        held += [cupy.cuda.malloc_async(4 * MIB), cupy.cuda.MemoryAsync(4 * MIB, cupy.cuda.Stream.null),
                 cupy.cuda.MemoryAsyncPool().malloc(4 * MIB)]
    assert charged() <= before and gpumem.Pool.default(0).stats().used_bytes == used
    del held
