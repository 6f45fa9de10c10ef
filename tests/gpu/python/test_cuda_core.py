# SPDX-License-Identifier: Apache-2.0
"""gpumem.cuda_core on a GPU: cuda.core's buffers, and raw handles for cuda.bindings.runtime."""
import gc

import pytest

import gpumem
from support import MIB, child

cudart = pytest.importorskip("cuda.bindings.runtime")
pytest.importorskip("cuda.core")
import gpumem.cuda_core as adapter  # noqa: E402
from cuda_calls import fill, ok, read  # noqa: E402

try:
    from cuda.core import Buffer
except ImportError:
    from cuda.core.experimental import Buffer


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
        wanted.handle.fd = array.array("i", ancillary[0][2])[0]  # CUDA owns it once imported
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
