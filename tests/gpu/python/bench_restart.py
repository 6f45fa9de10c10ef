#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker dies; how long until the next one answers its first token? A PyTorch module of 7 GB or
more with random weights: read from a file again, or attached to as a publication.

    bench_restart.py --work DIR [--gib 7.5]      # with a daemon at $GPUMEM_RUNTIME_DIR

Each way is measured twice:
- By a worker that stands by, with PyTorch imported, its CUDA context made and one layer of the same
  shapes calculated: from the signal to go on.
- By a worker that is started only then.
The file is read from the page cache, which is the best case for reading: a disk is slower. Rows:
the way, the seconds until the weights were in place, until the first token, and from the start of
the process.
"""
import argparse
import os
import signal
import subprocess
import sys
import time

import torch

HEADS, VOCABULARY = 32, 32000


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Model(torch.nn.Module):
    """A transformer in bfloat16; with a width of 4096 a layer has 403 MB."""

    def __init__(self, layers, width=4096):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, -1]))


def make_meta(layers):
    with torch.device("meta"):
        return Model(layers).to(torch.bfloat16).eval()


def first_token(model):
    tokens = torch.arange(16, device="cuda").reshape(1, 16)
    with torch.no_grad():
        return int(model(tokens).argmax())


def load(way, where, model):
    if way == "attach":
        import gpumem.torch
        gpumem.torch.attach(where, model)
    else:
        mapped = way == "file, mmap"
        state = torch.load(where, map_location="cpu" if mapped else "cuda", mmap=mapped,
                           weights_only=True)
        if mapped:
            state = {name: tensor.to("cuda", non_blocking=True) for name, tensor in state.items()}
        model.load_state_dict(state, assign=True)
    torch.cuda.synchronize()


def worker(way, where, layers, stands_by):
    """Says when it is ready to take over, waits for the word, and answers times and the token."""
    if way == "attach":
        import gpumem
        gpumem.default_client()
    model = make_meta(layers)
    if stands_by:
        # One-time work of a running server: loads libraries, and kernels of these shapes, too.
        with torch.device("cuda"):
            small = Model(1).to(torch.bfloat16).eval()
        first_token(small)
        del small
        torch.cuda.empty_cache()
        print("ready", flush=True)
        sys.stdin.readline()
    began = time.perf_counter()
    load(way, where, model)
    loaded = time.perf_counter()
    token = first_token(model)
    done = time.perf_counter()
    print(f"{loaded - began} {done - began} {token}", flush=True)
    sys.stdin.readline()  # until it is killed


def measure(way, where, layers, stands_by, name):
    """A row. The worker is killed at the end, as its predecessor was."""
    command = [sys.executable, __file__, "--be", way, "--where", where, "--layers", str(layers)]
    began = time.perf_counter()
    child = subprocess.Popen(command + (["--stand-by"] if stands_by else []), text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if stands_by:
            if child.stdout.readline().strip() != "ready":
                raise SystemExit(f"{name}: the worker died: {child.wait()}")
            began = time.perf_counter()
            child.stdin.write("go\n")
            child.stdin.flush()
        said = child.stdout.readline().split()
        seconds = time.perf_counter() - began
        if not said:
            raise SystemExit(f"{name}: the worker died: {child.wait()}")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    loaded, token_at, token = float(said[0]), float(said[1]), said[2]
    print(f"| {name} | {'stands by' if stands_by else 'started anew'} | {loaded:.4f} | "
          f"{token_at:.4f} | {seconds:.4f} | token {token} |", flush=True)
    return loaded, token_at, seconds, token


def publisher(where, name, layers):
    import gpumem.torch
    torch.manual_seed(5)
    with torch.device("cuda"):
        model = Model(layers).to(torch.bfloat16).eval()
    state = model.state_dict()
    size = sum(tensor.nbytes for tensor in state.values())
    began = time.perf_counter()
    gpumem.torch.publish(name, model)
    published = time.perf_counter() - began
    began = time.perf_counter()
    torch.save({key: tensor.cpu() for key, tensor in state.items()}, where)
    saved = time.perf_counter() - began
    print(f"| {size / 1e9:.2f} GB in {len(state)} tensors | published in {published:.2f} s | "
          f"saved in {saved:.2f} s |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="/tmp")
    parser.add_argument("--gib", type=float, default=7.5)
    parser.add_argument("--be")
    parser.add_argument("--where")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--stand-by", action="store_true")
    args = parser.parse_args()
    if args.be == "publisher":
        publisher(args.where, f"bench-restart-{os.getppid()}", args.layers)
        return
    if args.be:
        worker(args.be, args.where, args.layers, args.stand_by)
        return
    layers = max(1, round((args.gib * (1 << 30) - 2 * VOCABULARY * 4096 * 2) / (12 * 4096**2 * 2)))
    name = f"bench-restart-{os.getpid()}"
    file = os.path.join(args.work, "weights.pt")
    # The process that loads the weights ends; they stay.
    subprocess.run([sys.executable, __file__, "--be", "publisher", "--where", file, "--layers",
                    str(layers)], check=True)
    import gpumem
    try:
        rows = {}
        for stands_by in (True, False):
            for way, where in (("file", file), ("file, mmap", file), ("attach", name)):
                tries = 2 if way == "attach" or stands_by else 1
                rows[way, stands_by] = min(
                    (measure(way, where, layers, stands_by, way) for _ in range(tries)),
                    key=lambda row: row[1])
        tokens = {row[3] for row in rows.values()}
        for stands_by in (True, False):
            reload = min(rows["file", stands_by][1], rows["file, mmap", stands_by][1])
            whole = min(rows["file", stands_by][2], rows["file, mmap", stands_by][2])
            attach = rows["attach", stands_by]
            print(f"| {'stands by' if stands_by else 'started anew'} | first token: reload "
                  f"{reload:.3f} s, attach {attach[1]:.4f} s = {reload / attach[1]:.0f}x | weights "
                  f"alone: {min(rows['file', stands_by][0], rows['file, mmap', stands_by][0]) / attach[0]:.0f}x "
                  f"| with the process's start: {whole / attach[2]:.1f}x |", flush=True)
        if len(tokens) != 1:
            raise SystemExit(f"the workers do not agree on the token: {tokens}")
    finally:
        gpumem.default_client().unpublish(name)
        if os.path.exists(file):
            os.unlink(file)


if __name__ == "__main__":
    main()
