# SPDX-License-Identifier: Apache-2.0
"""Checks commands that cannot be run here: their subcommands, options and units exist."""

import os
import re
import shlex
import subprocess

from blocks import Mistake


PROGRAMS = ("gpumemctl", "gpumemd", "gpumem-keeper", "gpumem-web")


class Known:
    def __init__(self, programs, script, units):
        self._programs = programs
        self._script = script  # `run`
        self._units = {name for _, _, names in os.walk(units) for name in names}
        self._help = {}

    def check(self, where, text):
        """Raises Mistake if a command in this text uses a name that does not exist."""
        try:
            lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
        except ValueError as error:
            raise Mistake(f"{where}: {error}: {text}") from error
        command = []
        for word in [*words, ";"]:
            if re.fullmatch(r"[;&|()]+", word):
                self._check_one(where, text, command)
                command = []
            else:
                command.append(word)

    def _check_one(self, where, text, words):
        while words and (words[0] == "sudo" or re.match(r"[A-Z_]+=", words[0])):
            words = words[1:]
        if not words:
            return
        program, words = os.path.basename(words[0]), words[1:]
        if program in PROGRAMS:
            self._check_program(where, text, program, words)
        elif program == "run" and self._script:
            if words and words[0] not in ("…", "COMMAND"):
                if not re.search(rf"^  {re.escape(words[0])}\b", self._ask(["bash", self._script, "help"]), re.M):
                    raise Mistake(f"{where}: ./run knows no \"{words[0]}\": {text}")
        elif program in ("docker", "kubectl", "podman") and "exec" in words:
            inside = [number for number, word in enumerate(words) if word in PROGRAMS]
            if inside:
                self._check_program(where, text, words[inside[0]], words[inside[0] + 1:])
        elif program in ("docker", "podman") and words[:1] == ["run"]:
            image = [number for number, word in enumerate(words) if re.match(r"gpumem:\d", word)]
            if image:
                # Without another entry point it runs the daemon.
                started = words[words.index("--entrypoint") + 1] if "--entrypoint" in words else "gpumemd"
                self._check_one(where, text, [started, *words[image[0] + 1:]])
        elif program == "systemctl":
            for word in words[1:]:
                unit = word if "." in word else word + ".service"
                if word.startswith("gpumem") and "*" not in word and unit not in self._units:
                    raise Mistake(f"{where}: there is no unit {word}: {text}")

    def _check_program(self, where, text, program, words):
        usage, level = self._usage(program, ()), ()
        everywhere = usage
        for number, word in enumerate(words):
            if word in (">", "<", ">>", "--"):
                # Arguments after -- are another command's.
                if word == "--":
                    self._check_one(where, text, words[number + 1:])
                break
            if re.match(r"--|-[A-Za-z]", word):
                # Of short options only the first letter: a value or others may follow.
                option = re.escape(re.split(r"[=|]", word)[0] if word.startswith("--") else word[:2])
                if not any(re.search(rf"(?<![\w-]){option}(?![\w-])", each) for each in (usage, everywhere)):
                    raise Mistake(f"{where}: {' '.join((program, *level))} has no {word}: {text}")
            elif self._has(usage, word):
                level += (word,)
                usage = self._usage(program, level)
            elif self._subcommands(usage) and not self._is_value(words, number, word):
                raise Mistake(f"{where}: {' '.join((program, *level))} knows no \"{word}\": {text}")

    @staticmethod
    def _subcommands(usage):
        """The names in the groups of commands."""
        groups = re.findall(r"^(?:Other c|C)ommands\b[^\n]*:\n((?:  .*\n)+)", usage, re.M)
        return re.findall(r"^  ([a-z][a-z-]*)\s", "".join(groups), re.M)

    @classmethod
    def _has(cls, usage, word):
        return word in cls._subcommands(usage)

    @staticmethod
    def _is_value(words, number, word):
        return (number > 0 and re.match(r"--|-[a-z]$", words[number - 1])) or not re.match(r"[a-z]", word)

    def _usage(self, program, level):
        return self._ask([os.path.join(self._programs, program), *level, "--help"])

    def _ask(self, arguments):
        key = tuple(arguments)
        if key not in self._help:
            self._help[key] = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                             check=False).stdout
        return self._help[key]
