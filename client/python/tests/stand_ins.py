# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for parts of the library that gpumem.serving is built on, for a library without them.
install() replaces missing parts only.
"""
import contextlib
import fcntl
import os
import pathlib
import time

import gpumem
from gpumem import files


def folder():
    path = pathlib.Path(os.environ["GPUMEM_RUNTIME_DIR"]).parent / "claims"
    path.mkdir(exist_ok=True)
    return path


class Claim:
    """A lock of a file, which ends with its process."""

    def __init__(self, client, name, content_id, lock):
        self._client, self.name, self.content_id, self._lock = client, name, content_id, lock

    def publish(self, value, **options):
        return self._client.publish(self.name, value, content_id=self.content_id, **options)

    def release(self):
        self._lock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()


def _publish(original):
    def publish(self, name, value, *, content_id=b"", **options):
        version = original(self, name, value, **options)
        (folder() / f"{name}.{version}").write_bytes(content_id)
        return version
    return publish


def _content_id(publication):
    path = folder() / f"{publication.name}.{publication.version}"
    return path.read_bytes() if path.exists() else b""


def _attach_or_claim(self, name, content_id, *, wait=float("inf"), cancel=None, **options):
    del cancel
    end = time.monotonic() + wait
    lock = open(folder() / f"{name}.lock", "w", encoding="utf-8")
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= end:
                lock.close()
                raise gpumem.DeadlineExceededError("another process loads") from None
            time.sleep(0.005)
    with contextlib.suppress(gpumem.NotFoundError):
        found = self.attach(name, **options)
        if found.content_id == content_id:
            lock.close()
            return found
        found.close(defer=True)
    return Claim(self, name, content_id, lock)


def _publish_natively(original):
    def publish(client, name, *arguments, content_id=b"", **options):
        published = original(client, name, *arguments, **options)
        (folder() / f"{name}.{published.version}").write_bytes(content_id)
        return published
    return publish


def install():
    if not hasattr(gpumem.Client, "attach_or_claim"):
        gpumem.Client.publish = _publish(gpumem.Client.publish)
        gpumem.Client.attach_or_claim = _attach_or_claim
        gpumem.Publication.content_id = property(_content_id)
        files._publish_natively = _publish_natively(files._publish_natively)
