# SPDX-License-Identifier: Apache-2.0
"""Load once: of several processes that need the same contents, one loads them."""
import asyncio
import math
import threading

import gpumem
import numpy as np
import pytest
from conftest import eventually, run_python

ID = b"\0digest\xff"
LOADER = """
import gpumem, numpy, sys
found = gpumem.attach_or_claim("weights", bytes.fromhex(sys.argv[1]))
if isinstance(found, gpumem.Claim):
    with found as claim:
        print("loaded", claim.publish({"w": numpy.arange(4)}))
else:
    print("attached", numpy.asarray(found["w"]).tolist(), found.content_id.hex())
"""


@pytest.fixture(name="other")
def _other(daemon):
    with gpumem.connect(daemon.runtime_dir) as other:
        yield other


def free(client, content_id=ID):
    """True if the contents have no claim."""
    try:
        found = client.attach_or_claim("weights", content_id, wait=0)
    except gpumem.DeadlineExceededError:
        return False
    assert isinstance(found, gpumem.Claim)
    found.release()
    return True


def test_one_process_loads_and_the_others_attach(client, daemon):
    said = []

    def run():
        said.append(run_python(LOADER, ID.hex(), runtime_dir=daemon.runtime_dir).strip())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == [f"attached [0, 1, 2, 3] {ID.hex()}"] * 2 + ["loaded 1"]
    assert [info.content_id for info in client.publications()] == [ID]
    found = client.attach_or_claim("weights", ID)
    assert isinstance(found, gpumem.Publication) and found.content_id == ID
    del found
    client.unpublish("weights")


def test_it_is_released(client, other):
    claim = client.attach_or_claim("weights", ID)
    assert (claim.name, claim.content_id, claim.released) == ("weights", ID, False)
    assert ID.hex() in repr(claim)
    assert not free(other) and free(other, b"others")
    claim.release()
    claim.release()
    assert claim.released and free(other)
    with client.attach_or_claim("weights", ID):
        assert not free(other)
    assert free(other)
    claim = client.attach_or_claim("weights", ID)
    del claim
    assert free(other)


def test_a_waiter_gets_it(client, other):
    claim = client.attach_or_claim("weights", ID)
    found = []
    thread = threading.Thread(target=lambda: found.append(other.attach_or_claim("weights", ID)))
    thread.start()
    eventually(lambda: client.usage().waiting == 1, "it waits")
    claim.release()
    thread.join()
    assert isinstance(found[0], gpumem.Claim)
    with pytest.raises(gpumem.DeadlineExceededError, match="has the claim"):
        client.attach_or_claim("weights", ID, wait=0.01)
    version = found[0].publish(np.arange(3), metadata={"step": 1})
    attached = client.attach_or_claim("weights", ID, writable=True)
    assert attached.metadata == {"step": 1} and attached.content_id == ID
    assert attached.version == version
    assert not attached.readonly
    del attached
    client.unpublish("weights")
    found[0].release()


def test_other_contents_are_not_attached_to(client):
    client.publish("weights", np.arange(3), content_id=b"old")
    with client.attach_or_claim("weights", ID) as claim:
        assert isinstance(claim, gpumem.Claim)
    assert client.publications()[0].content_id == b"old"
    client.publish("weights", np.arange(3))
    assert client.publications()[0].content_id == b""
    client.unpublish("weights")


def test_a_wait_is_cancelled(client, other):
    claim = client.attach_or_claim("weights", ID)
    token = gpumem.CancelToken()
    raised = []

    def wait():
        try:
            other.attach_or_claim("weights", ID, cancel=token)
        except gpumem.CancelledError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: client.usage().waiting == 1, "it waits")
    token.cancel()
    thread.join()
    assert len(raised) == 1
    claim.release()
    assert free(client)


def test_asyncio_waits(client, daemon):
    async def load():
        async with await gpumem.aio.connect(daemon.runtime_dir) as waiting:
            with client.attach_or_claim("weights", ID) as claim:
                task = asyncio.create_task(waiting.attach_or_claim("weights", ID, wait=math.inf))
                cancelled = asyncio.create_task(waiting.attach_or_claim("weights", ID))
                while client.usage().waiting < 2:
                    await asyncio.sleep(0)
                cancelled.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cancelled
                claim.publish(np.arange(3))
                found = await task
                assert np.asarray(found.value).tolist() == [0, 1, 2]

    asyncio.run(load())
    client.unpublish("weights")


def test_what_is_refused(client):
    for content_id in (b"", b"x" * 65):
        with pytest.raises(gpumem.InvalidArgumentError, match="1 to 64 bytes"):
            client.attach_or_claim("weights", content_id)
    with pytest.raises(gpumem.InvalidArgumentError, match="at most 64 bytes"):
        client.publish("weights", np.arange(3), content_id=b"x" * 65)
    with pytest.raises(TypeError):
        client.attach_or_claim("weights", 7)
    claims = [client.attach_or_claim("weights", bytes([i])) for i in range(64)]
    with pytest.raises(gpumem.ResourceExhaustedError) as refused:
        client.attach_or_claim("weights", ID)
    assert refused.value.denial.limit == 64
    for claim in claims:
        claim.release()
    assert free(client)


def test_it_outlives_the_daemon(kept_daemon):
    with gpumem.connect(kept_daemon.runtime_dir) as client, \
            gpumem.connect(kept_daemon.runtime_dir) as other:
        claim = client.attach_or_claim("weights", ID)
        kept_daemon.kill()
        assert not free(other)
        claim.publish(np.arange(3))
        kept_daemon.kill()
        assert isinstance(other.attach_or_claim("weights", ID), gpumem.Publication)
