# SPDX-License-Identifier: Apache-2.0
"""Real daemons on the host backend, and clients of theirs; each test ends with nothing held.

The environment says where the programs are: GPUMEM_GPUMEMD, GPUMEM_KEEPER, GPUMEM_GPUMEMCTL.
"""
import contextlib
import gc
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import gpumem
import pytest

MIB = 1 << 20
PATIENCE_S = 30

# Tenant "other" may be chosen; "python" is the default. Nothing is kept for reuse, so that the
# charge equals the memory held.
CONFIG = """
[tenant_defaults]
limit = "64MiB"
max_retained = "0"
[[tenant]]
name = "python"
max_segments = 200
[[tenant]]
name = "other"
[[rule]]
tenant = "python"
default = true
[[rule]]
tenant = "other"
default = true
"""


FAKES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fakes")


@contextlib.contextmanager
def daemon_for_fakes(config=CONFIG):
    """A daemon whose default client an adapter uses; its framework is a stand-in."""
    daemon = Daemon(config=config)
    os.environ["GPUMEM_RUNTIME_DIR"] = daemon.runtime_dir
    sys.path.insert(0, FAKES)
    yield daemon
    gpumem.set_default_client(None)
    daemon.stop()


def eventually(condition, what):
    """Waits until the condition is true; fails if it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)


class Daemon:
    """gpumemd with 256 MiB, under gpumem-keeper if a test kills it."""

    def __init__(self, kept=False, config=CONFIG):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumem-py-", dir="/tmp"))
        self.runtime_dir = str(self.folder / "run")
        (self.folder / "gpumemd.toml").write_text(config)
        self._log = open(self.folder / "log", "ab")  # pylint: disable=consider-using-with
        command = [os.environ["GPUMEM_GPUMEMD"], "--backend=host", "--host-devices=2",
                   "--host-device-bytes=256MiB", "--runtime-dir", self.runtime_dir, "--state-dir",
                   str(self.folder / "state"), "--config", str(self.folder / "gpumemd.toml")]
        if kept:
            command = [os.environ["GPUMEM_KEEPER"], "--healthy-after=0", "--"] + command
        self._kept = kept
        self._process = subprocess.Popen(  # pylint: disable=consider-using-with
            command, stderr=self._log, stdout=self._log, stdin=subprocess.DEVNULL)
        try:
            self._wait_for_generation(1)
        except AssertionError:
            self.stop()
            raise

    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    def _wait_for_generation(self, number):
        def ready():
            assert self._process.poll() is None, self.log()
            return self.log().count(" ready: ") >= number
        eventually(ready, f"daemon {number} serves")

    def pid(self):
        """The pid of the daemon that serves now."""
        if not self._kept:
            return self._process.pid
        pid = self._process.pid
        return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def kill(self):
        """Kills the daemon, and waits until the next one serves."""
        before = self.log().count(" ready: ")
        os.kill(self.pid(), signal.SIGKILL)
        self._wait_for_generation(before + 1)

    @contextlib.contextmanager
    def paused(self):
        """Stops all of its threads in a `with` block."""
        os.kill(self.pid(), signal.SIGSTOP)
        try:
            tasks = pathlib.Path(f"/proc/{self.pid()}/task")
            eventually(lambda: all(") T " in (task / "stat").read_text()
                                   for task in tasks.iterdir()), "it is stopped")
            yield
        finally:
            os.kill(self.pid(), signal.SIGCONT)

    def ctl(self, *arguments):
        """Returns gpumemctl's output."""
        return subprocess.run([os.environ["GPUMEM_GPUMEMCTL"], "--runtime-dir", self.runtime_dir,
                               *arguments], check=True, stdout=subprocess.PIPE, timeout=2 * PATIENCE_S,
                              stderr=subprocess.STDOUT).stdout.decode()

    def stop(self):
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)
        self._log.close()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module", name="daemon")
def _daemon():
    daemon = Daemon()
    yield daemon
    daemon.stop()


@pytest.fixture(name="kept_daemon")
def _kept_daemon():
    daemon = Daemon(kept=True)
    yield daemon
    daemon.stop()


def charged(client):
    """Returns the bytes that the tenant has leased. Released memory is charged a moment longer,
    until the daemon is done with it in the background."""
    return sum(device.leased for device in client.usage().devices)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Tells fixtures if the test has failed."""
    report = (yield).get_result()
    if report.when == "call":
        item.has_failed = report.failed


@pytest.fixture(name="client")
def _client(daemon, request):
    """A client that is also the default one. Everything has to be given back at the end."""
    client = gpumem.connect(daemon.runtime_dir, name="pytest")
    gpumem.set_default_client(client)
    yield client
    for info in client.publications("python"):
        client.unpublish(info.name)
    gc.collect()
    # The traceback of a failed test refers to the test's objects.
    if not getattr(request.node, "has_failed", True):
        eventually(lambda: client.usage().charged == 0, f"all is given back: {client.usage()}")
    gpumem.set_default_client(None)
    client.close()


def run_python(code, *arguments, runtime_dir, check=True, stdin=None, fakes=False):
    """Runs code in another process of this Python; returns its output. `fakes`: with the stand-ins
    for frameworks."""
    environment = {**os.environ, "GPUMEM_RUNTIME_DIR": runtime_dir}
    if fakes:
        environment["PYTHONPATH"] = os.pathsep.join([FAKES, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=False, input=stdin,
                          env=environment, timeout=2 * PATIENCE_S, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    if check:
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()
    return done
