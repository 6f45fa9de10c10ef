# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of this folder."""
import array
import os
import socket
import subprocess
import sys
import textwrap
import time

import pytest

import gpumem

MIB = 1 << 20


def eventually(condition, what, limit_s=30):
    """Waits until the condition is true; fails if it never is."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)


def charged():
    """Returns the bytes that the tenant is charged with."""
    return gpumem.default_client().usage().charged


def child(code, *arguments, timeout=150, environment=None, fails=False, sends_fd=None):
    """Runs Python code in a new process, which sees the arguments in sys.argv[1:], and returns
    its standard output. `sends_fd`: a descriptor that is sent to it by the socket whose number is
    its last argument."""
    passed = ()
    if sends_fd is not None:
        here, there = socket.socketpair()
        here.sendmsg([b"0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                               array.array("i", [sends_fd]))])
        passed, arguments = (there.fileno(),), (*arguments, there.fileno())
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout,
        pass_fds=passed, env=dict(os.environ, **(environment or {})))
    if sends_fd is not None:
        here.close()
        there.close()
    if (done.returncode != 0) != fails:
        pytest.fail(f"the child ended with {done.returncode}\n--- stdout\n{done.stdout}\n"
                    f"--- stderr\n{done.stderr[-4000:]}", pytrace=False)
    return done.stdout
