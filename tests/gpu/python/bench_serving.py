#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker gets the weights of a Llama: by from_pretrained(), by safetensors, by load_or_attach().

    bench_serving.py --work DIR [--gib 6]     # with a daemon at $GPUMEM_RUNTIME_DIR

Makes a model of random weights and saves it as sharded safetensors. Rows, each of a new process:
- The way, and the seconds from the call to usable tensors. The process stands by before: libraries
  are imported, the CUDA context exists, and so does a model without weights, which from_pretrained()
  does not use. Files are read from the page cache.
- The seconds from the call to the first token, and from the process's start to it, of a process
  that does not stand by.
- What a second worker adds to the GPU's memory by attaching (NVML), as a share of the weights.
Workers are ended with SIGKILL. All logits are compared with those of from_pretrained().
"""
import argparse
import glob
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time

import torch

TOKENS = 16
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
WAYS = ("from_pretrained", "load_file", "load_or_attach")


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def config_of(gib):
    from transformers import LlamaConfig
    if gib < 1:  # to try the script
        shape = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000}
    else:
        layer = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)  # bytes
        shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "vocab_size": 32000,
                 "num_hidden_layers": max(1, round((gib * (1 << 30) - 2 * 2 * 32000 * 4096) / layer))}
    return LlamaConfig(**shape, tie_word_embeddings=False, attn_implementation="sdpa")


def make_model(folder, gib):
    """Saves a model of random weights, and prints its size."""
    from transformers import LlamaForCausalLM
    torch.manual_seed(3)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config_of(gib))
    model.save_pretrained(folder, max_shard_size="2GB" if gib >= 1 else "1MB")
    print(sum(tensor.nbytes for tensor in model.state_dict().values()))


def empty_model(folder):
    """Returns the model with its parameters on no device, and its other buffers with memory."""
    from transformers import AutoConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    config = AutoConfig.from_pretrained(folder, attn_implementation="sdpa")
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.model.rotary_emb = LlamaRotaryEmbedding(config=config).to(DEVICE)
    return model.eval()


def load(way, folder, name, model):
    """Returns the model with its weights. model: an empty one, for the ways that need one."""
    if way == "from_pretrained":
        from transformers import AutoModelForCausalLM
        options = {"attn_implementation": "sdpa"}
        if importlib.util.find_spec("accelerate") is not None:
            options["device_map"] = DEVICE  # the faster way
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options)
        except TypeError:  # before transformers 4.56
            model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.bfloat16,
                                                         **options)
        return model.to(DEVICE)
    model = model or empty_model(folder)
    if way == "load_file":
        from safetensors.torch import load_file
        state = {}
        for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
            state.update(load_file(path, device=DEVICE))
        model.load_state_dict(state, assign=True)
    else:
        from gpumem.serving import load_or_attach
        weights = load_or_attach(name, folder)
        weights.bind(model)
        model.weights = weights
    return model


def logits_of(model):
    tokens = torch.arange(TOKENS, device=DEVICE).reshape(1, TOKENS)
    with torch.no_grad():
        return model(tokens).logits[0, -1].float().cpu()


def worker(way, folder, name, stands_by, out):
    """Answers its times, and stays until it is killed."""
    import transformers  # noqa: F401
    model = None
    if way == "load_or_attach":
        import gpumem
        import gpumem.serving  # noqa: F401
        gpumem.default_client()
    if stands_by:
        x = torch.ones(64, 64, device=DEVICE, dtype=torch.bfloat16)
        (x @ x).sum().item()
        model = empty_model(folder)
        print("ready", flush=True)
        sys.stdin.readline()
    began = time.perf_counter()
    model = load(way, folder, name, model)
    synchronize()
    loaded = time.perf_counter() - began
    has_loaded = model.weights.loaded if way == "load_or_attach" else True
    print(f"loaded {loaded} {has_loaded}", flush=True)
    if stands_by:
        sys.stdin.readline()
    logits = logits_of(model)
    print(f"token {time.perf_counter() - began} {int(logits.argmax())}", flush=True)
    torch.save(logits, out)
    print("done", flush=True)
    sys.stdin.readline()


class Worker:
    """A worker process, as the other side sees it."""

    def __init__(self, args, way, name, stands_by, out):
        self.way = way
        self.began = time.perf_counter()
        self.child = subprocess.Popen(
            [sys.executable, __file__, "--be", way, "--work", args.work, "--name", name, "--out",
             out, *(["--stand-by"] if stands_by else [])],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if stands_by:
            self.expect("ready")

    def expect(self, word):
        said = self.child.stdout.readline().split()
        if not said or said[0] != word:
            raise SystemExit(f"{self.way}: no {word!r} but {said}; its process: {self.child.poll()}")
        return said[1:]

    def go(self):
        self.child.stdin.write("go\n")
        self.child.stdin.flush()

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()


def used():
    if not CUDA:
        return 0
    import gpu_memory
    return gpu_memory.used()


def compare(expected, out, way):
    if not torch.equal(expected, torch.load(out, weights_only=True)):
        raise SystemExit(f"{way}: the logits differ from those of from_pretrained()")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", required=True)
    parser.add_argument("--gib", type=float, default=6)
    parser.add_argument("--be")
    parser.add_argument("--name")
    parser.add_argument("--out")
    parser.add_argument("--stand-by", action="store_true")
    args = parser.parse_args()
    folder = os.path.join(args.work, "llama")
    if args.be == "make":
        make_model(folder, args.gib)
        return
    if args.be:
        worker(args.be, folder, args.name, args.stand_by, args.out)
        return
    run(args, folder)


def run(args, folder):
    import gpumem
    name, out = f"bench-serving-{os.getpid()}", os.path.join(args.work, "logits.pt")
    try:
        nbytes = int(subprocess.run(
            [sys.executable, __file__, "--be", "make", "--work", args.work, "--gib", str(args.gib)],
            check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])
        shards = len(glob.glob(os.path.join(folder, "*.safetensors")))
        print(f"| a Llama of {nbytes / 1e9:.2f} GB in {shards} files |", flush=True)
        loads = stand_by(args, name, out, nbytes)
        starts = start_anew(args, name, out)
        attach = loads["attach again"]
        for way in WAYS[:2]:
            print(f"| attach against {way} | usable tensors {loads[way] / attach:.0f}x | process start "
                  f"to first token {starts[way] / starts['load_or_attach']:.2f}x |", flush=True)
    finally:
        for info in gpumem.default_client().publications():
            if info.name == name:
                gpumem.default_client().unpublish(name)
        shutil.rmtree(folder, ignore_errors=True)


def stand_by(args, name, out, nbytes):
    """Measures workers that stand by. Returns the seconds to usable tensors, by the way."""
    loads, expected = {}, None
    rows = [("from_pretrained", "from_pretrained"), ("load_file", "load_file"),
            ("load_or_attach", "load_or_attach, first"), ("load_or_attach", "attach, second worker"),
            ("load_or_attach", "attach again")]
    alive = []
    for way, label in rows:
        if label == "attach again":
            while alive:
                alive.pop().kill()  # both: the weights have no user
        one = Worker(args, way, name, True, out)
        before = used()
        one.go()
        seconds, has_loaded = one.expect("loaded")
        more = used() - before
        one.go()
        token_at, token = one.expect("token")
        one.expect("done")
        if expected is None:
            expected = torch.load(out, weights_only=True)
        compare(expected, out, label)
        if (has_loaded == "True") != (not label.startswith("attach")):
            raise SystemExit(f"{label}: has loaded: {has_loaded}")
        loads[label] = float(seconds)
        print(f"| {label} | usable tensors after {loads[label]:.4f} s | GPU memory "
              f"{more / nbytes:+.2%} of the weights | logits equal, token {token} |", flush=True)
        if CUDA and label == "attach, second worker" and more > 0.01 * nbytes:
            raise SystemExit(f"the second worker added {more} bytes, more than 1 % of {nbytes}")
        del token_at
        if label.startswith("load_or_attach") or label == "attach, second worker":
            alive.append(one)
        else:
            one.kill()
    return loads


def start_anew(args, name, out):
    """Measures workers from their start. Returns the seconds to the first token, by the way."""
    starts = {}
    for way in WAYS:
        for _ in range(2):  # the better one counts
            one = Worker(args, way, name, False, out)
            one.expect("loaded")
            token_at, _ = one.expect("token")
            seconds = time.perf_counter() - one.began
            one.expect("done")
            one.kill()
            starts[way] = min(starts.get(way, seconds), seconds)
        print(f"| {way} | started anew | call to first token {float(token_at):.3f} s | process start "
              f"to first token {starts[way]:.3f} s |", flush=True)
    return starts


if __name__ == "__main__":
    main()
