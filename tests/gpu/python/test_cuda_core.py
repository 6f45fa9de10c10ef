"""gpumem.cuda_core on a GPU: cuda.core's buffers, and raw handles for cuda.bindings.runtime."""
import contextlib
import gc
import uuid

import numpy as np
import pytest

import gpumem
from support import MIB, child

cudart = pytest.importorskip("cuda.bindings.runtime")
pytest.importorskip("cuda.core")
import gpumem.cuda_core as adapter  # noqa: E402

try:
    from cuda.core import Buffer, Device
except ImportError:
    from cuda.core.experimental import Buffer, Device


@pytest.fixture
def device():
    device = Device(0)
    device.set_current()
    return device


def ok(result):
    """Returns a cudart call's results, without its error, which must be none."""
    assert result[0] == cudart.cudaError_t.cudaSuccess, result[0]
    return result[1] if len(result) == 2 else result[1:]


def fill(pointer, value, count):
    ok(cudart.cudaMemset(pointer, value, count))
    ok(cudart.cudaDeviceSynchronize())


def read(pointer, count):
    host = np.zeros(count, dtype="uint8")
    ok(cudart.cudaMemcpy(host.ctypes.data, pointer, count,
                         cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost))
    return host


@contextlib.contextmanager
def current(ordinal):
    """The GPU is CUDA's current device."""
    ok(cudart.cudaSetDevice(ordinal))
    try:
        yield
    finally:
        ok(cudart.cudaSetDevice(0))


def device_of_ordinal(client, ordinal):
    raw = bytes(ok(cudart.cudaGetDeviceProperties(ordinal)).uuid.bytes)
    return next(one for one in client.devices() if one.uuid == f"GPU-{uuid.UUID(bytes=raw)}")


@pytest.mark.parametrize("kind", ["vmm", "mempool", "ipc"])
def test_a_segment_is_a_buffer(device, client, kind):
    segment = client.acquire(2 * MIB, kind=kind)  # or more: the kinds round up differently
    buffer = adapter.buffer(segment)
    assert isinstance(buffer, Buffer) and buffer.size == segment.nbytes
    assert int(buffer.handle) == segment.ptr
    fill(int(buffer.handle), 5, 2 * MIB)
    stream = device.create_stream()
    other = adapter.buffer(client.acquire(segment.nbytes))
    other.copy_from(buffer, stream=stream)
    stream.sync()
    assert read(int(other.handle), 100).sum() == 500


def test_a_buffer_keeps_its_memory(device, client):
    before = client.usage().devices[0].leased
    buffer = adapter.buffer(client.acquire(2 * MIB))
    gc.collect()
    assert client.usage().devices[0].leased > before
    fill(int(buffer.handle), 1, 2 * MIB)
    buffer.close()
    del buffer
    gc.collect()
    assert client.usage().devices[0].leased == before


def test_dlpack_of_a_buffer(device, client):
    torch = pytest.importorskip("torch")
    segment = client.acquire(2 * MIB)
    tensor = torch.from_dlpack(adapter.buffer(segment))
    assert tensor.data_ptr() == segment.ptr


def test_memory_resource(device, client):
    with client.pool(limit=64 * MIB) as pool:
        resource = adapter.PoolMemoryResource(pool)
        stream = device.create_stream()
        buffer = resource.allocate(MIB, stream=stream)
        assert buffer.size == MIB and pool.find(int(buffer.handle))[1] == MIB
        assert resource.is_device_accessible and not resource.is_host_accessible
        assert resource.device_id == 0
        with pytest.raises(MemoryError):
            resource.allocate(65 * MIB, stream=stream)
        buffer.close(stream)
        del buffer
        gc.collect()
        assert pool.stats().used_blocks == 0


def test_a_device_uses_the_memory_resource(device, client):
    with client.pool() as pool:
        before = device.memory_resource
        device.memory_resource = adapter.PoolMemoryResource(pool)
        try:
            stream = device.create_stream()
            buffer = device.allocate(1000, stream=stream)
            assert pool.stats().used_blocks == 1
            buffer.close(stream)
            del buffer
            gc.collect()
        finally:
            device.memory_resource = before


