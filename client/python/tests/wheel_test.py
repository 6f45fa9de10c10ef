# SPDX-License-Identifier: Apache-2.0
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
    assert made.startswith("libgpumem-1.2.3-cp39-abi3-manylinux_2_34_")
    with zipfile.ZipFile(tmp_path / made) as wheel:
        names = wheel.namelist()
        assert wheel.testzip() is None
        metadata = wheel.read("libgpumem-1.2.3.dist-info/METADATA").decode()
        assert "\nName: libgpumem\n" in metadata
        assert "\nRequires-Python: >=3.9\n" in metadata
    for name in ("gpumem/__init__.py", "gpumem/py.typed", "gpumem/_gpumem.pyi",
                 "gpumem/_gpumem.abi3.so", "gpumem/lib/libgpumem.so.1",
                 "gpumem/lib/gpumem/libgpumem.so.1", "libgpumem-1.2.3.dist-info/RECORD",
                 "libgpumem-1.2.3.dist-info/LICENSE"):
        assert name in names
    target = tmp_path / "target"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
                    "--no-cache-dir", "--no-compile", "--disable-pip-version-check",
                    "--root-user-action=ignore", "--target", str(target), str(tmp_path / made)],
                   check=True)
    monkeypatch.setenv("PYTHONPATH", str(target))
    said = run_python("""
import importlib.metadata, gpumem
for group in ("vllm.general_plugins", "sglang.srt.plugins"):
    entry, = [each for each in importlib.metadata.distribution("libgpumem").entry_points
              if each.group == group]
    assert entry.name == "gpumem" and callable(entry.load())
with gpumem.connect() as client, client.acquire(1 << 20) as segment:
    memoryview(segment)[:2] = b"ok"
    print(gpumem.__file__, importlib.metadata.version("libgpumem"), bytes(memoryview(segment)[:2]))
""", runtime_dir=daemon.runtime_dir)
    assert said.split() == [str(target / "gpumem" / "__init__.py"), "1.2.3", "b'ok'"]


def distribution(folder, name, files):
    """Another distribution in the folder, as pip leaves it behind."""
    info = folder / f"{name}.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def warning_of(site, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(site))
    return run_python("""
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import gpumem
print([f"{each.category.__name__}: {each.message}" for each in seen if "gpumem" in str(each.message)])
""", runtime_dir=str(site)).strip()


def test_another_distribution_named_gpumem_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "gpumem").symlink_to(FOLDER)
    distribution(tmp_path, "libgpumem-1.2.3", ["gpumem/__init__.py"])
    assert warning_of(tmp_path, monkeypatch) == "[]"
    # The one in Python's index has other files.
    distribution(tmp_path, "gpumem-0.1.4", ["gpumonitor/__init__.py", "../../bin/gpumem"])
    assert warning_of(tmp_path, monkeypatch) == "[]"


def test_one_that_brings_the_same_package_is_told(tmp_path, monkeypatch):
    (tmp_path / "gpumem").symlink_to(FOLDER)
    distribution(tmp_path, "libgpumem-1.2.3", ["gpumem/__init__.py"])
    distribution(tmp_path, "gpumem-0.1.0", ["gpumem/__init__.py"])
    said = warning_of(tmp_path, monkeypatch)
    assert said.startswith("['RuntimeWarning: the package gpumem in ")
    assert "libgpumem and gpumem-0.1.0" in said and "pip uninstall gpumem libgpumem" in said
