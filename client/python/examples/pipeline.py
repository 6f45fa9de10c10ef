#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A producer and a consumer in two processes, frame by frame through one ring of brokered memory.

    python3 pipeline.py [--frames 200]

The producer fills a slot on its stream and records the slot's interprocess event. The consumer's
stream waits for that on the GPU, sums the frame, and records the event that frees the slot. The
CPUs only tell each other which slot is next: neither waits for the GPU. With CuPy on a GPU, else
with NumPy.
"""
import argparse
import multiprocessing
import time
import uuid

import gpumem

SLOTS = 4
FRAME = (1080, 1920)


class Side:
    """Shared by both processes: the ring, and an event of each kind for each slot."""

    def __init__(self, ring):
        self.on_gpu = ring.backend == "cuda"
        if self.on_gpu:
            import cupy
            self.module = cupy
            self.ring = cupy.asarray(ring)
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.stream.use()
            self.pointer = self.stream.ptr
        else:
            import numpy
            self.module = numpy
            self.ring = numpy.asarray(ring)
            self.pointer = 0

    def number(self, scalar):
        return int(scalar)


def consume(ticket, events, filled, emptied, results):
    client = gpumem.default_client()
    ring = client.open(ticket)
    side = Side(ring)
    full = [client.open_event(f"{events}/full{i}") for i in range(SLOTS)]
    free = [client.open_event(f"{events}/free{i}") for i in range(SLOTS)]
    sums = []
    while True:
        slot = filled.recv()
        if slot is None:
            break
        full[slot].wait(side.pointer)
        sums.append(side.ring[slot].sum(dtype="int64"))
        free[slot].record(side.pointer)
        emptied.send(slot)
    results.send([side.number(one) for one in sums])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--frames", type=int, default=200)
    frames = parser.parse_args().frames
    client = gpumem.default_client()
    ring = client.empty((SLOTS,) + FRAME, "uint8")
    side = Side(ring)
    events = f"pipeline/{uuid.uuid4().hex}"
    full = [client.create_event(f"{events}/full{i}") for i in range(SLOTS)]
    free = [client.create_event(f"{events}/free{i}") for i in range(SLOTS)]

    context = multiprocessing.get_context("spawn")
    filled_end, filled = context.Pipe(duplex=False)
    emptied, emptied_end = context.Pipe(duplex=False)
    results, results_end = context.Pipe(duplex=False)
    consumer = context.Process(target=consume, args=(gpumem.share(ring), events, filled_end,
                                                     emptied_end, results_end))
    consumer.start()
    began, counted = time.perf_counter(), 0  # from when the ring is full
    in_flight = 0
    for i in range(frames):
        slot = i % SLOTS
        if in_flight == SLOTS:
            emptied.recv()  # the consumer has submitted what empties this slot …
            in_flight -= 1
            free[slot].wait(side.pointer)  # … and this stream waits for it
            began, counted = (began, counted + 1) if counted else (time.perf_counter(), 1)
        side.ring[slot] = i % 251
        full[slot].record(side.pointer)
        filled.send(slot)
        in_flight += 1
    filled.send(None)
    if not results.poll(120):
        raise SystemExit("the consumer does not answer")
    sums = results.recv()
    seconds = time.perf_counter() - began
    consumer.join()
    size = FRAME[0] * FRAME[1]
    assert sums == [i % 251 * size for i in range(frames)], "a frame was read too early or too late"
    rate = (counted or frames) / seconds
    print(f"{frames} frames of {size / 1e6:.1f} MB went through {SLOTS} slots, each read whole: "
          f"{rate:.0f} a second with {side.module.__name__}")


if __name__ == "__main__":
    main()
