"""Old names in running text: paths, dotted names, variables of the shell, URLs, AL names.

Used for whole text files, for comments and strings of Python files and for notebook cells alike.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_right, insort
from dataclasses import dataclass
from functools import lru_cache

from codemods.engine.context import SourceFile
from codemods.engine.project import NEW_ROOT, OLD_ROOT
from codemods.rules.locations import ROOT_VARIABLES, SOURCE_ROOT, Locations, Place, locations
from codemods.rules.shell import remove_item

# One segment of a path: name characters, globs, and what is filled in later.
_SEGMENT = r"(?:[\w.+\-*?~@%]|\$\{\w+\}|\$\w+|\{[\w.]*\}|<[\w -]+>|\[[\w.-]+\](?!\())"
_TAIL = re.compile(rf"(?:/{_SEGMENT}+)*/?")
_ENV_TAIL = re.compile(rf"(?P<gap>[\"'/]*)(?P<path>{_SEGMENT}+(?:/{_SEGMENT}+)*)?")
_PREFIX = re.compile(
    r"(?:(?:\$\{(?:[^{}]|\{[^{}]*\})*\}|\$\([^()]*\)|`pwd`|[\w.~$@+\-<>{}%])*/)+\Z"
)
_SOURCE_BEFORE = re.compile(rf"(?<![\w.])(?<!\w-){SOURCE_ROOT}/\Z")
_DOTTED = re.compile(r"(?:\.[A-Za-z_]\w*)+")
_MODULE = re.compile(r"(?:\.[A-Za-z_][\w-]*)*(?:\.\$\{?(?P<name>\w+)\}?(?P<after>[\w.{$-]*))?")
_RUN_MODULE = re.compile(r"(?<![\w-])-m[ \t]*(?:\\\r?\n[ \t]*)?[\"']?\Z|[\"']-m[\"'],\s*[\"']\Z")
_RUN_SWITCH = re.compile(r"\s-m\Z")
_MODULE_KEY = re.compile(r"[\"']?module[\"']?\s*[:=]\s*[\"']?\Z")
_IMPORT_BEFORE = re.compile(r"(?<!\w)(?:from|import)[ \t]+\Z")
_IMPORTED = re.compile(r"[ \t]+import[ \t]+\(?((?:\w+(?:[ \t]+as[ \t]+\w+)?(?:[ \t]*,[ \t]*)?)+)")
_GITHUB = re.compile(
    r"https?://(?:(?:www\.)?github\.com/(?P<repo>[\w.-]+/[\w.-]+)/(?:blob|tree|raw|edit|blame)"
    r"|raw\.githubusercontent\.com/(?P<raw>[\w.-]+/[\w.-]+)(?:/refs/heads)?"
    r"|colab\.research\.google\.com/github/(?P<colab>[\w.-]+/[\w.-]+)/blob)"
    r"/(?P<ref>[^/]+)/(?P<path>[\w.+/\-*]*)"
)
_MAIN_BRANCHES = frozenset({"main", "master", "HEAD"})
_FILE_SUFFIX = re.compile(
    r"\.(?:py|sh|ya?ml|md|rst|json|jsonl|toml|txt|cfg|ini|ipynb|Dockerfile|png|tsv|in|csv)\Z"
)
_RECURSIVE = re.compile(
    r"(?:\A|/)(?:\.?codecov\.ya?ml|\.coveragerc|[\w.-]+\.toml|setup\.cfg|tox\.ini|\.\w+ignore|CODEOWNERS"
    r"|\.pre-commit-config\.ya?ml)\Z"
)
_CHANGE_FOLDER = re.compile(r"\b(?:cd|pushd)[ \t]+[\"']?\Z")

# Keys and variables that hold the name of a model.
_MODEL_KEY = re.compile(
    r"(?:(?<![A-Za-z])(?:model_name|decoder_block|model|base_model|model_name_or_path)|\b[A-Z_]*MODEL(?:_NAME)?)"
    r"[\"']?[ \t]*[=: ][ \t]*(?:\$\{\w+:-)?[\"']?\Z"
)
AL_FOLDER = "ALModel"
_AL_WORD = re.compile(r"(?<![A-Za-z])(?:al_model|ALModel)")
MODEL_NAME = ("al_model", "ling2")


@dataclass(frozen=True, slots=True)
class _Rules:
    module: str = "TXT001"
    path: str = "TXT002"
    variable: str = "TXT003"
    url: str = "TXT004"
    dotted: str = "TXT005"
    folder: str = "TXT006"
    model: str = "TXT011"
    word: str = "TXT012"
    built: str = "TXT013"


RULE = _Rules()


class Claims:
    """Spans that a rule has dealt with, so that no other looks at them again."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        insort(self._spans, (start, end))

    def holds(self, offset: int) -> bool:
        at = bisect_right(self._spans, (offset, 1 << 60)) - 1
        return at >= 0 and any(s <= offset < e for s, e in self._spans[max(0, at - 3) : at + 1])


