"""What a rule sees of one file, and where it leaves its edits and sites."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst

from codemods.engine.edits import Edit, Site
from codemods.engine.scopes import Scopes
from codemods.engine.tree import Span, Tree

if TYPE_CHECKING:
    from codemods.engine.project import Project


class SourceFile:
    """A text file of the checkout under the rules.

    Attributes:
        path: its path in the checkout, with `/`.
        text: its decoded text; offsets of edits and sites count characters of this.
        project: what is known of the whole checkout, the map and the target (read only).
        edits, sites: what the rules have found so far.
    """

    def __init__(self, path: str, text: str, project: Project) -> None:
        self.path = path
        self.text = text
        self.project = project
        self.edits: list[Edit] = []
        self.sites: list[Site] = []

    def enabled(self, rule: str) -> bool:
        """Whether the user wants this rule to run (`--only`, `--skip`)."""
        return rule in self.project.enabled

    def edit(self, rule: str, span: Span, new: str, reason: str = "", group: str = "") -> None:
        """Make the text of `span` into `new`, unless the rule is switched off or nothing would change."""
        if self.enabled(rule) and self.text[span[0] : span[1]] != new:
            self.edits.append(Edit(span[0], span[1], new, rule, reason, group))

    def site(self, rule: str, span: Span, reason: str, todo: str = "") -> None:
        """List a place for a person, unless the rule is switched off."""
        if self.enabled(rule):
            self.sites.append(Site(span[0], span[1], rule, reason, todo))

    def close(self) -> None:
        """Give up what only the rules need; edits, sites and the text stay."""


class TextFile(SourceFile):
    """Shell, YAML, Markdown, TOML, notebooks, Dockerfiles, …: anything that is not Python."""


class PythonFile(SourceFile):
    """A Python file, parsed once; its scopes are worked out when first asked for.

    Attributes:
        module_name: dotted name in the old tree (`MaxText.layers.moe`), "" for code with none.
        is_package: whether it is an `__init__.py` (relative imports count from it).
        unused: import aliases that nothing needs any more once the rules' removals are made
            (filled by the dump rules before the import rules run).
        renamed: offset of a name in code → the identifier it becomes where that is not the one of
            `project.names` (filled by the rename rules before the import rules run).
    """

    def __init__(
        self,
        path: str,
        text: str,
        project: Project,
        module_name: str = "",
        is_package: bool = False,
    ) -> None:
        """Parse.

        Raises:
            UnparsableError: see `Tree`.
        """
        super().__init__(path, text, project)
        self.module_name = module_name
        self.is_package = is_package
        self.tree = Tree(text)
        self.unused: set[cst.ImportAlias] = set()
        self.renamed: dict[int, str] = {}

    @cached_property
    def scopes(self) -> Scopes:
        return Scopes(self.tree)

    def close(self) -> None:
        """Free the tree: scopes and bindings refer to each other, so it would wait for the collector."""
        scopes = self.__dict__.pop("scopes", None)
        if scopes is not None:
            scopes.clear()

    def span(self, node: cst.CSTNode) -> Span:
        """Where a node lies in `text`."""
        return self.tree.span(node)

    def source(self, node: cst.CSTNode) -> str:
        """A node's own source text."""
        return self.tree.source(node)
