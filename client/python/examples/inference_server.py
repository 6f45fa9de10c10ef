#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An inference server whose worker is killed, and which serves again from a publication.

    python3 inference_server.py [--mib 256] [--kills 3]

A loader process makes the weights, publishes them and ends. A worker attaches to them, without a
copy, and answers requests. It is SIGKILLed; the next one attaches to the same weights. Shows the
time from the kill to the next answer, and the weights' part of it: the rest is a new Python that
imports its library. With PyTorch on a GPU, else with NumPy.
"""
import argparse
import multiprocessing
import os
import signal
import time
import uuid

import gpumem

LAYERS = 8


def on_gpu():
    return gpumem.default_client().devices()[0].backend == "cuda"


def load(name, mib, seed=7):
    """The process that has the weights from wherever weights come from."""
    side = max(int((mib * (1 << 20) / LAYERS / 4) ** 0.5), 8)
    if on_gpu():
        import torch
        from gpumem import torch as brokered
        torch.manual_seed(seed)
        layers = {f"layer{i}": torch.randn(side, side, device="cuda") / side ** 0.5
                  for i in range(LAYERS)}
        brokered.publish(name, layers)
    else:
        import numpy
        random = numpy.random.default_rng(seed)
        gpumem.publish(name, {f"layer{i}": (random.standard_normal((side, side), "float32")
                                            / side ** 0.5) for i in range(LAYERS)})


def work(name, requests, answers):
    """A worker: it has nothing that would have to be loaded."""
    if on_gpu():
        import torch
        from gpumem import torch as brokered
        torch.zeros(1, device="cuda")  # the context
        began = time.perf_counter()
        layers = brokered.attach(name).tensors

        def serve(number):
            x = torch.full((layers["layer0"].shape[0],), float(number), device="cuda")
            for i in range(LAYERS):
                x = torch.tanh(layers[f"layer{i}"] @ x)
            return x.double().sum().item()
    else:
        import numpy
        began = time.perf_counter()
        layers = {key: numpy.asarray(array) for key, array in gpumem.attach(name).items()}

        def serve(number):
            x = numpy.full(layers["layer0"].shape[0], number, "float32")
            for i in range(LAYERS):
                x = numpy.tanh(layers[f"layer{i}"] @ x)
            return float(x.sum(dtype="float64"))
    attached = time.perf_counter() - began
    while True:
        number = requests.recv()
        answers.send((os.getpid(), serve(number), attached))


def start(context, name):
    requests, to_worker = context.Pipe(duplex=False)
    from_worker, answers = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(name, requests, answers), daemon=True)
    process.start()
    # The worker has these ends; without ours its death ends the pipe.
    requests.close()
    answers.close()
    return process, to_worker, from_worker


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=256, help="how large the weights are")
    parser.add_argument("--kills", type=int, default=3)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    name = f"weights-{uuid.uuid4().hex}"
    loader = context.Process(target=load, args=(name, args.mib))
    began = time.perf_counter()
    loader.start()
    loader.join()
    assert loader.exitcode == 0
    print(f"loaded and published in {time.perf_counter() - began:.2f} s; the loader has ended")
    try:
        worker, requests, answers = start(context, name)
        requests.send(3)
        pid, first, attached = answers.recv()
        print(f"worker {pid} answers {first:.6f}; the weights took it {attached * 1e3:.1f} ms")
        for _ in range(args.kills):
            os.kill(worker.pid, signal.SIGKILL)
            began = time.perf_counter()
            worker.join()
            worker, requests, answers = start(context, name)
            requests.send(3)
            pid, again, attached = answers.recv()
            seconds = time.perf_counter() - began
            assert again == first, (again, first)
            print(f"killed; worker {pid} answers the same after {seconds:.2f} s, of which the "
                  f"weights took {attached * 1e3:.1f} ms")
        worker.kill()
        worker.join()
    finally:
        gpumem.default_client().unpublish(name)


if __name__ == "__main__":
    main()
