#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs/cli.md from the real program.

Starts a daemon of the host backend with a sample load in a temporary folder, runs each command in
a pseudo terminal of 80 columns, and draws its final screen as SVG, colours included.

usage: pictures.py GPUMEMD GPUMEMCTL [OUT]
"""

import fcntl
import html
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

COLUMNS = 80
PATIENCE = 60

CONFIG = """
[host]
devices = 2
device_bytes = "8GiB"
[pinned]
capacity = "2GiB"
[[tenant]]
name = "serving"
guarantee = "2GiB"
priority = 10
limit = "5GiB"
[[tenant]]
name = "training"
limit = "6GiB"
max_retained = "1GiB"
[[tenant]]
name = "nightly"
parent = "training"
[[rule]]
tenant = "serving"
uid = {uid}
[[rule]]
tenant = "training"
uid = {uid}
[[rule]]
tenant = "nightly"
uid = {uid}
"""

# The holders while the pictures are taken.
HOLDERS = [
    ["--as", "serving", "--size", "512MiB", "--count", "4"],
    ["--as", "serving", "--size", "256MiB", "--count", "2", "--device", "1"],
    ["--as", "training", "--size", "1GiB", "--count", "2"],
    ["--as", "training", "--size", "384MiB", "--count", "3", "--device", "1"],
    ["--as", "nightly", "--size", "768MiB", "--revocable"],
    ["--as", "serving", "--size", "128MiB", "--kind", "pinned"],
]


class Screen:
    """A terminal's screen: as much of ECMA-48 as gpumemctl uses."""

    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.cells = {}  # (row, column): (character, style)
        self.row = self.column = 0
        self.style = ()
        self.shown = None  # of the alternate screen, before it went
        self.pending = ""

    def feed(self, text):
        text = self.pending + text
        self.pending = ""
        at = 0
        while at < len(text):
            character = text[at]
            if character == "\x1b":
                found = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])").match(text, at)
                if not found:
                    if len(text) - at < 32:
                        self.pending = text[at:]
                        return
                    raise ValueError("what is %r?" % text[at : at + 10])
                self.control(found.group(1), found.group(2))
                at = found.end()
                continue
            if character == "\r":
                self.column = 0
            elif character == "\n":
                self.row += 1
            else:
                self.cells[self.row, self.column] = (character, self.style)
                self.column += 1
            at += 1

    def control(self, parameters, final):
        if final == "m":
            codes = [int(code or 0) for code in parameters.split(";")]
            self.style = () if codes == [0] else self.style + tuple(codes)
        elif final == "H":
            self.row = self.column = 0
        elif final == "K":
            self.erase(lambda row, column: row == self.row and column >= self.column)
        elif final == "J":
            self.erase(lambda row, column: (row, column) >= (self.row, self.column))
        elif (parameters, final) == ("?1049", "h"):
            self.cells, self.row, self.column = {}, 0, 0
        elif (parameters, final) == ("?1049", "l"):
            self.shown = dict(self.cells)

    def erase(self, where):
        self.cells = {at: cell for at, cell in self.cells.items() if not where(*at)}

    def lines(self):
        """Each line as a list of (text, style)."""
        cells = self.shown if self.shown is not None else self.cells
        height = 1 + max((row for row, _ in cells), default=0)
        result = []
        for row in range(height):
            width = 1 + max((column for r, column in cells if r == row), default=-1)
            line = []
            for column in range(width):
                character, style = cells.get((row, column), (" ", ()))
                if line and line[-1][1] == style:
                    line[-1] = (line[-1][0] + character, style)
                else:
                    line.append((character, style))
            result.append(line)
        return result


# The sixteen colours, on dark ground.
PALETTE = {
    30: "#1d2129", 31: "#e0707a", 32: "#8fbf7f", 33: "#dcb86c", 34: "#6ea4e8", 35: "#c08adf",
    36: "#5fbfc4", 37: "#d7dae0",
}
GROUND, TEXT, DIM = "#1d2129", "#d7dae0", "#878d99"
WIDTH, HEIGHT, PAD = 8.4, 18, 14


def colours(style):
    fill, ground, bold = TEXT, None, False
    for code in style:
        if code == 1:
            bold = True
        elif code == 2:
            fill = DIM
        elif code == 7:
            fill, ground = GROUND, TEXT
        elif 30 <= code <= 37:
            fill = PALETTE[code]
        elif 40 <= code <= 47:
            ground = PALETTE[code - 10]
    return fill, ground, bold


def to_svg(command, lines):
    shown = [[("$ ", (2,)), (command, (1,))]] + lines
    width = PAD * 2 + COLUMNS * WIDTH
    height = PAD * 2 + len(shown) * HEIGHT
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %g %g">'
        % (width, height, width, height),
        '<rect width="100%%" height="100%%" rx="6" fill="%s"/>' % GROUND,
        '<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" '
        'xml:space="preserve">',
    ]
    for row, line in enumerate(shown):
        column = 0
        y = PAD + row * HEIGHT
        for text, style in line:
            fill, ground, bold = colours(style)
            x = PAD + column * WIDTH
            if ground:
                out.append('<rect x="%g" y="%g" width="%g" height="%d" fill="%s"/>'
                           % (x, y, len(text) * WIDTH, HEIGHT, ground))
            if text.strip():
                out.append('<text x="%g" y="%g" textLength="%g" fill="%s"%s>%s</text>'
                           % (x, y + 13.5, len(text) * WIDTH, fill,
                              ' font-weight="bold"' if bold else "", html.escape(text)))
            column += len(text)
    return "\n".join(out + ["</g>", "</svg>", ""])


