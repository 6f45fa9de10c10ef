#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two model servers that do not fit the device together take turns; requests queue meanwhile.

    python3 two_servers.py [--mib N] [--rounds 5]

Each server is a process. It loads its weights once. When it has requests, it resumes, which waits
in the daemon's queue until the other server has suspended. It answers all of them, and suspends.
Its weights lie in the daemon's host tier meanwhile. The [tier] needs room for three models: for
both, and for one that was just resumed, whose room is free a moment later. With PyTorch on a GPU,
else with NumPy. All answers are compared.
"""
import argparse
import multiprocessing
import time

import gpumem

LAYERS = 4
WAIT_S = 300  # for the other server's turn


def on_gpu():
    return gpumem.default_client().devices()[0].backend == "cuda"


def side_of(mib):
    return max(int((mib * (1 << 20) / LAYERS / 4) ** 0.5), 8)


class TorchModel:
    """All of PyTorch's memory is gpumem's."""

    def __init__(self, mib, seed):
        import torch
        from gpumem import torch as brokered
        brokered.use()
        self.torch = torch
        self.suspend, self.resume = brokered.suspend, brokered.resume
        torch.manual_seed(seed)
        side = side_of(mib)
        self.layers = [torch.empty(side, side, device="cuda").normal_(std=side ** -0.5)
                       for _ in range(LAYERS)]
        self.answer(0)  # cuBLAS takes its workspace now: in a turn, the other would be ahead of it

    def answer(self, number):
        x = self.torch.full((self.layers[0].shape[0],), float(number), device="cuda")
        for layer in self.layers:
            x = self.torch.tanh(layer @ x)
        return x.double().sum().item()


class NumpyModel:
    """The weights lie in a pool of this program."""

    def __init__(self, mib, seed):
        import numpy
        self.numpy = numpy
        pool = gpumem.default_client().pool()
        self.suspend, self.resume = pool.suspend, pool.resume
        random = numpy.random.default_rng(seed)
        side = side_of(mib)
        self.layers = []
        for _ in range(LAYERS):
            layer = numpy.asarray(pool.empty((side, side)))
            for row in layer:
                row[:] = random.standard_normal(side, "float32") / side ** 0.5
            self.layers.append(layer)

    def answer(self, number):
        x = self.numpy.full(self.layers[0].shape[0], number, "float32")
        for layer in self.layers:
            x = self.numpy.tanh(layer @ x)
        return float(x.sum(dtype="float64"))


def serve(mib, seed, requests, answers):
    model = TorchModel(mib, seed) if on_gpu() else NumpyModel(mib, seed)
    model.suspend()
    answers.send("loaded")
    while True:
        batch = [requests.recv()]  # idle, and not on the device
        while requests.poll():
            batch.append(requests.recv())
        if batch == [None]:
            return
        began = time.perf_counter()
        model.resume(wait=WAIT_S)
        resumed = time.perf_counter()
        answered = [(number, model.answer(number)) for number in batch if number is not None]
        model.suspend()
        answers.send((answered, resumed - began))
        if None in batch:
            return


class Server:
    """One of the two processes, as the other side sees it."""

    def __init__(self, context, mib, seed):
        requests, self.requests = context.Pipe(duplex=False)
        self.answers, answers = context.Pipe(duplex=False)
        self.process = context.Process(target=serve, args=(mib, seed, requests, answers),
                                       daemon=True)
        self.process.start()
        requests.close()
        answers.close()
        assert self.answers.recv() == "loaded"
        self.known = {}
        self.turns, self.waited = 0, 0.0

    def take_answers(self, count):
        while count > 0:
            answered, waited = self.answers.recv()
            self.turns += 1
            self.waited += waited
            for number, answer in answered:
                assert self.known.setdefault(number, answer) == answer, "the weights have changed"
            count -= len(answered)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, help="the size of each model; default: 60%% of the limit")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with gpumem.connect() as client, client.pool() as pool:
        limit = pool.mem_info()[1]
    mib = args.mib or int(limit * 0.6) >> 20
    context = multiprocessing.get_context("spawn")
    # One after the other: the second loads when the first has suspended.
    servers = [Server(context, mib, seed) for seed in (1, 2)]
    began = time.perf_counter()
    for _ in range(args.rounds):
        for number in range(4):  # to both at once
            for server in servers:
                server.requests.send(number)
        for server in servers:
            server.take_answers(4)
    seconds = time.perf_counter() - began
    assert servers[0].known != servers[1].known
    for server in servers:
        server.requests.send(None)
        server.process.join()
        assert server.process.exitcode == 0
    turns = sum(server.turns for server in servers)
    waited = sum(server.waited for server in servers) / turns
    print(f"two servers of {mib} MiB each shared {limit >> 20} MiB in {turns} turns, and each "
          f"request had the same answer every time: {turns / seconds:.1f} turns a second, "
          f"{waited * 1e3:.0f} ms to resume")


if __name__ == "__main__":
    main()
