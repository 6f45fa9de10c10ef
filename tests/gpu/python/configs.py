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
CONFIGS = {"test_turns": TIER, "example-two_servers": TIER,  # two models do not fit together
           "bench-suspend": SMALL_PAGES + "prefault = true\n", "bench-suspend-cold": SMALL_PAGES,
           "bench-suspend-huge": LARGE_TIER, "bench-demote": PINNED}
# Parts that run only if they are named, and the arguments of their scripts.
NAMED = {"bench-suspend": ["--shapes", "16x1024,256x64,1000x2,64x1024"],
         "bench-suspend-cold": ["--first-only"], "bench-suspend-huge": ["--first-only"],
         "bench-demote": []}


def of(name):
    return CONFIGS.get(name, CONFIG)
