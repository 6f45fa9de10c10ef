# SPDX-License-Identifier: Apache-2.0
"""A daemon on the host backend, and gpumem.cupy with a stand-in for CuPy."""
import gpumem
import pytest
from conftest import CONFIG, MIB, daemon_for_fakes

LIMIT = 192 * MIB


@pytest.fixture(scope="module", name="daemon")
def _daemon():
    with daemon_for_fakes(CONFIG.replace("64MiB", "192MiB")) as daemon:
        yield daemon


@pytest.fixture(scope="module", name="adapter")
def _adapter(daemon):
    del daemon
    import gpumem.cupy  # pylint: disable=import-outside-toplevel
    yield gpumem.cupy


@pytest.fixture(name="cupy")
def _cupy(adapter):
    import cupy  # pylint: disable=import-outside-toplevel,import-error
    yield cupy
    adapter.unuse()


@pytest.fixture(name="pool")
def _pool(adapter):
    with gpumem.connect() as client, client.pool(limit=64 * MIB) as pool:
        yield pool
