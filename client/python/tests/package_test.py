# SPDX-License-Identifier: Apache-2.0
"""The package itself: imported with nothing there, typed, documented, one binary for all."""
import inspect
import os
import pathlib
import re
import subprocess
import sys

import gpumem
import pytest

FOLDER = pathlib.Path(gpumem.__file__).parent
VERSIONS = [f"3.{minor}" for minor in range(9, 15)]


def run(*command, **environment):
    return subprocess.run(command, check=False, timeout=500, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={**os.environ, **environment})


def test_it_is_imported_without_numpy_driver_and_daemon():
    done = run(sys.executable, "-S", "-c", f"""
import sys
sys.path.insert(0, {str(FOLDER.parent)!r})
sys.modules["numpy"] = None  # an import of it fails
import gpumem
assert not any("libcuda" in line for line in open("/proc/self/maps"))
array = gpumem.from_dlpack(gpumem.asarray(bytearray(b"1234")))
print(bytes(memoryview(array)).decode(), gpumem._gpumem.version() >> 16)
try:
    gpumem.connect("/nonexistent", timeout=1)
except gpumem.UnavailableError:
    print("no daemon")
""")
    assert done.stdout.decode() == "1234 1\nno daemon\n"


def test_mypy_has_nothing_to_say(tmp_path):
    done = run("/usr/bin/mypy", "--strict", "--python-version", "3.9", "--cache-dir",
               str(tmp_path), str(FOLDER))
    assert done.returncode == 0, done.stdout.decode()


def test_users_are_typed(tmp_path):
    (tmp_path / "user.py").write_text("""
import gpumem
with gpumem.connect() as client:
    segment: gpumem.Segment = client.acquire(1 << 20, kind="vmm", wait=1.5)
    ticket: gpumem.Ticket = segment.share()
    size: int = segment.array((3,), "float32").nbytes
    wrong: str = segment.size
""")
    done = run("/usr/bin/mypy", "--strict", "--cache-dir", str(tmp_path / "cache"),
               str(tmp_path / "user.py"), MYPYPATH=str(FOLDER.parent))
    said = done.stdout.decode()
    assert re.findall(r"user\.py:(\d+)", said) == ["7"] and "Incompatible types" in said, said


@pytest.mark.parametrize("name", ["_gpumem.abi3.so", "lib/libgpumem.so.1"])
def test_each_threads_variables_are_where_they_belong(name):
    """gold once left the name of one out, and it was another's place."""
    done = run("readelf", "--relocs", "--wide", str(FOLDER / name))
    places = [line.split()[2:] for line in done.stdout.decode().splitlines() if "_TPOFF64" in line]
    assert places and len({tuple(place) for place in places}) == len(places)
    assert not [place for place in places if "<null>" in place], places


def test_the_extension_is_abi3():
    """It needs only symbols of the stable ABI of Python 3.9, and no libpython."""
    file = FOLDER / "_gpumem.abi3.so"
    needed = run("objdump", "-p", str(file)).stdout.decode()
    assert "libgpumem.so.1" in needed and "libpython" not in needed
    symbols = re.findall(r"\*UND\*.*\s(_?Py\w+)$", run("objdump", "-T", str(file)).stdout.decode(),
                         re.M)
    assert len(symbols) > 30
    assert not [name for name in symbols if name.startswith("_Py") and name not in (
        "_Py_NoneStruct", "_Py_TrueStruct", "_Py_FalseStruct", "_Py_Dealloc",
        # Functions of the stable ABI as PY_SSIZE_T_CLEAN renames them.
        "_PyArg_ParseTuple_SizeT", "_Py_BuildValue_SizeT", "_PyObject_CallFunction_SizeT")]
    exported = re.findall(r"g\s+DF \.text.*\s(\w+)$",
                          run("objdump", "-T", str(file)).stdout.decode(), re.M)
    assert exported == ["PyInit__gpumem"]


def test_other_pythons_that_are_here():
    """Each CPython from 3.9 on that this machine has imports the same binary."""
    tried = []
    for version in VERSIONS:
        for folder in ("/usr/bin", "/usr/local/bin"):
            python = pathlib.Path(folder) / f"python{version}"
            if python.exists():
                done = run(str(python), "-c", "import gpumem; print(memoryview(gpumem.asarray("
                           "gpumem.asarray(bytearray(8)).view('int8'))).format)",
                           PYTHONPATH=str(FOLDER.parent))
                assert done.stdout.decode() == "b\n", (python, done.stdout.decode())
                tried.append(version)
    assert tried


def public(thing, prefix):
    for name, value in vars(thing).items():
        if name.startswith("_") or isinstance(value, (int, str)):
            continue
        if inspect.isfunction(value) or isinstance(value, property) or inspect.isclass(value):
            yield f"{prefix}.{name}", value
            if inspect.isclass(value):
                yield from public(value, f"{prefix}.{name}")


def test_everything_is_documented():
    missing = []
    for name in gpumem.__all__:
        thing = getattr(gpumem, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            if not inspect.getdoc(thing):
                missing.append(name)
        if inspect.isclass(thing):
            missing += [path for path, value in public(thing, name) if not inspect.getdoc(value)]
    assert not missing
    assert sorted(gpumem.__all__) == sorted(set(gpumem.__all__))
    assert pathlib.Path(gpumem.library_path()).exists()


def test_its_version_is_the_projects():
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", gpumem.__version__)


def test_addresses_for_frameworks():
    for name in ("gpumem_cupy_malloc", "gpumem_cupy_free", "gpumem_torch_malloc",
                 "gpumem_torch_free", "gpumem_rmm_allocate", "gpumem_rmm_deallocate"):
        assert gpumem._gpumem.address(name) > 0
    with pytest.raises(gpumem.NotFoundError):
        gpumem._gpumem.address("system")
