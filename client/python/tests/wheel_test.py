"""The wheel, installed by pip."""
import os
import pathlib
import subprocess
import sys
import zipfile

import gpumem
from conftest import run_python

FOLDER = pathlib.Path(gpumem.__file__).parent


def test_the_wheel_is_installed_and_works(daemon, tmp_path, monkeypatch):
    made = subprocess.run([os.environ["GPUMEM_MAKE_WHEEL"], str(FOLDER.parent), "1.2.3",
                           str(tmp_path), "", gpumem.library_path()], check=True,
                          stdout=subprocess.PIPE).stdout.decode().strip()
    assert made.startswith("gpumem-1.2.3-cp39-abi3-manylinux_2_36_")
    with zipfile.ZipFile(tmp_path / made) as wheel:
        names = wheel.namelist()
        assert wheel.testzip() is None
        assert "Requires-Python: >=3.9" in wheel.read("gpumem-1.2.3.dist-info/METADATA").decode()
    for name in ("gpumem/__init__.py", "gpumem/py.typed", "gpumem/_gpumem.pyi",
                 "gpumem/_gpumem.abi3.so", "gpumem/lib/libgpumem.so.1",
                 "gpumem/lib/gpumem/libgpumem.so.1", "gpumem-1.2.3.dist-info/RECORD",
                 "gpumem-1.2.3.dist-info/LICENSE"):
        assert name in names
    target = tmp_path / "target"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
                    "--no-cache-dir", "--no-compile", "--disable-pip-version-check",
                    "--root-user-action=ignore", "--target", str(target), str(tmp_path / made)],
                   check=True)
    monkeypatch.setenv("PYTHONPATH", str(target))
    said = run_python("""
import importlib.metadata, gpumem
with gpumem.connect() as client, client.acquire(1 << 20) as segment:
    memoryview(segment)[:2] = b"ok"
    print(gpumem.__file__, importlib.metadata.version("gpumem"), bytes(memoryview(segment)[:2]))
""", runtime_dir=daemon.runtime_dir)
    assert said.split() == [str(target / "gpumem" / "__init__.py"), "1.2.3", "b'ok'"]
