# SPDX-License-Identifier: Apache-2.0
"""The examples run on the host backend, with NumPy."""
import os
import pathlib
import subprocess
import sys

import gpumem
import pytest
from conftest import CONFIG, PATIENCE_S, Daemon, charged, eventually

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(scope="module", name="daemon")
def _daemon():
    tier = '[tier]\ncapacity = "448MiB"\nhuge_pages = false\nprefault = false\n'
    config = CONFIG.replace("64MiB", "256MiB").replace('"other"\n[[', '"other"\npriority = 1\n[[')
    daemon = Daemon(config=tier + config)
    yield daemon
    daemon.stop()


@pytest.mark.parametrize("name, arguments, words", [
    ("two_frameworks", [], "numpy sees the sum 537395200"),
    ("inference_server", ["--mib", "16", "--kills", "2"], "answers the same after"),
    ("serve_model", ["--mib", "16"], "every worker answers with it"),
    ("pipeline", ["--frames", "50"], "50 frames of 2.1 MB went through 4 slots, each read whole"),
    ("numba_kernel", [], "the sum is 1099511627776"),
    ("jax_weights", [], "the sum is 393466"),
    ("two_servers", ["--mib", "140"], "MiB each shared 256 MiB in"),
    ("kv_cache", ["--requests", "60", "--mib", "96", "--owner", "other", "--owner-mib", "160"],
     "1 segments of the other server"),
])
def test_an_example(daemon, name, arguments, words):
    done = subprocess.run([sys.executable, str(EXAMPLES / f"{name}.py"), *arguments], check=False,
                          env={**os.environ, "GPUMEM_RUNTIME_DIR": daemon.runtime_dir},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=4 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    # Nothing of it is left.
    with gpumem.connect(daemon.runtime_dir) as client:
        eventually(lambda: charged(client) == 0 and not client.publications(), "all is given back")
