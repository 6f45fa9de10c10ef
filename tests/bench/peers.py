#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CuPy's and PyTorch's allocators, measured as gpumem_bench measures the pool.

    gpumem_bench --write-trace training training.trace     (for each trace; see trace.h)
    peers.py [--sizes-only] [--peer NAME ...] [TRACE.trace ...] > peers.json

Prints one JSON of Google Benchmark's form, whose names are those of gpumem_bench:
PoolAllocFree/PEER/SIZE and PoolTrace/TRACE/PEER. The peers are those that are installed:

    cupy         cupy.cuda.MemoryPool
    cupy-async   cupy.cuda.MemoryAsyncPool
    torch        torch's caching allocator, by the functions under its Python API; with
                 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True its name is torch-expandable
    python       no allocator: an empty call for each allocation and free. The language's cost

Times include Python's cost, which a user of these libraries pays as well. No memory is touched,
and no work is on the streams. An allocation that fails ends the program.
"""
import argparse
import contextlib
import gc
import importlib.util
import json
import os
import sys
import time

SIZES = {"512B": 512, "4KiB": 4 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20, "16MiB": 16 << 20,
         "256MiB": 256 << 20, "1GiB": 1 << 30}
PATIENCE_NS = 10 * 10**9  # for one replay of a trace: then the rest of it is left out
REPLAYS = 3
MIB = 1 << 20


class Python:
    """A peer without an allocator."""
    name = "python"

    def __init__(self, streams):
        pass

    def allocate(self, size, stream):
        return self

    def free(self, block, stream):
        pass

    def reserved(self):
        return 0

    def end(self):
        pass


class Cupy:
    """A block's end frees it on its stream: the last holder must drop it."""
    name = "cupy"

    def __init__(self, streams):
        import cupy
        self._streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(streams)]
        self._current = 0
        self._streams[0].use()
        self._pool = self._make_pool(cupy)

    def _make_pool(self, cupy):
        return cupy.cuda.MemoryPool()

    def allocate(self, size, stream):
        if stream != self._current:
            self._streams[stream].use()
            self._current = stream
        return self._pool.malloc(size)

    def free(self, block, stream):
        pass

    def reserved(self):
        return self._pool.total_bytes()  # it never gives any back by itself: the most, too

    def end(self):
        import cupy
        cupy.cuda.Device().synchronize()
        self._pool.free_all_blocks()
        cupy.cuda.Stream.null.use()


class CupyAsync(Cupy):
    name = "cupy-async"

    def _make_pool(self, cupy):
        return cupy.cuda.MemoryAsyncPool()

    def reserved(self):
        return 0  # its total is that of the whole device's pool

    def end(self):
        import cupy
        cupy.cuda.Device().synchronize()
        cupy.cuda.Stream.null.use()


class Torch:
    name = "torch"

    def __init__(self, streams):
        import torch
        torch.cuda.init()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._torch = torch
        self._keep = [torch.cuda.Stream() for _ in range(streams)]
        self._streams = [stream.cuda_stream for stream in self._keep]
        self._allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
        self._delete = torch._C._cuda_cudaCachingAllocator_raw_delete

    def allocate(self, size, stream):
        return self._allocate(size, self._streams[stream])

    def free(self, block, stream):
        self._delete(block)

    def reserved(self):
        return self._torch.cuda.max_memory_reserved()

    def end(self):
        self._torch.cuda.synchronize()
        self._torch.cuda.empty_cache()


def installed_peers():
    peers = [Python]
    if importlib.util.find_spec("cupy"):
        peers += [Cupy, CupyAsync]
    if importlib.util.find_spec("torch"):
        if "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
            Torch.name = "torch-expandable"
        peers.append(Torch)
    return peers


def alloc_free_ns(peer, size):
    """Returns the time of an allocation and its free: the best of five runs of some 0.1 s."""
    allocate, free = peer.allocate, peer.free

    def run(times):
        begin = time.perf_counter_ns()
        for _ in range(times):
            block = allocate(size, 0)
            free(block, 0)
            del block
        return time.perf_counter_ns() - begin

    times = max(10, int(1e8 / max(run(10) / 10, 50)))
    return min(run(times) for _ in range(5)) / times


class Trace:
    def __init__(self, path):
        self.name = os.path.splitext(os.path.basename(path))[0]
        self.events = []  # (id, bytes, stream); bytes 0: a free
        self.ids, self.streams = 0, 1
        with open(path) as file:
            for line in file:
                if line.startswith("#"):
                    continue
                what, block, *rest = line.split()
                size = int(rest[0]) if what == "+" else 0
                self.events.append((int(block), size, int(rest[-1])))
                self.ids = max(self.ids, int(block) + 1)
                self.streams = max(self.streams, int(rest[-1]) + 1)

    def live_peak(self, events):
        live, peak, sizes = 0, 0, [0] * self.ids
        for block, size, _ in self.events[:events]:
            live += size - sizes[block]
            sizes[block] = size
            peak = max(peak, live)
        return peak


def replay(trace, peer):
    """How many events, and the ns of one."""
    allocate, free = peer.allocate, peer.free
    blocks = [None] * trace.ids
    done = 0
    begin = time.perf_counter_ns()
    for block, size, stream in trace.events:
        if size:
            blocks[block] = allocate(size, stream)
        else:
            free(blocks[block], stream)
            blocks[block] = None
        done += 1
        if done % 1024 == 0 and time.perf_counter_ns() - begin > PATIENCE_NS:
            break
    ns = time.perf_counter_ns() - begin
    for i, block in enumerate(blocks):
        if block is not None:
            free(block, 0)
            blocks[i] = None
    return done, ns / done


def trace_row(trace, peer):
    cold_events, cold = replay(trace, peer)
    warm = [replay(trace, peer) for _ in range(REPLAYS)]
    events = max(cold_events, *(done for done, _ in warm))
    best = min(ns for _, ns in warm)
    live, reserved = trace.live_peak(events), peer.reserved()
    return {"real_time": best * events / 1e6, "time_unit": "ms", "ns_per_op": best,
            "cold_ns_per_op": cold, "live_MiB": live / MIB, "reserved_MiB": reserved / MIB,
            "reserved_per_live": reserved / live, "part": events / len(trace.events)}


@contextlib.contextmanager
def made(kind, streams):
    peer = kind(streams)
    try:
        yield peer
    finally:
        peer.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes-only", action="store_true", help="no traces")
    parser.add_argument("--peer", action="append", help="only this one; may be given again")
    parser.add_argument("traces", nargs="*", help="files of gpumem_bench --write-trace")
    args = parser.parse_args()
    gc.disable()
    peers = [peer for peer in installed_peers() if not args.peer or peer.name in args.peer]
    if not peers:
        parser.error("none of these peers is installed")

    rows = []
    for kind in peers:
        for name, size in SIZES.items():
            with made(kind, 1) as peer:
                rows.append({"name": f"PoolAllocFree/{kind.name}/{name}", "time_unit": "ns",
                             "real_time": alloc_free_ns(peer, size)})
            print(rows[-1], file=sys.stderr)
    for path in [] if args.sizes_only else args.traces:
        trace = Trace(path)
        for kind in peers:
            with made(kind, trace.streams) as peer:
                rows.append({"name": f"PoolTrace/{trace.name}/{kind.name}",
                             **trace_row(trace, peer)})
            print(rows[-1], file=sys.stderr)
    json.dump({"context": {"executable": "peers.py", "python": sys.version.split()[0]},
               "benchmarks": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
