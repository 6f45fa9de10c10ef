# SPDX-License-Identifier: Apache-2.0
"""Calls of cuda.bindings.runtime that test_cuda_runtime.py does not make."""
import numpy as np
import pytest

from support import MIB

cudart = pytest.importorskip("cuda.bindings.runtime")
pytest.importorskip("cuda.core")
from cuda_calls import fill, ok, read  # noqa: E402

TO_DEVICE = cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice


def made_stream(how=cudart.cudaStreamNonBlocking):
    """Returns a new stream."""
    return ok(cudart.cudaStreamCreateWithFlags(how))


def keep_busy(segment, stream):
    """Submits some 10 ms of work."""
    for _ in range(100):
        ok(cudart.cudaMemsetAsync(segment.ptr, 1, segment.nbytes, stream))


def test_streams_and_events_over_brokered_memory(device, client):
    """cudaStreamCreate, cudaStreamCreateWithPriority, cudaStreamQuery, cudaStreamWaitEvent,
    cudaEventCreate, cudaEventQuery, cudaEventElapsedTime around work on brokered memory."""
    done, not_ready = cudart.cudaError_t.cudaSuccess, cudart.cudaError_t.cudaErrorNotReady
    segment, copied, waiting = client.acquire(256 * MIB), client.acquire(2 * MIB), made_stream()
    _, highest = ok(cudart.cudaDeviceGetStreamPriorityRange())
    for stream in (ok(cudart.cudaStreamCreate()),
                   ok(cudart.cudaStreamCreateWithPriority(cudart.cudaStreamNonBlocking, highest))):
        begin, end = ok(cudart.cudaEventCreate()), ok(cudart.cudaEventCreate())
        fill(copied.ptr, 0, 1000)
        ok(cudart.cudaEventRecord(begin, stream))
        keep_busy(segment, stream)
        ok(cudart.cudaMemsetAsync(segment.ptr, 3, segment.nbytes, stream))
        ok(cudart.cudaEventRecordWithFlags(end, stream, cudart.cudaEventRecordDefault))
        assert cudart.cudaEventQuery(end)[0] == not_ready
        assert cudart.cudaStreamQuery(stream)[0] == not_ready
        ok(cudart.cudaStreamWaitEvent(waiting, end, 0))
        ok(cudart.cudaMemcpyAsync(copied.ptr, segment.ptr, 1000, TO_DEVICE, waiting))
        ok(cudart.cudaEventSynchronize(end))
        assert cudart.cudaEventQuery(end)[0] == done
        ok(cudart.cudaStreamSynchronize(waiting))
        assert cudart.cudaStreamQuery(stream)[0] == done
        assert ok(cudart.cudaEventElapsedTime(begin, end)) > 0
        assert read(copied.ptr, 1000).sum() == 3000
        for event in (begin, end):
            ok(cudart.cudaEventDestroy(event))
        ok(cudart.cudaStreamDestroy(stream))
    ok(cudart.cudaStreamDestroy(waiting))


def test_the_device_is_waited_for(device, client):
    """cudaDeviceSynchronize waits for work on brokered memory in every stream."""
    segment, streams = client.acquire(256 * MIB), [made_stream(), made_stream()]
    for stream in streams:
        keep_busy(segment, stream)
    assert cudart.cudaStreamQuery(streams[1])[0] == cudart.cudaError_t.cudaErrorNotReady
    ok(cudart.cudaDeviceSynchronize())
    for stream in streams:
        assert cudart.cudaStreamQuery(stream)[0] == cudart.cudaError_t.cudaSuccess
        ok(cudart.cudaStreamDestroy(stream))


