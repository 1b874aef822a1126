"""Random programs with hooks in random places: stripped, they still compute what they computed."""

from __future__ import annotations

import ast
import contextlib
import io
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from migration_tests.unit.dump_driver import ALL, ARGUS, ARGUS_PATH, strip

PATH = "src/MaxText/layers/some.py"
IMPORTS = (
    "from MaxText.utils.argus_utils import dump_tensor as _dump, dumpable as _dumpable\n"
    "from MaxText.utils import argus_utils\n"
)


class Programs:
    """Makes random programs of a few functions; hooks are put in as it goes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.functions: list[tuple[str, int, bool]] = []
        self.labels = 0

    def hook(self) -> str:
        return self.random.choice(["_dump", "_dump", "argus_utils.dump_tensor", "probe"])

    def expression(self, names: list[str], depth: int = 0) -> str:
        choose = self.random.random()
        if depth > 3 or choose < 0.25:
            return self.random.choice([*names, str(self.random.randint(1, 5))])
        one = self.expression(names, depth + 1)
        if choose < 0.5:
            return f"{self.hook()}('n{self.random.randint(0, 9)}', {one})"
        other = self.expression(names, depth + 1)
        if choose < 0.7:
            operator = self.random.choice(["+", "-", "*", "%", "&", "<", "==", "and", "or"])
            text = f"{one} {operator} {other}" if operator != "%" else f"{one} % (abs({other}) + 1)"
            return text if self.random.random() < 0.4 and depth == 0 else f"({text})"
        if choose < 0.78:
            return f"({one} if {other} else {self.expression(names, depth + 1)})"
        if choose < 0.84:
            return f"[{one}, {other}][{self.random.randint(0, 1)}]"
        if choose < 0.9:
            return f"sum([{one} for _ in range(2)])"
        if choose < 0.95 and self.functions:
            return self.call(names, depth)
        return f"say({one})"

    def call(self, names: list[str], depth: int) -> str:
        name, count, labelled = self.random.choice(self.functions)
        arguments = [self.expression(names, depth + 2) for _ in range(count)]
        if labelled:
            arguments.append(self.random.choice(["'l'", "label='m'", "f'x{1}'"]))
        return f"{name}({', '.join(arguments)})"

    def block(self, names: list[str], indent: str, depth: int, label: str | None) -> list[str]:
        lines: list[str] = []
        names = list(names)
        for _ in range(self.random.randint(1, 4)):
            choose = self.random.random()
            value = self.expression(names)
            if choose < 0.3:
                comment = self.random.choice(["", "", "  # note"])
                name = label if label and self.random.random() < 0.5 else f"'s{self.labels}'"
                lines.append(f"{indent}{self.hook()}({name}, {value}){comment}")
            elif choose < 0.5:
                name = f"v{self.random.randint(0, 3)}"
                lines.append(f"{indent}{name} = {value}")
                names.append(name)
            elif choose < 0.6:
                self.labels += 1
                name = f"tag{self.labels}"
                lines.append(f"{indent}{name} = f'l{{{names[0]}}}'")
                lines.append(f"{indent}_dump({name}, {value})")
            elif choose < 0.66:
                lines.append(f"{indent}_dump('w', (w := {value})); say(w)")
            elif depth < 2 and choose < 0.8:
                lines.append(f"{indent}if {value}:")
                lines += self.block(names, indent + "  ", depth + 1, label)
                if self.random.random() < 0.5:
                    lines.append(f"{indent}{self.random.choice(['else:', f'elif {names[0]}:'])}")
                    lines += self.block(names, indent + "  ", depth + 1, label)
            elif depth < 2 and choose < 0.88:
                lines.append(f"{indent}for i in range(2):")
                lines += self.block([*names, "i"], indent + "  ", depth + 1, label)
            elif depth < 2 and choose < 0.93:
                lines.append(f"{indent}try:")
                lines += self.block(names, indent + "  ", depth + 1, label)
                lines.append(f"{indent}finally:")
                lines += self.block(names, indent + "  ", depth + 1, label)
            else:
                lines.append(f"{indent}say({value})")
        return lines

    def program(self) -> str:
        lines = ["probe = argus_utils.dump_tensor", ""]
        for number in range(self.random.randint(1, 4)):
            parameters = [f"p{i}" for i in range(self.random.randint(1, 2))]
            labelled = self.random.random() < 0.4
            lines.append("")
            for decorator in ("@_dumpable", "@_dumpable('n')", "@argus_utils.dumpable(name='n')"):
                if self.random.random() < 0.2:
                    lines.append(decorator)
            head = ", ".join([*parameters, *(["label='d'"] if labelled else [])])
            lines.append(f"def f{number}({head}):")
            # Every name that a block may read is set first, so that only dumps decide what differs.
            lines += [f"  v{i} = {parameters[0]}" for i in range(4)]
            names = [*parameters, *(f"v{i}" for i in range(4))]
            lines += self.block(names, "  ", 0, "label" if labelled else None)
            lines.append(f"  return {self.expression(names)}")
            lines.append("")
            self.functions.append((f"f{number}", len(parameters), labelled))
        for name, count, _ in self.functions:
            lines.append(f"say({name}({', '.join(['3', '7'][:count])}))")
        return "\n".join(lines) + "\n"


def execute(source: str) -> str:
    """What a program says, with hooks that do nothing but give their argument back."""

    def dump(name: str, x: Any, layer: str | None = None) -> Any:
        return x

    def dumpable(target: Any = None, *, name: str | None = None) -> Any:
        return target if callable(target) else lambda f: f

    argus = type(
        "argus", (), {"dump_tensor": staticmethod(dump), "dumpable": staticmethod(dumpable)}
    )
    said: list[object] = []

    def say(x: Any) -> Any:
        said.append(x)
        return x

    names: dict[str, object] = {
        "_dump": dump,
        "_dumpable": dumpable,
        "argus_utils": argus,
        "say": say,
    }
    code = "\n".join(line for line in source.splitlines() if not line.startswith("from MaxText"))
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(compile(code, "program", "exec"), names)
        except RecursionError:
            return "too deep"
        except TypeError as error:
            said.append(type(error))
    return repr(said)


def hooks_in(source: str) -> list[tuple[int, int]]:
    """Positions of calls of a hook."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name in ("_dump", "dump_tensor", "probe", "_dumpable", "dumpable"):
                found.append((node.lineno, node.col_offset))
    return found


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(min_value=0, max_value=10**9))
def test_random_programs_compute_the_same(seed: int) -> None:
    source = IMPORTS + "\n" + Programs(seed).program()
    result = strip({ARGUS_PATH: ARGUS, PATH: source})
    after = result.texts[PATH]
    assert execute(after) == execute(source), after
    listed = {source.count("\n", 0, s.start) for s in result.sites[PATH]}
    if not listed:
        assert hooks_in(after) == []
        assert "argus" not in after
    # What is left of the hooks is on lines that are listed.
    left = {
        line
        for line in after.splitlines()
        if any(h in line for h in ("_dump(", "dump_tensor(", "probe("))
    }
    before = source.splitlines()
    assert len(left) <= len({before[n] for n in listed})
    again = strip({ARGUS_PATH: ARGUS, PATH: after})
    assert again.texts[PATH] == after


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(min_value=0, max_value=10**9), st.sets(st.sampled_from(sorted(ALL))))
def test_any_subset_of_the_rules_leaves_programs_that_compute_the_same(
    seed: int, rules: set[str]
) -> None:
    source = IMPORTS + "\n" + Programs(seed).program()
    after = strip({ARGUS_PATH: ARGUS, PATH: source}, frozenset(rules)).texts[PATH]
    assert execute(after) == execute(source), after
