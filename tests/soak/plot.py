#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of a soak over its time, as one SVG.

    plot.py samples.csv docs/plots/soak.svg

Each point is the median of a 200th of the time. Peaks above twice the 90th percentile, which single
attacks make, are cut off. Needs only Python.
"""
import csv
import importlib.util
import os
import statistics
import sys

# By its path: this file has the same name.
_BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "plot.py")
_SPEC = importlib.util.spec_from_file_location("bench_plot", _BENCH)
bench = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bench)

HEIGHT, POINTS = 230, 200
MIB, KIB = 1 << 20, 1 << 10
# Title, unit, how many make one, and the columns by their names in the legend.
PANELS = [
    ("Private memory", "MiB", MIB, {"gpumemd": "daemon_anonymous",
                                    "gpumemd, heap in use": "daemon_heap",
                                    "gpumem-web": "web_anonymous",
                                    "gpumem-keeper": "keeper_anonymous"}),
    ("Open descriptors", "", 1, {"gpumemd": "daemon_fds", "gpumem-keeper": "keeper_fds",
                                 "gpumem-web": "web_fds"}),
    ("Threads", "", 1, {"gpumemd": "daemon_threads", "gpumem-keeper": "keeper_threads",
                        "gpumem-web": "web_threads"}),
    ("Journal", "KiB", KIB, {"journal": "journal_bytes"}),
    ("In use", "", 1, {"leases": "leases", "sessions": "sessions", "publications": "publications"}),
]


def read(path):
    with open(path, newline="") as file:
        return [{name: float(value) for name, value in row.items() if value}
                for row in csv.DictReader(file)]


def medians(rows, column, end):
    """Points (seconds, value)."""
    blocks = {}
    for row in rows:
        if column in row:
            block = min(int(row["seconds"] / end * POINTS), POINTS - 1)
            blocks.setdefault(block, []).append(row[column])
    return [((block + 0.5) / POINTS * end, statistics.median(values))
            for block, values in sorted(blocks.items())]


def panel(rows, end, title, unit, scale, columns):
    points = {name: medians(rows, column, end) for name, column in columns.items()}
    points = {name: values for name, values in points.items() if values}
    tops = [sorted(value for _, value in values) for values in points.values()]
    high = max(min(values[-1], 2 * values[len(values) * 90 // 100 - 1]) for values in tops) / scale
    chart = bench.Chart(title, unit, 0, max(high * 1.1, 2), False, HEIGHT)
    width = bench.WIDTH - bench.LEFT - bench.RIGHT

    def x(seconds):
        return bench.LEFT + seconds / end * width

    minutes = end / 60
    step = next(each for each in (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120)
                if minutes / each <= 10 or each == 120)
    for i in range(int(minutes / step) + 1):
        chart.text(x(i * step * 60), HEIGHT - bench.BOTTOM + 18, f"{i * step:g} min", size=10)
    calm = next((row["seconds"] for row in rows if row.get("calm")), None)
    if calm is not None:
        chart.line(x(calm), bench.TOP, x(calm), HEIGHT - bench.BOTTOM, "#333", "5 4")
        chart.text(x(calm) + 4, bench.TOP + 8, "gpumemd is not killed any more", "start", 10)
    for i, values in enumerate(points.values()):
        chart.trace([(x(seconds), chart.y(value / scale)) for seconds, value in values], i)
    chart.legend(points)
    return chart.svg()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    rows = read(sys.argv[1])
    end = rows[-1]["seconds"]
    height = HEIGHT * len(PANELS)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {bench.WIDTH} {height}">']
    for i, each in enumerate(PANELS):
        lines.append(f'<svg y="{i * HEIGHT}" width="{bench.WIDTH}" height="{HEIGHT}">')
        lines.append(panel(rows, end, *each) + "</svg>")
    with open(sys.argv[2], "w") as file:
        file.write("\n".join(lines + ["</svg>", ""]))
    print(sys.argv[2])


if __name__ == "__main__":
    main()