def test_ipc_mem_handle_opens_without_gpumem(device, client):
    segment = client.acquire(2 * MIB, kind="ipc")
    fill(segment.ptr, 7, 2 * MIB)
    handle = adapter.ipc_mem_handle(segment)
    assert bytes(handle.reserved) == segment.ipc_handle()
    said = child("""
        import sys
        from cuda.bindings import runtime as cudart
        import numpy as np
        handle = cudart.cudaIpcMemHandle_t()
        handle.reserved = bytes.fromhex(sys.argv[1])
        error, pointer = cudart.cudaIpcOpenMemHandle(
            handle, cudart.cudaIpcMemLazyEnablePeerAccess)
        host = np.zeros(100, dtype="uint8")
        print(error, *cudart.cudaMemcpy(host.ctypes.data, pointer, 100,
                                        cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost), host.sum())
        print(*cudart.cudaIpcCloseMemHandle(pointer))
    """, bytes(handle.reserved).hex())
    assert said.splitlines()[0].split()[-1] == "700", said


def test_ipc_open_and_close_here(device, client):
    segment = client.acquire(2 * MIB, kind="ipc")
    fill(segment.ptr, 9, 2 * MIB)
    pointer = ok(cudart.cudaIpcOpenMemHandle(adapter.ipc_mem_handle(segment),
                                             cudart.cudaIpcMemLazyEnablePeerAccess))
    assert read(pointer, 10).sum() == 90
    ok(cudart.cudaIpcCloseMemHandle(pointer))
    assert read(segment.ptr, 10).sum() == 90


def test_mem_pool_import_pointer(device, client):
    """In another process: where the memory is mapped already, the import is that mapping, and
    cudaFree() ends it."""
    segment = client.acquire(2 * MIB, kind="mempool")
    fill(segment.ptr, 3, 2 * MIB)
    said = child("""
        import array, os, socket, sys
        from cuda.bindings import runtime as cudart
        import numpy as np
        carrier = socket.socket(fileno=int(sys.argv[2]))
        _, ancillary, _, _ = carrier.recvmsg(1, socket.CMSG_SPACE(4))
        fd = array.array("i", ancillary[0][2])[0]
        posix = cudart.cudaMemAllocationHandleType.cudaMemHandleTypePosixFileDescriptor
        cudart.cudaFree(0)
        error, pool = cudart.cudaMemPoolImportFromShareableHandle(fd, posix, 0)
        datum = cudart.cudaMemPoolPtrExportData()
        datum.reserved = bytes.fromhex(sys.argv[1])
        error, pointer = cudart.cudaMemPoolImportPointer(pool, datum)
        host = np.zeros(10, dtype="uint8")
        print(*cudart.cudaMemcpy(host.ctypes.data, pointer, 10,
                                 cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost), int(error))
        print(host.sum())
        print(int(cudart.cudaFree(pointer)[0]), int(cudart.cudaMemPoolDestroy(pool)[0]))
    """, segment.export_data().hex(), sends_fd=segment.pool_fd())
    assert said.splitlines()[1:] == ["30", "0 0"], said
    assert read(segment.ptr, 10).sum() == 30


def test_external_memory(device, client):
    """cudaImportExternalMemory, cudaExternalMemoryGetMappedBuffer and cudaDestroyExternalMemory in
    another process, which has nothing but the descriptor: of a part, too."""
    segment = client.acquire(4 * MIB, kind="vmm")
    fill(segment.ptr, 3, 4 * MIB)
    said = child("""
        import array, os, socket, sys
        from cuda.bindings import runtime as cudart
        import numpy as np
        def ok(result):
            assert result[0] == cudart.cudaError_t.cudaSuccess, result[0]
            return result[1] if len(result) == 2 else result[1:]
        carrier = socket.socket(fileno=int(sys.argv[2]))
        _, ancillary, _, _ = carrier.recvmsg(1, socket.CMSG_SPACE(4))
        wanted = cudart.cudaExternalMemoryHandleDesc()
        wanted.type = cudart.cudaExternalMemoryHandleType.cudaExternalMemoryHandleTypeOpaqueFd
        wanted.handle.fd = array.array("i", ancillary[0][2])[0]  # CUDA's from here on
        wanted.size = int(sys.argv[1])
        memory = ok(cudart.cudaImportExternalMemory(wanted))
        part = cudart.cudaExternalMemoryBufferDesc()
        part.offset, part.size = 2 << 20, 2 << 20
        pointer = ok(cudart.cudaExternalMemoryGetMappedBuffer(memory, part))
        host = np.zeros(10, dtype="uint8")
        ok(cudart.cudaMemcpy(host.ctypes.data, pointer, 10,
                             cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost))
        print(host.sum())
        ok(cudart.cudaMemset(pointer, 5, 10))
        ok(cudart.cudaDeviceSynchronize())
        ok(cudart.cudaFree(pointer))
        ok(cudart.cudaDestroyExternalMemory(memory))
    """, segment.nbytes, sends_fd=segment.fd())
    assert said.split() == ["30"]
    assert read(segment.ptr + 2 * MIB, 20).sum() == 10 * 5 + 10 * 3


