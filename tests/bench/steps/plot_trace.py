#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws where the microseconds of calls go, as an SVG.

    gpumem_bench --trace-acquires acquires.pftrace
    gpumemctl trace show --json acquires.pftrace > after.json
    plot_trace.py docs/plots/acquire_steps.svg [--call release] after.json
    plot_trace.py docs/plots/acquire_steps.svg before=before.json after=after.json

Each kind of the call, such as "acquire, fresh", is a picture below the other, with a row for each
step. A bar begins at the median of the step's starts, and is as long as the median of its lengths.
The client's steps and the daemon's have different colours. Several files have the same scale. Needs
only Python.
"""
import argparse
import json
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, ROW = 960, 190, 110, 40, 17
# As in plot.py (Okabe and Ito's, which nearly all eyes tell apart).
COLORS = {"client": "#0072b2", "daemon": "#d55e00"}


def read(argument):
    """The title of a file, and its kinds of calls by their names."""
    title, _, path = argument.rpartition("=")
    with open(path, encoding="utf-8") as file:
        kinds = json.load(file)["kinds"]
    return title, {name_of(kind): kind for kind in kinds}


def name_of(kind):
    return kind["name"] + (f", {kind['memory']}" if kind["memory"] else "")


def rows_of(kind):
    """Leaves out steps that few calls have: those that waited for a lock."""
    return [step for step in kind["steps"] if 2 * step["calls"] >= kind["calls"]]


class Picture:
    def __init__(self):
        self._items = []
        self._y = 0

    def text(self, x, y, text, anchor="start", size=12, color="#000"):
        self._items.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
                           f'font-size="{size}" fill="{color}">{escape(text)}</text>')

    def bar(self, x, y, width, color):
        self._items.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" '
                           f'height="{ROW - 5}" fill="{color}"/>')

    def waterfall(self, title, kind, longest):
        """`longest` microseconds are as wide as the picture."""
        scale = (WIDTH - LEFT - RIGHT) / longest
        rows = rows_of(kind)
        self._y += TOP
        self.text(10, self._y - 14, f"{title}: {kind['median_us']:,.0f} µs, median of "
                  f"{kind['calls']:,} calls", size=15)
        bottom = self._y + ROW * (len(rows) + 1)
        step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9)
                    if longest / step <= 12)
        for i in range(int(longest / step) + 1):
            x = LEFT + i * step * scale
            self._items.append(f'<line x1="{x:.1f}" y1="{self._y}" x2="{x:.1f}" y2="{bottom}" '
                               'stroke="#ddd"/>')
            self.text(x, bottom + 14, f"{i * step}" + (" µs" if i == 0 else ""), "middle", 10)
        whole = {"name": kind["name"], "side": kind["side"], "depth": -1, "start_us": 0,
                 "median_us": kind["median_us"]}
        for row in [whole] + rows:
            self.text(14 + 12 * (row["depth"] + 1), self._y + ROW - 5, row["name"])
            x = LEFT + row["start_us"] * scale
            self.bar(x, self._y + 1, row["median_us"] * scale, COLORS[row["side"]])
            self.text(x + max(row["median_us"] * scale, 1) + 4, self._y + ROW - 6,
                      f"{row['median_us']:,.1f}", size=10, color="#555")
            self._y += ROW
        self._y += 24

    def write(self, path):
        legend = []
        for i, (side, color) in enumerate(COLORS.items()):
            legend.append(f'<rect x="{WIDTH - 90}" y="{12 + 18 * i}" width="11" height="11" '
                          f'fill="{color}"/><text x="{WIDTH - 74}" y="{22 + 18 * i}">{side}</text>')
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._y + 8}" '
                'font-family="sans-serif" font-size="12">\n'
                f'<rect width="{WIDTH}" height="{self._y + 8}" fill="white"/>')
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([head] + self._items + legend + ["</svg>", ""]))
        print(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("svg")
    parser.add_argument("files", nargs="+", metavar="[TITLE=]FILE")
    parser.add_argument("--call", default="acquire")
    arguments = parser.parse_args()
    files = [read(file) for file in arguments.files]
    # Calls that only one side has recorded, before the trace or after it, are others.
    names = sorted({name for _, kinds in files for name, kind in kinds.items()
                    if kind["name"] == arguments.call and kind["side"] == "client" and
                    (kind["memory"] or arguments.call != "acquire")})
    picture = Picture()
    for name in names:
        of_name = [(title, kinds[name]) for title, kinds in files if name in kinds]
        longest = 1.02 * max([kind["median_us"] for _, kind in of_name] +
                             [step["start_us"] + step["median_us"] for _, kind in of_name
                              for step in rows_of(kind)])
        for title, kind in of_name:
            picture.waterfall(f"{name}, {title}" if title else name, kind, longest)
    if not names:
        raise SystemExit(f"there is no {arguments.call} of a client in these files")
    picture.write(arguments.svg)


if __name__ == "__main__":
    main()
