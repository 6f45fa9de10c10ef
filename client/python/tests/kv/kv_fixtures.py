# SPDX-License-Identifier: Apache-2.0
"""For tests of the KV cache: a daemon whose memory is guaranteed to another tenant, and processes
that use it."""
import contextlib
import os
import pickle
import subprocess
import sys

import numpy
import pytest
from conftest import MIB, PATIENCE_S, Daemon
from gpumem.kv_cache import KVCacheSpec, PagedKVCache

# Blocks of 1 MiB in segments of 4 MiB.
SPEC = KVCacheSpec("model", layers=4, heads=16, head_size=128, dtype="float32", block_size=16,
                   blocks_per_segment=4)
SEGMENT = 4 * MIB
PROMPT = list(range(100, 140))  # two full blocks and a part

# This process is ended if it does not give revoked memory back in time.
CONFIG = """
[daemon]
revocation_grace = "60s"
[tenant_defaults]
limit = "256MiB"
max_retained = "0"
[[tenant]]
name = "python"
limit = "64MiB"
[[tenant]]
name = "owner"
guarantee = "248MiB"
priority = 1
[[rule]]
tenant = "python"
default = true
[[rule]]
tenant = "owner"
default = true
"""


@pytest.fixture(scope="module", name="daemon")
def kv_daemon():
    daemon = Daemon(config=CONFIG)
    yield daemon
    daemon.stop()


@pytest.fixture(name="cache")
def kv_cache(client):
    with PagedKVCache(client, SPEC, limit=16 * MIB) as cache:
        yield cache


class Other:
    """A process that executes Python with a client `c`, line by line."""

    CODE = """
import sys, gpumem
c = gpumem.connect(tenant=sys.argv[1] or None)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""

    def __init__(self, daemon, tenant=""):
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [sys.executable, "-c", self.CODE, tenant], stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, env={**os.environ, "GPUMEM_RUNTIME_DIR": daemon.runtime_dir})

    def begin(self, code):
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()

    def end(self):
        """Returns what the code has printed."""
        said = []
        for line in self.process.stdout:
            if line == "done\n":
                return "".join(said)
            said.append(line)
        raise AssertionError(f"it has ended with {self.process.wait()}: {said}")

    def run(self, code):
        self.begin(code)
        return self.end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


def fill(cache, sequence, tokens, begin=0):
    """Computes keys and values: each is its token's id."""
    for i, block_id in enumerate(cache.block_table(sequence)):
        part = tokens[max(i * 16, begin):(i + 1) * 16]
        if part:
            first = max(begin - i * 16, 0)
            numpy.asarray(cache.array(block_id))[:, :, first:first + len(part)] = (
                numpy.array(part, "float32")[:, None, None])


def check(cache, sequence, tokens):
    """Fails if a block has other contents than the tokens."""
    for i, block_id in enumerate(cache.block_table(sequence)):
        part = tokens[i * 16:(i + 1) * 16]
        seen = numpy.asarray(cache.array(block_id))[:, :, :len(part)]
        assert (seen == numpy.array(part, "float32")[:, None, None]).all(), (sequence, i)


def serve(cache, sequence, tokens):
    """Runs a sequence's prompt. Returns the tokens that were cached."""
    with cache.running():
        hits = cache.allocate(sequence, tokens)
        fill(cache, sequence, tokens, hits)
        check(cache, sequence, tokens)
        cache.cache_blocks(sequence, tokens)
        return hits


def take(owner, mib):
    """The tenant that the device is guaranteed to begins to take so much of it."""
    owner.begin(f"s = globals().get('s', []) + [c.acquire({mib} << 20, wait=60)]")


def is_told(cache):
    """True if a revocation waits for the end of a step."""
    return any(notice.what == "revocation" for notice in cache._notices)


READER = """
import pickle, numpy
from gpumem.kv_cache import *
spec = KVCacheSpec(*{spec!r})
cache = PagedKVCache(c, spec, limit={limit})
def receive(text): return cache.open(pickle.loads(bytes.fromhex(text)))
def values(sequence):
    return [float(numpy.asarray(cache.array(block))[0, 0, 0, 0, 0])
            for block in cache.block_table(sequence)]
def preempted():
    with cache.running() as lost: return lost
"""


@contextlib.contextmanager
def reader_of(daemon, limit=4 * SEGMENT):
    """Another server of the same tenant."""
    values = tuple(getattr(SPEC, name) for name in SPEC.__dataclass_fields__)
    with Other(daemon) as reader:
        code = READER.format(spec=values, limit=limit)
        reader.run(f"exec({code!r})")
        yield reader


def sent(shared):
    return f"receive({pickle.dumps(shared).hex()!r})"
