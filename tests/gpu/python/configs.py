# SPDX-License-Identifier: Apache-2.0
"""The configurations of the daemons of runner.py, by the name of the part."""

CONFIG = """
[tenant_defaults]
limit = "60GiB"
[[tenant]]
name = "python"
[[rule]]
tenant = "python"
default = true
"""
TIER = '[tier]\ncapacity = "12GiB"\n' + CONFIG.replace("60GiB", "6GiB")
LARGE_TIER = CONFIG.replace("60GiB", "100GiB") + '[tier]\ncapacity = "66GiB"\n'
SMALL_PAGES = LARGE_TIER + "huge_pages = false\n"
PINNED = CONFIG + '[pinned]\ncapacity = "16GiB"\n'
RESERVED_BYTES = 18 << 30
RESERVED = LARGE_TIER.replace("66GiB", "18GiB")  # huge pages are reserved for all of it
# Two tenants of 12 GiB each do not fit together. The tier has room for three.
TURNS = """
[tier]
capacity = "38GiB"
huge_pages = false
prefault = true
[[tenant]]
name = "both"
limit = "20GiB"
[[tenant]]
name = "left"
parent = "both"
limit = "20GiB"
[[tenant]]
name = "right"
parent = "both"
limit = "20GiB"
[[rule]]
tenant = "left"
default = true
[[rule]]
tenant = "right"
default = true
"""
CONFIGS = {"test_turns": TIER, "example-two_servers": TIER,  # two models do not fit together
           "bench-suspend": SMALL_PAGES + "prefault = true\n", "bench-suspend-cold": SMALL_PAGES,
           "bench-suspend-huge": LARGE_TIER, "bench-suspend-reserved": RESERVED,
           "bench-demote": PINNED, "bench-turns": TURNS,
           "bench-push": CONFIG.replace("60GiB", "76GiB"), "bench-serving": CONFIG}
# The parts that run only if they are named: their script and its arguments.
NAMED = {"bench-suspend": ("bench_suspend", ["--shapes", "16x1024,256x64,1000x2,64x1024"]),
         "bench-suspend-cold": ("bench_suspend", ["--first-only"]),
         "bench-suspend-huge": ("bench_suspend", ["--first-only"]),
         "bench-suspend-reserved": ("bench_suspend", ["--first-only"]),
         "bench-demote": ("bench_demote", []),
         "bench-turns": ("bench_turns", []),
         "bench-push": ("bench_push", []),
         "bench-serving": ("bench_serving", [])}
# The seconds that a part may take, if not those of other benchmarks.
LIMITS = {"bench-serving": 480}
# The bytes of huge pages that a part needs beside the machine's.
HUGE_PAGES = {"bench-suspend-reserved": RESERVED_BYTES}


def of(name):
    return CONFIGS.get(name, CONFIG)