def test_a_stream_that_is_captured(device, client):
    """cudaStreamIsCapturing, before, while and after brokered memory is written in a capture."""
    segment, stream = client.acquire(2 * MIB), made_stream()
    status = cudart.cudaStreamCaptureStatus
    assert ok(cudart.cudaStreamIsCapturing(stream)) == status.cudaStreamCaptureStatusNone
    ok(cudart.cudaStreamBeginCapture(
        stream, cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
    ok(cudart.cudaMemsetAsync(segment.ptr, 7, 1000, stream))
    assert ok(cudart.cudaStreamIsCapturing(stream)) == status.cudaStreamCaptureStatusActive
    graph = ok(cudart.cudaStreamEndCapture(stream))
    assert ok(cudart.cudaStreamIsCapturing(stream)) == status.cudaStreamCaptureStatusNone
    ok(cudart.cudaGraphDestroy(graph))
    ok(cudart.cudaStreamDestroy(stream))


def test_stream_attributes(device, client):
    """cudaStreamSetAttribute, cudaStreamGetAttribute, cudaStreamCopyAttributes and
    cudaCtxResetPersistingL2Cache: an access-policy window over brokered memory."""
    segment, stream, other = client.acquire(2 * MIB), made_stream(), made_stream()
    window = cudart.cudaStreamAttrValue()
    window.accessPolicyWindow.base_ptr = segment.ptr
    window.accessPolicyWindow.num_bytes = MIB
    window.accessPolicyWindow.hitRatio = 1.0
    window.accessPolicyWindow.hitProp = cudart.cudaAccessProperty.cudaAccessPropertyPersisting
    window.accessPolicyWindow.missProp = cudart.cudaAccessProperty.cudaAccessPropertyStreaming
    which = cudart.cudaStreamAttrID.cudaLaunchAttributeAccessPolicyWindow
    ok(cudart.cudaStreamSetAttribute(stream, which, window))
    ok(cudart.cudaStreamCopyAttributes(other, stream))
    for one in (stream, other):
        seen = ok(cudart.cudaStreamGetAttribute(one, which)).accessPolicyWindow
        assert int(seen.base_ptr) == segment.ptr and seen.num_bytes == MIB
        ok(cudart.cudaMemsetAsync(segment.ptr, 9, MIB, one))
        ok(cudart.cudaStreamSynchronize(one))
        assert read(segment.ptr, 1000).sum() == 9000
    ok(cudart.cudaCtxResetPersistingL2Cache())
    for one in (stream, other):
        ok(cudart.cudaStreamDestroy(one))


def test_limits_reserve_memory_past_the_broker(device, client):
    """cudaDeviceSetLimit, cudaDeviceGetLimit: the device's heap for kernels is not charged."""
    which = cudart.cudaLimit.cudaLimitMallocHeapSize
    before, charged = ok(cudart.cudaDeviceGetLimit(which)), client.usage().charged
    result = cudart.cudaDeviceSetLimit(which, before + 8 * MIB)[0]
    if result != cudart.cudaError_t.cudaSuccess:
        pytest.skip(f"the heap cannot grow once kernels have run: {result}")
    assert ok(cudart.cudaDeviceGetLimit(which)) >= before + 8 * MIB
    assert client.usage().charged <= charged


def test_gpudirect_rdma_writes_are_flushed(device, client):
    """cudaDeviceFlushGPUDirectRDMAWrites, where the device supports the flush by the host."""
    attribute = cudart.cudaDeviceAttr.cudaDevAttrGPUDirectRDMAFlushWritesOptions
    host = cudart.cudaFlushGPUDirectRDMAWritesOptions.cudaFlushGPUDirectRDMAWritesOptionHost
    if not ok(cudart.cudaDeviceGetAttribute(attribute, 0)) & int(host):
        pytest.skip("the device has no flush by the host")
    segment = client.acquire(2 * MIB)
    fill(segment.ptr, 4, 1000)
    ok(cudart.cudaDeviceFlushGPUDirectRDMAWrites(
        cudart.cudaFlushGPUDirectRDMAWritesTarget.cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
        cudart.cudaFlushGPUDirectRDMAWritesScope.cudaFlushGPUDirectRDMAWritesToOwner))
    assert read(segment.ptr, 1000).sum() == 4000


def test_copies_in_two_dimensions(device, client):
    """cudaMemset2D, cudaMemcpy2DAsync, cudaMemcpy2DToArrayAsync, cudaMemcpy2DFromArrayAsync."""
    one, other, stream = client.acquire(2 * MIB), client.acquire(2 * MIB), made_stream()
    fill(one.ptr, 0, 4096)
    ok(cudart.cudaMemset2D(one.ptr, 256, 5, 64, 16))
    ok(cudart.cudaDeviceSynchronize())
    ok(cudart.cudaMemcpy2DAsync(other.ptr, 64, one.ptr, 256, 64, 16, TO_DEVICE, stream))
    ok(cudart.cudaStreamSynchronize(stream))
    assert read(other.ptr, 1024).sum() == 5 * 1024
    descriptor = ok(cudart.cudaCreateChannelDesc(
        8, 0, 0, 0, cudart.cudaChannelFormatKind.cudaChannelFormatKindUnsigned))
    charged = client.usage().charged
    array = ok(cudart.cudaMallocArray(descriptor, 64, 16, 0))
    assert client.usage().charged <= charged  # CUDA arrays are past the broker
    ok(cudart.cudaMemcpy2DToArrayAsync(array, 0, 0, one.ptr, 256, 64, 16, TO_DEVICE, stream))
    ok(cudart.cudaMemsetAsync(other.ptr, 0, 1024, stream))
    ok(cudart.cudaMemcpy2DFromArrayAsync(other.ptr, 64, array, 0, 0, 64, 16, TO_DEVICE, stream))
    ok(cudart.cudaStreamSynchronize(stream))
    assert read(other.ptr, 1024).sum() == 5 * 1024
    ok(cudart.cudaFreeArray(array))
    ok(cudart.cudaStreamDestroy(stream))


def test_positions_in_three_dimensions(device, client):
    """make_cudaPos, make_cudaExtent, make_cudaPitchedPtr describe parts of brokered memory."""
    one, other = client.acquire(2 * MIB), client.acquire(2 * MIB)
    fill(one.ptr, 1, 4096)
    fill(other.ptr, 0, 4096)
    parameters = cudart.cudaMemcpy3DParms()
    parameters.srcPtr = cudart.make_cudaPitchedPtr(one.ptr, 64, 64, 8)
    parameters.srcPos = cudart.make_cudaPos(0, 4, 1)
    parameters.dstPtr = cudart.make_cudaPitchedPtr(other.ptr, 64, 64, 8)
    parameters.dstPos = cudart.make_cudaPos(0, 2, 1)
    parameters.extent = cudart.make_cudaExtent(64, 2, 1)
    parameters.kind = TO_DEVICE
    ok(cudart.cudaMemcpy3D(parameters))
    ok(cudart.cudaDeviceSynchronize())
    seen = read(other.ptr, 4096)
    assert seen.sum() == 128 and seen[64 * 8 + 128:64 * 8 + 256].sum() == 128


def test_what_is_not_charged(device, client):
    """Calls that succeed and take memory past the broker: cudaMalloc, cudaMallocPitch,
    cudaMalloc3D, cudaMallocManaged, cudaMallocHost, cudaHostAlloc, cudaMallocAsync,
    cudaHostRegister."""
    charged = client.usage().charged
    host = np.zeros(MIB, dtype="uint8")
    ok(cudart.cudaHostRegister(host.ctypes.data, host.nbytes, cudart.cudaHostRegisterDefault))
    cube = ok(cudart.cudaMalloc3D(cudart.make_cudaExtent(64, 8, 4)))
    pointer = ok(cudart.cudaMalloc(MIB))
    pitched, _ = ok(cudart.cudaMallocPitch(1000, 10))
    managed = ok(cudart.cudaMallocManaged(MIB, cudart.cudaMemAttachGlobal))
    pinned = ok(cudart.cudaMallocHost(MIB))
    other = ok(cudart.cudaHostAlloc(MIB, cudart.cudaHostAllocDefault))
    ordered = ok(cudart.cudaMallocAsync(MIB, 0))
    segment = client.acquire(2 * MIB)
    with_segment = client.usage().charged
    assert with_segment - segment.nbytes <= charged
    ok(cudart.cudaMemcpy(segment.ptr, pointer, 1000, cudart.cudaMemcpyKind.cudaMemcpyDefault))
    ok(cudart.cudaFreeAsync(ordered, 0))
    ok(cudart.cudaHostUnregister(host.ctypes.data))
    for one in (pointer, pitched, managed, cube.ptr):
        ok(cudart.cudaFree(one))
    for one in (pinned, other):
        ok(cudart.cudaFreeHost(one))