def run_in_terminal(argv, rows, keys=(), wait_for=None):
    """The screen that argv leaves. For each of `keys` it is sent once the screen has settled."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.environ.pop("NO_COLOR", None)
        os.execv(argv[0], argv)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
    screen = Screen(rows, COLUMNS)
    keys = list(keys)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 0.3)
        if ready:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            screen.feed(data.decode("utf-8", "replace"))
        elif keys:
            os.write(terminal, keys.pop(0).encode())
    os.close(terminal)
    os.waitpid(pid, 0)
    return screen


class Load:
    """A daemon with holders, in a temporary folder."""

    def __init__(self, gpumemd, gpumemctl):
        self.gpumemctl = gpumemctl
        self.folder = tempfile.mkdtemp(prefix="gpumem-pictures-", dir="/tmp")
        self.run = self.folder + "/run"
        self.children = []
        config = self.folder + "/gpumemd.toml"
        with open(config, "w") as file:
            file.write(CONFIG.replace("{uid}", str(os.getuid())))
        log = open(self.folder + "/log", "w")
        self.children.append(subprocess.Popen(
            [gpumemd, "--config", config, "--backend", "host", "--runtime-dir", self.run,
             "--state-dir", self.folder + "/state"], stdout=log, stderr=log))
        deadline = time.monotonic() + PATIENCE
        while self.ctl("status", check=False).returncode != 0:
            if time.monotonic() > deadline:
                raise SystemExit("the daemon does not come up: see %s/log" % self.folder)
            time.sleep(0.05)

    def ctl(self, *arguments, check=True):
        return subprocess.run([self.gpumemctl, "--runtime-dir", self.run, *arguments], check=check,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def hold(self, arguments):
        holder = subprocess.Popen(
            [self.gpumemctl, "--runtime-dir", self.run, "hold", "--json", *arguments],
            stdout=subprocess.PIPE, text=True)
        self.children.append(holder)
        if '"held"' not in holder.stdout.readline():
            raise SystemExit("cannot hold " + " ".join(arguments))
        return holder

    def fill(self):
        for arguments in HOLDERS:
            self.hold(arguments)
        # Retained: memory that a session of a tenant that goes on has released.
        leaving = self.hold(["--as", "training", "--size", "512MiB", "--count", "2"])
        leaving.send_signal(signal.SIGTERM)
        leaving.wait()
        weights = self.folder + "/weights.bin"
        with open(weights, "wb") as file:
            file.write(os.urandom(1 << 20) * 64)
        self.ctl("publish", "llama", "--file", weights, "--as", "serving")
        # Denied, and waiting.
        self.ctl("hold", "--as", "serving", "--size", "4GiB", "--for", "1ms", check=False)
        waiting = subprocess.Popen(
            [self.gpumemctl, "--runtime-dir", self.run, "hold", "--as", "nightly", "--size",
             "5GiB", "--wait", "1h"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.children.append(waiting)
        deadline = time.monotonic() + PATIENCE
        while "Waiting for memory" not in self.ctl("ps").stdout:
            if time.monotonic() > deadline:
                raise SystemExit("nobody waits")
            time.sleep(0.05)

    def end(self):
        for child in reversed(self.children):
            child.terminate()
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


# The file's name, the command, the lines of the terminal, and keys if it is interactive.
PICTURES = [
    ("top", ["top"], 20, ["q"]),
    ("top-processes", ["top", "--by", "process"], 20, ["q"]),
    ("map", ["map"], 40, []),
    ("ps", ["ps"], 40, []),
    ("events", ["events", "--event", "granted", "--event", "denied", "--event", "published",
                "--event", "session-ended"], 60, []),
    ("describe-segment", ["describe", "segment", "1"], 40, []),
    ("describe-tenant", ["describe", "tenant", "training"], 60, []),
    ("doctor", ["doctor"], 60, []),
]


def main():
    gpumemd, gpumemctl = (os.path.abspath(path) for path in sys.argv[1:3])
    out = sys.argv[3] if len(sys.argv) > 3 else os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "../../docs/pictures")
    os.makedirs(out, exist_ok=True)
    load = Load(gpumemd, gpumemctl)
    try:
        load.fill()
        for name, command, rows, keys in PICTURES:
            screen = run_in_terminal([gpumemctl, "--runtime-dir", load.run, *command], rows, keys)
            # The folder is another one each time.
            lines = [[(text.replace(load.run, "/run/gpumem"), style) for text, style in line]
                     for line in screen.lines()]
            text = to_svg("gpumemctl " + " ".join(command), lines)
            with open(os.path.join(out, name + ".svg"), "w") as file:
                file.write(text)
            print(os.path.join(out, name + ".svg"))
    finally:
        load.end()


main()
