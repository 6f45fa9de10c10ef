# SPDX-License-Identifier: Apache-2.0
"""gpumem.cupy on a GPU."""
import gc
import pickle
import threading

import pytest

import gpumem
from support import MIB, child

cupy = pytest.importorskip("cupy")
import gpumem.cupy as adapter  # noqa: E402

pytestmark = pytest.mark.usefixtures("cupy_restored")


def calculate(streams, rounds=200, count=1 << 18):
    sums = []
    for i in range(rounds):
        with streams[i % len(streams)]:
            ones = cupy.full(count, i, dtype=cupy.int64)
            sums.append(((ones * 3 + 1) - ones).sum())
    for stream in streams:
        stream.synchronize()
    return [int(one) for one in sums] == [(2 * i + 1) * count for i in range(rounds)]


def test_the_stream_is_asked_in_c():
    """No Python on the path: CuPy exports the function that the extension calls."""
    from gpumem._cupy_streams import stream_question
    assert type(stream_question()).__name__ == "PyCapsule"


def test_cupy_has_one_dict_of_hooks_for_a_thread():
    """Which the extension looks for once."""
    from cupy.cuda import memory_hook
    hooks = memory_hook.get_memory_hooks()
    assert isinstance(hooks, dict)
    with cupy.cuda.MemoryHook():
        assert memory_hook.get_memory_hooks() is hooks and len(hooks) == 1
    assert memory_hook.get_memory_hooks() is hooks and not hooks


def test_arrays_lie_in_the_default_pool():
    used = adapter.use()
    x = cupy.ones((1024, 1024), dtype="float32")
    assert gpumem.Pool.default(0).find(x.data.ptr)[1] == x.nbytes
    assert used.used_bytes() >= x.nbytes
    assert float(x.sum()) == 1024 * 1024


def test_the_null_stream(pool):
    with adapter.using(pool):
        assert calculate([cupy.cuda.Stream.null])


def test_many_streams(pool):
    with adapter.using(pool):
        assert calculate([cupy.cuda.Stream(non_blocking=True) for _ in range(4)], 2000)
    gc.collect()
    assert pool.stats().used_bytes == 0


def test_streams_that_come_and_go(pool):
    with adapter.using(pool):
        for i in range(50):
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                x = cupy.full(MIB, i, dtype="uint8")
                y = x + 1
            del stream
            with cupy.cuda.Stream(non_blocking=True) as other:
                z = cupy.full(MIB, 3, dtype="uint8")
                other.synchronize()
            cupy.cuda.runtime.deviceSynchronize()
            assert int(y[0]) == i + 1 and int(z.sum(dtype="int64")) == 3 * MIB
            del x, y, z


