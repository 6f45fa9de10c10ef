#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the results of the pool's benchmarks, as SVGs.

    gpumem_bench --benchmark_filter='^Pool' --benchmark_out=bench.json --benchmark_out_format=json
    plot.py bench.json [peers.json ...] docs/plots

Of the rows that are there: pool_sizes.svg, pool_threads.svg, pool_traces.svg, pool_reserved.svg. If
two files have a row of one name, the later one's counts. Needs only Python.
"""
import json
import math
import os
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 960, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 210, 50, 60
# The pool's, then the peers' in the order that they come in (Okabe and Ito's, which nearly all
# eyes tell apart).
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000",
          "#b8a600", "#7a4fbf"]
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
TO_NS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def size_of(name):
    digits = name.rstrip("BKMGi")
    return int(digits) * UNITS[name[len(digits):]]


def read(paths):
    """Rows by the names that they were registered with and their number of threads."""
    rows = {}
    for path in paths:
        with open(path) as file:
            for row in json.load(file)["benchmarks"]:
                if row.get("run_type", "iteration") != "iteration" or row.get("error_occurred"):
                    continue
                parts = row["name"].split("/")
                # Google Benchmark adds how a row was measured.
                kept = [part for part in parts if ":" not in part and
                        part not in ("real_time", "manual_time", "process_time")]
                row["ns"] = row["real_time"] * TO_NS[row["time_unit"]]
                rows["/".join(kept), int(row.get("threads", 1))] = row
    return rows


class Chart:
    """A frame with a title, axes and a legend; x() and y() make points of the picture of values."""

    def __init__(self, title, y_title, low, high, log, height=HEIGHT):
        self._low, self._high, self._log, self._height = low, high, log, height
        self._items = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
            f'<text x="{LEFT}" y="{TOP - 8}" fill="#555">{escape(y_title)}'
            f'{", logarithmic" if log else ""}</text>']
        for tick in self._ticks():
            y = self.y(tick)
            self.line(LEFT, y, WIDTH - RIGHT, y, "#ddd")
            self.text(LEFT - 6, y + 4, f"{tick:,g}" if tick < 1 else f"{tick:,.0f}", "end")

    def _ticks(self):
        if self._log:
            first, last = math.floor(math.log10(self._low)), math.ceil(math.log10(self._high))
            return [t for t in (10.0**e for e in range(first, last + 1))
                    if self._low <= t <= self._high]
        step = 10 ** math.floor(math.log10((self._high - self._low) / 2))
        while (self._high - self._low) / step > 8:
            step *= 2
        first = math.ceil(self._low / step)
        return [i * step for i in range(first, math.floor(self._high / step) + 1)]

    def y(self, value):
        scale = math.log10 if self._log else float
        low, high = scale(self._low), scale(self._high)
        share = (scale(min(max(value, self._low), self._high)) - low) / (high - low)
        return self._height - BOTTOM - share * (self._height - TOP - BOTTOM)

    @staticmethod
    def x(index, count):
        """The middle of column `index` of so many."""
        return LEFT + (index + 0.5) * (WIDTH - LEFT - RIGHT) / count

    def line(self, x1, y1, x2, y2, color, dash=""):
        self._items.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                           f'stroke="{color}" stroke-dasharray="{dash}"/>')

    def text(self, x, y, text, anchor="middle", size=12):
        self._items.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
                           f'font-size="{size}">{escape(text)}</text>')

    def columns(self, names):
        for i, name in enumerate(names):
            self.text(self.x(i, len(names)), self._height - BOTTOM + 18, name,
                      size=12 if len(names) < 7 else 10)

    def legend(self, names):
        for i, name in enumerate(names):
            y = TOP + 10 + 18 * i
            self._items.append(f'<rect x="{WIDTH - RIGHT + 14}" y="{y - 9}" width="11" height="11" '
                               f'fill="{COLORS[i % len(COLORS)]}"/>')
            self.text(WIDTH - RIGHT + 30, y, name, "start")

    def target(self, value, name):
        y = self.y(value)
        self.line(LEFT, y, WIDTH - RIGHT, y, "#333", "5 4")
        self.text(WIDTH - RIGHT + 6, y + 4, f"{value:g}: {name}", "start", 10)

    def trace(self, points, index):
        """A curve of so many points that none is marked."""
        color = COLORS[index % len(COLORS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._items.append(f'<polyline points="{path}" fill="none" stroke="{color}" '
                           'stroke-width="2"/>')

    def curve(self, points, index):
        self.trace(points, index)
        color = COLORS[index % len(COLORS)]
        self._items += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
                        for x, y in points]

    def bar(self, x, width, value, index):
        top = self.y(value)
        self._items.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" '
                           f'height="{self._height - BOTTOM - top:.1f}" '
                           f'fill="{COLORS[index % len(COLORS)]}"/>')
        text = f"{value:.2f}" if value < 10 else f"{value:,.0f}"
        middle = x + width / 2 + 3
        self._items.append(f'<text x="{middle:.1f}" y="{top - 4:.1f}" font-size="9" '
                           f'transform="rotate(-90 {middle:.1f} {top - 4:.1f})">{text}</text>')

    def svg(self):
        bottom = self._height - BOTTOM
        self.line(LEFT, bottom, WIDTH - RIGHT, bottom, "#333")
        return "\n".join(self._items + ["</svg>", ""])

    def write(self, path):
        with open(path, "w") as file:
            file.write(self.svg())
        print(path)


def peers_first(names):
    """Each once, the pool first."""
    return sorted(dict.fromkeys(names), key=lambda name: not name.startswith("pool"))


def bounds(values):
    """Whole powers of ten."""
    return (10 ** math.floor(math.log10(min(values))),
            10 ** math.ceil(math.log10(max(values) * 1.01)))


def draw_sizes(rows, path):
    data = {}
    for (name, _), row in rows.items():
        parts = name.split("/")
        # Leaves out the floors.
        if parts[0] == "PoolAllocFree" and len(parts) > 2 and parts[1] != "python":
            name = "pool, default stream" if parts[1] == "pool-default" else parts[1]
            data.setdefault(name, {})[parts[2]] = row["ns"]
    if not data:
        return
    sizes = sorted({size for row in data.values() for size in row}, key=size_of)
    low, high = bounds([ns for row in data.values() for ns in row.values()] + [50])
    chart = Chart("Allocate and free a block, one thread", "nanoseconds", low, high, True)
    chart.target(50, "to reach")
    chart.columns(sizes)
    names = peers_first(data)
    for i, name in enumerate(names):
        chart.curve([(chart.x(i_size, len(sizes)), chart.y(data[name][size]))
                     for i_size, size in enumerate(sizes) if size in data[name]], i)
    chart.legend(names)
    chart.write(path)


def draw_threads(rows, path, size="4KiB"):
    data = {}
    for (name, threads), row in rows.items():
        parts = name.split("/")
        if parts[0] == "PoolThreads" and parts[3] == size:
            streams = "own streams" if parts[1] == "own" else "one stream"
            data.setdefault(f"{parts[2]}, {streams}", {})[threads] = row["items_per_second"] / 1e6
    if not data:
        return
    counts = sorted({threads for row in data.values() for threads in row})
    low, high = bounds([rate for row in data.values() for rate in row.values()])
    chart = Chart(f"Threads that allocate and free blocks of {size}", "million pairs a second",
                  low, high, True)
    chart.columns([str(count) for count in counts])
    names = sorted(data, key=lambda name: not name.startswith("pool,"))
    for i, name in enumerate(names):
        chart.curve([(chart.x(counts.index(threads), len(counts)), chart.y(rate))
                     for threads, rate in sorted(data[name].items())], i)
    chart.legend(names)
    chart.write(path)


def draw_bars(chart, groups, path, above=lambda: None):
    """`groups`: {group: {peer: value}}; `above` draws over the bars."""
    names = peers_first(peer for group in groups.values() for peer in group)
    chart.columns(list(groups))
    column = (WIDTH - LEFT - RIGHT) / len(groups)
    width = column * 0.85 / len(names)
    for g, group in enumerate(groups.values()):
        for peer, value in group.items():
            i = names.index(peer)
            chart.bar(LEFT + g * column + column * 0.075 + i * width, width * 0.92, value, i)
    above()
    chart.legend(names)
    chart.write(path)


def draw_traces(rows, path):
    groups = {}
    for (name, _), row in rows.items():
        parts = name.split("/")
        if parts[0] == "PoolTrace" and parts[2] != "python":  # the empty call
            groups.setdefault(parts[1], {})[parts[2]] = row["ns_per_op"]
    if not groups:
        return
    low, high = bounds([ns for group in groups.values() for ns in group.values()])
    draw_bars(Chart("Traces replayed: an allocation or a free", "nanoseconds", low, high, True),
              groups, path)


def draw_reserved(rows, path):
    groups = {}
    for (name, _), row in rows.items():
        parts = name.split("/")
        # Part of a trace says nothing of the whole.
        if parts[0] == "PoolTrace" and row["reserved_per_live"] > 0 and row["part"] == 1:
            groups.setdefault(parts[1], {})[parts[2]] = row["reserved_per_live"]
        elif parts[0] == "PoolFragmentation":
            groups.setdefault(parts[1], {})[parts[2]] = row["reserved_per_live"]
    if not groups:
        return
    high = max([ratio for group in groups.values() for ratio in group.values()] + [1.2]) * 1.05
    chart = Chart("Memory reserved, by what was live", "bytes reserved / bytes live", 0, high * 1.05,
                  False)
    draw_bars(chart, groups, path, lambda: chart.target(1.1, "training, serving"))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    rows, out = read(sys.argv[1:-1]), sys.argv[-1]
    os.makedirs(out, exist_ok=True)
    draw_sizes(rows, os.path.join(out, "pool_sizes.svg"))
    draw_threads(rows, os.path.join(out, "pool_threads.svg"))
    draw_traces(rows, os.path.join(out, "pool_traces.svg"))
    draw_reserved(rows, os.path.join(out, "pool_reserved.svg"))


if __name__ == "__main__":
    main()
