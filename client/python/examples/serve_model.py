#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers that serve one model: one of them loads it, all of them map it, and follow its versions.

    python3 serve_model.py [--workers 3] [--mib 64]
    python3 serve_model.py --file model.npz          # or a folder of safetensors

All workers start at once, and each calls load_or_attach(). One is killed; the next one attaches.
Then new weights are pushed, and the workers switch to them between two requests. The weights are
random, or a file's: its matrices are applied one after another. With PyTorch on a GPU, else with
NumPy. All answers are compared.
"""
import argparse
import multiprocessing
import os
import time
import uuid

import gpumem
from gpumem.serving import load_or_attach, push

LAYERS = 8


def on_gpu():
    return gpumem.default_client().devices()[0].backend == "cuda"


def make(mib, seed):
    """Yields the layers one after another: a loader need not hold the whole model."""
    side = max(int((mib * (1 << 20) / LAYERS / 4) ** 0.5), 8)
    for number in range(LAYERS):
        if on_gpu():
            import torch
            torch.manual_seed(seed * LAYERS + number)
            layer = torch.randn(side, side, device="cuda") / side ** 0.5
        else:
            import numpy
            random = numpy.random.default_rng(seed * LAYERS + number)
            layer = random.standard_normal((side, side), "float32") / side ** 0.5
        yield f"layer.{number}", layer


def answer(weights, number):
    """Applies all square matrices to a vector."""
    layers = [weights[name] for name in sorted(weights)
              if len(weights[name].shape) == 2 and len(set(weights[name].shape)) == 1]
    side = layers[0].shape[0]
    if on_gpu():
        import torch
        x = torch.full((side,), float(number), device="cuda")
        for layer in layers:
            x = torch.tanh(layer.float() @ x)
        return x.double().sum().item()
    import numpy
    x = numpy.full(side, number, "float32")
    for layer in layers:
        x = numpy.tanh(layer @ x)
    return float(x.sum(dtype="float64"))


def work(name, file, mib, requests, answers):
    """A worker. It does not know if it is the first."""
    framework = "torch" if on_gpu() else "numpy"
    began = time.perf_counter()
    if file:
        weights = load_or_attach(name, file, framework=framework)
    else:
        # What the content id says determines the bytes.
        weights = load_or_attach(name, lambda: make(mib, seed=1), framework=framework,
                                 content_id=f"random, {mib} MiB, seed 1")
    answers.send((weights.loaded, time.perf_counter() - began))
    while True:
        number = requests.recv()
        weights.update()  # between two requests
        answers.send((weights.version, answer(weights, number)))


class Worker:
    """A worker process, as the other side sees it."""

    def __init__(self, context, *arguments):
        requests, self._requests = context.Pipe(duplex=False)
        self._answers, answers = context.Pipe(duplex=False)
        self._process = context.Process(target=work, args=(*arguments, requests, answers),
                                        daemon=True)
        self._process.start()
        requests.close()
        answers.close()

    def started(self):
        """Returns whether it has loaded, and the seconds until it had its weights."""
        return self._answers.recv()

    def ask(self, number):
        """Returns the version that answers, and the answer."""
        self._requests.send(number)
        return self._answers.recv()

    def kill(self):
        self._process.kill()
        self._process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--mib", type=int, default=64, help="how large random weights are")
    parser.add_argument("--file")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    name = f"model-{uuid.uuid4().hex}"
    file = os.path.abspath(args.file) if args.file else None
    workers = [Worker(context, name, file, args.mib) for _ in range(args.workers)]
    try:
        loaded = [worker.started() for worker in workers]
        assert sum(has_loaded for has_loaded, _ in loaded) == 1, loaded
        first, = {worker.ask(3) for worker in workers}
        client = gpumem.default_client()
        publication, = (info for info in client.publications() if info.name == name)
        print(f"{args.workers} workers answer alike, and one of them has loaded "
              f"{publication.nbytes >> 20} MiB")

        workers.pop(0).kill()
        workers.append(Worker(context, name, file, args.mib))
        has_loaded, seconds = workers[-1].started()
        assert not has_loaded and workers[-1].ask(3) == first
        print(f"killed; the next worker had its weights {seconds * 1e3:.1f} ms after it asked")

        if not file:
            version = push(name, make(args.mib, seed=2),
                           framework="torch" if on_gpu() else "numpy")
            second, = {worker.ask(3) for worker in workers}
            assert second[0] == version and second != first
            print(f"version {version} was pushed, and every worker answers with it")
    finally:
        for worker in workers:
            worker.kill()
        for info in gpumem.default_client().publications():
            if info.name == name:
                gpumem.default_client().unpublish(name)


if __name__ == "__main__":
    main()