def test_many_threads(pool):
    wrong = []

    def work():
        with adapter.using(pool):
            if not calculate([cupy.cuda.Stream(non_blocking=True)]):
                wrong.append(threading.current_thread().name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_refusal(pool):
    with adapter.using(pool) as shaped:
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as refused:
            cupy.empty(2 << 30, dtype="uint8")
        assert isinstance(refused.value.__cause__, gpumem.ResourceExhaustedError)
        assert shaped.used_bytes() == 0
        assert int(cupy.ones(100).sum()) == 100


def test_limit_and_stats(pool):
    shaped = adapter.MemoryPool(pool)
    shaped.set_limit()
    total = pool.mem_info()[1]
    shaped.set_limit(fraction=0.5)
    assert abs(shaped.get_limit() - total // 2) <= MIB
    shaped.set_limit(fraction=0)
    assert shaped.get_limit() == 0
    shaped.set_limit(size=64 * MIB)
    with adapter.using(shaped):
        x = cupy.empty(32 * MIB, dtype="uint8")
        with pytest.raises(MemoryError):
            cupy.empty(40 * MIB, dtype="uint8")
        assert shaped.used_bytes() == x.nbytes and shaped.get_limit() == 64 * MIB
        del x
        assert shaped.free_bytes() > 0 and shaped.n_free_blocks() > 0
        shaped.free_all_blocks()
        assert shaped.total_bytes() == 0


def test_free_all_blocks_of_a_stream(pool):
    one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with adapter.using(pool) as shaped:
        with one:
            x = cupy.zeros(32 * MIB, dtype="uint8")
        with other:
            cupy.zeros(32 * MIB, dtype="uint8")
        before = shaped.total_bytes()
        shaped.free_all_blocks(stream=other)
        assert shaped.total_bytes() <= before - 24 * MIB and shaped.used_bytes() == x.nbytes


def test_memory_hooks(pool):
    from cupy.cuda import memory_hooks
    with adapter.using(pool):
        with memory_hooks.LineProfileHook() as profiled:
            x = cupy.ones(1000)
            del x
        lines = []

        class Hook(cupy.cuda.MemoryHook):
            name = "test"

            def malloc_postprocess(self, **words):
                lines.append(("malloc", words["mem_ptr"]))

            def free_postprocess(self, **words):
                lines.append(("free", words["mem_ptr"]))
        with Hook():
            x = cupy.empty(1000)
            where = x.data.ptr
            del x
    assert profiled is not None
    assert lines == [("malloc", where), ("free", where)]


def test_capture_into_a_graph(pool):
    """New memory during a capture is refused, and frees are deferred until after it."""
    with adapter.using(pool):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x, y = cupy.ones(1000), cupy.empty(1000)
            gone = cupy.empty(1000)
            cupy.multiply(x, 2, out=y)  # compiled before
            stream.synchronize()
            stream.begin_capture()
            cupy.multiply(x, 3, out=y)
            with pytest.raises(gpumem.FailedPreconditionError):
                cupy.empty(10)
            del gone
            graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize()
        assert int(y.sum()) == 3000
        used = pool.stats().used_blocks
        cupy.empty(10)
        assert pool.stats().used_blocks <= used


def test_cupys_pool_on_top():
    top = adapter.use(cupy_pool=True)
    assert calculate([cupy.cuda.Stream(non_blocking=True) for _ in range(4)])
    gc.collect()
    assert top.total_bytes() > 0
    top.free_all_blocks()
    assert top.total_bytes() == 0


def test_cupys_pool_gets_nothing_that_is_worked_on(pool):
    """Others free on their streams into the same pool, and CuPy's knows nothing of that."""
    busy, stream = cupy.empty(256 * MIB, dtype="uint8"), cupy.cuda.Stream(non_blocking=True)
    top = adapter.use(pool, cupy_pool=True)
    shape = (16 * MIB,)
    with adapter.using(pool):
        cupy.zeros(shape, dtype="uint8").any()  # compiled before
        x = cupy.empty(shape, dtype="uint8")
        pool.free_all_blocks()
        pool.limit = pool.stats().reserved_bytes + 8 * MIB  # not enough for another
        for _ in range(300):  # some 20 ms
            busy.fill(1)
        x.fill(7)
        assert not cupy.cuda.Stream.null.done
        del x
    with stream:
        y = cupy.zeros(shape, dtype="uint8")
    cupy.cuda.runtime.deviceSynchronize()
    assert not y.any()
    del y
    top.free_all_blocks()


def test_pinned_memory():
    import numpy
    adapter.use(pinned=True)
    x = cupy.arange(1 << 20)
    host = cupy.asnumpy(x)
    assert (cupy.asarray(host) == x).all() and host.sum() == numpy.arange(1 << 20).sum()
    from cupyx import empty_pinned
    pinned = empty_pinned(1000, dtype="float32")
    pinned[:] = 2
    assert float(cupy.asarray(pinned).sum()) == 2000


def test_share_between_processes():
    adapter.use()
    x = cupy.arange(1000, dtype="int32")[10:20]
    cupy.cuda.runtime.deviceSynchronize()
    ticket = pickle.dumps(adapter.share(x)).hex()
    said = child("""
        import pickle, sys, cupy, gpumem
        x = cupy.asarray(gpumem.open(pickle.loads(bytes.fromhex(sys.argv[1]))))
        print(x.dtype, x.get().tolist())
    """, ticket)
    assert said.strip() == "int32 " + str(list(range(10, 20)))
    with pytest.raises(gpumem.NotFoundError):
        adapter.unuse()
        adapter.share(cupy.ones(10))


def test_what_cupy_documents_of_allocators(pool):
    """set_allocator, get_allocator, using_allocator, alloc, MemoryPointer, UnownedMemory,
    PythonFunctionAllocator."""
    shaped = adapter.MemoryPool(pool)
    cupy.cuda.set_allocator(shaped.malloc)
    assert cupy.cuda.get_allocator() is shaped.malloc
    pointer = cupy.cuda.alloc(4096)
    assert isinstance(pointer, cupy.cuda.MemoryPointer) and pointer.mem.size == 4096
    view = pointer + 256
    assert view.ptr == pointer.ptr + 256 and view.mem is pointer.mem
    pointer.memset(7, 4096)
    array = cupy.ndarray(4096, dtype="uint8", memptr=pointer)
    assert int(array.sum(dtype="int64")) == 7 * 4096
    with cupy.cuda.using_allocator(cupy.get_default_memory_pool().malloc):
        before = pool.stats().allocations
        cupy.ones(10)
        assert pool.stats().allocations == before
    segment = gpumem.default_client().acquire(MIB)
    unowned = cupy.cuda.UnownedMemory(segment.ptr, segment.nbytes, segment)
    array = cupy.ndarray(1024, dtype="float32", memptr=cupy.cuda.MemoryPointer(unowned, 0))
    array[:] = 5
    assert float(array.sum()) == 5120

    blocks = {}

    def malloc(size, device):
        block = pool.allocate(size, cupy.cuda.get_current_stream().ptr)
        blocks[block.ptr] = block
        return block.ptr

    def free(pointer, device):
        blocks.pop(pointer).free()
    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(malloc, free).malloc)
    assert float(cupy.ones(1000).sum()) == 1000
    adapter.unuse()
    gc.collect()
    assert not blocks


def test_streams_and_events_of_cupy(pool):
    """Stream, ExternalStream, Event, get_elapsed_time, wait_event over brokered arrays. An external
    stream's owner keeps it until the memory that was made on it is gone, and the pool told."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with adapter.using(pool):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        with cupy.cuda.ExternalStream(stream.ptr):
            begin.record()
            x = cupy.ones(MIB).sum()
            end.record()
        end.synchronize()
        assert cupy.cuda.get_elapsed_time(begin, end) > 0 and end.done
        cupy.cuda.Stream.null.wait_event(end)
        assert float(x) == MIB
        del x
    stream.synchronize()
    pool.forget_stream(stream.ptr)


def test_a_borrowed_stream_may_be_destroyed(pool):
    runtime = cupy.cuda.runtime
    with adapter.using(pool):
        borrowed = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
        with cupy.cuda.ExternalStream(borrowed):
            x = cupy.ones(1000)
        runtime.streamSynchronize(borrowed)
        del x
        pool.forget_stream(borrowed)
        runtime.streamDestroy(borrowed)
        with cupy.cuda.Stream(non_blocking=True):  # a new one: idle ones are forgotten
            assert float(cupy.ones(1000).sum()) == 1000


def test_interprocess_events_of_cupys_own():
    """cupy.cuda.Event(interprocess=True) orders two processes that work on one brokered array."""
    array = gpumem.empty(64 * MIB, "uint8")
    stream = cupy.cuda.Stream(non_blocking=True)
    event = cupy.cuda.Event(disable_timing=True, interprocess=True)
    with stream:
        seen = cupy.asarray(array)
        for _ in range(50):
            seen += 1
        event.record()
    ticket = pickle.dumps(gpumem.share(array)).hex()
    said = child("""
        import pickle, sys, cupy, gpumem
        event = cupy.cuda.runtime.ipcOpenEventHandle(bytes.fromhex(sys.argv[2]))
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.runtime.streamWaitEvent(stream.ptr, event)
        with stream:
            seen = cupy.asarray(gpumem.open(pickle.loads(bytes.fromhex(sys.argv[1]))))
            print(int(seen.min()), int(seen.max()))
    """, ticket, bytes(cupy.cuda.runtime.ipcGetEventHandle(event.ptr)).hex())
    assert said.split() == ["50", "50"]


def test_gpumems_events_are_opened_by_cupy(pool):
    client = gpumem.default_client()
    with client.create_event("cupy-event-test") as event:
        handle = event.ipc_handle()
        event.record(cupy.cuda.Stream.null.ptr)
        said = child("""
            import sys, cupy
            event = cupy.cuda.runtime.ipcOpenEventHandle(bytes.fromhex(sys.argv[1]))
            cupy.cuda.runtime.eventSynchronize(event)
            print("seen")
        """, handle.hex())
    assert said.strip() == "seen"


def test_ipc_handles_of_segments():
    """cupy.cuda.runtime.ipcOpenMemHandle on a segment of kind ipc, in a process without gpumem."""
    segment = gpumem.default_client().acquire(2 * MIB, kind="ipc")
    x = cupy.asarray(segment.array(dtype="uint8"))
    x[:] = 5
    cupy.cuda.runtime.deviceSynchronize()
    said = child("""
        import sys, cupy
        pointer = cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex(sys.argv[1]))
        memory = cupy.cuda.UnownedMemory(pointer, 1000, None, 0)
        x = cupy.ndarray(1000, dtype="uint8", memptr=cupy.cuda.MemoryPointer(memory, 0))
        print(int(x.sum(dtype="int64")))
    """, segment.ipc_handle().hex())
    assert int(said) == 5000
