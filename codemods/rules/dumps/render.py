"""From what goes to text edits: lines, commas, brackets, comments and indentation."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Sequence

from codemods.engine.edits import Edit
from codemods.rules.dumps.code import Code, Span, Token
from codemods.rules.dumps.questions import RESULT, Finding, Operation, is_elif, spreads

_PRECEDENCE: dict[type, int] = {
    ast.Or: 3,
    ast.And: 4,
    ast.Not: 5,
    ast.BitOr: 7,
    ast.BitXor: 8,
    ast.BitAnd: 9,
    ast.LShift: 10,
    ast.RShift: 10,
    ast.Add: 11,
    ast.Sub: 11,
    ast.Mult: 12,
    ast.Div: 12,
    ast.FloorDiv: 12,
    ast.Mod: 12,
    ast.MatMult: 12,
    ast.USub: 13,
    ast.UAdd: 13,
    ast.Invert: 13,
    ast.Pow: 14,
}
_ATOM = 16


def precedence(node: ast.expr) -> int:
    """How tightly an expression binds (language reference, 6.17)."""
    if isinstance(node, (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Starred)):
        return 0
    if isinstance(node, ast.Lambda):
        return 1
    if isinstance(node, ast.IfExp):
        return 2
    if isinstance(node, ast.Compare):
        return 6
    if isinstance(node, (ast.BoolOp, ast.BinOp, ast.UnaryOp)):
        return _PRECEDENCE[type(node.op)]
    if isinstance(node, ast.Await):
        return 15
    return _ATOM


def needed(parent: ast.AST | None, child: ast.expr) -> int:
    """The precedence that an expression in the place of `child` must have to stand without brackets."""
    if isinstance(parent, ast.BinOp):
        own = _PRECEDENCE[type(parent.op)]
        if isinstance(parent.op, ast.Pow):
            return own + 1 if child is parent.left else 13
        return own if child is parent.left else own + 1
    if isinstance(parent, ast.UnaryOp):
        return _PRECEDENCE[type(parent.op)]
    if isinstance(parent, ast.BoolOp):
        return _PRECEDENCE[type(parent.op)] + 1
    if isinstance(parent, ast.Compare):
        return 7
    if isinstance(parent, ast.IfExp):
        return 1 if child is parent.orelse else 3
    if isinstance(parent, (ast.Attribute, ast.Await, ast.FormattedValue)):
        return _ATOM
    if isinstance(parent, ast.Subscript):
        return _ATOM if child is parent.value else 1
    if isinstance(parent, ast.Call):
        return _ATOM if child is parent.func else 1
    if isinstance(parent, (ast.Starred, ast.Dict)):
        return 7
    if isinstance(parent, (ast.comprehension, ast.Slice)):
        return 3
    return 1


class Renderer:
    """Edits of one file."""

    def __init__(self, file: Code, operations: Sequence[Operation]) -> None:
        self.file = file
        self.cuts: list[tuple[int, int, str, str]] = []
        self.replacements: list[tuple[int, int, str, str, str]] = []
        self.lines: dict[int, tuple[str, str]] = {}
        self.findings: list[Finding] = []
        self.rule = self.reason = ""
        self._removed = {o.nodes[0] for o in operations if o.kind in ("remove_statement", "fill")}
        self._filled = {o.nodes[0] for o in operations if o.kind == "fill"}
        self._kept = {o.nodes[0]: o.nodes[1] for o in operations if o.kind == "keep_part"}
        for operation in operations:
            self.rule, self.reason = operation.rule, operation.reason
            getattr(self, operation.kind)(operation)

    # Primitives -----------------------------------------------------------------------------------

    def cut(self, start: int, end: int) -> None:
        """Remove a span; comments in it are listed."""
        if start >= end:
            return
        self.cuts.append((start, end, self.rule, self.reason))
        for comment in self.file.comments_in(start, end):
            self.lost(comment)

    def lost(self, comment: Token) -> None:
        self.findings.append(
            Finding(
                self.file.tree,
                f"this comment stood in removed code: {comment.text}",
                "keep what it says, if it matters, where it belongs now",
                (comment.start, comment.end),
            )
        )

    def replace(self, start: int, end: int, new: str) -> None:
        self.replacements.append((start, end, new, self.rule, self.reason))

    def erase(self, start: int, end: int, indent: str) -> None:
        """Remove all lines from the one of `start` to the one of `end`; comments stay, at `indent`."""
        file = self.file
        for line in range(file.line_of(start), file.line_of(max(start, end - 1)) + 1):
            first, last = file.line_span(line)
            comments = file.comments_in(first, last)
            if comments:
                text = file.text[first:last]
                white = len(text) - len(text.lstrip(" \t\f"))
                begin = first + min(white, len(indent))
                if begin < comments[0].start:
                    self.cuts.append((begin, comments[0].start, self.rule, self.reason))
            else:
                self.lines.setdefault(line, (self.rule, self.reason))

    def starts_line(self, offset: int) -> bool:
        """Whether only white space stands before an offset on its line."""
        first, _ = self.file.line_span(self.file.line_of(offset))
        return not self.file.text[first:offset].strip()

    def same_line(self, one: int, other: int) -> bool:
        return self.file.line_of(one) == self.file.line_of(other)

    def start(self, node: ast.stmt) -> int:
        """Where a statement begins, decorators included."""
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.decorator_list
        ):
            at = self.file.previous_code(self.file.outer_span(node.decorator_list[0])[0])
            assert at is not None
            return at.start
        return self.file.span(node)[0]

    def keyword_before(self, word: str, offset: int) -> Token:
        """The nearest token `word` before an offset."""
        token = self.file.previous_code(offset)
        while token is not None and token.text != word:
            token = self.file.previous_code(token.start)
        assert token is not None
        return token

    def siblings(self, node: ast.stmt) -> list[ast.stmt]:
        parent = self.file.parents[node]
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and node in block:
                return block
        raise AssertionError("a statement stands in a block")

    def line_group(self, node: ast.stmt) -> list[ast.stmt]:
        """The statements that share a line with this one (`a; b`)."""
        block = self.siblings(node)
        first = last = block.index(node)
        while first and block[first - 1].end_lineno == block[first].lineno:
            first -= 1
        while last + 1 < len(block) and block[last].end_lineno == block[last + 1].lineno:
            last += 1
        return block[first : last + 1]

    # Statements -----------------------------------------------------------------------------------

    def remove_statement(self, operation: Operation) -> None:
        node = operation.nodes[0]
        assert isinstance(node, ast.stmt)
        group = self.line_group(node)
        if any(s in self._filled for s in group):
            return
        start, end = self.start(node), self.file.span(node)[1]
        if all(s in self._removed for s in group):
            if self.starts_line(self.start(group[0])):
                self.erase(start, end, self.file.indent(start))
            else:
                self.cut(start, end)
            return
        index = group.index(node)
        following = [s for s in group[index + 1 :] if s not in self._removed]
        if following:
            self.cut(start, self.start(group[index + 1]))
        else:
            self.cut(self.file.span(group[index - 1])[1], end)
            after = self.file.next_code(end)
            if after is not None and after.text == ";" and node is group[-1]:
                self.cut(end, after.end)

    def fill(self, operation: Operation) -> None:
        node = operation.nodes[0]
        assert isinstance(node, ast.stmt)
        group = self.line_group(node)
        start, end = self.start(node), self.file.span(group[-1])[1]
        first, last = self.file.line_span(self.file.line_of(start))
        stop = min(end, first + len(self.file.text[first:last].rstrip("\r\n")))
        comments = self.file.comments_in(start, stop)
        if comments:
            self.replace(start, comments[0].start, "pass  ")
        else:
            self.replace(start, stop, "pass")
        if not self.same_line(start, end):
            self.erase(last, end, self.file.indent(start))

    def keep_effects(self, operation: Operation) -> None:
        node = operation.nodes[0]
        assert isinstance(node, ast.stmt)
        position, end = self.file.span(node)
        for index, effect in enumerate(operation.items):
            assert isinstance(effect, ast.expr)
            start, stop = self.file.span(effect)
            if index:
                self.replace(position, start, "; ")
            else:
                self.cut(position, start)
            if isinstance(effect, ast.NamedExpr):
                walrus = self.keyword_before(":=", self.file.span(effect.value)[0])
                self.replace(walrus.start, walrus.end, "=")
            position = stop
        self.cut(position, end)

    def remove_decorator(self, operation: Operation) -> None:
        decorator = operation.items[0]
        assert isinstance(decorator, ast.expr)
        start, end = self.file.outer_span(decorator)
        at = self.keyword_before("@", start)
        for line in range(self.file.line_of(at.start), self.file.line_of(end - 1) + 1):
            self.lines.setdefault(line, (self.rule, self.reason))
            for comment in self.file.comments_in(*self.file.line_span(line)):
                self.lost(comment)

    # Blocks ---------------------------------------------------------------------------------------

    def _header_colon(self, node: ast.stmt, body: Sequence[ast.stmt]) -> Token:
        return self.keyword_before(":", self.start(body[0]))

    def _else(self, first: ast.stmt) -> tuple[Token, Token]:
        """The `else` and its colon before a block's first statement."""
        colon = self.keyword_before(":", self.start(first))
        return self.keyword_before("else", colon.start), colon

    def invert(self, operation: Operation) -> None:
        node = operation.nodes[0]
        assert isinstance(node, ast.If)
        file = self.file
        begin = file.span(node)[0]
        word = "elif" if file.text.startswith("elif", begin) else "if"
        start, end = file.outer_span(node.test)
        colon = self._header_colon(node, node.body)
        bracketed = (start, end) != file.span(node.test)
        if (
            isinstance(node.test, ast.UnaryOp)
            and isinstance(node.test.op, ast.Not)
            and not bracketed
        ):
            self.cut(start, file.outer_span(node.test.operand)[0])
        elif bracketed or precedence(node.test) >= 5:
            self.replace(begin, begin + len(word), f"{word} not")
        else:
            self.replace(begin, start, f"{word} not (")
            self.replace(end, colon.end, "):")
        word_else, colon_else = self._else(node.orelse[0])
        own_lines = self.starts_line(self.start(node.body[0])) and self.starts_line(
            self.start(node.orelse[0])
        )
        if own_lines and self.starts_line(word_else.start):
            comments = file.comments_in(*file.line_span(file.line_of(word_else.start)))
            if comments:
                extra = file.indent(self.start(node.orelse[0]))[len(file.indent(word_else.start)) :]
                self.replace(word_else.start, comments[0].start, extra)
            else:
                self.erase(word_else.start, colon_else.end, "")
        else:
            self.cut(colon.end, colon_else.end)

    def drop_else(self, operation: Operation) -> None:
        first = operation.items[0]
        assert isinstance(first, ast.stmt)
        block = self.siblings(first)
        if isinstance(operation.nodes[0], ast.If) and is_elif(self.file, operation.nodes[0]):
            start = self.file.span(first)[0]
        else:
            start = self._else(first)[0].start
        self.erase(start, self.file.span(block[-1])[1], self.file.indent(start))

    def keep_else(self, operation: Operation) -> None:
        node = operation.nodes[0]
        assert isinstance(node, ast.If)
        start = self.file.span(node)[0]
        own_elif = self.file.text.startswith("elif", start)
        first = node.orelse[0]
        if is_elif(self.file, node):
            begin = self.file.span(first)[0]
            self.cut(start, begin if own_elif else begin + 2)
            return
        word, colon = self._else(first)
        if own_elif:
            self.cut(start, word.start)
        else:
            self._hoist(start, word.start, colon, node.orelse)

    def keep_body(self, operation: Operation) -> None:
        node = operation.nodes[0]
        assert isinstance(node, (ast.If, ast.With, ast.AsyncWith))
        start, end = self.file.span(node)
        colon = self._header_colon(node, node.body)
        if isinstance(node, ast.If) and node.orelse:
            stop = self.file.span(node.body[-1])[1]
            tail = self.file.span(node.orelse[0])[0] if is_elif(self.file, node) else None
            begin = tail if tail is not None else self._else(node.orelse[0])[0].start
            if self.starts_line(begin):
                self.erase(begin, end, self.file.indent(start))
            else:
                self.cut(stop, end)
        if self.file.text.startswith("elif", start):
            self.replace(start, colon.end, "else:")
            return
        self._hoist(start, start, colon, node.body)

    def _hoist(self, start: int, head: int, colon: Token, body: Sequence[ast.stmt]) -> None:
        """Remove from `start` to the colon and move the block after it one level out."""
        file = self.file
        first = self.start(body[0])
        if self.same_line(colon.start, first) or not self.starts_line(first):
            self.cut(start, first)
            return
        outer, inner = file.indent(start), file.indent(first)
        self.erase(start, colon.end, outer)
        keep = self._string_lines(first, file.span(body[-1])[1])
        for line in range(file.line_of(colon.end) + 1, file.line_of(file.span(body[-1])[1]) + 1):
            begin, end = file.line_span(line)
            extra = len(inner) - len(outer)
            if (
                line not in keep
                and not file.text[begin + len(outer) : begin + len(outer) + extra].strip(" \t")
                and file.text[begin:end].strip()
            ):
                self.cuts.append(
                    (begin + len(outer), begin + len(outer) + extra, self.rule, self.reason)
                )

    def _string_lines(self, start: int, end: int) -> set[int]:
        """Lines that begin inside a string."""
        found: set[int] = set()
        opened = 0
        begin = start
        for token in self.file.tokens_in(start, end):
            if token.kind == tokenize.STRING:
                found.update(
                    range(self.file.line_of(token.start) + 1, self.file.line_of(token.end - 1) + 1)
                )
            elif token.kind == tokenize.FSTRING_START:
                begin = token.start if not opened else begin
                opened += 1
            elif token.kind == tokenize.FSTRING_END:
                opened -= 1
                if not opened:
                    found.update(
                        range(self.file.line_of(begin) + 1, self.file.line_of(token.end - 1) + 1)
                    )
        return found

    # Expressions ----------------------------------------------------------------------------------

    def keep_part(self, operation: Operation) -> None:
        outer, inner = operation.nodes
        assert isinstance(outer, ast.expr)
        assert isinstance(inner, ast.expr)
        file = self.file
        begin, end = file.span(outer)
        start, stop = file.outer_span(inner)
        final: ast.expr = inner
        while final in self._kept:
            part = self._kept[final]
            assert isinstance(part, ast.expr)
            final = part
        bracketed = (start, stop) != file.span(inner) or (begin, end) != file.outer_span(outer)
        if not isinstance(outer, ast.Call) or bracketed or stop == end:
            self.cut(begin, start)
            self.cut(stop, end)
            return
        parent: ast.AST | None = file.parents.get(outer)
        child: ast.expr = outer
        while parent is not None and self._kept.get(parent) is child:
            if isinstance(parent, ast.Call):  # it says whether there are brackets
                self.cut(begin, start)
                self.cut(stop, end)
                return
            assert isinstance(parent, ast.expr)
            child = parent
            parent = file.parents.get(child)
        number = isinstance(final, ast.Constant) and isinstance(final.value, (int, float, complex))
        if (
            precedence(final) < needed(parent, child)
            or spreads(file, final)
            or (number and isinstance(parent, ast.Attribute))
            or (
                isinstance(final, ast.Constant)
                and needed(parent, child) == _ATOM
                and _parts(file, final) > 1
            )
        ):
            bracket = file.next_code(file.outer_span(outer.func)[1])
            assert bracket is not None
            assert bracket.text == "("
            self.cut(begin, bracket.start)
            self.cut(bracket.end, start)
            self.cut(stop, end - 1)
        else:
            self.cut(begin, start)
            self.cut(stop, end)

    def drop_count(self, operation: Operation) -> None:
        """`for i, x in enumerate(xs):` becomes `for x in xs:`."""
        node = operation.nodes[0]
        assert isinstance(node, ast.For)
        assert isinstance(node.target, ast.Tuple)
        assert isinstance(node.iter, ast.Call)
        begin, end = self.file.outer_span(node.target)
        start, stop = self.file.outer_span(node.target.elts[1])
        self.cut(begin, start)
        self.cut(stop, end)
        begin, end = self.file.span(node.iter)
        start, stop = self.file.outer_span(node.iter.args[0])
        self.cut(begin, start)
        self.cut(stop, end)

    def remove_operands(self, operation: Operation) -> None:
        node = operation.nodes[0]
        assert isinstance(node, ast.BoolOp)
        spans = [self.file.outer_span(v) for v in node.values]
        self._remove(spans, [v in operation.items for v in node.values], separated=False)

    def remove_items(self, operation: Operation) -> None:
        node = operation.nodes[0]
        file = self.file
        items: list[ast.AST]
        spans: list[Span]
        if isinstance(node, ast.Call):
            given: list[tuple[Span, ast.AST]] = [(file.outer_span(a), a) for a in node.args]
            for keyword in node.keywords:
                given.append((self._keyword_span(keyword), keyword))
            given.sort(key=lambda entry: entry[0])
            items = [item for _, item in given]
            spans = [span for span, _ in given]
        elif isinstance(node, ast.Dict):
            items = [k if k is not None else v for k, v in zip(node.keys, node.values, strict=True)]
            spans = []
            for key, value in zip(node.keys, node.values, strict=True):
                start, end = file.outer_span(value)
                start = (
                    self.keyword_before("**", start).start
                    if key is None
                    else file.outer_span(key)[0]
                )
                spans.append((start, end))
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            items = list(node.items)
            spans = [
                (
                    file.outer_span(i.context_expr)[0],
                    file.outer_span(
                        i.optional_vars if i.optional_vars is not None else i.context_expr
                    )[1],
                )
                for i in node.items
            ]
        elif isinstance(node, ast.Delete):
            items = list(node.targets)
            spans = [file.outer_span(t) for t in node.targets]
        else:
            assert isinstance(node, (ast.Tuple, ast.List))
            items = list(node.elts)
            spans = [file.outer_span(e) for e in node.elts]
        flags = [i in operation.items for i in items]
        if isinstance(node, ast.Tuple):
            self._remove_elements(spans, flags, collapse=operation.rule == RESULT)
        else:
            self._remove(spans, flags)

    def _keyword_span(self, node: ast.keyword) -> Span:
        return self.file.span(node)[0], self.file.outer_span(node.value)[1]

    def remove_parameters(self, operation: Operation) -> None:
        node = operation.nodes[0]
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        arguments = node.args
        file = self.file
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults: dict[ast.arg, ast.expr] = dict(
            zip(reversed(positional), reversed(arguments.defaults), strict=False)
        )
        for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if value is not None:
                defaults[argument] = value
        entries: list[tuple[Span, bool]] = []
        last = 0
        everything = [*positional, *arguments.kwonlyargs]
        stars = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        for argument in (*everything, *stars):
            start, end = file.span(argument)
            if argument in stars:
                word = "*" if argument is arguments.vararg else "**"
                start = self.keyword_before(word, start).start
            if argument in defaults:
                end = file.outer_span(defaults[argument])[1]
            entries.append(((start, end), argument in operation.items))
            last = max(last, end)
        for word, members in (("/", arguments.posonlyargs), ("*", arguments.kwonlyargs)):
            if not members or (word == "*" and arguments.vararg is not None):
                continue
            offset = file.span(members[-1])[1] if word == "/" else file.span(members[0])[0]
            if word == "/":
                token = file.next_code(offset)
                while token is not None and token.text != "/":
                    token = file.next_code(token.end)
            else:
                token = self.keyword_before("*", offset)
            assert token is not None
            entries.append(((token.start, token.end), all(m in operation.items for m in members)))
        entries.sort()
        self._remove([s for s, _ in entries], [f for _, f in entries])

    def _comma(self, end: int) -> int:
        """Where the comma after an offset ends; the offset if there is none."""
        after = self.file.next_code(end)
        return after.end if after is not None and after.text == "," else end

    def _remove_elements(self, spans: list[Span], flags: list[bool], collapse: bool) -> None:
        """Remove elements of a tuple; one that is left alone is a tuple still, unless `collapse`."""
        kept = [i for i, flag in enumerate(flags) if not flag]
        if len(kept) != 1:
            self._remove(spans, flags)
            return
        only = spans[kept[0]]
        if kept[0]:
            self.cut(spans[0][0], only[0])
        after = self._comma(only[1])
        self.cut(only[1] if collapse else after, self._comma(spans[-1][1]))
        if not collapse and after == only[1]:
            bracket = self.file.next_code(only[1])
            if bracket is not None:
                self.replace(bracket.start, bracket.end, f",{bracket.text}")

    def _remove(self, spans: list[Span], flags: list[bool], separated: bool = True) -> None:
        """Remove members of a list, with the commas (or operators) that go with them."""
        file = self.file
        kept = [i for i, flag in enumerate(flags) if not flag]

        def comma(end: int) -> int:
            return self._comma(end) if separated else end

        if not kept:
            self.cut(spans[0][0], comma(spans[-1][1]))
            return
        for index, flag in enumerate(flags):
            if not flag:
                continue
            start, end = spans[index]
            if index < kept[-1]:
                after = spans[index + 1][0]
                if self.starts_line(start) and not self.same_line(end, after):
                    self.erase(start, comma(end), file.indent(start))
                elif self.same_line(end, after) or not separated:
                    self.cut(start, after)
                else:
                    before = file.previous_code(start)
                    opens = before is None or before.text != ","
                    self.cut(start if opens else before.end, comma(end))  # type: ignore[union-attr]
                continue
            previous = spans[kept[-1]][1]
            closing = file.next_code(comma(end))
            own = self.starts_line(start) and (
                closing is None or not self.same_line(end, closing.start)
            )
            if own and separated:
                self.erase(start, comma(end), file.indent(start))
            elif file.comments_in(previous, start):
                self.cut(start, comma(end))
            else:
                self.cut(previous, end)

    # Together -------------------------------------------------------------------------------------

    def edits(self) -> list[Edit]:
        """All edits, none overlapping, in order."""
        removals = [*self.cuts, *self._line_cuts()]
        merged: list[list[object]] = []
        for start, end, rule, reason in sorted(removals, key=lambda r: (r[0], -r[1])):
            if merged and start < merged[-1][1]:  # type: ignore[operator]
                merged[-1][1] = max(merged[-1][1], end)  # type: ignore[call-overload]
            else:
                merged.append([start, end, rule, reason])
        edits = [Edit(int(s), int(e), "", str(r), str(w)) for s, e, r, w in merged]  # type: ignore[call-overload]
        for start, end, new, rule, reason in self.replacements:
            if not any(e.start <= start and end <= e.end for e in edits):
                edits.append(Edit(start, end, new, rule, reason))
        return sorted(edits, key=lambda e: (e.start, e.end))

    def _line_cuts(self) -> list[tuple[int, int, str, str]]:
        """Whole lines that go, with the blank lines that would be too many."""
        file = self.file
        found: list[tuple[int, int, str, str]] = []

        def blank(line: int) -> bool:
            start, end = file.line_span(line)
            return not file.text[start:end].strip()

        lines = sorted(self.lines)
        index = 0
        while index < len(lines):
            first = last = lines[index]
            owner = self.lines[first]
            while True:
                index += 1
                if index >= len(lines):
                    break
                between = range(last + 1, lines[index])
                if not all(blank(line) for line in between):
                    break
                last = lines[index]
            # Blank lines inside the run go; around it the longer row of blank lines stays.
            before = after = 0
            while first - before - 1 >= 0 and blank(first - before - 1):
                before += 1
            end_of_file = file.line_count - 1
            while last + after + 1 <= end_of_file and blank(last + after + 1):
                after += 1
            top = first - before == 0
            ends = last + after >= end_of_file
            begins_block = not top and self._opens_block(first - before - 1)
            if ends and last + after + 1 > end_of_file:
                start_line, end_line = first - before, last
            elif begins_block or top or after <= before:
                start_line, end_line = first, last + after
            else:
                start_line, end_line = first - before, last
            inside = set(range(first, last + 1)) - set(self.lines)
            kept: int | None = None
            if inside and before == 0 and after == 0 and not begins_block and not top:
                kept = max(
                    inside
                )  # a blank line between removed statements parts what stands around them
            row: list[int] = []
            for line in [*range(start_line, end_line + 1), None]:
                rule = self.lines.get(line, owner) if line is not None else None
                if row and (rule is None or line == kept or rule != owner):
                    found.append((file.line_span(row[0])[0], file.line_span(row[-1])[1], *owner))
                    row = []
                if line is not None and rule is not None and line != kept:
                    owner = rule
                    row.append(line)
        return found

    def _opens_block(self, line: int) -> bool:
        start, end = self.file.line_span(line)
        tokens = [t for t in self.file.tokens_in(start, end) if t.kind != tokenize.COMMENT]
        return (
            bool(tokens)
            and tokens[-1].text == ":"
            and not self.file.text[tokens[-1].end : end].split("#")[0].strip()
        )


def _parts(file: Code, node: ast.expr) -> int:
    """How many string literals a constant is written as."""
    start, end = file.span(node)
    return sum(
        t.kind in (tokenize.STRING, tokenize.FSTRING_START) for t in file.tokens_in(start, end)
    )
