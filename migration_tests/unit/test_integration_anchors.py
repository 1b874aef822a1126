"""Edits anchored on structure: where they go, how they look, and what is said when the anchor is gone."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import libcst as cst
import pytest

from codemods.engine.anchors import AnchoredFile, AnchorError
from codemods.engine.edits import apply, settle
from codemods.engine.patterns import match, parse_pattern

Edit = Callable[[AnchoredFile], None]


def once(text: str, edit: Edit) -> str:
    """The text after the edit."""
    file = AnchoredFile("file.py", text)
    edit(file)
    edits, clashes = settle(file.ordered())
    assert not clashes
    return apply(text, edits)


def edited(text: str, edit: Edit) -> str:
    """The text after the edit, which changes nothing when it is made again."""
    new = once(text, edit)
    compile(new, "file.py", "exec")
    assert once(new, edit) == new
    return new


def reason(text: str, edit: Edit) -> str:
    """What is said of an anchor that is gone."""
    with pytest.raises(AnchorError) as error:
        edit(AnchoredFile("file.py", text))
    return str(error.value)


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("f(...)", "f()"),
        ("f(...)", "f(1, key=2, **more)"),
        ("f(__x, ...)", "f(a + b, c)"),
        ("__x == __x", "a.b == a.b"),
        ("x in (A, B)", "x in (\n  A,  # first\n  B,\n)"),
        ('name == "a"', "name == 'a'"),
        ("__value[-1]", "types(3)[-1]"),
        ("x = __value", "x = {1: 2}"),
        ("if a and b: ...", "if (a\n    and b):\n  c()\nelse:\n  d()\n"),
        ("class A: ...", "@final\nclass A(B, metaclass=C):\n  pass\n"),
        ("def f(): ...", "def f(a, b=1):\n  return a\n"),
        ("self.__flag = c", "self.is_new = c"),
    ],
)
def test_pattern_matches(pattern: str, code: str) -> None:
    node: cst.CSTNode = cst.parse_module(code).body[0]
    if isinstance(node, cst.SimpleStatementLine):
        node = node.body[0]
    wanted = parse_pattern(pattern)
    if isinstance(node, cst.Expr) and isinstance(wanted, cst.BaseExpression):
        node = node.value
    assert match(wanted, node) is not None


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("f(...)", "g(1)"),
        ("f(__x, ...)", "f()"),
        ("__x == __x", "a.b == a.c"),
        ("x in (A, B)", "x in (B, A)"),
        ("x in (A,)", "x in [A]"),
        ("f(a)", "f(a, b)"),
        ("f(a=1)", "f(b=1)"),
        ('name == "a"', "name == 'b'"),
        ("a < b", "a <= b"),
    ],
)
def test_pattern_does_not_match(pattern: str, code: str) -> None:
    assert match(parse_pattern(pattern), cst.parse_expression(code)) is None


def test_pattern_has_to_be_python() -> None:
    with pytest.raises(ValueError, match="no Python"):
        parse_pattern("if x")


def test_element_goes_on_a_line_of_its_own_where_the_others_have_one() -> None:
    text = "names = {\n    A,\n    B,  # the second\n}\n"
    new = edited(text, lambda f: f.module.collection("A").add("C"))
    assert new == "names = {\n    A,\n    B,  # the second\n    C,\n}\n"
    new = edited(text, lambda f: f.module.collection("A").add("C", after="A"))
    assert new == "names = {\n    A,\n    C,\n    B,  # the second\n}\n"


def test_element_without_a_comma_before() -> None:
    text = "names = [\n    A,\n    B  # no comma\n]\n"
    new = edited(text, lambda f: f.module.collection("A").add("C"))
    assert new == "names = [\n    A,\n    B,\n    C  # no comma\n]\n"


def test_element_goes_on_the_same_line_until_it_is_full() -> None:
    assert (
        edited("x in (A, B)\n", lambda f: f.module.collection("A").add("C")) == "x in (A, B, C)\n"
    )
    assert edited("x in (A,)\n", lambda f: f.module.collection("A").add("C")) == "x in (A, C,)\n"
    long = f"if x in (A, {'b' * 106}):\n  pass\n"
    new = edited(long, lambda f: f.module.collection("A").add("CCCC"))
    assert new == f"if x in (\n    A,\n    {'b' * 106},\n    CCCC,\n):\n  pass\n"


def test_dictionary_entry_is_known_by_its_key() -> None:
    text = "layers = {A: [1], B: [2]}\n"
    new = edited(text, lambda f: f.module.collection("A").add("C: [3]"))
    assert new == "layers = {A: [1], B: [2], C: [3]}\n"
    assert once(new, lambda f: f.module.collection("A").add("C: [4]")) == new


def test_parameters_and_arguments_are_known_by_their_names() -> None:
    text = dedent("""\
        def f(
            a,
            b: int = 1,  # the width
            *,
            key,
        ):
          return g(a, b=b)
        """)

    def edit(file: AnchoredFile) -> None:
        file.module.function("f").parameters.add("c: str = ''", after="b")
        file.module.function("f").expression("g(...)").arguments.add("c=c")
        file.module.function("f").expression("g(...)").arguments.add("**more")

    assert edited(text, edit) == dedent("""\
        def f(
            a,
            b: int = 1,  # the width
            c: str = '',
            *,
            key,
        ):
          return g(a, b=b, c=c, **more)
        """)


def test_bases_of_a_class() -> None:
    text = "class A(\n    B,\n    # a group\n    C,\n):\n  pass\n"
    new = edited(text, lambda f: f.module.klass("A").bases.add("N", after="B"))
    assert new == "class A(\n    B,\n    N,\n    # a group\n    C,\n):\n  pass\n"


def test_elif_goes_behind_the_whole_body() -> None:
    text = dedent("""\
        if a:
          if b:
            x()
          else:
            y()  # last
        elif c:
          z()
        """)
    new = edited(text, lambda f: f.module.branch("a").add_after("n", "w()"))
    assert new == text.replace("elif c", "elif n:\n  w()\nelif c")
    new = edited(text, lambda f: f.module.branch("c").add_after("n", "w()\nv()"))
    assert new == text + "elif n:\n  w()\n  v()\n"


def test_elif_of_the_if_whose_else_holds_a_statement() -> None:
    text = "if a:\n  x()\nelse:\n  if b:\n    raise E\n"
    new = edited(text, lambda f: f.module.statement("if b: ...").otherwise().add_after("n", "w()"))
    assert new == "if a:\n  x()\nelif n:\n  w()\nelse:\n  if b:\n    raise E\n"


def test_statements_before_and_after() -> None:
    text = "def f():\n  a = 1\n\n  # of b\n  b = 2\n  return a\n"

    def edit(file: AnchoredFile) -> None:
        b = file.module.function("f").statement("b = 2")
        b.insert_before("if n:\n  m()\n")
        b.insert_after("c = 3", apart=True)

    assert edited(text, edit) == (
        "def f():\n  a = 1\n\n  if n:\n    m()\n  # of b\n  b = 2\n\n  c = 3\n  return a\n"
    )


def test_definitions_keep_their_blank_lines() -> None:
    text = "class A:\n\n  def f(self):\n    pass\n\n\nx = 1\n"

    def edit(file: AnchoredFile) -> None:
        file.module.statement("class A: ...").insert_after("class B:\n  pass\n")
        file.module.klass("A").statement("def f(): ...").insert_after("def g(self):\n  pass\n")

    assert edited(text, edit) == (
        "class A:\n\n  def f(self):\n    pass\n\n  def g(self):\n    pass\n\n\nclass B:\n  pass\n\n\nx = 1\n"
    )


def test_decorated_definition_is_inserted_before_as_a_whole() -> None:
    new = edited(
        "import a\n\n\n@a.b\nclass A:\n  pass\n",
        lambda f: f.module.statement("class A: ...").insert_before("def f():\n  pass\n"),
    )
    assert new == "import a\n\n\ndef f():\n  pass\n\n\n@a.b\nclass A:\n  pass\n"


def test_first_and_last_statement_of_a_block() -> None:
    text = 'def f():\n  """What it does."""\n  for x in y:\n    z()\n'

    def edit(file: AnchoredFile) -> None:
        file.module.function("f").prepend("a()")
        file.module.function("f").append("b()")

    assert edited(text, edit) == (
        'def f():\n  """What it does."""\n  a()\n  for x in y:\n    z()\n  b()\n'
    )


def test_file_without_a_last_line_end_and_with_windows_line_ends() -> None:
    assert edited("class A:\n  x = 1", lambda f: f.module.klass("A").append("y = 2")) == (
        "class A:\n  x = 1\n  y = 2\n"
    )
    assert edited("class A:\r\n  x = 1\r\n", lambda f: f.module.klass("A").append("y = 2")) == (
        "class A:\r\n  x = 1\r\n  y = 2\r\n"
    )


def test_replacing_expressions_keeps_what_is_replaced_already() -> None:
    text = "a = f(x)\nb = g(f(y)) or f(x)\n"
    new = edited(text, lambda f: f.module.replace_all("f(__v)", "(f(__v) or n)"))
    assert new == "a = (f(x) or n)\nb = g((f(y) or n)) or (f(x) or n)\n"


def test_wildcards_keep_their_brackets() -> None:
    new = edited(
        'x = s.startswith(("a", "b"))\n',
        lambda f: f.module.replace_all("s.startswith(__p)", "test(s, __p)"),
    )
    assert new == 'x = test(s, ("a", "b"))\n'


def test_statement_under_a_condition() -> None:
    text = "def f():\n  log(\n      a,\n  )\n  b()\n"
    new = edited(text, lambda f: f.module.statement("log(...)").only_if("c != d"))
    assert new == "def f():\n  if c != d:\n    log(\n        a,\n    )\n  b()\n"


def test_documented_names() -> None:
    text = dedent('''\
        def f(a):
          """It does.

          Args:
            a: the first
              of them.

          Returns:
            Nothing.
          """
          return a
        ''')
    new = edited(text, lambda f: f.module.function("f").document("b: another.", after="a"))
    assert new == text.replace("of them.\n", "of them.\n    b: another.\n")
    assert once(text, lambda f: f.module.function("f").document("b: another.", after="z")) == text


FULL_LINE = f"from a import {'b' * 110}"


@pytest.mark.parametrize(
    ("before", "statement", "after"),
    [
        ("from a import b, d\n", "from a import c", "from a import b, c, d\n"),
        (
            "from a import (\n    b,\n    d,\n)\n",
            "from a import c",
            "from a import (\n    b,\n    c,\n    d,\n)\n",
        ),
        ("from a import b as c\n", "from a import b", "from a import b, b as c\n"),
        ("import os\nfrom a.b import c\nfrom a.d import e\n", "from a.c import n", None),
        ("import os\n\nx = 1\n", "from a import b", "import os\nfrom a import b\n\nx = 1\n"),
        ("from a import *\n", "from a import b", "from a import *\nfrom a import b\n"),
        (f"{FULL_LINE}\n", "from a import c", f"{FULL_LINE}\nfrom a import c\n"),
        (f"{FULL_LINE}, c\n", "from a import c", f"{FULL_LINE}, c\n"),
    ],
)
def test_imports(before: str, statement: str, after: str | None) -> None:
    expected = after or "import os\nfrom a.b import c\nfrom a.c import n\nfrom a.d import e\n"
    assert edited(before, lambda f: f.add_import(statement)) == expected


TEXT = "class A:\n\n  def f(self):\n    x = {B: 1}\n    y = {B: 2}\n    if z:\n      g()\n    if short: pass\n"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda f: f.module.klass("N"), "no class `N` in the module"),
        (lambda f: f.module.klass("A").function("n"), "no function `n` in `A`"),
        (
            lambda f: f.module.klass("A").function("f").collection("N"),
            "no collection that holds `N` in `A`.`f`",
        ),
        (
            lambda f: f.module.collection("B"),
            "2 times collection that holds `B` in the module, where one was expected",
        ),
        (lambda f: f.module.statement("n()"), "no statement `n()` in the module"),
        (lambda f: f.module.branch("n"), "no `if n` in the module"),
        (lambda f: f.module.expression("n(__x)"), "no `n(__x)` in the module"),
        (lambda f: f.module.replace_all("n()", "m()"), "no `n()` in the module"),
        (
            lambda f: f.module.assignment("x").add("C: 1", after="N"),
            "collection in the module: no `N`",
        ),
        (
            lambda f: f.module.statement("x = __v").branch_of(),
            "`x = {B: 1}` in the module is in no `if`",
        ),
        (lambda f: f.module.statement("g()").otherwise(), "`g()` in the module is in no `else`"),
        (
            lambda f: f.module.branch("short").add_after("n", "m()"),
            "no statements on lines of their own in the module",
        ),
        (lambda f: f.add_import("import n"), "no import at the top of the module"),
    ],
)
def test_anchor_that_is_gone_is_named(edit: Edit, said: str) -> None:
    assert reason(TEXT, edit) == said
