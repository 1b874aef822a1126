"""Shell text: Python inside heredocs and `python -c`, and the dump hooks' command-line parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from codemods.engine.context import SourceFile
from codemods.engine.tree import Span
from codemods.rules.embedded import Piece

_HEREDOC = re.compile(r"<<(?P<tabs>-?)[ \t]*(?P<quote>[\"']?)(?P<word>\w+)(?P=quote)")
_PYTHON = re.compile(r"(?<![\w.-])(?:[\w./${}-]*/)?python[\d.]*(?![\w.-])(?P<arguments>[^\n|;&]*)")
_WRITES_PYTHON = re.compile(r">\s*[\"']?[\w./${}-]+\.py\b")
_COMMAND = re.compile(
    r"(?<![\w.-])python[\d.]*(?:[ \t]+-[A-Zbdiqsuvx]+)*[ \t]+-c[ \t]+(?P<quote>[\"'])"
)
_EXPANSION = re.compile(r"\$\{\w+\}|\$\w+")
_KEY_END = re.compile(r"[\"']?[ \t]*:(?:\s|\Z)")
_CONTINUED = re.compile(r"[ \t]*\\\r?\n\Z")
_ITEM_BEFORE = re.compile(r"(?:[\[(]|,[ \t]*\r?\n)(?:\s|//[^\n]*\n)*\Z")
_SETS_VARIABLES = re.compile(
    r"(?:\A|[;&|]|\s)(?:export|declare|local|readonly|typeset)[ \t][^;&|]*\Z"
)
_DUMP_WORD = re.compile(r"(?<![\w$.{/-])(?:--)?argus_dump_\w+")


def python_pieces(text: str) -> Iterator[tuple[Piece, Span]]:
    """Python in heredocs and behind `python -c`, each with the span of its text in the host."""
    yield from _heredocs(text)
    yield from _commands(text)


def _heredocs(text: str) -> Iterator[tuple[Piece, Span]]:
    for found in _HEREDOC.finditer(text):
        line_start = text.rfind("\n", 0, found.start()) + 1
        line_end = text.find("\n", found.end())
        if line_end == -1:
            continue
        line = text[line_start:line_end]
        if not _reads_python(line[: found.start() - line_start], line[found.end() - line_start :]):
            continue
        stop = re.compile(rf"^[ \t]*{found['word']}[ \t]*$", re.MULTILINE).search(
            text, line_end + 1
        )
        if stop is None:
            continue
        span = (line_end + 1, stop.start())
        yield _dedented(text, span, expands=not found["quote"]), span


def _reads_python(before: str, after: str) -> bool:
    if _WRITES_PYTHON.search(before) or _WRITES_PYTHON.search(after):
        return True
    commands = list(_PYTHON.finditer(before))
    if not commands:
        return False
    arguments = commands[-1]["arguments"].split()
    return (
        not arguments or arguments[0] == "-" or (arguments[0].startswith("-") and "-" in arguments)
    )


def _dedented(text: str, span: Span, expands: bool) -> Piece:
    lines = text[span[0] : span[1]].splitlines(keepends=True)
    indents = [len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()]
    indent = min(indents, default=0)
    first = next((line for line in lines if line.strip()), "")
    piece, at = Piece(prefix=first[:indent]), span[0]
    for line in lines:
        kept = line[indent:] if line.strip() else line.lstrip(" \t")
        piece.add(kept, at + len(line) - len(kept))
        at += len(line)
    if expands:
        mask_expansions(piece)
    return piece


def mask_expansions(piece: Piece) -> None:
    """Put names of the same length where the shell would fill in variables."""

    def mask(found: re.Match[str]) -> str:
        placeholder = re.sub(r"\W", "_", found.group())
        piece.masks[placeholder] = found.group()
        return placeholder

    piece.text = _EXPANSION.sub(mask, piece.text)


def _commands(text: str) -> Iterator[tuple[Piece, Span]]:
    for found in _COMMAND.finditer(text):
        start, quote = found.end(), found["quote"]
        piece, position = Piece(), start
        while position < len(text) and text[position] != quote:
            if (
                quote == '"'
                and text[position] == "\\"
                and text[position + 1 : position + 2] in '"\\$`\n'
            ):
                if text[position + 1] != "\n":
                    piece.add_escaped(text[position + 1], position, position + 2)
                position += 2
                continue
            piece.add(text[position], position)
            position += 1
        if position == len(text):
            continue
        piece.one_line = "\n" not in piece.text
        if quote == '"':
            mask_expansions(piece)
            piece.escape = _double_quoted
        else:
            piece.escape = _single_quoted
        yield piece, (start, position)


def _double_quoted(new: str, start: int, end: int) -> tuple[str, int, int]:
    # Expansions come back from their placeholders, so `$` before a name is the shell's own.
    return re.sub(r'([\\"`])', r"\\\1", new), start, end


def _single_quoted(new: str, start: int, end: int) -> tuple[str, int, int]:
    return new.replace("'", "'\"'\"'"), start, end


# Parameters of the dump hooks -------------------------------------------------------------------------


def _word_end(text: str, position: int, closers: str) -> int:
    """Where the shell word that goes on at `position` ends; `closers` end it too."""
    quote = ""
    line_start = text.rfind("\n", 0, position) + 1
    if text.count("`", line_start, position) % 2:
        closers += "`"
    while position < len(text):
        char = text[position]
        if quote:
            if char == "\\" and quote == '"':
                position += 1
            elif char == quote:
                quote = ""
            elif char == "\n":
                break
        elif char in closers or char in " \t\r\n;|&)#":
            break
        elif char == "\\":
            if text[position + 1 : position + 3].startswith(("\n", "\r\n")):
                break
            position += 1
        elif char in "\"'":
            quote = char
        elif char == "$" and text[position + 1 : position + 2] in ("(", "{"):
            position = _balanced(text, position + 1)
            continue
        elif char == "`":
            position = text.find("`", position + 1)
            if position == -1:
                return len(text)
        position += 1
    return position


def _balanced(text: str, position: int) -> int:
    opener = text[position]
    closer = {"(": ")", "{": "}"}[opener]
    depth = 0
    while position < len(text):
        if text[position] == opener:
            depth += 1
        elif text[position] == closer:
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return position


def _open_quote(line: str) -> str:
    """The quote that is open at the end of `line`, "" if none."""
    quote, position = "", 0
    while position < len(line):
        char = line[position]
        if char == "\\" and quote != "'":
            position += 1
        elif quote:
            if char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        position += 1
    return quote


def dump_parameters(file: SourceFile, rule: str, start: int, end: int, keys: bool = True) -> None:
    """Remove `argus_dump_*=…` words from command lines and argument lists between `start` and `end`.

    A word on a continuation line of its own goes with its line; where it was the last one, the `\\`
    before it goes too. An assignment of a shell variable, and a word whose value stands in the next
    word, are listed.

    Args:
        keys: whether `name:` is listed too (not where the file's keys have been looked at).
    """
    text = file.text
    words: list[Span] = []
    for found in _DUMP_WORD.finditer(text, start, end):
        if not keys and _KEY_END.match(text, found.end()):
            continue
        word = _word(file, rule, found, text)
        if word is None:
            continue
        if words and not text[words[-1][1] : word[0]].strip(" \t"):
            words[-1] = (words[-1][0], word[1])  # neighbours go together, with what is between them
        else:
            words.append(word)
    for begin, stop in words:
        _remove_span(file, rule, begin, stop)


def _word(file: SourceFile, rule: str, found: re.Match[str], text: str) -> Span | None:
    """The whole word of a parameter; None where it is dealt with already (an item of a list), or listed."""
    begin, stop = found.span()
    todo = "take it out by hand; the migrated tree has no dump hooks"
    if text[stop : stop + 1] != "=":
        reason = "a parameter of the dump hooks that is no `name=value` word"
        file.site(rule, (begin, stop), reason, todo)
        return None
    quoted = text[begin - 1 : begin] if text[begin - 1 : begin] in ("'", '"') else ""
    before = text[begin - 2 : begin - 1] if begin > 1 else "\n"
    if quoted and (before in " \t\n([,=-" or begin == 1):
        stop = text.find(quoted, stop)
        if stop == -1:
            file.site(rule, found.span(), "its quotes do not close", todo)
            return None
        value = text.find("=", begin) + 1
        if _one_word(text[value:stop], before):  # the whole word is quoted
            begin, stop = begin - 1, stop + 1
        elif text[value] == "[" and "]" in text[value:stop]:
            stop = _word_end(text, text.index("]", value), quoted)
        else:
            stop = _word_end(text, begin, quoted)
    else:
        line_start = text.rfind("\n", 0, begin) + 1
        closers = _statement_quote(text, line_start, begin)
        if not closers and re.search(r"[\[,]\s*\Z", text[max(0, begin - 200) : begin]):
            closers = ",]"  # an item of a flow list
        stop = _word_end(text, stop + 1, closers)
    if remove_item(file, rule, begin, stop):
        return None
    return begin, stop - 1 if text[stop - 1 : stop] == "," else stop


def _one_word(value: str, before: str) -> bool:
    """Whether the value of a quoted parameter is the rest of its quotes, and not one of several words in them."""
    if not re.search(r"\s", value):
        return True
    if before == "=":
        return False
    return bool(re.fullmatch(r"\[[^\]]*\]", value)) or not re.search(
        r"\s(?:-|\S*=|\S*python)", value
    )


def _statement_quote(text: str, line_start: int, begin: int) -> str:
    """The quote that is open at `begin`, looking back over continued lines."""
    first = line_start
    for _ in range(200):
        previous = text.rfind("\n", 0, first - 1) + 1 if first else 0
        if first == 0 or not re.search(r"\\\r?\n\Z", text[previous:first]):
            break
        first = previous
    return _open_quote(text[first:begin])


def remove_item(file: SourceFile, rule: str, begin: int, stop: int) -> bool:
    """Remove an item of a YAML, TOML or JSON list; False when it stands in none."""
    text = file.text
    line_start = text.rfind("\n", 0, begin) + 1
    line_end = text.find("\n", stop)
    line_end = len(text) if line_end == -1 else line_end + 1
    if re.fullmatch(r"[ \t]*-[ \t]+", text[line_start:begin]):
        rest = text[stop:line_end]
        if not rest.strip(" \t\r\n"):
            file.edit(rule, (line_start, line_end), "")
            return True
        if re.match(r"[ \t]+#", rest):  # the comment stays, on a line of its own
            dash = text.index("-", line_start)
            file.edit(rule, (dash, stop + rest.index("#")), "")
            return True
    after = re.compile(r"\s*,[ \t]*").match(text, stop)
    before = re.compile(r",\s*\Z").search(text[max(0, begin - 200) : begin])
    opens = _opens_list(text, begin)
    listed = text[begin - 1 : begin] == "[" or before is not None or opens
    closes = re.compile(r"\s*\]" if opens else r"\]").match(text, stop)
    if not listed or not (after or before or closes):
        return False
    alone = not text[line_start:begin].strip()
    if after is not None:
        alone = alone and text[after.end() : line_end].strip() == ""
        span = (line_start, line_end) if alone else (begin, after.end())
        file.edit(rule, span, "")
        return True
    alone = alone and not text[stop:line_end].strip()
    comma = _last_kept_comma(file, rule, begin) if before is not None else None
    if comma is not None and comma[1] == begin and not alone:
        begin = comma[0]
    elif comma is not None:
        gap = text[comma[0] + 1 : comma[1]]
        file.edit(rule, (comma[0], comma[0] + 1 if "\n" in gap else comma[1]), "")
    file.edit(rule, (line_start, line_end) if alone else (begin, stop), "")
    return True


def _last_kept_comma(file: SourceFile, rule: str, begin: int) -> Span | None:
    """The comma before a removed last item, to where the removed items begin; there may be more than one."""
    text = file.text
    while (found := re.search(r",\s*\Z", text[max(0, begin - 400) : begin])) is not None:
        comma = begin - len(found.group())
        taken = [e for e in file.edits if e.rule == rule and e.start <= comma < e.end]
        if not taken:
            return comma, begin
        begin = taken[0].start
    return None


def _opens_list(text: str, begin: int) -> bool:
    """Whether a quoted item is the first of its list, or stands behind a comment in one."""
    opened = _ITEM_BEFORE.search(text[max(0, begin - 400) : begin])
    return opened is not None and text[begin : begin + 1] in ("'", '"')


def _remove_span(file: SourceFile, rule: str, begin: int, stop: int) -> None:
    text = file.text
    line_start = text.rfind("\n", 0, begin) + 1
    newline = text.find("\n", stop)
    line_end = len(text) if newline == -1 else newline
    lead, rest = text[line_start:begin], text[stop:line_end].rstrip("\r")
    comment = re.fullmatch(r"[ \t]*#[ \t]*", lead) is not None
    if re.fullmatch(r"[ \t]*", lead) or comment:
        continued = re.fullmatch(r"[ \t]*\\[ \t]*", rest) is not None
        if continued:
            file.edit(rule, (line_start, min(line_end + 1, len(text))), "")
            return
        previous = _CONTINUED.search(text, max(0, line_start - 200), line_start)
        if previous is not None and not rest.strip(" \t\"')"):
            # The last word of the command: the continuation before it goes too.
            end = stop + len(rest) if not rest.strip() else stop
            file.edit(rule, (_continuation_start(text, line_start), end), "")
            return
        if previous is not None:  # more of the command follows on this line
            gap = len(rest) - len(rest.lstrip(" \t"))
            file.edit(rule, (begin, stop + gap), "")
            return
        if not rest.strip(" \t;") or not re.match(r"[ \t]+\S", rest):
            if comment:
                file.edit(rule, (line_start, min(line_end + 1, len(text))), "")
                return
            if _inside_brackets(text, line_start):
                file.edit(rule, (line_start, min(line_end + 1, len(text))), "")
                return
        if not comment and not _inside_brackets(text, line_start):
            file.site(
                rule,
                (begin, stop),
                "it begins a line, so it may set a variable that is used elsewhere",
                "take it out by hand, with its uses",
            )
            return
        file.edit(rule, (begin, stop + len(rest) - len(rest.lstrip(" \t"))), "")
        return
    if _SETS_VARIABLES.search(lead):
        file.site(
            rule,
            (begin, stop),
            "it sets a shell variable, which may be used elsewhere",
            "take it out by hand, with its uses",
        )
        return
    gap = len(lead) - len(lead.rstrip(" \t"))
    if gap:
        file.edit(rule, (begin - gap, stop), "")
    else:
        file.edit(rule, (begin, stop + len(rest) - len(rest.lstrip(" \t"))), "")


def _continuation_start(text: str, line_start: int) -> int:
    """Where the ` \\` begins that continues the line before; over removed lines in between too."""
    start = line_start
    while True:
        previous = _CONTINUED.search(text, max(0, start - 200), start)
        if previous is None:
            return start
        line = text.rfind("\n", 0, previous.start()) + 1
        if not re.fullmatch(r"[ \t]*(?:--)?argus_dump_\w+=\S*", text[line : previous.start()]):
            return previous.start()
        start = line


def _inside_brackets(text: str, position: int) -> bool:
    """Whether the line at `position` is inside an array `( … )` that an earlier line opened."""
    opened = re.compile(r"\w\+?=\([^()]*\Z").search(text, max(0, position - 4000), position)
    return opened is not None
