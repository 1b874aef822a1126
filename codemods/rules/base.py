"""What a rule is: an id, a tier, one line of documentation, and examples that are its tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from codemods.engine.edits import Tier


@dataclass(frozen=True, slots=True)
class Example:
    """One before/after pair. It is shown by `--explain` and run as a test with all rules on.

    Attributes:
        before, after: whole texts of one file. `after == before` shows what the rule leaves alone.
        path: the file's path in an old checkout (decides the kind of file).
        listed: substrings of `before`, each of which must be listed for a person (line of the site).
        files: other files of the checkout that the example needs, path → text.
    """

    before: str
    after: str
    path: str = "tools/example.py"
    listed: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule's description; the code that finds its sites lives in its family's module.

    Attributes:
        id: family and number, `IMP001`.
        tier: safe (semantics kept), review (right in the stated case, look at it), report (never edits).
        summary: one line.
        detail: the conditions under which it rewrites, and what it lists instead.
        examples: at least one.
    """

    id: str
    tier: Tier
    summary: str
    detail: str = ""
    examples: tuple[Example, ...] = ()

    @property
    def family(self) -> str:
        return self.id[:3]