def test_mem_pool_handles_as_objects(device, client):
    """The pool is the one by which the segment is mapped here: it is not destroyed before that."""
    segment = client.acquire(2 * MIB, kind="mempool")
    assert bytes(adapter.pool_export_data(segment).reserved) == segment.export_data()
    pool = adapter.import_pool(segment)
    assert int(pool) == int(adapter.import_pool(segment))
    fill(segment.ptr, 5, 2 * MIB)
    assert cudart.cudaMemPoolDestroy(pool)[0] == cudart.cudaError_t.cudaErrorInvalidValue
    assert read(segment.ptr, 10).sum() == 50


def test_other_kinds_have_no_such_handles(client):
    segment = client.acquire(2 * MIB, kind="vmm")
    for call in (adapter.ipc_mem_handle, adapter.pool_export_data, adapter.import_pool):
        with pytest.raises(gpumem.UnimplementedError):
            call(segment)


def test_ipc_event_handle(device, client):
    stream = device.create_stream()
    with client.create_event("core-event-test") as event:
        event.record(int(stream.handle))
        handle = adapter.ipc_event_handle(event)
        said = child("""
            import sys
            from cuda.bindings import runtime as cudart
            handle = cudart.cudaIpcEventHandle_t()
            handle.reserved = bytes.fromhex(sys.argv[1])
            error, event = cudart.cudaIpcOpenEventHandle(handle)
            print(int(error), *map(int, cudart.cudaEventSynchronize(event)))
        """, bytes(handle.reserved).hex())
    assert said.split() == ["0", "0"]


def test_runtime_calls_on_brokered_memory(device, client):
    """cudaMemset*, cudaMemcpy*, cudaMemcpyAsync, cudaMemcpy2D, cudaPointerGetAttributes,
    cudaMemGetInfo, events and streams of cudart."""
    one, other = client.acquire(2 * MIB), client.acquire(2 * MIB)
    stream = ok(cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking))
    event = ok(cudart.cudaEventCreateWithFlags(cudart.cudaEventDisableTiming))
    ok(cudart.cudaMemsetAsync(one.ptr, 1, 2 * MIB, stream))
    ok(cudart.cudaMemset2DAsync(one.ptr, 1024, 2, 512, 4, stream))
    ok(cudart.cudaMemcpyAsync(other.ptr, one.ptr, 2 * MIB,
                              cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice, stream))
    ok(cudart.cudaEventRecord(event, stream))
    ok(cudart.cudaStreamWaitEvent(stream, event, 0))
    ok(cudart.cudaEventSynchronize(event))
    seen = read(other.ptr, 4096).reshape(4, 1024)
    assert seen[:, :512].sum() == 4 * 512 * 2 and seen[:, 512:].sum() == 4 * 512
    ok(cudart.cudaMemcpy2D(other.ptr, 64, one.ptr, 1024, 64, 4,
                           cudart.cudaMemcpyKind.cudaMemcpyDefault))
    assert read(other.ptr, 256).sum() == 512
    ok(cudart.cudaMemcpyPeer(other.ptr, 0, one.ptr, 0, 1000))
    ok(cudart.cudaMemcpyPeerAsync(other.ptr, 0, one.ptr, 0, 1000, stream))
    ok(cudart.cudaStreamSynchronize(stream))
    assert (read(other.ptr, 1000) == read(one.ptr, 1000)).all()
    attributes = ok(cudart.cudaPointerGetAttributes(one.ptr))
    assert attributes.device == 0
    assert attributes.type == cudart.cudaMemoryType.cudaMemoryTypeDevice
    free, total = ok(cudart.cudaMemGetInfo())
    assert 0 < free < total
    ok(cudart.cudaEventDestroy(event))
    ok(cudart.cudaStreamDestroy(stream))


