"""The scratch repository: new objects go there, everything else is read from the user's repository.

It borrows the user's objects through `objects/info/alternates`, so nothing is copied and nothing is written to the
user's repository until the finished branch is brought there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from codemods.errors import UserError
from codemods.maps.gitstore import GitStore

LINK = "120000"
SUBMODULE = "160000"
_SETTINGS = (
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("core.autocrlf", "false"),
    ("core.safecrlf", "false"),
    ("core.quotePath", "false"),
    ("commit.gpgSign", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("protocol.allow", "never"),
    ("log.showSignature", "false"),
    ("diff.orderFile", os.devnull),
    ("i18n.logOutputEncoding", "UTF-8"),
)
# What ties git to another repository than the one it is run in, as in a hook or an alias, or to other habits.
_TIES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DEFAULT_HASH",
    "GIT_DIFF_OPTS",
    "GIT_DIR",
    "GIT_EXTERNAL_DIFF",
    "GIT_GLOB_PATHSPECS",
    "GIT_GRAFT_FILE",
    "GIT_ICASE_PATHSPECS",
    "GIT_INDEX_FILE",
    "GIT_INDEX_VERSION",
    "GIT_LITERAL_PATHSPECS",
    "GIT_NAMESPACE",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)
# Nothing is fetched, no lock is taken without need, and only the settings above and the user's identity count.
_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a tree: its mode (as git writes it) and the id of its content."""

    mode: str
    blob: str

    @property
    def regular(self) -> bool:
        """Whether it is a file proper: no link and no submodule."""
        return self.mode not in (LINK, SUBMODULE)


Tree = dict[str, Entry]


class GitError(Exception):
    """A git command failed; the message is what git said."""


def untie() -> None:
    """Take out of this process's environment what would send git elsewhere."""
    for name in _TIES:
        os.environ.pop(name, None)


def git(
    folder: Path,
    *arguments: str,
    data: bytes | None = None,
    env: Mapping[str, str] | None = None,
    accept: tuple[int, ...] = (0,),
) -> bytes:
    """Run git in a repository and give back its standard output.

    Args:
        folder: the repository.
        arguments: the command.
        data: its standard input.
        env: more environment variables.
        accept: exit statuses that are no failure.

    Raises:
        GitError: the command failed.
        UserError: git is not installed.
    """
    settings = [part for key, value in _SETTINGS for part in ("-c", f"{key}={value}")]
    try:
        done = subprocess.run(
            ["git", *settings, "-C", str(folder), *arguments],
            input=data,
            stdin=None if data is not None else subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=os.environ | _ENVIRONMENT | dict(env or {}),
        )
    except FileNotFoundError:
        raise UserError("git is not installed or not on PATH") from None
    if done.returncode not in accept:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        lines = [x.partition(": ")[2] for x in said if x.startswith(("fatal: ", "error: "))]
        raise GitError((lines or said or [f"exit status {done.returncode}"])[0])
    return done.stdout


