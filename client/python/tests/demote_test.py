# SPDX-License-Identifier: Apache-2.0
"""Demoting segments: arguments, callbacks, and what the library refuses by itself."""
import gpumem
import pytest
from conftest import MIB


def test_only_memory_of_kind_vmm_can_be_demoted(client):
    called = []
    segment = client.acquire(MIB, kind="pinned")
    with pytest.raises(gpumem.UnimplementedError, match="pinned"):
        client.demote([segment], pause=lambda: called.append(1), proceed=lambda: called.append(2))
    assert not called and not segment.demoted


def test_lists_and_options_without_sense_are_refused(client):
    segment = client.acquire(MIB, kind="vmm")
    for wrong in ([], [segment, segment]):
        with pytest.raises(gpumem.InvalidArgumentError):
            client.demote(wrong)
    with pytest.raises(gpumem.InvalidArgumentError, match="proceed"):
        client.demote([segment], pause=lambda: None)
    for wrong in ({"wait": -1}, {"longest_pause": -1}):
        with pytest.raises(gpumem.InvalidArgumentError):
            client.demote([segment], **wrong)
    with pytest.raises(gpumem.FailedPreconditionError, match="not demoted"):
        client.promote([segment])
    with pytest.raises(gpumem.FailedPreconditionError, match="not demoted"):
        client.promote([segment], wait=1)
    memoryview(segment)[0] = 1
    assert not segment.demoted
    segment.close()
    with pytest.raises(gpumem.FailedPreconditionError, match="closed"):
        client.demote([segment])
    with pytest.raises(gpumem.FailedPreconditionError, match="closed"):
        assert segment.demoted


def test_a_descriptor_of_the_program_keeps_the_memory(client):
    segment = client.acquire(MIB, kind="vmm")
    segment.fd()
    with pytest.raises(gpumem.FailedPreconditionError, match="descriptor"):
        client.demote([segment])


def test_bytes_and_addresses_stay(client):
    segments = client.acquire_many(4 * MIB, 2, kind="vmm")
    view = memoryview(segments[1])
    view[:4] = b"kept"
    calls = []
    pauses = {"pause": lambda: calls.append("pause"), "proceed": lambda: calls.append("proceed")}

    def busy():
        raise KeyError("busy")

    with pytest.raises(KeyError, match="busy"):
        client.demote(segments, pause=busy, proceed=pauses["proceed"])
    assert not any(each.demoted for each in segments)
    for wait in (0, 60):
        calls.clear()
        client.demote(segments, wait=wait, **pauses)
        assert all(each.demoted for each in segments) and bytes(view[:4]) == b"kept"
        assert calls and calls == ["pause", "proceed"] * (len(calls) // 2)
        client.promote(segments, wait=wait, **pauses)
        assert not any(each.demoted for each in segments) and bytes(view[:4]) == b"kept"
    view.release()