def test_peer_access(device, client):
    """cudaDeviceGetP2PAttribute, cudaDeviceCanAccessPeer, cudaDeviceEnablePeerAccess and
    cudaDeviceDisablePeerAccess: CUDA's switch is for cudaMalloc's memory. Brokered memory is usable
    on the GPUs that it was mapped for, in both positions of the switch."""
    if ok(cudart.cudaGetDeviceCount()) < 2:
        pytest.skip("one GPU")
    here, there = device_of_ordinal(client, 0), device_of_ordinal(client, 1)
    peer = next(one for one in here.peers if one.uuid == there.uuid)
    what = cudart.cudaDeviceP2PAttr
    for attribute, known in ((what.cudaDevP2PAttrAccessSupported, peer.access),
                             (what.cudaDevP2PAttrNativeAtomicSupported, peer.native_atomics),
                             (what.cudaDevP2PAttrPerformanceRank, peer.performance_rank)):
        assert ok(cudart.cudaDeviceGetP2PAttribute(attribute, 0, 1)) == known
    assert ok(cudart.cudaDeviceCanAccessPeer(1, 0)) == peer.access
    if not peer.access:
        pytest.skip("GPUs that cannot reach each other's memory")
    for kind in ("vmm", "mempool", "ipc"):
        segment = client.acquire(2 * MIB, kind=kind, device=here.uuid)
        with gpumem.connect() as other, current(1):
            seen = other.open(segment.share(), map_devices=[there.uuid])
            fill(seen.ptr, 1, 1000)
            assert read(seen.ptr, 1000).sum() == 1000
            ok(cudart.cudaDeviceEnablePeerAccess(0, 0))
            fill(seen.ptr, 2, 1000)
            ok(cudart.cudaDeviceDisablePeerAccess(0))
            fill(seen.ptr, 3, 1000)
            assert read(seen.ptr, 1000).sum() == 3000
        assert read(segment.ptr, 1000).sum() == 3000
        theirs = client.acquire(2 * MIB, kind=kind, device=there.uuid)
        ok(cudart.cudaMemcpyPeer(theirs.ptr, 1, segment.ptr, 0, 1000))
        with current(1):
            assert read(theirs.ptr, 1000).sum() == 3000


def test_device_calls_agree_with_gpumem(device, client):
    """cudaGetDeviceCount, cudaGetDevice, cudaSetDevice, cudaGetDeviceProperties,
    cudaDeviceGetByPCIBusId, cudaDeviceGetAttribute. Not cudaDeviceGetPCIBusId: cuda-bindings 13.3
    returns blanks for it."""
    known = {one.uuid: one for one in client.devices() if one.backend == "cuda"}
    assert 0 < len(known) <= ok(cudart.cudaGetDeviceCount())
    ok(cudart.cudaSetDevice(0))
    assert ok(cudart.cudaGetDevice()) == 0
    mine = known[device_of_ordinal(client, 0).uuid]
    assert ok(cudart.cudaDeviceGetByPCIBusId(mine.pci_bus_id.encode())) == 0
    attribute = cudart.cudaDeviceAttr.cudaDevAttrMemoryPoolsSupported
    assert ok(cudart.cudaDeviceGetAttribute(attribute, 0)) == 1


def test_three_dimensions(device, client):
    """cudaMemset3D, cudaMemset3DAsync, cudaMemcpy3D, cudaMemcpy3DAsync over brokered memory."""
    one, other = client.acquire(2 * MIB), client.acquire(2 * MIB)
    width, height, depth = 64, 8, 4
    fill(one.ptr, 0, 2 * MIB)
    fill(other.ptr, 0, 2 * MIB)
    extent = cudart.make_cudaExtent(width, height, depth)
    source = cudart.make_cudaPitchedPtr(one.ptr, 256, width, height)
    ok(cudart.cudaMemset3D(source, 3, extent))
    stream = ok(cudart.cudaStreamCreate())
    for copy, more in ((cudart.cudaMemcpy3D, ()), (cudart.cudaMemcpy3DAsync, (stream,))):
        ok(cudart.cudaMemset3DAsync(source, 3 + len(more), extent, stream))
        ok(cudart.cudaStreamSynchronize(stream))
        parameters = cudart.cudaMemcpy3DParms()
        parameters.srcPtr = source
        parameters.dstPtr = cudart.make_cudaPitchedPtr(other.ptr, width, width, height)
        parameters.extent = extent
        parameters.kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        ok(copy(parameters, *more))
        ok(cudart.cudaDeviceSynchronize())
        assert (read(other.ptr, width * height * depth) == 3 + len(more)).all()


