# SPDX-License-Identifier: Apache-2.0
"""Suspending segments: what the library refuses by itself."""
import os
import signal
import threading

import gpumem
import pytest
from conftest import MIB
from gpumem import _suspend


def test_only_memory_of_kind_vmm_can_be_suspended(client):
    called = []
    segment = client.acquire(MIB, kind="pinned")
    with pytest.raises(gpumem.UnimplementedError, match="pinned"):
        client.suspend([segment], quiesce=lambda: called.append(1))
    assert not called and not segment.suspended


def test_lists_without_sense_are_refused(client):
    segment = client.acquire(MIB, kind="vmm")
    for wrong in ([], [segment, segment]):
        with pytest.raises(gpumem.InvalidArgumentError):
            client.suspend(wrong)
    with pytest.raises(gpumem.FailedPreconditionError, match="not suspended"):
        client.resume([segment])
    with pytest.raises(gpumem.FailedPreconditionError, match="not suspended"):
        client.resume([segment], wait=1)
    memoryview(segment)[0] = 1
    assert not segment.suspended
    segment.close()
    with pytest.raises(gpumem.FailedPreconditionError, match="closed"):
        client.suspend([segment])
    with pytest.raises(gpumem.FailedPreconditionError, match="closed"):
        assert segment.suspended


def test_it_is_for_segments(client):
    with pytest.raises(AttributeError):
        client.suspend(["segment"])


def test_segments_have_tags_and_may_be_scratch(client):
    plain = client.acquire(MIB)
    assert plain.tag == "" and not plain.scratch
    cache = client.acquire_many(MIB, 2, kind="vmm", tag="kv", scratch=True)
    assert all(each.tag == "kv" and each.scratch for each in cache)
    for wrong in ({"tag": "k v"}, {"tag": 33 * "x"}, {"kind": "pinned", "scratch": True}):
        with pytest.raises(gpumem.InvalidArgumentError):
            client.acquire(MIB, **wrong)


def test_ctrl_c_while_it_waits_for_a_segment_locks_none(client):
    first, second = sorted([client.acquire(MIB), client.acquire(MIB)], key=id)
    with second.lock:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            client.suspend([first, second])
    assert not first.lock.locked() and not second.lock.locked()
    first.share()


def test_a_segment_that_is_closed_meanwhile_hides_nothing(client):
    closed, other = client.acquire(MIB), client.acquire(MIB)
    refreshed = []
    other.refresh = lambda: refreshed.append(1)
    closed.close()
    _suspend._refresh([closed, other])
    assert refreshed == [1]