_PACKAGE_ALIAS = re.compile(
    rf"^[ \t]*import[ \t]+{OLD_ROOT}(?:[ \t]+as[ \t]+(\w+))?[ \t]*(?:#.*)?$", re.MULTILINE
)


def package_aliases(text: str) -> frozenset[str]:
    """Names that `import MaxText` and `import MaxText as mt` bind in a Python text."""
    return frozenset(found[1] or OLD_ROOT for found in _PACKAGE_ALIAS.finditer(text))


def package_variables(text: str) -> dict[str, tuple[str, str]]:
    """MAXTEXT_* variables that a Python text sets to the package's own folder."""
    if "__file__" not in text or not (aliases := package_aliases(text)):
        return {}
    names = "|".join(sorted(aliases))
    found = re.findall(
        rf"^[ \t]*(MAXTEXT_\w+)[ \t]*=[ \t]*(?:os\.)?(?:path\.)?dirname\((?:{names})\.__file__\)",
        text,
        re.MULTILINE,
    )
    return dict.fromkeys(found, (f"{SOURCE_ROOT}/{OLD_ROOT}", f"{SOURCE_ROOT}/{NEW_ROOT}"))


@lru_cache(maxsize=4)
def python_triggers(tops: frozenset[str]) -> re.Pattern[str]:
    """What a string or comment of a Python file holds if there is anything to look at in it."""
    folders = "|".join(re.escape(top) for top in sorted(tops))
    return re.compile(
        rf"{OLD_ROOT}|[${{]MAXTEXT_|\$\{{MAXTEXT_" + (rf"|(?:{folders})[/.]" if folders else "")
    )


@lru_cache(maxsize=4)
def _pattern(tops: frozenset[str], words: frozenset[str]) -> re.Pattern[str]:
    def either(names: frozenset[str]) -> str:
        ordered = sorted(names, key=lambda n: (-len(n), n))
        return "|".join(re.escape(name) for name in ordered) or r"(?!)"

    variables = "|".join(ROOT_VARIABLES)
    # Every branch begins with literal text, so that the search can skip; what may stand before a hit
    # is asked afterwards (`_BOUNDARY`).
    return re.compile(
        r"(?P<url>(?:https?|gs|s3|git\+https?|ssh|docker|file)://[^\s\"'`<>\\|()\[\]]*|git@[^\s\"'`<>]+)"
        rf"|(?P<env>\$\{{?(?:{variables})\b|\{{(?:{variables})(?=\}}))"
        rf"|(?P<root>{OLD_ROOT}(?!\w))"
        rf"|(?P<top>(?:{either(tops)})(?=[/.]))"
        rf"|(?P<word>(?:{either(words)})(?!\w))"
        r"|(?P<al>al_model(?![a-z0-9])[\w.-]*)"
        r"|(?P<test>AlModel(?![a-z])\w*)"
    )


# What must not stand before a hit.
_BOUNDARY = {
    "url": re.compile(r"\w"),
    "env": re.compile(r"(?!)"),
    "root": re.compile(r"[\w-]"),
    "top": re.compile(r"[\w.@-]"),
    "word": re.compile(r"\w"),
    "al": re.compile(r"[A-Za-z]"),
    "test": re.compile(r"[A-Za-z0-9]"),
}


