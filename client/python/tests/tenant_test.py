# SPDX-License-Identifier: Apache-2.0
"""Tenants that a program makes under its tenant."""
import math
import os

import gpumem
import pytest
from conftest import MIB, run_python


def test_a_tenant_holds_a_program_to_less(daemon):
    client = gpumem.connect(daemon.runtime_dir)
    tenant = client.create_tenant("part", limit=4 * MIB)
    assert tenant == f"{client.tenant}:{os.getuid()}.part"
    said = run_python(
        "import os, sys\n"
        "import gpumem\n"
        "os.environ['GPUMEM_TENANT'] = sys.argv[1]\n"
        "client = gpumem.connect()\n"
        f"segment = client.acquire({4 * MIB})\n"
        "try:\n"
        f"    client.acquire({MIB})\n"
        "except gpumem.ResourceExhaustedError as error:\n"
        "    print(client.tenant, error.denial.limit)",
        tenant, runtime_dir=daemon.runtime_dir)
    assert said == f"{tenant} {4 * MIB}\n"
    inside = gpumem.connect(daemon.runtime_dir, tenant=tenant)
    client.update_tenant(tenant, limit=8 * MIB)
    with inside.acquire(8 * MIB):
        with pytest.raises(gpumem.ResourceExhaustedError):
            inside.acquire(MIB)
        with pytest.raises(gpumem.NotFoundError):
            inside.update_tenant(tenant, limit=math.inf)
        client.update_tenant(tenant, limit=math.inf)
        with inside.acquire(MIB):
            remains = client.end_tenant(tenant)
            assert not remains.gone and remains.charged >= 9 * MIB and remains.sessions == 1
            with pytest.raises(gpumem.FailedPreconditionError):
                inside.acquire(MIB)
    inside.close()
    client.close()


def test_a_lasting_tenant_outlives_its_maker(kept_daemon):
    with gpumem.connect(kept_daemon.runtime_dir) as maker:
        with pytest.raises(gpumem.InvalidArgumentError):
            maker.create_tenant(lasting=True)
        kept = maker.create_tenant("kept", lasting=True, max_sessions=3, priority=-2,
                                   preload="broker")
        brief = maker.create_tenant()
        assert [each.name for each in maker.tenants()] == sorted([brief, kept])
    kept_daemon.kill()
    client = gpumem.connect(kept_daemon.runtime_dir)
    made, = client.tenants()
    assert (made.name, made.lasting, made.ending, made.sessions) == (kept, True, False, 0)
    assert made.created > 1e9
    assert client.create_tenant("kept", lasting=True, max_sessions=3, priority=-2,
                                preload="broker") == kept
    with pytest.raises(gpumem.AlreadyExistsError):
        client.create_tenant("kept", lasting=True)
    assert client.end_tenant(kept).gone
    assert client.end_tenant(kept).gone
    assert not client.tenants()
    client.close()


def test_limits_that_make_no_sense(daemon):
    client = gpumem.connect(daemon.runtime_dir)
    device = client.devices()[0].uuid
    for wrong in ({"limit": 0}, {"max_sessions": -1}, {"preload": "both"}, {"name": "a:b"},
                  {"device_limits": {device: 0}}):
        with pytest.raises(gpumem.InvalidArgumentError):
            client.create_tenant(**wrong)
    with pytest.raises(gpumem.NotFoundError):
        client.create_tenant(device_limits={"GPU-none": MIB})
    with pytest.raises(OverflowError):
        client.create_tenant(priority=1 << 40)
    with pytest.raises(gpumem.PermissionDeniedError):
        client.create_tenant(priority=1)
    with pytest.raises(gpumem.InvalidArgumentError):
        client.update_tenant(client.create_tenant(device_limits={device: MIB}))
    assert len(client.tenants()) == 1
    client.close()
