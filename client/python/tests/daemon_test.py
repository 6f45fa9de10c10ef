# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed and comes back, and one that does not."""
import gpumem
import numpy as np
import pytest
from conftest import MIB, Daemon, charged, eventually, run_python


def test_a_daemon_that_comes_back_is_no_matter(kept_daemon):
    client = gpumem.connect(kept_daemon.runtime_dir)
    session = client.session_id
    array = client.empty((100,), "int32")
    seen = np.asarray(array)
    seen[:] = np.arange(100)
    pool = client.pool()
    block = pool.allocate(1000)
    assert client.publish("kept", {"a": array}) == 1
    watch = client.watch()
    for round_ in range(3):
        kept_daemon.kill()
        assert seen.sum() == 4950
        with client.acquire(MIB) as segment:
            memoryview(segment)[0] = 1
        assert client.session_id == session
        assert np.asarray(client.open(client.share(array))).sum() == 4950
        assert pool.allocate(9 * MIB).nbytes >= 9 * MIB
        assert client.attach("kept").version == 1 + round_
        assert client.publish("kept", {"a": array}) == 2 + round_
        said = run_python("import gpumem, numpy; print(numpy.asarray(gpumem.attach('kept')['a'])[99])",
                          runtime_dir=kept_daemon.runtime_dir)
        assert said == "99\n"
    watch.close()
    block.free()
    pool.close()
    del array, seen
    client.unpublish("kept")
    eventually(lambda: charged(client) == 0, "all is given back")


def test_a_daemon_that_is_gone(daemon):
    daemon = Daemon()
    client = gpumem.connect(daemon.runtime_dir, timeout=1)
    segment = client.acquire(MIB)
    view = memoryview(segment)
    view[:2] = b"ok"
    watch = client.watch()
    daemon.stop()
    with pytest.raises(gpumem.UnavailableError) as caught:
        client.acquire(MIB)
    assert isinstance(caught.value, ConnectionError) and str(caught.value)
    with pytest.raises(gpumem.UnavailableError):
        client.attach("x", wait=0.01)
    assert bytes(view[:2]) == b"ok"
    view.release()
    with segment:
        pass
    watch.close()
    client.close()


def test_a_session_that_does_not_reconnect(kept_daemon):
    client = gpumem.connect(kept_daemon.runtime_dir, reconnect=False)
    segment = client.acquire(MIB)
    memoryview(segment)[:2] = b"ok"
    with client.watch() as watch:
        kept_daemon.kill()
        notice = watch.get(timeout=30)
        while notice.what != "ended":
            notice = watch.get(timeout=30)
        assert notice.value == 14 and notice.message
    with pytest.raises(gpumem.UnavailableError):
        client.usage()
    assert bytes(memoryview(segment)[:2]) == b"ok"
