# SPDX-License-Identifier: Apache-2.0
"""Segments, tickets, blocks and pools on the host backend."""
import gc
import pickle

import gpumem
import pytest
from conftest import MIB, charged, eventually, run_python
from gpumem import _units


def test_a_segment_is_zeros_and_has_what_was_written(client):
    with client.acquire(MIB, kind="vmm", device="0") as segment:
        assert segment.nbytes == segment.size >= MIB
        assert (segment.kind, segment.backend, segment.on_host) == ("vmm", "host", True)
        assert segment.device == client.devices()[0].uuid
        assert segment.lease_id > 0 and segment.segment_id > 0 and segment.ptr > 0
        assert not segment.reused and not segment.readonly and not segment.revocable
        view = memoryview(segment)
        assert view.nbytes == segment.nbytes and not any(view[:4096])
        view[:5] = b"hello"
        assert bytes(memoryview(segment)[:6]) == b"hello\0"
        del view
    assert segment.closed and charged(client) == 0


def test_usage_has_the_peak_and_the_bytes_over_time(client):
    def on_device():
        return next(each for each in client.usage().devices if each.device == segment.device)

    with client.acquire(MIB, kind="vmm", device="0") as segment:
        first = on_device()
        assert first.charged == first.peak == segment.nbytes
        eventually(lambda: on_device().byte_seconds > first.byte_seconds, "it grows")


def test_many_segments_come_all_or_none(client):
    segments = client.acquire_many(2 * MIB, 3)
    assert len({segment.lease_id for segment in segments}) == 3
    with pytest.raises(gpumem.ResourceExhaustedError):
        client.acquire_many(32 * MIB, 3)
    assert charged(client) == 6 * MIB
    for segment in segments:
        segment.close()


def test_a_ticket_opens_the_same_memory(client):
    segment = client.acquire(MIB)
    memoryview(segment)[:3] = b"abc"
    ticket = segment.share()
    same = client.open(pickle.loads(pickle.dumps(ticket)))
    assert bytes(memoryview(same)[:3]) == b"abc"
    memoryview(same)[:3] = b"xyz"
    assert bytes(memoryview(segment)[:3]) == b"xyz"
    assert charged(client) == segment.nbytes
    assert same.segment_id == segment.segment_id and same.lease_id != segment.lease_id
    assert ticket.value not in repr(ticket) and str(ticket) == ticket.value
    opened = client.open_many([ticket, ticket.value])
    assert [each.segment_id for each in opened] == 2 * [segment.segment_id]


def test_read_only_memory_cannot_be_written(client):
    segment = client.acquire(MIB)
    same = client.open(segment.share(), read_only=True)
    assert same.readonly and memoryview(same).readonly
    with pytest.raises(TypeError):
        memoryview(same)[0] = 1
    assert same.array().readonly
    with pytest.raises(gpumem.FailedPreconditionError, match="read-only"):
        gpumem.arrays.copy_into(same.array((3,)), gpumem.asarray(bytearray(b"abc")))


def test_the_scope_of_a_ticket_decides_who_opens_it(client, daemon):
    segment = client.acquire(MIB)
    with gpumem.connect(daemon.runtime_dir, tenant="other") as other:
        assert other.tenant == "other"
        with pytest.raises(gpumem.PermissionDeniedError):
            other.open(segment.share())
        with pytest.raises(PermissionError):
            other.open(segment.share("tenant"))
        with other.open(segment.share("any")) as same:
            assert same.nbytes == segment.nbytes
    with pytest.raises(ValueError):
        segment.share("all")


def test_an_unrelated_process_opens_a_ticket(client, daemon):
    segment = client.acquire(MIB)
    memoryview(segment)[:6] = b"parent"
    said = run_python("""
import pickle, sys, gpumem
ticket = pickle.load(sys.stdin.buffer)
segment = gpumem.connect().open(ticket)
view = memoryview(segment)
print(bytes(view[:6]).decode())
view[:5] = b"child"
""", runtime_dir=daemon.runtime_dir, stdin=pickle.dumps(segment.share()))
    assert said == "parent\n"
    assert bytes(memoryview(segment)[:6]) == b"childt"


