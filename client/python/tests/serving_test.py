# SPDX-License-Identifier: Apache-2.0
"""Requests of operators to suspend, served by a program; publications that one has suspended."""
import gc
import json
import os
import subprocess
import weakref

import gpumem
import pytest
from conftest import CONFIG, MIB, Daemon, eventually

TIER = """
[tier]
capacity = "64MiB"
huge_pages = false
prefault = false
"""


@pytest.fixture(scope="module", name="daemon")
def _daemon():
    daemon = Daemon(config=CONFIG + TIER)
    yield daemon
    daemon.stop()


class Notes:
    """Functions that write down their calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, what):
        def note(*said):
            self.calls.append((what, *said))
        return note

    def wait(self, count):
        eventually(lambda: len(self.calls) >= count, f"{count} of {self.calls}")
        return self.calls


@pytest.fixture(name="notes")
def _notes(client):
    notes = Notes()
    yield notes
    notes.calls.clear()  # the traceback of an exception refers to segments
    assert not client.closed


def asks(daemon, client, what, *options):
    """True if an operator's command succeeds."""
    try:
        daemon.ctl(what, str(client.session_id), *options)
        return True
    except subprocess.CalledProcessError:
        return False


def wait_until_served(daemon, client):
    """The daemon may learn of it a moment later. Nothing is suspended, so it asks nothing."""
    eventually(lambda: asks(daemon, client, "resume"), "the program serves requests")


def test_an_operator_suspends_and_resumes_the_program(client, daemon, notes):
    segments = client.acquire_many(MIB, 2)
    memoryview(segments[0])[:4] = b"kept"
    with client.serve_suspensions(lambda: segments, quiesce=notes("quiesce"),
                                  suspended=notes("suspended"), resumed=notes("resumed"),
                                  failed=notes("failed"), ended=notes("ended")) as serving:
        wait_until_served(daemon, client)
        assert asks(daemon, client, "suspend")
        assert notes.wait(2) == [("quiesce",), ("suspended", "operator")]
        assert all(each.suspended for each in segments)
        assert asks(daemon, client, "resume")
        assert notes.wait(3)[2:] == [("resumed",)]
        assert not any(each.suspended for each in segments)
        assert memoryview(segments[0])[:4] == b"kept"
        segments[0].share()  # its lock is free again
        assert not serving.closed
    assert serving.closed and len(notes.calls) == 3
    assert not asks(daemon, client, "suspend", "--timeout", "1s")


