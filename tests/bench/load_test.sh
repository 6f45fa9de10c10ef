#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# load_test.sh BENCH GPUMEMD: the benchmark of the daemon under load measures both of its floors in
# the same run, and prints the backend of its figures.
set -euo pipefail

BENCH=$1
GPUMEMD=$2
WORK=$(mktemp -d)
readonly BENCH GPUMEMD WORK
trap 'rm -rf "$WORK"' EXIT

"$BENCH" --backend host --gpumemd "$GPUMEMD" --benchmark_filter='^Load/(floor|driver|segments)/clients:[14](/|$)' \
  --benchmark_out="$WORK/load.json" --benchmark_out_format=json | tee "$WORK/output"

/usr/bin/python3 - "$WORK/load.json" "$WORK/output" <<'END'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    rows = {"/".join(row["name"].split("/")[:3]): row for row in json.load(file)["benchmarks"]}
wanted = {f"Load/{what}/clients:{n}" for what in ("floor", "driver", "segments") for n in (1, 4)}
assert set(rows) == wanted, sorted(rows)
for name, row in rows.items():
    assert row["pairs_per_s"] > 0 and 0 < row["p50_us"] <= row["p99_us"] <= row["p999_us"], (name, row)

# The table sets each against the floors of as many clients.
with open(sys.argv[2], encoding="utf-8") as file:
    output = file.read()
table = output[output.index("\nthe host backend, no GPU\n"):]
for clients in (1, 4):
    words = next(line.split() for line in table.splitlines() if line.startswith(f"Load/segments/clients:{clients} "))
    for column, what in ((1, "segments"), (5, "floor"), (7, "driver")):
        pairs = rows[f"Load/{what}/clients:{clients}"]["pairs_per_s"]
        assert abs(float(words[column]) - pairs) <= 1, (words, what, pairs)
END