def test_closing_is_refused_while_views_live(client):
    segment = client.acquire(MIB)
    view = memoryview(segment)
    array = segment.array((4,), "float32")
    part = memoryview(array)
    assert segment.views >= 2
    with pytest.raises(gpumem.FailedPreconditionError, match="in use by .* views"):
        segment.close()
    assert not segment.closed and charged(client) > 0
    view.release()
    part.release()
    with pytest.raises(gpumem.FailedPreconditionError):
        segment.close()
    del array
    segment.close()
    assert segment.closed and charged(client) == 0
    segment.close()  # once more is no error
    for use in (lambda: segment.ptr, segment.share, segment.array, lambda: memoryview(segment)):
        with pytest.raises(gpumem.FailedPreconditionError, match="closed"):
            use()


def test_closing_can_be_put_off_until_the_last_view_is_gone(client):
    with client.acquire(MIB) as segment:
        array = segment.array((4,), "uint8")
        memoryview(array)[:4] = b"keep"
    assert segment.closed and segment.views == 1 and charged(client) > 0
    assert bytes(memoryview(array)) == b"keep"
    with pytest.raises(gpumem.FailedPreconditionError, match="closed"):
        segment.array()
    del array
    assert charged(client) == 0


def test_views_outlive_everything_else(client):
    view = memoryview(client.acquire(MIB))
    view[:2] = b"ok"
    gc.collect()
    assert bytes(view[:2]) == b"ok" and charged(client) > 0
    del view
    gc.collect()
    assert charged(client) == 0


def test_cycles_are_collected(client):
    segment = client.acquire(MIB)
    segment.itself = [segment, memoryview(segment)]
    del segment
    gc.collect()
    assert charged(client) == 0


def test_raw_handles(client, daemon):
    vmm = client.acquire(MIB, kind="vmm")
    assert vmm.fd() == vmm.fd() >= 0
    with open(f"/proc/self/fd/{vmm.fd()}", "r+b", buffering=0) as file:
        file.write(b"by fd")
    assert bytes(memoryview(vmm)[:5]) == b"by fd"
    with pytest.raises(NotImplementedError):
        vmm.ipc_handle()
    ipc = client.acquire(MIB, kind="ipc")
    assert len(ipc.ipc_handle()) == 64
    pinned = client.acquire(MIB, kind="pinned")
    assert pinned.on_host and not pinned.registered
    # Memory of kind mempool is not given back before the process has ended.
    run_python("""
import gpumem
mempool = gpumem.connect().acquire(1 << 20, kind="mempool")
assert len(mempool.export_data()) == 64 and mempool.pool_fd() >= 0
try:
    mempool.fd()
except gpumem.UnimplementedError:
    pass
else:
    raise AssertionError("a descriptor")
""", runtime_dir=daemon.runtime_dir)


def test_kinds_have_the_numbers_of_the_c_library():
    assert _units.KINDS == ("default", "vmm", "mempool", "ipc", "pinned", "", "host", "driver")
    assert [_units.to_kind(kind) for kind in (None, "vmm", "pinned")] == [0, 1, 4]
    assert _units.HOST_KINDS == {"pinned"}


def test_wrong_arguments_are_errors_and_nothing_else(client):
    for call in (lambda: client.acquire(0), lambda: client.acquire(MIB, kind="none"),
                 lambda: client.acquire(MIB, wait=float("nan")), lambda: client.open("nonsense"),
                 lambda: client.acquire(MIB, timeout=-1)):
        with pytest.raises(gpumem.InvalidArgumentError):
            call()
    with pytest.raises(gpumem.NotFoundError):
        client.acquire(MIB, device="GPU-none")
    with pytest.raises(OverflowError):
        client.acquire(-1)
    with pytest.raises(OverflowError):
        client.acquire(1 << 64)
    with pytest.raises(TypeError):
        client.acquire("many")
    with pytest.raises(TypeError):
        client.acquire(MIB, device=0, map_devices=[1])
    with pytest.raises(TypeError):
        gpumem._gpumem.segment_info(client.handle)
    with pytest.raises(TypeError):
        gpumem._gpumem.Handle()


