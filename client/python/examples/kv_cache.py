#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two servers of one model share a prompt's prefix, and give memory back to a tenant that needs it.

    python3 kv_cache.py [--mib 96] [--requests 150] [--owner TENANT --owner-mib 160]

Each server is a process with a paged KV cache on revocable leases. All prompts begin with the same
system prompt. One server computes it, and sends the blocks' names through a pipe; the other one
maps these blocks. With --owner a process of that tenant then takes memory. If the device has too
little, and the tenant a guarantee or a higher priority, the daemon revokes segments of the caches:
their sequences are preempted and computed again. The model is a stand-in, whose keys and values
follow from the tokens: each step reads them all, and compares. With PyTorch on a GPU, else with
NumPy.
"""
import argparse
import multiprocessing
import random
from collections import deque

import gpumem
from gpumem.kv_cache import KVCacheSpec, PagedKVCache

SPEC = KVCacheSpec("toy", layers=4, heads=4, head_size=64, dtype="float32", block_size=16,
                   blocks_per_segment=32)
SYSTEM_PROMPT = [7 * i % 1000 for i in range(512)]
ANSWER = 40  # tokens
BATCH = 8  # sequences


def on_gpu():
    return gpumem.default_client().devices()[0].backend == "cuda"


class Model:
    """Writes and reads keys and values."""

    def __init__(self):
        if on_gpu():
            import torch
            self.array = lambda block: torch.from_dlpack(block.without_readonly_mark())
            self.values = lambda tokens: torch.tensor(tokens, dtype=torch.float32, device="cuda")
        else:
            import numpy
            self.array = numpy.asarray
            self.values = lambda tokens: numpy.array(tokens, "float32")

    def write(self, cache, table, tokens, begin):
        """Computes the tokens from `begin` on."""
        size = cache.spec.block_size
        while begin < len(tokens):
            end = min((begin // size + 1) * size, len(tokens))
            block = self.array(cache.array(table[begin // size]))
            block[:, :, begin % size:(end - 1) % size + 1] = (
                self.values(tokens[begin:end])[:, None, None])
            begin = end

    def attend(self, cache, table, tokens):
        """Reads all keys of a sequence."""
        size = cache.spec.block_size
        total = 0
        for i, block_id in enumerate(table):
            total += float(self.array(cache.array(block_id))[0, 0, :len(tokens) - i * size, 0, 0]
                           .sum())
        assert total == sum(tokens), "the keys are another sequence's"


class Server:
    """A scheduler as those of engines: sequences that do not fit wait, and are computed again."""

    def __init__(self, cache, seed):
        self.cache, self.model, self.random = cache, Model(), random.Random(seed)
        self.waiting = deque()  # (sequence, tokens, length)
        self.running = {}  # (tokens, length) by sequence
        self.number = self.done = self.preempted = self.computed = self.cached = 0

    def step(self):
        """Each sequence gets one token."""
        with self.cache.running() as preempted:
            for sequence in preempted:
                self.preempt(sequence)
            while len(self.running) < BATCH and self.admit():
                pass
            for sequence, (tokens, length) in list(self.running.items()):
                tokens.append(self.random.randrange(1000))
                try:
                    self.cache.extend(sequence, len(tokens))
                except gpumem.ResourceExhaustedError:
                    tokens.pop()
                    self.cache.free(sequence)
                    self.preempt(sequence)
                    continue
                table = self.cache.block_table(sequence)
                self.model.write(self.cache, table, tokens, len(tokens) - 1)
                self.model.attend(self.cache, table, tokens)
                self.computed += 1
                if len(tokens) >= length:
                    self.cache.cache_blocks(sequence, tokens)
                    self.cache.free(sequence)
                    del self.running[sequence]
                    self.done += 1

    def preempt(self, sequence):
        tokens, length = self.running.pop(sequence)
        self.waiting.append((sequence, tokens, length))
        self.preempted += 1

    def admit(self):
        """Begins the next sequence, if there are blocks for it."""
        if not self.waiting:
            self.number += 1
            prompt = SYSTEM_PROMPT + [self.random.randrange(1000) for _ in range(200)]
            self.waiting.append((self.number, prompt, len(prompt) + ANSWER))
        sequence, tokens, length = self.waiting[0]
        try:
            cached = self.cache.allocate(sequence, tokens)
        except gpumem.ResourceExhaustedError:
            return False
        self.waiting.popleft()
        self.running[sequence] = (tokens, length)
        self.model.write(self.cache, self.cache.block_table(sequence), tokens, cached)
        self.cache.cache_blocks(sequence, tokens)
        self.cached += cached
        self.computed += len(tokens) - cached
        return True


def serve(seed, mib, requests, peer, control):
    with gpumem.connect() as client, PagedKVCache(client, SPEC, limit=mib << 20) as cache:
        server = Server(cache, seed)
        if seed == 0:
            server.step()
            peer.send(cache.share(SYSTEM_PROMPT))
        else:
            cache.open(peer.recv())
        segments = 0
        while server.done < requests:
            server.step()
            segments = max(segments, cache.stats().segments)
        control.send("warm")
        while not control.poll():
            server.step()
        control.recv()
        control.send((server.done, server.preempted, server.cached, server.computed,
                      cache.stats().opened, segments, cache.stats().segments))
        control.recv()  # the other one may still use the blocks of this one


def own(tenant, mib, control):
    """The tenant that needs its memory, firmly."""
    with gpumem.connect(tenant=tenant) as client, client.acquire(mib << 20, wait=60):
        control.send("has it")
        control.recv()


def start(context, function, *args):
    control, there = context.Pipe()
    process = context.Process(target=function, args=(*args, there), daemon=True)
    process.start()
    there.close()  # its end ends the pipe
    return process, control


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=96, help="the limit of each cache")
    parser.add_argument("--requests", type=int, default=150, help="of each server, at least")
    parser.add_argument("--owner", help="the tenant that takes memory")
    parser.add_argument("--owner-mib", type=int, default=160)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    servers = [start(context, serve, seed, args.mib, args.requests, peer)
               for seed, peer in enumerate(context.Pipe())]
    for _, control in servers:
        assert control.recv() == "warm"
    if args.owner:
        owner, held = start(context, own, args.owner, args.owner_mib)
        assert held.recv() == "has it"
        print(f"tenant {args.owner} got {args.owner_mib} MiB")
    for _, control in servers:
        control.send("stop")
    for number, (_, control) in enumerate(servers):
        done, preempted, cached, computed, opened, most, now = control.recv()
        print(f"server {number}: {done} requests, {cached / (cached + computed):.0%} of the tokens "
              f"from the cache, {opened} segments of the other server, {preempted} times a "
              f"sequence was preempted, {most} segments at most and {now} at the end")
    for process, control in servers + ([(owner, held)] if args.owner else []):
        control.send("end")
        process.join()
        assert process.exitcode == 0


if __name__ == "__main__":
    main()
