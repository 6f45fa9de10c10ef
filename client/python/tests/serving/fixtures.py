# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of gpumem.serving: PyTorch, or a stand-in for it."""
import gc
import importlib
import importlib.util
import json
import os
import subprocess
import sys

import gpumem
import numpy as np
import pytest
from conftest import CONFIG, FAKES, PATIENCE_S, Daemon, charged, eventually

REAL = importlib.util.find_spec("torch") is not None


@pytest.fixture(scope="module", name="daemon")
def _daemon():
    daemon = Daemon(config=CONFIG)
    os.environ["GPUMEM_RUNTIME_DIR"] = daemon.runtime_dir
    os.environ["XDG_CACHE_HOME"] = str(daemon.folder / "cache")  # of content ids
    if not REAL:
        sys.path.insert(0, FAKES)
    yield daemon
    gpumem.set_default_client(None)
    daemon.stop()


@pytest.fixture(name="torch")
def _torch(daemon, request):
    del daemon
    yield importlib.import_module("torch")
    client = gpumem.default_client()
    for info in client.publications(client.tenant):
        client.unpublish(info.name)
    gc.collect()
    if not getattr(request.node, "has_failed", True):
        eventually(lambda: charged(client) == 0, "all is given back")


def tensor(torch, array, name=None):
    """Returns a tensor of a NumPy array; `name`: its dtype, if NumPy has none."""
    array = np.ascontiguousarray(array)
    if not REAL:
        return torch.Tensor(array, getattr(torch, name) if name else None)
    made = torch.from_numpy(array.copy())
    return made.view(getattr(torch, name)) if name else made


def values(one):
    """Returns a tensor's elements, as NumPy's array of the same memory; bfloat16 as int16."""
    if not REAL:
        return one.array
    import torch
    one = one.detach()
    return (one.view(torch.int16) if one.dtype == torch.bfloat16 else one).numpy()


def write_safetensors(path, arrays):
    """Writes float32 arrays as a file of safetensors."""
    header, data = {}, b""
    for name, array in arrays.items():
        array = np.ascontiguousarray(array, "float32")
        header[name] = {"dtype": "F32", "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    path.write_bytes(len(said).to_bytes(8, "little") + said + data)
    return path


def start(code, *arguments, runtime_dir):
    """Starts Python code in another process."""
    paths = [*([] if REAL else [FAKES]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "GPUMEM_RUNTIME_DIR": runtime_dir, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(child):
    """Returns a process's output, once it has ended well."""
    out, err = child.communicate(timeout=2 * PATIENCE_S)
    assert child.returncode == 0, err
    return out
