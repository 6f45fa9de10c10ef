# SPDX-License-Identifier: Apache-2.0
"""Calls of cuda.bindings.runtime on brokered memory."""
import contextlib
import uuid

import numpy as np
import pytest

import gpumem
from support import MIB

cudart = pytest.importorskip("cuda.bindings.runtime")
pytest.importorskip("cuda.core")
from cuda_calls import fill, ok, read  # noqa: E402


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
    fill(other.ptr, 0, 4096)
    ok(cudart.cudaMemcpy2D(other.ptr, 64, one.ptr, 1024, 64, 4,
                           cudart.cudaMemcpyKind.cudaMemcpyDefault))
    ok(cudart.cudaDeviceSynchronize())
    assert read(other.ptr, 4096).sum() == 512
    for copy, more in ((cudart.cudaMemcpyPeer, ()), (cudart.cudaMemcpyPeerAsync, (stream,))):
        fill(other.ptr, 0, 4096)
        ok(copy(other.ptr, 0, one.ptr, 0, 1000, *more))
        ok(cudart.cudaDeviceSynchronize())
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
    ok(cudart.cudaDeviceSynchronize())
    rows = read(one.ptr, 256 * height * depth).reshape(height * depth, 256)
    assert (rows[:, :width] == 3).all() and not rows[:, width:].any()
    stream = ok(cudart.cudaStreamCreate())
    for copy, more in ((cudart.cudaMemcpy3D, ()), (cudart.cudaMemcpy3DAsync, (stream,))):
        ok(cudart.cudaMemset3DAsync(source, 4 + len(more), extent, stream))
        ok(cudart.cudaStreamSynchronize(stream))
        parameters = cudart.cudaMemcpy3DParms()
        parameters.srcPtr = source
        parameters.dstPtr = cudart.make_cudaPitchedPtr(other.ptr, width, width, height)
        parameters.extent = extent
        parameters.kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        ok(copy(parameters, *more))
        ok(cudart.cudaDeviceSynchronize())
        assert (read(other.ptr, width * height * depth) == 4 + len(more)).all()


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
