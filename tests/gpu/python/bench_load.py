#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Safetensors files to the GPU: publish_files() beside other loaders; and how long attaching takes.

    bench_load.py --work DIR [--gib 30] [--attach-gib 56]   # with a daemon at $GPUMEM_RUNTIME_DIR

--gib 0 leaves the loaders out.

Makes sharded safetensors of random tensors in DIR, which should be on a disk's file system. Rows:
- Loaders, each in new processes that have imported their libraries and have a CUDA context: from the
  call until all tensors can be used, the median of three, from the page cache. Those that are not
  installed are left out.
- attach: a process that stands by in the same way connects, attaches to 1,000 arrays in segments of
  1 GiB, and makes tensors of them (gpumem.torch.attach).
"""
import argparse
import glob
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
NAME = f"bench-load-{os.getpid()}"
REPEATS = 3


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def make_files(folder, gib):
    """Writes shards of about 2 GiB, each with tensors of 128 MiB and 8 KiB."""
    from safetensors.torch import save_file
    os.makedirs(folder)
    shards = max(1, round(gib / 2))
    generator = torch.Generator(device=DEVICE).manual_seed(1)
    large = 64 << 20 if gib >= 1 else 1 << 16
    for shard in range(shards):
        tensors = {}
        for index in range(16 if gib >= 1 else 2):
            tensors[f"l{shard}.{index}.weight"] = torch.randint(
                -30000, 30000, (large // 4096, 4096), dtype=torch.int16, device=DEVICE,
                generator=generator).view(torch.bfloat16)
            tensors[f"l{shard}.{index}.norm"] = torch.ones(4096, dtype=torch.bfloat16)
        save_file({name: tensor.cpu() for name, tensor in tensors.items()},
                  os.path.join(folder, f"model-{shard + 1:05}-of-{shards:05}.safetensors"))


# ---- Loaders. Each returns the tensors by name, and what keeps them.


def by_gpumem(paths, checksums):
    import gpumem
    client = gpumem.default_client()
    client.publish_files(NAME, paths, checksums=checksums)
    publication = client.attach(NAME)
    return {name: array for name, array in publication.items()}, publication


def by_safetensors(paths):
    from safetensors.torch import load_file
    tensors = {}
    for path in paths:
        tensors.update(load_file(path, device=DEVICE))
    return tensors, None


def by_fastsafetensors(paths):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
    loader = SafeTensorsFileLoader(SingleGroup(), device="cuda:0", nogds=True)
    loader.add_filenames({0: paths})
    buffers = loader.copy_files_to_device()
    return {name: buffers.get_tensor(name) for name in loader.get_keys()}, (loader, buffers)


def by_runai(paths):
    from runai_model_streamer import SafetensorsStreamer
    tensors = {}
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(paths)
        for name, tensor in streamer.get_tensors():
            tensors[name] = tensor.to(DEVICE)
    return tensors, None


LOADERS = {
    "gpumem": (lambda paths: by_gpumem(paths, True), "gpumem"),
    "gpumem, no checksums": (lambda paths: by_gpumem(paths, False), "gpumem"),
    "safetensors load_file": (by_safetensors, "safetensors"),
    "fastsafetensors": (by_fastsafetensors, "fastsafetensors"),
    "Run:ai streamer": (by_runai, "runai_model_streamer"),
}


def stand_by():
    x = torch.ones(64, 64, device=DEVICE)
    (x @ x).sum().item()


def load(loader, folder):
    """Answers the seconds, and a sum of a tensor."""
    work, module = LOADERS[loader]
    importlib.import_module(module)
    if module == "gpumem":
        import gpumem
        gpumem.default_client()
    stand_by()
    paths = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    began = time.perf_counter()
    tensors, _keep = work(paths)
    synchronize()
    seconds = time.perf_counter() - began
    tensor = torch.from_dlpack(tensors[sorted(tensors)[-1]])
    print(json.dumps([seconds, len(tensors), int(tensor.view(torch.int16).long().sum())]))


def publish_large(gib, count=1000):
    """Publishes arrays in segments of 1 GiB, and stays until its input ends."""
    import gpumem
    client = gpumem.default_client()
    size = 1 << 30 if gib >= 1 else 1 << 20
    segments = [client.acquire(size) for _ in range(max(1, int(gib)))]
    each = size * len(segments) // count // 512 * 512
    in_each = -(-count // len(segments))
    arrays = {f"layer.{index}.weight": segments[index // in_each].array(
        (each // 512, 256), "bfloat16", offset=index % in_each * each) for index in range(count)
        if (index % in_each + 1) * each <= size}
    client.publish(NAME, arrays)
    print(len(arrays), flush=True)
    sys.stdin.readline()


def attach_once():
    import gpumem
    import gpumem.torch
    stand_by()
    began = time.perf_counter()
    client = gpumem.connect()
    connected = time.perf_counter()
    tensors = gpumem.torch.attach(NAME, client=client)
    ended = time.perf_counter()
    next(iter(tensors.tensors.values()))[0, 0].item()
    # The part of it that is not Python's.
    handle = gpumem._gpumem.attach(client.handle, NAME, 0, 0, None, [], 0, 0, False, False)
    again = time.perf_counter()
    del handle
    print(json.dumps([connected - began, ended - connected, again - ended]))


def child(args, *more):
    done = subprocess.run([sys.executable, __file__, "--work", args.work, "--name", NAME, *more],
                          stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def compare_loaders(args, folder):
    import gpumem
    client = gpumem.default_client()
    nbytes = sum(os.path.getsize(path) for path in glob.glob(os.path.join(folder, "*")))
    for path in glob.glob(os.path.join(folder, "*")):  # into the page cache
        subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
    sums = set()
    ours = None
    for loader, (_, module) in LOADERS.items():
        if importlib.util.find_spec(module) is None:
            print(f"| {loader} | not installed |", flush=True)
            continue
        times = []
        for _ in range(REPEATS):
            said = child(args, "--be", loader)
            if said is None:
                break
            times.append(said[0])
            sums.add((said[1], said[2]))
            if module == "gpumem":
                client.unpublish(NAME)
                time.sleep(2)  # the driver clears the memory
        if len(times) < REPEATS:
            print(f"| {loader} | failed |", flush=True)
            continue
        median = statistics.median(times)
        ours = ours or median
        print(f"| {loader} | {median:.3f} s ({min(times):.3f} to {max(times):.3f}) | "
              f"{nbytes / median / 1e9:.1f} GB/s | {median / ours:.2f} |", flush=True)
    if len(sums) != 1:
        raise SystemExit(f"the loaders gave different tensors: {sums}")


def measure_attach(args):
    import gpumem
    with subprocess.Popen([sys.executable, __file__, "--work", args.work, "--name", NAME, "--be",
                           "publisher", "--attach-gib", str(args.attach_gib)],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as publisher:
        count = int(publisher.stdout.readline())
        rows = [child(args, "--be", "attach") for _ in range(7)]
        connect, attach, bare = (1e3 * statistics.median(row[i] for row in rows)
                                 for i in range(3))
        whole = 1e3 * statistics.median(row[0] + row[1] for row in rows)
        print(f"| attach {args.attach_gib:g} GiB, {count} arrays | connect {connect:.2f} ms, attach "
              f"and make tensors {attach:.2f} ms (attaching again, without Python's part: "
              f"{bare:.2f} ms) | whole {whole:.2f} ms |", flush=True)
        gpumem.default_client().unpublish(NAME)
        publisher.communicate("\n")


def main():
    global NAME  # pylint: disable=global-statement
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", required=True)
    parser.add_argument("--gib", type=float, default=30)
    parser.add_argument("--attach-gib", type=float, default=56)
    parser.add_argument("--be")
    parser.add_argument("--name", default=NAME)
    args = parser.parse_args()
    NAME = args.name
    folder = os.path.join(args.work, "load")
    if args.be == "maker":
        make_files(folder, args.gib)
    elif args.be == "publisher":
        publish_large(args.attach_gib)
    elif args.be == "attach":
        attach_once()
    elif args.be:
        load(args.be, folder)
    else:
        if args.gib > 0:
            compare(args, folder)
        measure_attach(args)


def compare(args, folder):
    try:
        # In another process, whose context ends with it.
        subprocess.run([sys.executable, __file__, "--work", args.work, "--be", "maker", "--gib",
                        str(args.gib)], check=True)
        compare_loaders(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
