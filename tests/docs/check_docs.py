#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries a document: every command, every program, every configuration.

    check_docs.py [--machine] --programs DIR... DOCUMENT...

The programs are looked for in the folders DIR. Without --machine it tries all but the commands that
need systemd, in a temporary folder, whose daemons have the host backend. With --machine it tries
only those, and must run on a machine where gpumemd is installed. Fails, with the place, if
something differs from the document.

Meaning of a block's words:

    console          commands, run here by the present user
    console systemd  commands for a machine with the service, run there; '# ' is root, '$ ' user 1000
    console MARK     other places (PLACES below): that programs, subcommands, options and units exist is checked
    cpp, cuda        compiled, with headers of CUDA, CCCL and RMM where they are there; `cpp FILE` also stays as
                     FILE for the commands
    toml             read by gpumemd --check-config; `toml FILE` also stays as FILE
    json, python     parsed
    yaml, promql     left to their own tests (//tests/system:prometheus_test)
    text, mermaid    nothing to try: pictures and layouts

Links to files and headings of the checkout have to lead somewhere.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import blocks as documents
import links
import usage
from blocks import Mistake
from shell import Shell

# Places of commands that this test cannot run.
PLACES = {
    "build": "a checkout, and minutes",
    "bench": "a machine to oneself, perhaps a GPU; a release or a checkout",
    "install": "a machine to install it on (tests/deb, and //tests/system:service_test)",
    "gpu": "a GPU",
    "container": "a container engine",
    "kubernetes": "a cluster",
}
LANGUAGES = {"console", "cpp", "cuda", "toml", "json", "python", "yaml", "promql", "text", "mermaid"}
# The documents' name of a folder for trials.
TRY = "/tmp/gpumem-try"


class Place:
    """The place of commands: a temporary folder, a release's layout in it, a shell or two."""

    def __init__(self, programs, machine, shows):
        self._machine = machine
        self.shows = shows
        self.folder = tempfile.mkdtemp(prefix="gpumem-docs-", dir=os.environ.get("GPUMEM_DOCS_FOLDER", "/tmp"))
        os.chmod(self.folder, 0o1777)  # like /tmp, for the other user
        self._bin = os.path.join(self.folder, "dist/bin")
        os.makedirs(self._bin)
        os.makedirs(os.path.join(self.folder, "home"))
        for each in programs:
            for name in os.listdir(each):
                path = os.path.join(os.path.abspath(each), name)
                if re.fullmatch(r"gpumem(d|ctl|-keeper|-web)", name) and os.path.isfile(path):
                    os.symlink(path, os.path.join(self._bin, name))
        self._environment = {
            "PATH": f"{self._bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8", "PAGER": "cat", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0",
            # That machine has no id, by which the journal would be found.
            "BASH_FUNC_journalctl%%": '() { command journalctl -D /run/log/journal "$@"; }',
        }
        if not machine:
            # As in a user's shell: no daemon of the machine's is asked.
            self._environment.update(HOME=os.path.join(self.folder, "home"),
                                     STATE_DIRECTORY=os.path.join(self.folder, "state"),
                                     GPUMEM_RUNTIME_DIR=self.here(TRY))
        self._shells = {}

    def here(self, text):
        return text.replace(TRY, os.path.join(self.folder, "try"))

    def run(self, command):
        if command.root and not self._machine:
            raise Mistake(f"{command.where}: nobody is root here; mark the block: console systemd")
        if command.root not in self._shells:
            prefix = ()
            if self._machine and not command.root:
                prefix = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
            self._shells[command.root] = Shell(self.folder, self._environment, prefix)
        shell = self._shells[command.root]
        output, code = shell.run(self.here(command.text))
        output = output.replace(os.path.join(self.folder, "try"), TRY)
        output = output.replace(self.folder, "").replace("/tmp/gpumem-docs", "")
        if self.shows:
            print(f"{'#' if command.root else '$'} {command.text}\n{output}[{code}]" if code else
                  f"{'#' if command.root else '$'} {command.text}\n{output}", flush=True)
        documents.check_result(command, output, code)
        if re.search(r"\bgpumemd\b.*(?<!&)&\s*$", command.text):
            self._await_daemon(shell, command)

    def _await_daemon(self, shell, command):
        # A reader types more slowly than a daemon starts.
        directory = re.search(r"--runtime-dir[ =](\S+)", command.text)
        flag = f"--runtime-dir {self.here(directory[1])}" if directory else ""
        deadline = time.monotonic() + 30
        while shell.run(f"gpumemctl {flag} status")[1] != 0:
            if time.monotonic() > deadline:
                raise Mistake(f"{command.where}: no daemon comes of: {command.text}\n{shell.log()}")

    def close(self):
        for shell in self._shells.values():
            shell.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def save(place, block, text):
    """Saves the block if it has a file's name; returns the file that is checked."""
    path = os.path.join(place.folder, block.marks[0] if block.marks else "checked." + block.language)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def run(arguments, folder):
    result = subprocess.run(arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, check=False)
    return result.returncode, result.stdout


def check_toml(place, block):
    # Users and groups are those of the reader's machine.
    text = re.sub(r'^(#?)((?:user|group|\w+_group) *= *)"[^"]*"', r'\1\2"root"', block.text, flags=re.M)
    path = save(place, block, text)
    code, output = run([os.path.join(place.folder, "dist/bin/gpumemd"), "--backend", "host", "--config", path,
                        "--check-config"], place.folder)
    if code != 0:
        raise Mistake(f"{block.where}: {output}")


def others_headers(text):
    """Returns the compiler's flags for the headers of CUDA, CCCL and RMM that a program includes. None:
    this machine lacks them, and the program is not compiled. $GPUMEM_RMM is as in tests/rmm/rmm_test.sh."""
    if not re.search(r"#include <(cuda_runtime_api\.h|gpumem/cccl\.h|rmm/)", text):
        return []
    folders = [os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")]
    folders.append(os.path.join(folders[0], "cccl"))
    if "#include <rmm/" in text:
        rmm = os.environ.get("GPUMEM_RMM", "/nonexistent")
        folders = [os.path.join(rmm, each) for each in
                   ("librmm/include", "librmm/include/rapids", "rapids_logger/include")] + folders[:1]
    if not all(os.path.isdir(each) for each in folders):
        return None
    define = "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"
    return [define] + [word for each in folders for word in ("-isystem", each)]


def check_cpp(place, block, before):
    """Compiles it; without a main, inside a function, after the declarations of the hidden block
    before it."""
    text = block.text
    if block.language == "cuda":
        text = re.sub(r"<<<.*?>>>", "", text)  # a kernel's launch, as a call
    if "int main(" not in text:
        include = re.compile(r"^#include.*\n", re.M)
        text = ("#include <gpumem/client.h>\n" + "".join(include.findall(text)) + before
                + "\nvoid Snippet() {\n" + include.sub("", text) + "}\n")
    flags = others_headers(text)
    if flags is None:
        print(f"{block.where}: not compiled: this machine lacks the headers that it includes")
        return
    path = os.path.join(place.folder, "compiled.cc")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    code, output = run(["g++", "-std=c++20", "-fsyntax-only", "-I", "dist/include", *flags, path], place.folder)
    if code != 0:
        raise Mistake(f"{block.where}: it does not compile\n{output}")


def check(place, block, before, known, machine):
    """Tries one block. Raises Mistake."""
    if block.language not in LANGUAGES:
        raise Mistake(f"{block.where}: a block that nobody tries: its first word is \"{block.language}\", "
                      f"and should be one of {', '.join(sorted(LANGUAGES))} (tests/docs/check_docs.py)")
    if block.language == "console":
        commands = documents.read_commands(block)
        mark = block.marks[0] if block.marks else ""
        if mark not in {"", "systemd", *PLACES}:
            raise Mistake(f"{block.where}: no place is called {mark}")
        for command in commands:
            if mark in PLACES:
                if not machine:
                    known.check(command.where, command.text)
            elif (mark == "systemd") == machine:
                place.run(command)
    elif machine:
        pass  # tried by the run without systemd
    elif block.language in ("cpp", "cuda") and not block.hidden:
        save(place, block, block.text)
        check_cpp(place, block, before)
    elif block.language == "toml":
        check_toml(place, block)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "python":
        ast.parse(block.text)


def install_library(place, headers, library, script):
    """Makes dist/include and dist/lib for README's worker, as `./run dist` does."""
    include = os.path.join(place.folder, "dist/include/gpumem")
    os.makedirs(include)
    for header in headers:
        shutil.copy(header, include)
    lib = os.path.join(place.folder, "dist/lib")
    os.makedirs(os.path.join(lib, "pkgconfig"))
    for name in ("libgpumem.so", "libgpumem.so.1"):
        os.symlink(os.path.abspath(library), os.path.join(lib, name))
    # The very function that makes the release's file.
    files = os.path.join(os.path.dirname(os.path.abspath(script)), "deploy/release/files.sh")
    make = f"source {files}; pkg_config_file 0 '${{pcfiledir}}/../..' lib"
    code, text = run(["bash", "-c", make], os.getcwd())
    assert code == 0, text
    with open(os.path.join(lib, "pkgconfig/gpumem.pc"), "w", encoding="utf-8") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--machine", action="store_true")
    parser.add_argument("--show", action="store_true", help="what commands write, for who writes a document")
    parser.add_argument("--programs", action="append", default=[])
    parser.add_argument("--header", action="append", default=[])
    parser.add_argument("--library")
    parser.add_argument("--run-script")
    parser.add_argument("--units", default="deploy")
    parser.add_argument("documents", nargs="+")
    arguments = parser.parse_args()

    mistakes, tried = [], 0
    for document in arguments.documents:
        place = Place(arguments.programs, arguments.machine, arguments.show)
        try:
            known = usage.Known(os.path.join(place.folder, "dist/bin"), arguments.run_script, arguments.units)
            if arguments.library:
                install_library(place, arguments.header, arguments.library, arguments.run_script)
            before = ""
            goes_on = True  # what comes after a command that failed says nothing
            for block in documents.read_blocks(document):
                if block.hidden and block.language == "cpp":
                    before = block.text
                try:
                    if goes_on or block.language != "console":
                        check(place, block, before, known, arguments.machine)
                        tried += 1
                except Mistake as mistake:
                    mistakes.append(str(mistake))
                    goes_on = goes_on and block.language != "console"
                except (ValueError, SyntaxError) as error:  # of json and ast
                    mistakes.append(f"{block.where}: {error}")
            if not arguments.machine:
                for where, text in documents.inline_commands(document):
                    try:
                        known.check(where, text)
                    except Mistake as mistake:
                        mistakes.append(str(mistake))
                mistakes += links.broken_links(document)
        except Mistake as mistake:
            mistakes.append(str(mistake))
        finally:
            place.close()
    for mistake in mistakes:
        print(mistake)
    print(f"{tried} blocks tried, {len(mistakes)} mistakes")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
