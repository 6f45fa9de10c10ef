# SPDX-License-Identifier: Apache-2.0
"""gpumem.cuda_core over the host backend, with a stand-in for cuda.core."""
import gc
import importlib

import gpumem
import pytest
from conftest import MIB, charged, daemon_for_fakes


@pytest.fixture(scope="module", name="adapter")
def _adapter():
    with daemon_for_fakes():
        yield importlib.import_module("gpumem.cuda_core")


@pytest.fixture(name="core", params=[True, False], ids=["told", "not told"])
def _core(adapter, request, monkeypatch):
    """Both kinds of versions: those that tell a resource of a buffer's end, and the others."""
    del adapter
    core = importlib.import_module("cuda.core")
    monkeypatch.setattr(core, "TELLS", request.param)
    return core


def test_a_segment_is_a_buffer(adapter, core):
    with gpumem.connect() as client:
        segment = client.acquire(MIB)
        buffer = adapter.buffer(segment)
        assert isinstance(buffer, core.Buffer)
        assert (buffer.handle, buffer.size) == (segment.ptr, segment.nbytes)
        with pytest.raises(gpumem.FailedPreconditionError):
            segment.close()
        nbytes = segment.nbytes
        del segment
        gc.collect()
        assert charged(client) == nbytes
        buffer.close()
        gc.collect()
        assert charged(client) == 0


def test_a_resource_allocates(adapter, core):
    class Stream:  # pylint: disable=too-few-public-methods
        handle = 0x1000

    with gpumem.connect() as client, client.pool(limit=4 * MIB, reuse=["same_stream"]) as pool:
        resource = adapter.PoolMemoryResource(pool)
        assert pool.stats().used_blocks == 0  # it has found out how this version does it
        buffer = resource.allocate(MIB, stream=Stream())
        where = buffer.handle
        assert pool.find(where)[1] == MIB and buffer.size == MIB
        assert isinstance(buffer, core.Buffer)
        with pytest.raises(MemoryError):
            resource.allocate(8 * MIB)
        buffer.close(Stream())
        assert pool.stats().used_blocks == 0
        assert resource.allocate(MIB, stream=Stream()).handle == where
        assert resource.is_host_accessible and not resource.is_managed
        assert resource.device_id == -1


def test_nothing_has_a_place_too(adapter):
    with gpumem.connect() as client, client.pool() as pool:
        assert adapter.PoolMemoryResource(pool).allocate(0).size == 0


def test_only_some_kinds_have_handles(adapter):
    with gpumem.connect() as client:
        segment = client.acquire(MIB)
        for call in (adapter.ipc_mem_handle, adapter.pool_export_data):
            with pytest.raises(gpumem.UnimplementedError):
                call(segment)


def test_raw_handles(adapter):
    with gpumem.connect() as client:
        ipc, mempool = client.acquire(MIB, kind="ipc"), client.acquire(MIB, kind="mempool")
        assert adapter.ipc_mem_handle(ipc).reserved == ipc.ipc_handle()
        assert adapter.pool_export_data(mempool).reserved == mempool.export_data()
        assert ipc.ipc_handle() != mempool.export_data()
