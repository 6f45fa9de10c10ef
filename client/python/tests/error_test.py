# SPDX-License-Identifier: Apache-2.0
"""Errors: classes, built-in classes, and why a request was denied."""
import pickle

import gpumem
import pytest
from conftest import MIB
from gpumem import errors


def test_a_denial_says_why(client, daemon):
    held = client.acquire(40 * MIB, device=0)
    with pytest.raises(gpumem.ResourceExhaustedError) as caught:
        client.acquire(30 * MIB, device=0)
    error, denial = caught.value, caught.value.denial
    assert isinstance(error, MemoryError) and error.status == 8
    assert error.status_name == "RESOURCE_EXHAUSTED" and error.message == str(error)
    assert denial.cause is gpumem.Cause.DEVICE_LIMIT
    assert (denial.tenant, denial.device) == ("python", held.device)
    assert (denial.asked, denial.requested) == (30 * MIB, 30 * MIB)
    assert (denial.used, denial.limit) == (40 * MIB, 64 * MIB)
    assert denial.help and denial.limited_tenant == ""
    assert "python" in str(error)
    # And so in another process.
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.denial == denial
    with gpumem.connect(daemon.runtime_dir, tenant="other") as other:
        more = [other.acquire(64 * MIB, device=0)]
        client_more = client.acquire(24 * MIB, device=0)
        assert more[0].nbytes + client_more.nbytes + held.nbytes == 128 * MIB
    # An error of something else has none.
    with pytest.raises(gpumem.NotFoundError) as caught:
        client.acquire(MIB, device="GPU-none")
    assert caught.value.denial is None


def test_a_denial_of_a_count(client):
    held = client.acquire_many(2 * MIB, 32)
    with pytest.raises(MemoryError) as caught:
        client.acquire_many(2 * MIB, 253, device=1)
    assert caught.value.denial.cause in (gpumem.Cause.MAX_SEGMENTS, gpumem.Cause.DEVICE_LIMIT)
    del held


def test_a_pools_denial(client):
    pool = client.pool(device=0)
    with pytest.raises(gpumem.ResourceExhaustedError) as caught:
        pool.allocate(100 * MIB)
    assert caught.value.denial.tenant == "python"
    assert caught.value.denial.cause is gpumem.Cause.DEVICE_LIMIT


@pytest.mark.parametrize("name, builtin", [
    ("InvalidArgumentError", ValueError), ("DeadlineExceededError", TimeoutError),
    ("NotFoundError", LookupError), ("PermissionDeniedError", PermissionError),
    ("ResourceExhaustedError", MemoryError), ("OutOfRangeError", IndexError),
    ("UnimplementedError", NotImplementedError), ("UnavailableError", ConnectionError)])
def test_classes_are_also_pythons(name, builtin):
    found = getattr(gpumem, name)
    assert issubclass(found, builtin) and issubclass(found, gpumem.Error)
    error = pickle.loads(pickle.dumps(found("a sentence")))
    assert str(error) == "a sentence" and error.message == "a sentence" and error.denial is None


def test_every_status_has_a_class():
    statuses = set()
    for status in range(1, 17):
        error = errors._make(status, "X", "words", None)
        assert type(error) is not gpumem.Error and error.status == status
        assert str(error) == "words"
        statuses.add(error.status_name)
    assert len(statuses) == 16 and "X" not in statuses
    strange = errors._make(99, "STRANGE", "words", None)
    assert type(strange) is gpumem.Error and strange.status_name == "STRANGE"
    denied = errors._make(8, "X", "words", (77, "t", "d", 1, 2, 3, "h", "l", (("who", 4),)))
    assert denied.denial == gpumem.Denial(gpumem.Cause.UNKNOWN, "t", "d", 1, 2, 3, "h", "l",
                                          (gpumem.Holder("who", 4),))


def test_there_is_no_daemon(tmp_path):
    with pytest.raises(gpumem.UnavailableError) as caught:
        gpumem.connect(tmp_path / "none", timeout=1)
    assert isinstance(caught.value, ConnectionError)


def test_a_daemon_that_does_not_listen(tmp_path):
    with pytest.raises(gpumem.UnavailableError) as caught:
        gpumem.connect(tmp_path, timeout=3600, wait=False)
    assert "no daemon started" not in str(caught.value)
    with pytest.raises(gpumem.UnavailableError) as caught:
        gpumem.connect(tmp_path, timeout=0.3)
    assert "no daemon started within 300ms" in str(caught.value)


def test_a_tenant_that_the_rules_do_not_allow(daemon):
    with pytest.raises(gpumem.PermissionDeniedError):
        gpumem.connect(daemon.runtime_dir, tenant="nobody")


def test_a_closed_client_says_so(daemon):
    client = gpumem.connect(daemon.runtime_dir)
    segment = client.acquire(MIB)
    client.close()
    assert client.closed and "closed" in repr(client)
    with pytest.raises(gpumem.FailedPreconditionError, match="client is closed"):
        client.acquire(MIB)
    assert segment.share().value  # the session lives on in it