def test_an_operator_demotes_and_promotes_the_program(client, daemon, notes):
    weights, cache = client.acquire_many(MIB, 2)
    memoryview(weights)[:4] = b"kept"
    with client.serve_suspensions(lambda: [weights, cache], demotable=lambda: [weights],
                                  pause=notes("pause"), proceed=notes("proceed"),
                                  suspended=notes("suspended"), failed=notes("failed"),
                                  done=notes("done")):
        wait_until_served(daemon, client)
        for what, demoted in (("demote", True), ("promote", False)):
            notes.calls.clear()
            # The operator's call lasts until all is demoted, and the cache is not.
            asks(daemon, client, what, "--timeout", "5s")
            eventually(lambda: ("done",) in notes.calls, "the request has ended")
            pauses, done = notes.calls[:-1], notes.calls[-1]
            assert done == ("done",) and pauses
            assert pauses == [("pause",), ("proceed",)] * (len(pauses) // 2)
            assert weights.demoted == demoted and not cache.demoted
            assert memoryview(weights)[:4] == b"kept"
            weights.share()  # its lock is free again


def test_a_pause_that_raises_leaves_all_where_it_was(client, daemon, notes):
    segment = client.acquire(MIB)
    trouble = RuntimeError("a read does not end")

    def raises():
        raise trouble

    with client.serve_suspensions(lambda: [segment], pause=raises, proceed=notes("proceed"),
                                  failed=notes("failed")):
        wait_until_served(daemon, client)
        assert not asks(daemon, client, "demote", "--timeout", "2s")
        assert ("failed", trouble) in notes.wait(1)
    assert not segment.demoted


def test_a_function_that_raises_cancels_the_request(client, daemon, notes):
    segment = client.acquire(MIB)
    trouble = [RuntimeError("a step does not end")]

    def raises():
        raise trouble[0]

    with client.serve_suspensions(lambda: [segment], quiesce=raises, failed=notes("failed")):
        wait_until_served(daemon, client)
        assert not asks(daemon, client, "suspend", "--timeout", "2s")
        assert notes.wait(1) == [("failed", trouble[0])]
    assert not segment.suspended
    notes.calls.clear()
    with client.serve_suspensions(raises, failed=notes("failed")):
        wait_until_served(daemon, client)
        assert not asks(daemon, client, "suspend", "--timeout", "2s")
        assert notes.wait(1) == [("failed", trouble[0])]


def test_without_failed_it_is_reported_to_python(client, daemon, monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", reported.append)
    segment = client.acquire(MIB)

    def raises():
        raise ValueError("no such segments")

    with client.serve_suspensions(raises):
        wait_until_served(daemon, client)
        assert not asks(daemon, client, "suspend", "--timeout", "2s")
        eventually(lambda: reported, "it is reported")
        assert isinstance(reported[0].exc_value, ValueError)
    reported.clear()
    assert not segment.suspended


def test_segments_that_are_closed_are_an_error_and_not_a_crash(client, daemon, notes):
    closed, open_one = client.acquire_many(MIB, 2)
    closed.close()
    with client.serve_suspensions(lambda: [open_one, closed], failed=notes("failed")):
        wait_until_served(daemon, client)
        assert not asks(daemon, client, "suspend", "--timeout", "2s")
        assert isinstance(notes.wait(1)[0][1], gpumem.FailedPreconditionError)
    assert not open_one.suspended


def test_a_segment_that_is_closed_meanwhile_ends_afterwards(client, daemon, notes):
    segment = client.acquire(MIB)

    def closes():
        notes("quiesce")()
        segment.close()
        assert segment.closed

    with client.serve_suspensions(lambda: [segment], quiesce=closes, suspended=notes("suspended"),
                                  failed=notes("failed")):
        wait_until_served(daemon, client)
        asks(daemon, client, "suspend")
        assert [call[0] for call in notes.wait(2)] == ["quiesce", "suspended"]
    eventually(lambda: client.usage().segments == 0, "it has ended")


def test_a_request_waits_for_other_threads_calls(client, daemon, notes):
    """A thread that has the segments is not disturbed; close() does not wait for it."""
    segment = client.acquire(MIB)
    serving = client.serve_suspensions(lambda: notes("segments")() or [segment],
                                       suspended=notes("suspended"), failed=notes("failed"))
    wait_until_served(daemon, client)
    with segment.lock:
        assert not asks(daemon, client, "suspend", "--timeout", "100ms")
        serving.close()
    assert [call[0] for call in notes.calls] in ([], ["segments", "failed"])
    assert not segment.suspended


def test_a_function_may_end_what_calls_it(client, daemon, notes):
    segment = client.acquire(MIB)
    held = {}

    def suspended(cause):
        held.pop("serving").close()
        notes("suspended")(cause)

    held["serving"] = client.serve_suspensions(lambda: [segment], suspended=suspended)
    wait_until_served(daemon, client)
    assert asks(daemon, client, "suspend")
    assert notes.wait(1) == [("suspended", "operator")]
    gc.collect()
    client.resume([segment])
    assert not asks(daemon, client, "suspend", "--timeout", "1s")


def test_it_goes_with_what_serves(client):
    """An object that serves by one of its methods is a cycle, and is collected."""
    class Program:
        def __init__(self):
            self.serving = client.serve_suspensions(self.segments)

        def segments(self):
            return []

    threads = len(os.listdir("/proc/self/task"))
    references = [weakref.ref(Program()) for _ in range(10)]
    gc.collect()
    assert not any(reference() for reference in references)
    assert len(os.listdir("/proc/self/task")) <= threads


def test_the_session_says_if_others_may_ask(client, daemon):
    def session():
        listed = json.loads(daemon.ctl("ps", "--json"))["sessions"]
        return next(each for each in listed if each["session_id"] == client.session_id)

    segment = client.acquire(MIB)
    assert not session()["serves_suspension"]
    for swappable in (True, False, None):
        with client.serve_suspensions(lambda: [segment], swappable=swappable):
            eventually(lambda: session()["serves_suspension"], "the daemon knows")
            assert session()["swappable"] == bool(swappable)
        eventually(lambda: not session()["serves_suspension"], "it has ended")
    client.report_activity()
    assert session()["idle_ms"] < 60_000


def test_wrong_arguments(client, daemon):
    with pytest.raises(TypeError):
        client.serve_suspensions(lambda: [], nothing=print)
    for wrong in ({"pause": print}, {"proceed": print}, {"demotable": list}):
        with pytest.raises(gpumem.InvalidArgumentError):
            client.serve_suspensions(lambda: [], **wrong)
    closed = gpumem.connect(daemon.runtime_dir, name="closed")
    closed.close()
    with pytest.raises(gpumem.FailedPreconditionError):
        closed.serve_suspensions(lambda: [])
    with pytest.raises(gpumem.FailedPreconditionError):
        closed.report_activity()


def test_a_suspended_publication_says_so(client, daemon):
    segment = client.acquire(2 * MIB)
    memoryview(segment)[:4] = b"kept"
    client.publish("weights", segment.array())
    segment.close(defer=True)
    del segment
    gc.collect()
    info, = client.publications()
    assert (info.nbytes, info.suspended_nbytes) == (2 * MIB, 0)
    eventually(lambda: client.usage().segments == 1, "the lease has ended")
    daemon.ctl("suspend", "--publication", "python/weights")
    info, = client.publications()
    assert (info.nbytes, info.suspended_nbytes) == (2 * MIB, 2 * MIB)
    with client.attach("weights") as attached:
        assert bytes(memoryview(attached[""]))[:4] == b"kept"
        info, = client.publications()
        assert info.suspended_nbytes == 0