class Scanner:
    """Finds and rewrites the old names of one file.

    Attributes:
        file: where edits and sites go.
        places: where old paths are now.
        claims: spans that are dealt with already.
        document: whether relative paths are links from this document (Markdown, reStructuredText).
        names: whether AL names are looked for too (in Python the renaming rules do that).
        open_end: whether what is scanned runs on into a part that is only known at run time.
        recursive: whether `folder/*` means all below it, as in the patterns of coverage and git.
        roots: variables that this text gives another meaning than globals.py: name → (old folder, new folder).
    """

    def __init__(self, file: SourceFile, document: bool = False, names: bool = True) -> None:
        self.file = file
        self.text = file.text
        self.project = file.project
        self.places: Locations = locations(file.project)
        self.claims = Claims()
        self.document = document
        self.names = names
        self.open_end = False
        self.recursive = _RECURSIVE.search(file.path) is not None
        self.roots = package_variables(file.text)
        words = {*self.project.names, *self.places.basenames, "AL_MODEL"}
        if self.places.is_folder(AL_FOLDER):
            words.add(AL_FOLDER)
        self.finder = _pattern(self.places.tops, frozenset(words))

    def scan(self, start: int, end: int, only_variables: bool = False) -> None:
        """Rewrite or list every old name between `start` and `end`."""
        position = start
        text = self.text
        while (hit := self.finder.search(text, position, end)) is not None:
            kind = hit.lastgroup
            assert kind is not None
            if not self._stands_alone(kind, hit.start()):
                position = hit.start() + 1
                continue
            position = hit.end()
            if self.claims.holds(hit.start()):
                continue
            if only_variables and kind != "env":
                continue
            if kind == "url":
                self._url(hit.start(), hit.end())
            elif kind == "env":
                position = max(position, self._variable(hit.start(), end))
            elif kind == "root":
                position = max(position, self._root(hit.start(), hit.end(), end))
            elif kind == "top":
                position = max(position, self._top(hit.start(), hit.end(), end))
            elif kind == "word":
                if self.names:
                    self._word(hit.start(), hit.end())
            elif self.names and kind == "al":
                self._model(hit.start(), hit.end())
            elif self.names:
                self._test_name(hit.start(), hit.end())

    def _stands_alone(self, kind: str, start: int) -> bool:
        """Whether a hit is no part of a longer word."""
        if _BOUNDARY[kind].match(self.text, start - 1, start) is None or start == 0:
            return True
        if kind != "root":
            return False
        if self.text[start - 1] == "-" and not self.text[max(0, start - 2)].isalnum():
            return True  # a default: `${MODULE:-MaxText.train}`
        return _RUN_SWITCH.search(self.text, max(0, start - 3), start) is not None

    def root_folder(self, variable: str) -> tuple[str, str]:
        """The folder that a MAXTEXT_* variable stands for in this text: (old path, new path)."""
        return self.roots.get(variable) or self.places.root_folder(variable)

    # Dotted names -------------------------------------------------------------------------------------

    def _root(self, start: int, after: int, end: int) -> int:
        text = self.text
        following = text[after : after + 1] if after < end else ""
        before = text[start - 1 : start]
        if before == "/" or following == "/":
            return self._path(start, after, end)
        if before in ("$", "\\") and before:
            return after
        run = self._runs_module(start)
        if following == ".":
            return self._dotted(start, after, end, run)
        if run:
            self.file.edit(RULE.module, (start, after), NEW_ROOT)
        elif _CHANGE_FOLDER.search(text, max(0, start - 20), start):
            self.file.site(
                RULE.path,
                (start, after),
                "changes into the old package's folder; the commands after it are relative to that",
                f"run them from the repository root, with paths below src/{NEW_ROOT}",
            )
        elif text.startswith(" import ", after) and self._imports(start):
            return self._import(start, after, end)
        return after

    def _runs_module(self, start: int) -> bool:
        text = self.text
        window = max(0, start - 80)
        if text[start - 4 : start] == "src.":
            start -= 4
        return bool(
            _RUN_MODULE.search(text[window:start]) or _MODULE_KEY.search(text[window:start])
        )

    def _dotted(self, start: int, after: int, end: int, run: bool) -> int:
        text = self.text
        if run:
            found = _MODULE.match(text, after, end)
            assert found is not None
            if found["name"]:
                self._built_module(start, found)
                return found.end()
            stop = found.end()
            old = text[start:stop]
            if self.open_end and (stop == end or text[stop:end] == "."):
                self.file.site(
                    "TXT016",
                    (start, stop),
                    "the module is put together at run time",
                    "write it out",
                )
                return stop
            target = self.project.module(old)
            if target is not None and target.module is not None:
                self.file.edit(RULE.module, (start, stop), target.module, target.note)
                return stop
            by_path = self._module_by_path(old)
            if by_path is not None:
                self.file.edit(RULE.module, (start, stop), by_path)
                return stop
            if target is None and (namesake := self._namesake(old)) is not None:
                self.file.edit(RULE.folder, (start, stop), *namesake)
                return stop
            problem = (
                target.problem if target is not None else f"{old} is no module of the old tree"
            )
            self.file.site(
                RULE.module, (start, stop), problem, "name the module that does this now"
            )
            return stop
        names = _DOTTED.match(text, after, end)
        if names is None:
            return after
        stop = names.end()
        old = text[start:stop]
        if self.open_end and text[stop:end] in ("", "."):
            return stop  # a name put together at run time: the import rules list it
        if text[stop : stop + 1] in ("{", "$", "%"):
            return stop  # a name put together at run time
        if text[stop : stop + 1] == "(" and text[start - 2 : start - 1] == "!":
            return stop
        if text.startswith(" import", stop) and self._imports(start):
            return self._import(start, stop, end)
        if _FILE_SUFFIX.search(old):
            known = self.project.dotted(old.rpartition(".")[0])
            if known is None or known[1]:
                return stop  # a file called MaxText.something
        head, _, last = old.rpartition(".")
        attribute = last if re.fullmatch(r"__\w+__", last) else ""
        resolved = self.project.dotted(head if attribute else old)
        target, rest = resolved if resolved is not None else (None, "")
        if target is None or (target.name is None and rest):
            first = old.split(".")[1]
            if target is not None and rest and self._is_sentence(old, rest):
                return after
            if first[:1].isupper() and text[start - 1 : start] not in "`\"'":
                return after  # the product's name, and a sentence that begins without a space
            self.file.site(
                RULE.dotted,
                (start, stop),
                f"{old} is nothing that the old tree has",
                "name what does this now, or drop the reference",
            )
            return stop
        if target.dotted is None:
            self.file.site(RULE.dotted, (start, stop), target.problem, "name what does this now")
            return stop
        new = ".".join(part for part in (target.dotted, rest, attribute) if part)
        self.file.edit(RULE.dotted, (start, stop), new, target.note)
        return stop

    def _imports(self, start: int) -> bool:
        """Whether `from` stands before, so that an import statement is written in this text."""
        if self.text[start - 4 : start] == "src.":
            start -= 4
        return _IMPORT_BEFORE.search(self.text, max(0, start - 10), start) is not None

    def _import(self, start: int, stop: int, end: int) -> int:
        """`from MaxText.x import a, b` in a text: right if all the names are in one module now."""
        names = _IMPORTED.match(self.text, stop, end)
        module = self.text[start:stop]
        homes: set[str] = set()
        for name in re.findall(r"\w+(?=\s+as\b)|(?<!as )\b\w+\b", names[1]) if names else ():
            if name == "as":
                continue
            target = self.project.symbol(module, name)
            if target is None or target.module is None or target.problem:
                homes.add("")
            elif target.name is not None:
                homes.add(target.module if target.name == name else "")
            else:
                home, _, leaf = target.module.rpartition(".")
                homes.add(home if leaf == name else "")
        if names is not None and len(homes) == 1 and "" not in homes:
            self.file.edit(RULE.dotted, (start, stop), homes.pop())
            return names.end()
        self.file.site(
            RULE.dotted,
            (start, names.end() if names else stop),
            "an import inside text, whose names are not all known in one module",
            "write the new import by hand",
        )
        return names.end() if names else stop

    @staticmethod
    def _is_sentence(old: str, rest: str) -> bool:
        """`MaxText.Then`: the product's name and the next sentence."""
        return rest == old.partition(".")[2] and rest[:1].isupper()

    def _namesake(self, old: str) -> tuple[str, str] | None:
        """For a module that the old tree does not have: the only one of that name, and a note."""
        place = self.places.resolve(f"{SOURCE_ROOT}/{old.replace('.', '/')}.py")
        if (
            place is None
            or place.new is None
            or not place.note.startswith("no such file; the only")
        ):
            return None
        return place.new.removeprefix("src/").removesuffix(".py").replace("/", "."), place.note

    def _module_by_path(self, old: str) -> str | None:
        """The module of a file whose name is no identifier (`evaluate-accuracy`)."""
        path = posixpath.join(SOURCE_ROOT, old.replace(".", "/") + ".py")
        place = self.places.resolve(path) if path in self.places.files else None
        if place is None or place.new is None:
            return None
        return place.new.removeprefix("src/").removesuffix(".py").replace("/", ".")

    def _built_module(self, start: int, found: re.Match[str]) -> None:
        """`-m MaxText.$EXECUTABLE`: right if all that the variable can hold moves to one package."""
        text = self.text
        hole = found.start("name") - (2 if text[found.start("name") - 1] == "{" else 1)
        package = text[start : hole - 1]
        name = found["name"]
        values = set(
            re.findall(
                rf"(?<![\w$]){name}=(?:\$\{{\w+:-)?[\"']?([A-Za-z_][\w.-]*)(?=[\"'}}\s;]|$)",
                text,
                re.MULTILINE,
            )
        )
        values |= set(re.findall(rf"\$\{{{name}:[-=]([A-Za-z_][\w.-]*)\}}", text))
        for loop in re.findall(
            rf"\bfor[ \t]+{name}[ \t]+in[ \t]+([\w. \t-]+?)[ \t]*(?:;|\n)", text
        ):
            values |= set(loop.split())
        homes: set[str] = set()
        for value in values:
            leaf = value.removesuffix(".py")
            target = self.project.module(f"{package}.{leaf}")
            new = target.module if target is not None else None
            new = new or self._module_by_path(f"{package}.{leaf}")
            homes.add(new[: -len(leaf) - 1] if new is not None and new.endswith(f".{leaf}") else "")
        if len(homes) == 1 and "" not in homes:
            told = ", ".join(sorted(values))
            self.file.edit(
                RULE.built,
                (start, hole - 1),
                homes.pop(),
                f"all values that this file gives {name} ({told}) are in that package now",
            )
            return
        self.file.site(
            RULE.built,
            (start, found.end()),
            f"the module is put together with {name}"
            + (
                ", whose values went to different packages"
                if values
                else ", which is set elsewhere"
            ),
            "write the module out, or set the variable to the whole name",
        )

    # Paths --------------------------------------------------------------------------------------------

    def _prefix(self, start: int) -> str:
        """What stands before `start` in the same path, up to and with its last `/`."""
        if self.text[start - 1 : start] != "/":
            return ""
        found = _PREFIX.search(self.text, max(0, start - 240), start)
        return found.group() if found else "/"

    def _path_end(self, after: int, end: int) -> int:
        tail = _TAIL.match(self.text, after, end)
        assert tail is not None
        stop = tail.end()
        while stop > after and self.text[stop - 1] in ".-%~":
            stop -= 1
        while stop > after and self.text[stop - 1] == "*" and self.text[stop - 2] not in "/*.":
            stop -= 1  # Markdown's emphasis
        return stop

    def _path(self, start: int, after: int, end: int) -> int:
        """A path with the segment MaxText."""
        text = self.text
        stop = self._path_end(after, end)
        tail = text[after:stop]
        prefix = self._prefix(start)
        outer = prefix.split("/")[:-1]
        source = SOURCE_ROOT
        has_source = _SOURCE_BEFORE.search(text, max(0, start - 8), start) is not None
        slash = tail.endswith("/")
        runs_on = self.open_end and stop == end
        old = posixpath.join(source, OLD_ROOT + (tail + "{}" if runs_on else tail.rstrip("/")))
        slash = slash and not runs_on
        if not has_source and not self._is_path(prefix, tail):
            return after
        begin = start - len(source) - 1 if has_source else start
        outer = outer[:-1] if has_source else outer
        relative = bool(outer) and all(part in (".", "..") for part in outer)
        if self.document and relative:
            folder = "/".join(outer)
            if self._relative_link(begin - len(folder) - 1, stop, folder):
                return stop
        place = self.places.resolve(old, self.recursive)
        span = (begin, stop)
        if place is not None and place.left_out and self._drop(begin, stop):
            return stop
        if place is None or place.new is None:
            if runs_on:
                problem = (
                    place.problem if place is not None else "its end is only known at run time"
                )
                self.file.site("TXT016", span, problem, "write the new path by hand")
                return stop
            problem = place.problem if place is not None else f"the old tree has no {old}"
            self.file.site(RULE.path, span, problem, "name the file that does this now")
            return stop
        new = place.new.removesuffix("{}") if runs_on else place.new
        if not has_source and (not outer or relative) and new.startswith("src/"):
            absolute = prefix == "/"
            new = (
                new if absolute else new.removeprefix("src/")
            )  # run from, or resolved against, src
        self._write_path(span, new, place, slash)
        return stop

    def _drop(self, start: int, stop: int) -> bool:
        """Take a path that has no place any more out of a quoted list; False where it stands in none."""
        quote = self.text[start - 1 : start]
        return (
            quote in ("'", '"')
            and self.text[stop : stop + 1] == quote
            and self.text[self.text.rfind("\n", 0, start) + 1 : start]
            .rstrip(" \"'")
            .endswith(("[", ","))
            and remove_item(self.file, RULE.path, start - 1, stop + 1)
        )

    def _write_path(self, span: tuple[int, int], new: str, place: Place, slash: bool) -> None:
        if slash and not new.endswith("/"):
            new += "/"
        self.file.edit(RULE.path if place.certain else RULE.folder, span, new, place.note)

    def _is_path(self, prefix: str, tail: str) -> bool:
        """Whether `MaxText/…` is a path and no `MaxText/JetStream` of prose."""
        first = tail.strip("/").split("/")[0]
        if prefix[:1] in ("/", ".", "~", "$", "`"):
            return True
        if not first:
            return tail == "/"
        return (
            first in self.places.package_parts
            or first.lower() in self.places.package_parts
            or bool(_FILE_SUFFIX.search(tail))
            or first[:1] in "*$<{"
        )

    def _top(self, start: int, after: int, end: int) -> int:
        """A path or module outside the package, in a top folder that files moved away from."""
        text = self.text
        if text[after] == ".":
            return self._top_module(start, after, end)
        stop = self._path_end(after, end)
        if not self.names and _AL_WORD.search(text, start, stop):
            return stop  # in Python the renaming rules write such a path
        if self.open_end and stop == end:
            return self._open_top(start, stop)
        old = text[start:stop].rstrip("/")
        prefix = self._prefix(start)
        outer = prefix.split("/")[:-1]
        relative = bool(outer) and all(part in (".", "..") for part in outer)
        if (
            self.document
            and relative
            and self._relative_link(start - len(prefix), stop, "/".join(outer))
        ):
            return stop
        if prefix and not self._from_root(prefix):
            return after
        if old == AL_FOLDER:
            self._al_folder(start, stop)
            return stop
        if "/" not in old and not text[start:stop].endswith("/"):
            return after
        place = self.places.resolve(old, self.recursive)
        if place is None or place.new == old:
            return stop if place is not None else after
        span = (start, stop)
        if place.new is None:
            if old in self.places.files:
                self.file.site(RULE.path, span, place.problem, "name the file that does this now")
            elif not place.problem.startswith("its files went"):
                self.file.site(RULE.path, span, place.problem, "")
            return stop
        self._write_path(span, place.new, place, text[stop - 1] == "/")
        return stop

    def _open_top(self, start: int, stop: int) -> int:
        """The beginning of a path whose end is only known at run time."""
        prefix = self._prefix(start)
        if prefix and not self._from_root(prefix):
            return stop
        place = self.places.resolve(self.text[start:stop] + "{}")
        if place is None or place.new is None:
            if place is not None and place.problem:
                self.file.site("TXT016", (start, stop), place.problem, "write the new path by hand")
        else:
            self.file.edit(RULE.folder, (start, stop), place.new.removesuffix("{}"), place.note)
        return stop

    @staticmethod
    def _from_root(prefix: str) -> bool:
        """Whether what stands before a path can be the repository's root."""
        if set(prefix) <= {".", "/"}:
            return True
        parts = prefix.rstrip("/").split("/")
        if parts[0][:1] in ("$", "`") and len(parts) == 1:
            return True
        return parts[-1] in ("maxtext", "deps") and SOURCE_ROOT not in parts

    def _top_module(self, start: int, after: int, end: int) -> int:
        if self.text[start - 1 : start] in ("/", "."):
            return after
        names = _DOTTED.match(self.text, after, end)
        if names is None:
            return after
        old = self.text[start : names.end()]
        if not self.names and _AL_WORD.search(old):
            return names.end()
        target = self.project.module(old)
        rule = RULE.module if self._runs_module(start) else RULE.dotted
        if target is None:
            found = self.project.dotted(old)
            if found is None or found[0].name is None or found[0].dotted is None:
                return after
            dotted = f"{found[0].dotted}.{found[1]}" if found[1] else found[0].dotted
            self.file.edit(rule, (start, names.end()), dotted, found[0].note)
        elif target.module is None:
            self.file.site(rule, (start, names.end()), target.problem, "name what does this now")
        else:
            self.file.edit(rule, (start, names.end()), target.module, target.note)
        return names.end()

    def _relative_link(self, start: int, stop: int, outer: str) -> bool:
        """A path from this document's folder to another file; False when it leads to no old file."""
        here = posixpath.dirname(self.project.canonical(self.file.path))
        written = self.text[start:stop]
        target = posixpath.normpath(posixpath.join(here, outer, written[len(outer) + 1 :]))
        if target.startswith(".."):
            return False
        return self.link(start, stop, target)

    def link(self, start: int, stop: int, target: str, rule: str = "TXT007") -> bool:
        """Rewrite a relative path that leads from this document to the old path `target`.

        Returns:
            Whether the old tree has `target` (and so the link is dealt with).
        """
        target = target.rstrip("/")
        if target not in self.places.files and not self.places.is_folder(target):
            return False
        place = self.places.resolve(target)
        if place is None:
            return False
        span = (start, stop)
        if place.new is None:
            self.file.site(
                rule, span, place.problem, "link to what does this now, or drop the link"
            )
            return True
        new_here = self.places.new_folder_of(self.file.path)
        new = posixpath.relpath(place.new or ".", new_here or ".")
        written = self.text[start:stop]
        if posixpath.normpath(posixpath.join(new_here, written)) != posixpath.normpath(place.new):
            if written.startswith("./") and not new.startswith("."):
                new = f"./{new}"
            if written.endswith("/"):
                new += "/"
            self.file.edit(rule if place.certain else RULE.folder, span, new, place.note)
        return True

    # Variables ----------------------------------------------------------------------------------------

    def _variable(self, start: int, end: int) -> int:
        """`"${MAXTEXT_PKG_DIR:-…}"/configs/base.yml`: the path after one of globals.py's folders."""
        text = self.text
        close = _expansion_end(text, start, end)
        if close is None:
            return start + 1
        name = re.match(r"\$?\{?(\w+)", text[start:close])
        assert name is not None
        old_root, new_root = self.root_folder(name[1])
        # `${MAXTEXT_ASSETS_ROOT:-${MAXTEXT_PKG_DIR:-…/src/MaxText/assets}}`: one variable too many in
        # between; what follows is meant from the outermost one.
        tail = _ENV_TAIL.match(text, close, end)
        assert tail is not None
        inner_end = self._inside(start, close)
        gap, path = tail["gap"], tail["path"]
        if path is None or not (gap or old_root):
            return inner_end
        if gap and "/" not in gap and not path.startswith("/"):
            quote_only = text[close : close + len(gap)]
            if quote_only and "/" not in quote_only:
                return inner_end  # the quote ends the word; what follows is another one
        stop = tail.end("path")
        while text[stop - 1] in ".-":
            stop -= 1
        path = text[tail.start("path") : stop]
        old = posixpath.join(old_root, path)
        place = self.places.resolve(old)
        if self.places.is_new(posixpath.join(new_root, path)) and not (place and place.certain):
            return stop
        if not gap:
            moved = place is None or place.new != posixpath.join(new_root, path)
            if moved:
                self.file.site(
                    RULE.variable,
                    (start, stop),
                    "there is no `/` between the folder and the path, so this path never existed",
                    "put the `/` in and name the new path",
                )
            return stop
        if place is None:
            if old_root == "" and not self._known_below_root(path):
                return stop
            if path.startswith("$"):
                return stop
            if (
                posixpath.split(path)[0] == ""
                and not _FILE_SUFFIX.search(path)
                and name[1] == "MAXTEXT_REPO_ROOT"
            ):
                return stop
            self.file.site(
                RULE.variable,
                (start, stop),
                f"the old tree has no {old}",
                f"name its path below {new_root}" if new_root else "name the new path",
            )
            return stop
        if place.new is None:
            self.file.site(
                RULE.variable, (start, stop), place.problem, "name the file that does this now"
            )
            return stop
        span = (tail.start("path"), stop)
        if place.new == new_root or place.new.startswith(new_root + "/") or new_root == "":
            new = posixpath.relpath(place.new, new_root) if new_root else place.new
            rule = RULE.variable if place.certain else RULE.folder
            if posixpath.normpath(path) != new:
                self.file.edit(rule, span, new, place.note)
            return stop
        self._other_root(start, close, span, gap, place)
        return stop

    def _known_below_root(self, path: str) -> bool:
        top = path.split("/")[0]
        return top in self.places.tops or top == SOURCE_ROOT

    def _inside(self, start: int, close: int) -> int:
        """Rewrite the defaults that an expansion holds; gives the end of the expansion."""
        inner = self.text.find(OLD_ROOT, start, close)
        if inner != -1:
            self.scan_paths(start + 2, close)
        elif (top := self.text.find("/test_assets", start, close)) != -1:
            self._test_assets(start, top, close)
        return close

    def _test_assets(self, start: int, top: int, close: int) -> None:
        """`${MAXTEXT_TEST_ASSETS_ROOT:-${MAXTEXT_REPO_ROOT:-$PWD}/test_assets}`."""
        if "TEST_ASSETS_ROOT" in self.text[start : start + 30]:
            stop = top + len("/test_assets")
            if stop + 1 == close:
                self.file.edit(
                    RULE.variable,
                    (top, stop),
                    "/" + self.places.root_folder("MAXTEXT_TEST_ASSETS_ROOT")[1],
                    "the variable's default in globals.py",
                )

    def scan_paths(self, start: int, end: int) -> None:
        """Rewrite only the paths with the segment MaxText between `start` and `end`."""
        position = start
        while (position := self.text.find(OLD_ROOT, position, end)) != -1:
            after = position + len(OLD_ROOT)
            if not self.claims.holds(position) and self.text[position - 1] == "/":
                after = self._path(position, after, end)
            position = after

    def _other_root(
        self, start: int, close: int, span: tuple[int, int], gap: str, place: Place
    ) -> None:
        """The file left the folder of its variable: go from the repository's root instead."""
        assert place.new is not None
        inner = self.text.find("${MAXTEXT_REPO_ROOT", start + 2, close)
        if inner == -1:
            self.file.site(
                RULE.variable,
                (start, span[1]),
                f"it is {place.new} now, which is not below that variable's folder",
                f"go from $MAXTEXT_REPO_ROOT to {place.new}",
            )
            return
        stop = _expansion_end(self.text, inner, close)
        assert stop is not None
        root = self.text[inner:stop]
        # The edits made inside the expansion fall away with it.
        self.file.edits[:] = [e for e in self.file.edits if not start <= e.start < close]
        self.file.edit(
            RULE.folder,
            (start, span[1]),
            f"{root}{gap}{place.new}",
            "the file is not below that variable's folder any more",
        )

    # URLs, names --------------------------------------------------------------------------------------

    def _url(self, start: int, stop: int) -> None:
        """A URL of a repository's main branch; one pinned to a commit or tag stays true as it is."""
        text = self.text
        found = _GITHUB.match(text, start, stop)
        if found is None or found["ref"] not in _MAIN_BRANCHES:
            return
        repository = found["repo"] or found["raw"] or found["colab"]
        span_start, span_stop = found.span("path")
        while span_stop > span_start and text[span_stop - 1] in ".-*/":
            span_stop -= 1
        path = text[span_start:span_stop]
        if not path:
            return
        ours = repository.split("/")[1].lower() == "maxtext"
        if path.startswith(f"{OLD_ROOT}/"):
            path = f"{SOURCE_ROOT}/{path}"
        place = self.places.resolve(path)
        entry = self.project.map.paths.get(path)
        if ours and entry is not None and entry.new is None:
            commits = f" in commit {entry.commits[-1]}" if entry.commits else ""
            place = Place(None, problem=f"upstream deleted {path}{commits}")
        if place is None or place.new is None:
            if ours and (OLD_ROOT in path or place is not None):
                problem = place.problem if place is not None else f"the old tree has no {path}"
                self.file.site(
                    RULE.url, (span_start, span_stop), problem, "link to what does this now"
                )
            return
        if not ours and not (place.certain and path in self.places.files):
            return
        self.file.edit(
            RULE.url if place.certain else RULE.folder,
            (span_start, span_stop),
            place.new,
            place.note,
        )

    def _word(self, start: int, stop: int) -> None:
        old = self.text[start:stop]
        if old == AL_FOLDER:
            self._al_folder(start, stop)
            return
        if old == "AL_MODEL":
            if self.text.endswith("DecoderBlockType.", 0, start):
                self.file.edit(RULE.word, (start, stop), "LING2")
            else:
                self.file.site(
                    RULE.word,
                    (start, stop),
                    "it may be the enum's member or a name of this text's own",
                    "rename it",
                )
            return
        new = self.project.names.get(old) or self.places.basenames.get(old)
        if new is None:
            self.file.site(RULE.word, (start, stop), f"{old} has no place in the migrated tree", "")
        elif self.text[start - 1 : start] in ("/",) and old in self.places.basenames:
            # Part of a path that nothing above could resolve.
            self.file.edit(RULE.word, (start, stop), new, "a path that the old tree does not have")
        else:
            self.file.edit(RULE.word, (start, stop), new)

    def _al_folder(self, start: int, stop: int) -> None:
        """The folder ALModel as such: its files went to a folder that holds other models too."""
        text = self.text
        homes = ", ".join(self.places.new_folders(AL_FOLDER))
        line_start = text.rfind("\n", 0, start) + 1
        line_end = text.find("\n", stop)
        line = text[line_start : len(text) if line_end == -1 else line_end]
        beside_package = re.search(
            rf"(?<![\w/.]){SOURCE_ROOT}/{OLD_ROOT}/?(?=[\s\"',\]]|\Z)|[\"']{OLD_ROOT}[\"']", line
        )
        if homes and beside_package:
            if self._drop(start, stop):
                return
            word = text[start - 1 : start] in (" ", "\t") and text[stop : stop + 1] in (
                "",
                " ",
                "\t",
                "\n",
            )
            if word and not self.document and not re.match(r"\s*(?:COPY|ADD)\b", line):
                self.file.edit(
                    RULE.word,
                    (start - 1, stop),
                    "",
                    f"its files are in {homes}, within the package",
                )
                return
        where = f": its files are in {homes}" if homes else ""
        self.file.site(
            RULE.word,
            (start, stop),
            f"the folder {AL_FOLDER} is no more{where}, beside other models",
            "name what is meant, or drop it",
        )

    def _test_name(self, start: int, stop: int) -> None:
        """`AlModel…`: a name of the checkout's tests."""
        span = (start, start + len("AlModel"))
        if self._selects_tests(start):
            self.file.edit(RULE.word, span, "Ling2", "the checkout's tests are renamed")
        else:
            reason = "a name with the model's old name that is in no table"
            self.file.site(RULE.word, (start, stop), reason, "rename it as the code is")

    def _selects_tests(self, start: int) -> bool:
        """Whether a name stands on a command line of pytest."""
        line_start = self.text.rfind("\n", 0, start) + 1
        return re.search(r"\bpytest\b", self.text[line_start:start]) is not None

    def _model(self, start: int, stop: int) -> None:
        text = self.text
        old, new = MODEL_NAME
        whole = text[start:stop].rstrip(".-")
        span = (start, start + len(old))
        if self._selects_tests(start) and text[start - 1 : start] != "/":
            self.file.edit(RULE.word, span, new, "the checkout's tests are renamed")
            return
        key = _MODEL_KEY.search(text, max(0, start - 60), start)
        if whole == old and text[start - 1 : start] not in ("_", "/", "."):
            if key is not None:
                self.file.edit(RULE.model, span, new)
            else:
                self.file.edit(RULE.word, span, new, "the model's name")
            return
        if not self.names:
            return
        if key is not None and text[start - 1 : start] != "/":
            self.file.edit(RULE.word, span, new, "a name made from the model's name")
            return
        self.file.site(
            RULE.word,
            (start, start + len(whole)),
            "a name made from the model's old name, perhaps of data that exists outside the checkout",
            f"rename to {whole.replace(old, new)} if nothing outside has this name",
        )


def _expansion_end(text: str, start: int, end: int) -> int | None:
    """Where the expansion that begins at `start` (`$NAME`, `${…}`, `{NAME}`) ends."""
    if text[start] == "$" and text[start + 1] != "{":
        found = re.compile(r"\$\w+").match(text, start, end)
        return found.end() if found else None
    depth, position = 0, start
    while position < end:
        char = text[position]
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return position + 1
        elif char == "\n":
            return None
        position += 1
    return None