# ---- Pools ---------------------------------------------------------------------------------------


def test_blocks_of_a_pool(client, daemon):
    with client.pool(grow=4 * MIB, device=1) as pool:
        assert (pool.backend, pool.kind, pool.device) == ("host", "vmm", client.devices()[1].uuid)
        block = pool.allocate(1000)
        assert block.nbytes >= 1000 and block.ptr % 512 == 0 and block.pool is pool
        assert pool.find(block.ptr) == (block.ptr, block.nbytes)
        assert pool.stats().used_blocks == 1 and pool.stats().reserved_bytes == 4 * MIB
        memoryview(block)[:5] = b"block"
        said = run_python("""
import sys, gpumem
block = gpumem.connect().open(sys.argv[1], read_only=True)
print(bytes(memoryview(block)[:5]).decode(), block.nbytes, block.device, block.kind, block.readonly)
""", block.share().value, runtime_dir=daemon.runtime_dir)
        assert said.split() == ["block", str(block.nbytes), pool.device, "vmm", "True"]
        with pytest.raises(gpumem.FailedPreconditionError, match="1 blocks"):
            pool.close()
        block.free()
        with pytest.raises(gpumem.NotFoundError):
            pool.find(0x1000)
        assert pool.stats().used_blocks == 0 and pool.free_all_blocks() == 4 * MIB
        with pool.allocate(MIB, stream=7) as other:
            assert other.stream == 7
        assert pool.trim() == 4 * MIB
    # Until the other process is seen to have ended, it may have the memory mapped.
    eventually(lambda: charged(client) == 0, "all is given back")


def test_a_pool_lives_as_long_as_its_blocks(client):
    pool = client.pool()
    block = pool.allocate(100)
    pool.close(defer=True)
    with pytest.raises(gpumem.FailedPreconditionError, match="pool is closed"):
        pool.allocate(1)
    memoryview(block)[:1] = b"x"
    assert charged(client) > 0
    del block
    assert charged(client) == 0


def test_blocks_with_views_are_not_freed(client):
    pool = client.pool()
    array = pool.empty((10, 10), "float64")
    view = memoryview(array)
    assert view.shape == (10, 10) and view.format == "d" and pool.stats().used_blocks == 1
    with pytest.raises(gpumem.FailedPreconditionError):
        array.owner.free()
    del array, view
    assert pool.stats().used_blocks == 0
    assert pool.empty((0, 5)).nbytes == 0


def test_limits_and_numbers_of_a_pool(client):
    pool = client.pool(limit=8 * MIB, grow=2 * MIB, reuse=["same_stream"], release_threshold=0)
    assert pool.limit == 8 * MIB
    with pytest.raises(gpumem.ResourceExhaustedError):
        pool.allocate(9 * MIB)
    pool.limit = 0.5
    assert pool.limit == 32 * MIB
    pool.limit = None
    assert pool.limit is None
    free, total = pool.mem_info()
    assert free <= total == 64 * MIB
    with pool.allocate(3 * MIB):
        assert pool.stats().used_peak_bytes >= 3 * MIB
    assert pool.stats().reserved_bytes == 0  # its threshold
    pool.reset_peaks()
    assert pool.stats().used_peak_bytes < 3 * MIB
    pool.stream_waits(1, 2)
    pool.forget_stream(1)
    pool.set_release_threshold(MIB)
    pool.set_gives_under_pressure(False)
    pool.set_reuse(None)
    with pytest.raises(ValueError):
        pool.set_reuse(["never"])
    assert pool.c_pool > 0
    pool.close()


def test_the_device_of_host_memory_has_no_ordinal():
    with pytest.raises(gpumem.NotFoundError, match="PINNED-0 is no GPU"):
        gpumem._cuda.ordinal_of("PINNED-0")
