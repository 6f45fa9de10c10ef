#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# latency_test.sh BENCH GPUMEMD LIBCUDA: the benchmarks of latency measure each call and its floor in
# the same run on the same CPUs, and print what they report to machines. On the host backend, and a
# part on a driver without a GPU.
set -euo pipefail

BENCH=$1
GPUMEMD=$2
LIBCUDA=$3
WORK=$(mktemp -d)
CPU=$(taskset -cp $$ | grep -o '[0-9]*$')
readonly BENCH GPUMEMD LIBCUDA WORK CPU
trap 'rm -rf "$WORK"' EXIT

"$BENCH" --backend host --gpumemd "$GPUMEMD" --quick --cpus "$CPU" \
  --benchmark_filter='^Latency|^Explain/(call/.*/64MiB|make/64MiB)' \
  --benchmark_out="$WORK/host.json" --benchmark_out_format=json > "$WORK/host"
LD_LIBRARY_PATH=$(dirname "$LIBCUDA") FAKE_CUDA_MEMORY=8589934592 \
  "$BENCH" --backend cuda --gpumemd "$GPUMEMD" --quick \
  --benchmark_filter='^Latency/(pair|fresh/64|throughput)|^Explain/(map|make/64MiB)' \
  --benchmark_out="$WORK/cuda.json" --benchmark_out_format=json > "$WORK/cuda"

/usr/bin/python3 - "$WORK" "$CPU" <<'END'
import json
import sys

work, cpu = sys.argv[1:]
for backend in ("host", "cuda"):
    with open(f"{work}/{backend}.json", encoding="utf-8") as file:
        rows = {row["name"].split("/iterations:")[0]: row for row in json.load(file)["benchmarks"]}
    with open(f"{work}/{backend}", encoding="utf-8") as file:
        output = file.read()
    if backend == "host":
        assert f"CPUs: client {cpu}, daemon {cpu}, bare owner {cpu}\n" in output, output
        wanted = {f"Latency/{name}" for name in (
            "fresh/28x2532MiB", "connect+attach/60x20MiB", "connect+open/60x20MiB", "attach/60x20MiB",
            "pair/release/2MiB", "pair/destroy/2MiB", "releases-at-limit", "throughput/clients:1",
            "throughput/clients:2")}
        wanted |= {f"Latency/{what}/{size}" for what in ("fresh", "retained", "release", "destroy")
                   for size in ("2MiB", "64MiB", "1GiB")}
        assert wanted == {name for name in rows if name.startswith("Latency/")}, sorted(rows)
        check = rows["Latency/releases-at-limit"]
        assert check["releases"] == check["releases_one_by_one"] == 1000, check
        assert check["refused"] == check["refused_one_by_one"] == 0, check
    table = [line for line in output.splitlines() if line.startswith("|")]
    for name, row in rows.items():
        if "throughput" in name:
            for way in ("release", "destroy"):
                assert row[f"{way}_pairs_per_s"] > 0 and row[f"{way}_floor_pairs_per_s"] > 0, row
                assert 0 < row[f"{way}_p50_us"] <= row[f"{way}_p99_us"], row
        elif "floor_p50_us" in row:
            assert 0 < row["p50_us"] <= row["p99_us"] and row["floor_p50_us"] > 0, (name, row)
            assert row["ratio_q1"] <= row["ratio_q3"] and row["pairs"] == 3, (name, row)
            # Each has its line in the table.
            cells = f"| {row['floor_p50_us']:.1f} | {row['floor_p99_us']:.1f} | {row['p50_us']:.1f} |"
            assert any(cells in line for line in table), (name, cells, output)
        elif name.startswith("Explain/map"):
            assert row["import_p50_us"] > 0 and row["access_p50_us"] > 0, (name, row)
        elif name.startswith("Explain/make"):
            assert row["create_p50_us"] > 0 and row["export_p50_us"] > 0, (name, row)
END