def test_three_dimensions_between_devices(device, client):
    """cudaMemcpy3DPeer, cudaMemcpy3DPeerAsync; with one GPU, from it to itself."""
    there = min(ok(cudart.cudaGetDeviceCount()), 2) - 1
    one = client.acquire(2 * MIB)
    other = client.acquire(2 * MIB, device=device_of_ordinal(client, there).uuid)
    fill(one.ptr, 6, 4096)
    for copy, more in ((cudart.cudaMemcpy3DPeer, ()), (cudart.cudaMemcpy3DPeerAsync, (0,))):
        with current(there):
            fill(other.ptr, 0, 4096)
        parameters = cudart.cudaMemcpy3DPeerParms()
        parameters.srcPtr = cudart.make_cudaPitchedPtr(one.ptr, 64, 64, 8)
        parameters.dstPtr = cudart.make_cudaPitchedPtr(other.ptr, 64, 64, 8)
        parameters.srcDevice, parameters.dstDevice = 0, there
        parameters.extent = cudart.make_cudaExtent(64, 8, 4)
        ok(copy(parameters, *more))
        ok(cudart.cudaDeviceSynchronize())
        with current(there):
            assert read(other.ptr, 2048).sum() == 6 * 2048


def test_cuda_arrays(device, client):
    """cudaMemcpy2DToArray, cudaMemcpy2DFromArray: between brokered memory and a CUDA array, which is
    the program's own."""
    segment = client.acquire(2 * MIB)
    fill(segment.ptr, 6, 4096)
    descriptor = ok(cudart.cudaCreateChannelDesc(
        8, 0, 0, 0, cudart.cudaChannelFormatKind.cudaChannelFormatKindUnsigned))
    array = ok(cudart.cudaMallocArray(descriptor, 64, 16, 0))
    kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice
    ok(cudart.cudaMemcpy2DToArray(array, 0, 0, segment.ptr, 64, 64, 16, kind))
    fill(segment.ptr, 0, 4096)
    ok(cudart.cudaMemcpy2DFromArray(segment.ptr, 64, array, 0, 0, 64, 16, kind))
    ok(cudart.cudaDeviceSynchronize())
    assert read(segment.ptr, 1024).sum() == 6 * 1024
    ok(cudart.cudaFreeArray(array))


def test_pinned_memory_in_the_runtime(device, client):
    """cudaHostGetDevicePointer and cudaMemcpyAsync with pinned memory of gpumem's."""
    pinned = client.acquire(2 * MIB, kind="pinned")
    assert pinned.registered
    np.asarray(pinned)[:] = 8
    pointer = int(ok(cudart.cudaHostGetDevicePointer(pinned.ptr, 0)))
    segment = client.acquire(2 * MIB)
    ok(cudart.cudaMemcpyAsync(segment.ptr, pointer, 1000,
                              cudart.cudaMemcpyKind.cudaMemcpyDefault, 0))
    ok(cudart.cudaDeviceSynchronize())
    assert read(segment.ptr, 1000).sum() == 8000
    attributes = ok(cudart.cudaPointerGetAttributes(pinned.ptr))
    assert attributes.type == cudart.cudaMemoryType.cudaMemoryTypeHost


def test_a_graph_over_brokered_memory(device, client):
    """cudaStreamBeginCapture, cudaStreamIsCapturing, cudaStreamEndCapture, cudaGraphLaunch."""
    segment = client.acquire(2 * MIB)
    stream = ok(cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking))
    ok(cudart.cudaStreamBeginCapture(
        stream, cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
    ok(cudart.cudaMemsetAsync(segment.ptr, 11, 1000, stream))
    graph = ok(cudart.cudaStreamEndCapture(stream))
    executable = ok(cudart.cudaGraphInstantiate(graph, 0))
    ok(cudart.cudaGraphLaunch(executable, stream))
    ok(cudart.cudaStreamSynchronize(stream))
    assert read(segment.ptr, 1000).sum() == 11000
    ok(cudart.cudaGraphExecDestroy(executable))
    ok(cudart.cudaGraphDestroy(graph))


def test_pool_access_of_an_imported_pool(device, client):
    """cudaMemPoolGetAccess and cudaMemPoolSetAccess on the pool of a segment of kind mempool."""
    segment = client.acquire(2 * MIB, kind="mempool")
    pool = adapter.import_pool(segment)
    location = cudart.cudaMemLocation()
    location.type = cudart.cudaMemLocationType.cudaMemLocationTypeDevice
    location.id = 0
    flags = ok(cudart.cudaMemPoolGetAccess(pool, location))
    assert flags == cudart.cudaMemAccessFlags.cudaMemAccessFlagsProtReadWrite
    described = cudart.cudaMemAccessDesc()
    described.location = location
    described.flags = cudart.cudaMemAccessFlags.cudaMemAccessFlagsProtReadWrite
    ok(cudart.cudaMemPoolSetAccess(pool, [described], 1))
