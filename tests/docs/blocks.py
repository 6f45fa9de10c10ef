# SPDX-License-Identifier: Apache-2.0
"""The testable parts of a Markdown document: its fenced blocks, their commands, and the commands
inside sentences.

A block's first word is its language, which decides the test (languages in check_docs.py). In a
`console` block:
- A line that begins with `$ ` or, for root, `# ` is a command. Lines that begin with `> ` continue
  it.
- The lines after it are its output, with `…` for anything. Without any, every output passes.
- A last line `[5]` is the exit code, if that is not 0.
(So it is with cram, which knows neither Markdown nor a wildcard over several lines.) Output is
compared word by word: the columns of a table may be wider.

An HTML comment that begins with `<!-- console` is such a block, too, which readers do not see: it
prepares for the others. `<!-- cpp` holds the code that a piece of C++ needs around it to compile.
"""

import dataclasses
import re
import textwrap


@dataclasses.dataclass
class Block:
    document: str
    line: int       # of the fence
    language: str
    marks: list     # the words after it
    text: str
    hidden: bool = False

    @property
    def where(self):
        return f"{self.document}:{self.line}"


@dataclasses.dataclass
class Command:
    where: str
    root: bool
    text: str
    output: str
    code: int = 0


class Mistake(Exception):
    """Something in a document is not as it has to be."""


def read_blocks(path):
    """All blocks of a document, hidden ones as well."""
    blocks, fence, start, body = [], None, 0, []
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for number, line in enumerate(lines, 1):
        if fence is None:
            opening = re.match(r"\s*(```)(.*)$|(<!--) (console.*|cpp.*)$", line)
            if opening:
                fence = "```" if opening[1] else "-->"
                words = (opening[2] or opening[4] or "").split()
                start, body = number, []
        elif line.strip() == fence:
            text = textwrap.dedent("\n".join(body) + "\n")
            blocks.append(Block(path, start, words[0] if words else "", words[1:], text,
                                hidden=fence == "-->"))
            fence = None
        else:
            body.append(line)
    if fence is not None:
        raise Mistake(f"{path}:{start}: this block has no end")
    return blocks


def read_commands(block):
    """The commands of a console block."""
    commands = []
    for offset, line in enumerate(block.text.split("\n")[:-1], 1):
        if line[:2] in ("$ ", "# "):
            commands.append(Command(f"{block.document}:{block.line + offset}", line[0] == "#",
                                    line[2:], ""))
        elif not commands:
            raise Mistake(f"{block.where}: output comes before the first command: {line}")
        elif line[:2] == "> " and not commands[-1].output:
            commands[-1].text += "\n" + line[2:]
        elif re.fullmatch(r"\[\d+\]", line):
            commands[-1].code = int(line[1:-1])
        else:
            commands[-1].output += line + "\n"
    if not commands:
        raise Mistake(f"{block.where}: a console block without a command: none begins with '$ ' or '# '")
    return commands


def matches(expected, output):
    """True if they are equal except for blanks; `…` stands for any text."""
    pattern = re.escape(f" {' '.join(expected.split())} ")
    # Words that it stands for may be none.
    pattern = pattern.replace("\\ …\\ ", "\\ (?:.*\\ )?").replace("…", ".*")
    return re.fullmatch(pattern, f" {' '.join(output.split())} ", re.S) is not None


def check_result(command, output, code):
    """Compares a command's result with the document. Raises Mistake."""
    if code != command.code:
        raise Mistake(f"{command.where}: exit code {code}, and not {command.code}, of: {command.text}\n"
                      + textwrap.indent(output, "    "))
    if command.output and not matches(command.output, output):
        raise Mistake(f"{command.where}: {command.text}\n  should write\n"
                      + textwrap.indent(command.output, "    ") + "  and writes\n"
                      + textwrap.indent(output, "    "))


def inline_commands(path):
    """Commands in `…` inside sentences and tables, as (where, text)."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    # Blocks and comments are blanked, so that lines keep their numbers.
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])
    text = re.sub(r"^\s*```.*?^\s*```$|<!--.*?-->", blank, text, flags=re.M | re.S)
    for match in re.finditer(r"`((?:sudo )?(?:gpumemctl|gpumemd|gpumem-keeper|systemctl|\./run)\b[^`]*)`", text):
        yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}", " ".join(match[1].split())
