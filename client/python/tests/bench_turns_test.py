# SPDX-License-Identifier: Apache-2.0
"""The benchmark of turns: its table, its arguments, and a run on the host backend."""
import contextlib
import importlib
import os
import pathlib
import re
import subprocess
import sys

import gpumem
import pytest
from conftest import CONFIG, PATIENCE_S, Daemon, charged, eventually

FOLDER = pathlib.Path(os.environ["GPUMEM_ROOT"]) / "tests/gpu/python"


def module(name):
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)


@pytest.fixture(name="turns")
def _turns():
    return module("bench_turns")


@pytest.mark.parametrize("values, percent, wanted", [
    ([5], 1, 5), ([5], 99, 5), ([5], 100, 5),
    ([3, 1, 2], 50, 2), ([3, 1, 2], 34, 2), ([3, 1, 2], 33, 1), ([3, 1, 2], 67, 3),
    (range(1, 101), 90, 90), (range(1, 101), 99, 99), (range(1, 101), 100, 100),
    (range(1, 100), 99, 99),  # with fewer than a hundred, the largest one
    (range(1, 201), 99, 198),
])
def test_percentile(turns, values, percent, wanted):
    assert turns.percentile(list(values), percent) == wanted


@pytest.mark.parametrize("values, percent", [([], 50), ([1], 0), ([1], 101)])
def test_no_percentile(turns, values, percent):
    with pytest.raises(ValueError):
        turns.percentile(values, percent)


def test_a_row(turns):
    reference = [turns.Turn(0.5, 0.2, 0.3)] * 3
    times = [turns.Turn(whole, 0.25 * whole, 0.75 * whole) for whole in (1.0, 2.0, 4.0)]
    row = turns.row("checkpoint", times, 6 * 10**9, reference)
    assert row == ("| checkpoint | 3 | 2000.0 ms | 4000.0 ms | 4000.0 ms | 4000.0 ms | 500.0 ms | "
                   "1500.0 ms | 3.0 | 4.00 | 8.00 |")
    assert row.count("|") == turns.header().count("|")


def test_arguments(turns):
    args = turns.parse([])
    assert args.mib // args.piece_mib <= turns.MOST_PIECES and args.turns >= 50
    assert turns.parse(["--mib", "128", "--turns", "3"]).turns == 3


@pytest.mark.parametrize("arguments", [
    ["--mib", "100"], ["--mib", "32"], ["--mib", "16384"], ["--piece-mib", "0"], ["--turns", "0"],
    ["--turns", "many"]])
def test_refused_arguments(turns, arguments, capsys):
    with pytest.raises(SystemExit):
        turns.parse(arguments)
    assert "error:" in capsys.readouterr().err


def test_the_parts_that_are_named():
    configs = module("configs")
    for name, (script, _) in configs.NAMED.items():
        assert (FOLDER / f"{script}.py").exists() and name in configs.CONFIGS
    assert set(configs.HUGE_PAGES) <= set(configs.NAMED)


def test_huge_pages(monkeypatch, tmp_path):
    host_memory = module("host_memory")
    count = tmp_path / "nr_hugepages"
    monkeypatch.setattr(host_memory, "of_meminfo", lambda name: 2048)
    monkeypatch.setattr(host_memory, "HUGE_PAGES", count)
    count.write_text("7\n")
    with host_memory.reserved_huge_pages(0) as lacks:
        assert not lacks and count.read_text() == "7\n"
    with host_memory.reserved_huge_pages(5 << 20) as lacks:
        assert not lacks and count.read_text() == "10\n"
    assert count.read_text() == "7\n"
    monkeypatch.setattr(host_memory, "HUGE_PAGES", Full(4))
    with host_memory.reserved_huge_pages(8 << 20) as lacks:
        assert lacks == "the machine has room for 2 of 4 huge pages"


class Full:
    """A machine that makes no more huge pages than some."""

    def __init__(self, most):
        self.most, self.now = most, 2

    def read_text(self, **_):
        return f"{self.now}\n"

    def write_text(self, text, **_):
        self.now = min(int(text), self.most)


def both(limit):
    """Returns a configuration with two tenants that share a limit."""
    tier = '[tier]\ncapacity = "256MiB"\nhuge_pages = false\nprefault = true\n'
    tenants = "".join(f'[[tenant]]\nname = "{name}"\nparent = "both"\n' for name in ("left", "right"))
    rules = "".join(f'[[rule]]\ntenant = "{name}"\ndefault = true\n' for name in ("left", "right"))
    return (tier + CONFIG.replace("64MiB", "100%") + f'[[tenant]]\nname = "both"\nlimit = "{limit}"\n'
            + tenants + rules)


@contextlib.contextmanager
def run_beside(limit, *arguments):
    """Runs the benchmark beside a daemon. Yields its result; nothing must be held at the end."""
    daemon = Daemon(config=both(limit))
    try:
        done = subprocess.run([sys.executable, str(FOLDER / "bench_turns.py"), *arguments],
                              env={**os.environ, "GPUMEM_RUNTIME_DIR": daemon.runtime_dir},
                              check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=4 * PATIENCE_S)
        yield done
        for tenant in ("left", "right"):
            with gpumem.connect(daemon.runtime_dir, tenant=tenant) as client:
                eventually(lambda one=client: charged(one) == 0, f"{tenant} has given all back")
    finally:
        daemon.stop()


def test_turns_on_the_host_backend():
    with run_beside("96MiB", "--mib", "64", "--piece-mib", "8", "--turns", "4") as done:
        assert done.returncode == 0, done.stderr
        assert "| each tenant: 64 MiB in 8 pieces |" in done.stdout
        assert re.search(r"^\| gpumem \| 8 \| .* \| 1\.00 \| 1\.00 \|$", done.stdout, re.MULTILINE)
        if not module("cuda_driver").why_not():
            pytest.skip("the rows of a machine with a GPU are another test's")
        assert "| floor, checkpoint, reload | skipped: " in done.stdout


def test_tenants_that_fit_are_no_turns():
    with run_beside("200MiB", "--mib", "64", "--piece-mib", "8", "--turns", "1") as done:
        assert done.returncode != 0 and "the memory of both tenants fits" in done.stderr
