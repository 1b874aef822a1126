"""Python that lies inside another text: heredocs, `python -c`, Markdown blocks, notebook cells.

A `Piece` is the embedded code as Python sees it, with the place of every character in the host. All
Python rules run over it as over a file; their edits and sites are carried back into the host's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from codemods.engine.context import PythonFile, SourceFile
from codemods.engine.edits import Edit
from codemods.engine.tree import UnparsableError

# How a replacement is written in the host: (new text, host start, host end) → (text, start, end).
Escape = Callable[[str, int, int], tuple[str, int, int]]


def plain(new: str, start: int, end: int) -> tuple[str, int, int]:
    """The host writes Python as it is."""
    return new, start, end


@dataclass
class Piece:
    """A piece of embedded text.

    Attributes:
        text: what the inner language sees.
        starts, ends: host offsets of the start and the end of each character of `text`.
        escape: how replacements are written in the host.
        masks: placeholder → what stands in the host for it (shell expansions of the same length).
        prefix: what the host writes before each line of the piece (indentation, `> `, `>>> `).
        one_line: whether it has to stay on one line, so that statements are parted by `;`.
    """

    text: str = ""
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    escape: Escape = plain
    masks: dict[str, str] = field(default_factory=dict)
    prefix: str = ""
    one_line: bool = False

    def add(self, text: str, start: int) -> None:
        """Append text that stands in the host as it is, from `start` on."""
        self.text += text
        self.starts.extend(range(start, start + len(text)))
        self.ends.extend(range(start + 1, start + len(text) + 1))

    def add_escaped(self, char: str, start: int, end: int) -> None:
        """Append one character that the host writes as its text from `start` to `end`."""
        self.text += char
        self.starts.append(start)
        self.ends.append(end)

    def host_span(self, start: int, end: int) -> tuple[int, int]:
        """Where the characters from `start` to `end` of the piece lie in the host."""
        if end > start:
            return self.starts[start], self.ends[end - 1]
        if start > 0 and (start == len(self.text) or self.text[start - 1] != "\n"):
            return self.ends[start - 1], self.ends[start - 1]
        at = self.starts[start] if self.starts else 0
        return at, at

    def bring_back(self, inner: SourceFile, host: SourceFile, name: str) -> None:
        """Carry the edits and sites of `inner` (a file made of this piece) over into `host`.

        Args:
            name: tells the pieces of one host apart, so that their groups do not mix.
        """
        for edit in inner.edits:
            start, end = self.host_span(edit.start, edit.end)
            old, new = self.text[edit.start : edit.end], edit.new
            if any(old.count(mask) != new.count(mask) for mask in self.masks):
                host.site(
                    edit.rule,
                    (start, end),
                    "the shell expands a variable inside this embedded Python",
                    f"change by hand to: {new.strip()}",
                )
                continue
            for mask, original in self.masks.items():
                new = new.replace(mask, original)
            if self.one_line:
                new = re.sub(r"\n[ \t]*", "; ", new)
            elif self.prefix:
                new, start = self._with_prefix(edit, new, start)
            new, start, end = self.escape(new, start, end)
            group = f"{name}:{edit.group}" if edit.group else ""
            host.edits.append(Edit(start, end, new, edit.rule, edit.reason, group))
        for site in inner.sites:
            host.site(site.rule, self.host_span(site.start, site.end), site.reason, site.todo)

    def _with_prefix(self, edit: Edit, new: str, start: int) -> tuple[str, int]:
        """The replacement and where it starts, with the host's prefix before every line that is new."""
        text = self.text
        whole_lines = text[edit.end - 1 : edit.end] == "\n" and (
            edit.start == 0 or text[edit.start - 1] == "\n"
        )
        if whole_lines and edit.end > edit.start and (not new or new.endswith("\n")):
            lines = new.splitlines(keepends=True)
            return "".join(self.prefix + line for line in lines), start - len(self.prefix)
        head, mark, tail = new.rpartition("\n")
        if mark and not tail:
            return head.replace("\n", f"\n{self.prefix}") + mark, start
        return new.replace("\n", f"\n{self.prefix}"), start


def run(host: SourceFile, piece: Piece, name: str) -> UnparsableError | None:
    """Run all Python rules over a piece and carry what they find back into the host.

    Returns:
        None; or why the piece is no Python that can be rewritten (then nothing was done).
    """
    from codemods.rules import run_python  # it needs this family too

    try:
        inner = PythonFile(host.path, piece.text, host.project)
    except UnparsableError as problem:
        return problem
    run_python(inner)
    piece.bring_back(inner, host, name)
    return None
