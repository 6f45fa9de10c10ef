# SPDX-License-Identifier: Apache-2.0
"""The machine's memory, for the benchmarks of the host tier."""
import contextlib
import pathlib
import time

HUGE_PAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")
HUGE_PAGE_BYTES = 2 << 20


def of_meminfo(name):
    """Returns a number of /proc/meminfo: KiB, or a count."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def settle():
    """Waits until the daemon has taken the memory of its tier, if it does so at its start. It takes
    far more than 64 MiB a second; what other programs take and give back is less."""
    before, now = -1 << 40, of_meminfo("Shmem")
    while now - before > 64 << 10:
        time.sleep(1)
        before, now = now, of_meminfo("Shmem")


@contextlib.contextmanager
def reserved_huge_pages(size):
    """Reserves huge pages of 2 MiB for `size` bytes in a `with` block. Yields the reason why they
    are not there, or "". The machine has as many as before at the end."""
    if size == 0:
        yield ""
        return
    if of_meminfo("Hugepagesize") * 1024 != HUGE_PAGE_BYTES:
        yield "the machine's huge pages have another size"
        return
    before = int(HUGE_PAGES.read_text(encoding="ascii"))
    wanted = before + -(-size // HUGE_PAGE_BYTES)
    try:
        HUGE_PAGES.write_text(f"{wanted}\n", encoding="ascii")
    except OSError as error:
        yield f"{HUGE_PAGES}: {error.strerror}"
        return
    try:
        made = int(HUGE_PAGES.read_text(encoding="ascii"))
        yield "" if made >= wanted else (f"the machine has room for {made - before} of "
                                         f"{wanted - before} huge pages")
    finally:
        HUGE_PAGES.write_text(f"{before}\n", encoding="ascii")