class Store(GitStore):
    """The scratch repository, to read objects of and to write objects to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._trees: dict[str, Tree] = {}

    @staticmethod
    def create(path: Path, source: Path) -> Store:
        """Make a scratch repository at `path` that borrows the objects of the repository `source`."""
        git(path.parent, "init", "--quiet", "--template=", "--object-format=sha1", str(path))
        common = common_folder(source)
        info = path / ".git/objects/info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "alternates").write_bytes(_quoted(os.fsencode(common / "objects")) + b"\n")
        if (common / "shallow").is_file():  # its history ends there; so does this one's
            shutil.copy(common / "shallow", path / ".git/shallow")
        for key, value in _SETTINGS:  # also for those who do not give them in the command
            git(path, "config", key, value)
        return Store(path)

    def run(
        self,
        *arguments: str,
        data: bytes | None = None,
        env: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (0,),
    ) -> bytes:
        """Run git here; see `git`."""
        return git(self.path, *arguments, data=data, env=env, accept=accept)

    def text(self, *arguments: str) -> str:
        """The output of a git command, as text without the last line end."""
        return self.run(*arguments).decode("utf-8", "surrogateescape").rstrip("\n")

    def entries(self, treeish: str) -> Tree:
        """Every file of a commit or tree, submodules and links included."""
        found = self._trees.get(treeish)
        if found is None:
            found = {}
            listed = self.run("ls-tree", "-r", "-z", "--full-tree", treeish)
            for record in listed.decode("utf-8", "surrogateescape").split("\0"):
                if record:
                    meta, _, path = record.partition("\t")
                    mode, _, blob = meta.split()
                    found[path] = Entry(mode, blob)
            self._trees[treeish] = found
        return found

    def content(self, entry: Entry | None) -> bytes | None:
        """The content of a file; None where there is no file, no such object or no content (a submodule)."""
        if entry is None or entry.mode == SUBMODULE:
            return None
        return self.read(entry.blob)

    def write(self, content: bytes) -> str:
        """Store a content; returns its id."""
        return self.run("hash-object", "-w", "--stdin", data=content).decode().strip()

    def write_tree(self, tree: Tree) -> str:
        """Store a tree; objects that are missing here (a partial clone) may be in it."""
        index = self.path / ".git/index.ling2-migrate"
        env = {"GIT_INDEX_FILE": str(index)}
        lines = (f"{e.mode} {e.blob}\t{p}\0" for p, e in sorted(tree.items()))
        data = "".join(lines).encode("utf-8", "surrogateescape")
        try:
            self.run("update-index", "-z", "--add", "--index-info", data=data, env=env)
            return self.run("write-tree", "--missing-ok", env=env).decode().strip()
        finally:
            index.unlink(missing_ok=True)

    def empty_tree(self) -> str:
        """Store the tree without files."""
        return self.run("mktree", data=b"").decode().strip()

    def write_commit(self, raw: bytes) -> str:
        """Store a commit object given as git's own text of it."""
        return self.run("hash-object", "-t", "commit", "-w", "--stdin", data=raw).decode().strip()

    def raw_commit(self, commit: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """The header lines (folded lines joined) and the message of a commit."""
        head, _, message = self.run("cat-file", "commit", commit).partition(b"\n\n")
        headers: list[tuple[bytes, bytes]] = []
        for line in head.split(b"\n"):
            if line.startswith(b" ") and headers:
                key, value = headers[-1]
                headers[-1] = (key, value + b"\n" + line)
            else:
                key, _, value = line.partition(b" ")
                headers.append((key, value))
        return headers, message

    def parents(self, commit: str) -> list[str]:
        """The parents of a commit, as its text names them."""
        return [v.decode() for k, v in self.raw_commit(commit)[0] if k == b"parent"]

    def missing(self, tree: Tree) -> set[str]:
        """Files whose content is not here (a partial clone)."""
        ids = sorted({e.blob for e in tree.values() if e.mode != SUBMODULE})
        data = "".join(f"{x}\n" for x in ids).encode()
        shown = self.run("cat-file", "--batch-check=%(objectname) %(objecttype)", data=data)
        gone = {x.split()[0] for x in shown.decode().splitlines() if x.endswith(" missing")}
        return {p for p, e in tree.items() if e.blob in gone and e.mode != SUBMODULE}

    def present(self, treeish: str, parent: str = "") -> str:
        """A commit of the files of a tree whose contents are here, for commands that need all of them."""
        tree = self.entries(treeish)
        missing = self.missing(tree)
        kept = self.write_tree({p: e for p, e in tree.items() if p not in missing})
        lines = [f"tree {kept}", *([f"parent {parent}"] if parent else [])]
        lines += ["author - <-> 0 +0000", "committer - <-> 0 +0000", "", ""]
        return self.write_commit("\n".join(lines).encode())

    def own_objects(self) -> list[str]:
        """Every object that was made here."""
        objects = self.path / ".git/objects"
        found = [
            folder.name + file.name
            for folder in objects.iterdir()
            if len(folder.name) == 2
            for file in folder.iterdir()
            if len(file.name) in (38, 62)
        ]
        for pack in (objects / "pack").glob("*.idx") if (objects / "pack").is_dir() else ():
            listed = self.run("show-index", data=pack.read_bytes()).decode()
            found += [line.split()[1] for line in listed.splitlines()]
        return sorted(set(found))

    def bring(self, target: Path, branch: str, commit: str, objects: Iterable[str]) -> None:
        """Copy objects to the repository `target` and make a new branch of `commit` there.

        Raises:
            GitError: git refuses, for one because there is such a branch by now.
        """
        listed = "".join(f"{name}\n" for name in objects).encode()
        if listed:
            pack = self.run("pack-objects", "--stdout", "--quiet", data=listed)
            git(target, "unpack-objects", "-q", data=pack)
        git(target, "update-ref", f"refs/heads/{branch}", commit, "0" * len(commit))


def _quoted(path: bytes) -> bytes:
    """A path for `alternates`: as it is, or as git quotes one that holds a line end."""
    if b"\n" not in path:
        return path
    for plain, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        path = path.replace(plain, escaped)
    return b'"' + path + b'"'


def common_folder(repository: Path) -> Path:
    """The folder that holds a repository's objects and refs, also where `repository` is a linked worktree."""
    shown = os.fsdecode(git(repository, "rev-parse", "--git-common-dir")).removesuffix("\n")
    return (repository / shown).resolve()
