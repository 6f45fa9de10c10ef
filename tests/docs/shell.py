# SPDX-License-Identifier: Apache-2.0
"""A shell that commands of documents are typed into, one after another, as a reader does."""

import os
import re
import select
import signal
import subprocess
import tempfile
import time

PATIENCE = 60  # seconds for one command


class Shell:
    def __init__(self, folder, environment, prefix=()):
        handle, self._log = tempfile.mkstemp(prefix="background-", dir=folder)
        os.fchmod(handle, 0o666)
        os.close(handle)
        self._process = subprocess.Popen(
            [*prefix, "bash", "--norc", "--noprofile"], cwd=folder, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True)
        # Reads until this program is gone, however it ends, and then ends all that it has
        # started.
        self._guard = subprocess.Popen(
            ["bash", "-c", f"read; kill -KILL -{self._process.pid}"], stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True)

    def run(self, text):
        """Runs a command; returns its output and its exit code."""
        salt = f"end-of-command-{time.monotonic_ns()}"
        # Background commands write elsewhere: later commands' output stays unmixed.
        background = re.search(r"(?<!&)&\s*(#.*)?$", text)
        if background:
            text = f"{text[:background.start()]} </dev/null >>{self._log} 2>&1 &"
        else:
            text = "{ " + text + "\n} </dev/null"
        self._process.stdin.write(f"{text}\necho \"\n{salt} $?\"\n".encode())
        self._process.stdin.flush()
        output, deadline = b"", time.monotonic() + PATIENCE
        while True:
            end = re.search(rb"\n" + salt.encode() + rb" (\d+)\n", output)
            if end:
                return output[:end.start()].decode(errors="replace"), int(end[1])
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self._process.stdout], [], [], left)[0]
            data = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not data:
                why = "the shell has ended" if ready else f"no end within {PATIENCE} s"
                return output.decode(errors="replace") + f"\n({why})\n", -1
            output += data

    def log(self):
        """Returns the output of background commands."""
        try:
            with open(self._log, encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def close(self):
        """Ends it and its background processes."""
        # The kernel's list, since the group goes on when its shell has ended.
        group = self._process.pid
        self._guard.kill()
        self._guard.wait()
        for kind, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                try:
                    os.killpg(group, kind)
                except ProcessLookupError:
                    self._process.wait()
                    return
                self._process.poll()
                select.select([], [], [], 0.02)
