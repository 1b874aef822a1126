"""States of a repository that are not what one hopes for: clear words, and nothing lost."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from migration_tests.checkouts import CommandLine, Ran
from migration_tests.rebase.repos import MOVED, Repo, rebase, start

MODULE = "".join(f"VALUE_{k} = {k}\n" for k in range(20))
EDITED = MODULE.replace("VALUE_3 = 3\n", "VALUE_3 = 33\n")


def moved(root: Path, extra: dict[str, str | bytes] | None = None) -> Repo:
    """Upstream moves a module and changes its end; the fork changes its beginning."""
    repo = start(root, {"src/MaxText/m.py": MODULE, **(extra or {})})
    repo.commit("move", move={**MOVED, "src/MaxText/m.py": "src/maxtext/m.py"})
    repo.commit("change", {"src/maxtext/m.py": MODULE.replace("VALUE_18 = 18", "VALUE_18 = 180")})
    repo.git("checkout", "-q", "fork")
    repo.commit("edit", {"src/MaxText/m.py": EDITED})
    return repo


@pytest.fixture
def carry(cli: CommandLine, tmp_path: Path) -> Callable[..., Ran]:
    """Run a rebase of a repository to the branch `new`, in tmp_path/work."""

    def run(root: Path, *more: str) -> Ran:
        return rebase(cli, root, tmp_path / "work", *more)

    return run


def result(repo: Repo) -> str:
    """The module on the new branch."""
    return repo.show("new", "src/maxtext/m.py")


RIGHT = EDITED.replace("VALUE_18 = 18", "VALUE_18 = 180")


def test_a_dirty_tree_is_said_and_left_alone(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo")
    (repo.root / "src/MaxText/m.py").write_text("dirty\n")
    (repo.root / "untracked").write_text("here\n")
    ran = carry(repo.root)
    assert ran.status == 0
    assert b"uncommitted changes" in ran.out
    assert result(repo) == RIGHT
    assert (repo.root / "src/MaxText/m.py").read_text() == "dirty\n"
    assert repo.git("symbolic-ref", "HEAD").strip() == "refs/heads/fork"


def test_a_detached_head_is_carried(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo")
    repo.git("checkout", "-q", "--detach")
    ran = carry(repo.root)
    assert ran.status == 0
    assert b"HEAD is detached at" in ran.out
    assert result(repo) == RIGHT


def test_a_linked_worktree(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo")
    repo.git("checkout", "-q", "upstream")
    repo.git("worktree", "add", "-q", str(tmp_path / "linked"), "fork")
    assert carry(tmp_path / "linked").status == 0
    assert result(repo) == RIGHT


def test_mistakes_are_one_line_and_write_nothing(
    cli: CommandLine, carry: Callable[..., Ran], tmp_path: Path
) -> None:
    repo = moved(tmp_path / "repo")
    before = repo.state()
    work = tmp_path / "work"
    wrong = [
        (["rebase", repo.root / "src", "--onto", "upstream", "--plan"], "not the root"),
        (["rebase", tmp_path / "none", "--onto", "upstream", "--plan"], "no such folder"),
        (["rebase", tmp_path, "--onto", "upstream", "--plan"], "git does not read"),
        (["rebase", repo.root, "--onto", "nowhere", "--plan"], "no such commit"),
        (["rebase", repo.root, "--plan"], "--onto"),
        (["rebase", repo.root, "--onto", "upstream"], "--branch NAME and --out DIR"),
        (["rebase", repo.root, "--onto", "upstream", "--branch", "x"], "--out DIR"),
        (["rebase", repo.root, "--onto", "fork", "--plan"], "nothing to carry"),
        (["rebase", repo.root, "--onto", "upstream", "--branch", "fork", "--out", work], "already"),
        (["rebase", repo.root, "--onto", "upstream", "--branch", "a b", "--out", work], "no name"),
        (["rebase", repo.root, "--onto", "upstream", "--branch", "x", "--out", repo.root / "w"], "lies in"),
        (["rebase", repo.root, "--onto", "upstream", "--branch", "x", "--out", tmp_path], "exists"),
        (["rebase", "--continue", "--out", tmp_path / "none"], "no rebase"),
        (["rebase", "--continue", "--plan"], "give one of"),
        (["rebase", repo.root, "--onto", "upstream~2", "--branch", "x", "--out", work], ""),
    ]  # fmt: skip
    for arguments, words in wrong:
        ran = cli(*arguments)
        assert ran.status == 2, arguments
        assert words in ran.err
        assert ran.err.count("\n") == 1
        assert repo.state() == before
        assert not work.exists()


def test_unrelated_histories(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo")
    repo.git("checkout", "-q", "--orphan", "alone")
    repo.commit("all at once")
    ran = carry(repo.root)
    assert ran.status == 2
    assert "no commit in common" in ran.err
    assert not (tmp_path / "work").exists()


def test_a_shallow_clone_without_the_base_says_what_to_do(
    carry: Callable[..., Ran], tmp_path: Path
) -> None:
    repo = moved(tmp_path / "repo")
    url = f"file://{repo.root}"
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", "--no-single-branch", "-b", "fork", url, str(clone)],
        check=True,
    )
    shallow = Repo(clone)
    shallow.git("branch", "upstream", "origin/upstream")
    ran = carry(clone)
    assert ran.status == 2
    assert "git fetch --unshallow" in ran.err
    shallow.git("fetch", "-q", "--depth", "3")
    assert carry(clone).status == 0
    assert result(shallow) == RIGHT


def test_a_partial_clone_keeps_what_it_lacks(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo", {"docs/big.bin": b"x" * 5000})
    repo.git("config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "-q", "--filter=blob:limit=3k", "--no-checkout", "-b", "fork",
         f"file://{repo.root}", str(clone)], check=True,
    )  # fmt: skip
    partial = Repo(clone)
    partial.git("branch", "upstream", "origin/upstream")
    partial.git("update-ref", "--no-deref", "HEAD", "fork")
    ran = carry(clone)
    assert ran.status == 0, ran.err
    assert result(partial) == RIGHT
    assert partial.git("rev-parse", "new:docs/big.bin") == partial.git(
        "rev-parse", "fork:docs/big.bin"
    )
    assert (
        "missing"
        in partial.git(
            "-c",
            "protocol.allow=never",
            "cat-file",
            "--batch-check",
            "--batch-all-objects",
            check=False,
        )
        or not (tmp_path / "work/docs/big.bin").exists()
    )


def test_merges_of_upstream_and_of_lines_of_the_branch(
    carry: Callable[..., Ran], tmp_path: Path
) -> None:
    repo = start(tmp_path / "repo", {"src/MaxText/m.py": MODULE, "src/MaxText/n.py": MODULE})
    between = repo.commit(
        "still old", {"src/MaxText/n.py": MODULE.replace("VALUE_9 = 9", "VALUE_9 = 99")}
    )
    repo.commit(
        "move",
        move={
            **MOVED,
            "src/MaxText/m.py": "src/maxtext/m.py",
            "src/MaxText/n.py": "src/maxtext/n.py",
        },
    )
    repo.git("checkout", "-q", "fork")
    repo.commit("edit m", {"src/MaxText/m.py": EDITED})
    repo.git("checkout", "-q", "-b", "side", "fork")
    repo.commit("side", {"src/MaxText/side.py": "from MaxText import n\n"})
    repo.git("checkout", "-q", "fork")
    repo.commit(
        "main line", {"src/MaxText/m.py": EDITED.replace("VALUE_15 = 15", "VALUE_15 = 150")}
    )
    repo.git("merge", "-q", "--no-ff", "-m", "merge side", "side")
    repo.git("merge", "-q", "--no-ff", "-m", "merge upstream", between)
    repo.commit(
        "last",
        {
            "src/MaxText/n.py": MODULE.replace("VALUE_9 = 9", "VALUE_9 = 99").replace(
                "VALUE_1 = 1\n", "VALUE_1 = 10\n"
            )
        },
    )
    ran = carry(repo.root)
    assert (ran.status, ran.err) == (0, "")
    assert result(repo) == EDITED.replace("VALUE_15 = 15", "VALUE_15 = 150")
    assert "VALUE_1 = 10\n" in repo.show("new", "src/maxtext/n.py")
    assert repo.show("new", "src/maxtext/side.py") == "from maxtext import n\n"
    subjects = repo.git("log", "--format=%s", "upstream..new").splitlines()
    assert sorted(subjects) == ["edit m", "last", "main line", "merge side", "side"]
    assert len(repo.git("log", "-1", "--format=%p", "--merges", "new").split()) == 2


def test_binary_files_links_modes_and_submodules(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo", {"a.bin": b"\0one", "b.bin": b"\0one", "run.sh": "exit 0\n"})
    (repo.root / "link").symlink_to("run.sh")
    (repo.root / "run.sh").chmod(0o755)
    repo.commit("more", {"a.bin": b"\0two"})
    other = repo.git("rev-parse", "upstream").strip()
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{other},vendor/lib")
    repo.git("commit", "-q", "-m", "submodule")
    (repo.root / "vendor/lib").mkdir(parents=True)
    ran = carry(repo.root)
    assert (ran.status, ran.err) == (0, "")
    listed = {x.split("\t")[1]: x.split()[0] for x in repo.git("ls-tree", "-r", "new").splitlines()}
    assert listed["link"] == "120000"
    assert listed["run.sh"] == "100755"
    assert listed["vendor/lib"] == "160000"
    assert repo.git("rev-parse", "new:a.bin") == repo.git("rev-parse", "fork:a.bin")


def test_a_binary_file_that_both_changed_is_a_conflict(
    carry: Callable[..., Ran], tmp_path: Path
) -> None:
    repo = moved(tmp_path / "repo", {"a.bin": b"\0one"})
    repo.commit("fork's", {"a.bin": b"\0fork"})
    repo.git("checkout", "-q", "upstream")
    repo.commit("upstream's", {"a.bin": b"\0upstream"})
    repo.git("checkout", "-q", "fork")
    ran = carry(repo.root)
    assert ran.status == 1
    assert b"a.bin: a binary file, changed on both sides" in ran.out
    assert (tmp_path / "work/a.bin").read_bytes() == b"\0upstream"


@pytest.mark.parametrize("side", ["upstream", "fork", "both"])
def test_line_ends_are_kept(carry: Callable[..., Ran], tmp_path: Path, side: str) -> None:
    crlf = {True: "\r\n", False: "\n"}

    def ends(text: str, own: str) -> str:
        return text.replace("\n", crlf[side in (own, "both")])

    start_text = ends(MODULE, "none") if side != "both" else MODULE.replace("\n", "\r\n")
    repo = start(tmp_path / "repo", {"src/MaxText/m.py": start_text})
    changed = MODULE.replace("VALUE_18 = 18", "VALUE_18 = 180")
    repo.commit("move", move={**MOVED, "src/MaxText/m.py": "src/maxtext/m.py"})
    repo.commit("change", {"src/maxtext/m.py": ends(changed, "upstream")})
    repo.git("checkout", "-q", "fork")
    repo.commit("edit", {"src/MaxText/m.py": ends(EDITED, "fork")})
    ran = carry(repo.root)
    assert (ran.status, ran.err) == (0, "")
    blob = subprocess.run(
        ["git", "-C", str(repo.root), "show", "new:src/maxtext/m.py"],
        capture_output=True,
        check=True,
    ).stdout
    assert blob == RIGHT.replace("\n", "\r\n").encode()


def test_upstream_deleted_and_the_fork_changed(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo", {"src/MaxText/gone.py": MODULE})
    repo.commit("edit gone", {"src/MaxText/gone.py": EDITED})
    repo.git("checkout", "-q", "upstream")
    repo.commit("delete", remove=("src/MaxText/gone.py",))
    repo.git("checkout", "-q", "fork")
    ran = carry(repo.root)
    assert ran.status == 1
    assert b"upstream has no such file any more" in ran.out
    status = subprocess.run(
        ["git", "-C", str(tmp_path / "work"), "status", "--porcelain"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert status.startswith("DU ")


def test_a_file_where_upstream_has_a_folder(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo")
    repo.commit("a file", {"tools": "text\n"})
    repo.git("checkout", "-q", "upstream")
    repo.commit("a folder", {"tools/run.sh": "exit 0\n"})
    repo.git("checkout", "-q", "fork")
    ran = carry(repo.root)
    assert ran.status == 1, ran.err
    assert b"tools: a file on one side has the name of a folder on the other" in ran.out
    assert (tmp_path / "work/tools/run.sh").is_file()


def test_dump_hooks_of_the_fork_are_dropped_with_the_reason(
    carry: Callable[..., Ran], tmp_path: Path
) -> None:
    repo = moved(tmp_path / "repo")
    hooks = (
        "def dump_tensor(name, x, layer=None):\n  return x\n\n\n"
        "def dumpable(target=None, *, name=None):\n  return target\n"
    )
    own = "from MaxText.utils.argus_utils import dump_tensor\n\n\ndef f(x):\n  dump_tensor('x', x)\n  return x + 1\n"
    repo.commit("hooks", {"src/MaxText/utils/argus_utils.py": hooks, "src/MaxText/own.py": own})
    repo.commit("more", {"src/MaxText/own.py": own.replace("x + 1", "x + 2")})
    ran = carry(repo.root)
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "src/maxtext/own.py").strip() == "def f(x):\n  return x + 2"
    assert not [p for p in repo.tree("new") if "argus" in p]
    assert b"dropped src/MaxText/utils/argus_utils.py:1 the dump hooks stay out" in ran.out
    assert result(repo) == RIGHT


def test_a_bare_repository(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo")
    bare = tmp_path / "bare.git"
    subprocess.run(["git", "clone", "-q", "--bare", str(repo.root), str(bare)], check=True)
    assert carry(bare, "--from", "fork").status == 0
    assert result(Repo(bare)) == RIGHT


def _fails(where: Path, name: str) -> str:
    """A command that leaves a trace and fails."""
    return f"sh -c 'echo {name} >> {where}; exit 1'"


def test_the_users_set_up_changes_nothing(
    carry: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 1\n"
    attributes = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
    repo = moved(tmp_path / "repo", {".gitattributes": attributes, "a.bin": pointer.format(1)})
    repo.commit("binary", {"a.bin": pointer.format(2)})
    trace = tmp_path / "trace"
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("reference-transaction", "post-index-change", "post-checkout", "pre-commit"):
        for folder in (hooks, repo.root / ".git/hooks"):
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(f"#!/bin/sh\necho {name} >> {trace}\nexit 1\n")
            (folder / name).chmod(0o755)
    settings = {
        "core.hooksPath": hooks, "core.autocrlf": "true", "core.eol": "crlf", "core.abbrev": "4",
        "core.commentChar": "%", "diff.noprefix": "true", "diff.renames": "false",
        "diff.external": "/bin/false", "diff.context": "0", "diff.orderFile": "/nowhere",
        "diff.relative": "true", "merge.conflictStyle": "diff3", "merge.renames": "false",
        "merge.lfs.driver": "false", "commit.gpgSign": "true", "gpg.program": "/bin/false",
        "color.ui": "always", "log.showSignature": "true", "i18n.logOutputEncoding": "UTF-16",
        "trailer.where": "start", "trailer.ifExists": "doNothing", "trailer.ifMissing": "doNothing",
        "init.defaultObjectFormat": "sha256", "filter.lfs.smudge": _fails(trace, "smudge"),
        "filter.lfs.process": _fails(trace, "process"), "filter.lfs.required": "true",
    }  # fmt: skip
    config = tmp_path / "config"
    for key, value in settings.items():
        subprocess.run(["git", "config", "--file", config, key, str(value)], check=True)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    ran = carry(repo.root)
    assert (ran.status, ran.err) == (0, "")
    assert result(repo) == RIGHT
    assert (tmp_path / "work/a.bin").read_text() == pointer.format(2)
    assert (tmp_path / "work/src/maxtext/m.py").read_text() == RIGHT
    monkeypatch.delenv("GIT_CONFIG_GLOBAL")
    assert not trace.exists() or "process" in trace.read_text()  # `git status` of the checkout
    assert "checkout" not in (trace.read_text() if trace.exists() else "")
    body = repo.git("log", "-1", "--format=%B", "new").strip()
    assert body == f"binary\n\nRebased-from: {repo.git('rev-parse', 'fork').strip()}"


def test_git_is_not_sent_to_another_repository(
    carry: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = moved(tmp_path / "repo")
    other = start(tmp_path / "other", {"x": "y\n"})
    before = other.state()
    for name, value in {
        "GIT_DIR": other.root / ".git",
        "GIT_WORK_TREE": other.root,
        "GIT_INDEX_FILE": tmp_path / "index",
        "GIT_OBJECT_DIRECTORY": tmp_path / "objects",
        "GIT_PREFIX": "src/",
        "GIT_EXTERNAL_DIFF": "/bin/false",
    }.items():
        monkeypatch.setenv(name, str(value))
    ran = carry(repo.root)
    assert (ran.status, ran.err) == (0, "")
    assert other.state() == before
    assert not (tmp_path / "index").exists()
    assert result(repo) == RIGHT


def test_commits_of_all_kinds(carry: Callable[..., Ran], tmp_path: Path) -> None:
    """Without a line end, a message, UTF-8; empty; signed; a root of its own; with deleted files alone."""
    repo = moved(tmp_path / "repo", {"gone": "1\n"})
    repo.commit("only deletes", remove=("gone",))
    repo.git("checkout", "-q", "--orphan", "vendored")
    repo.git("rm", "-rfq", ".")
    repo.commit("a root", {"third/v.py": "V = 1\n"})
    repo.git("checkout", "-q", "fork")
    repo.git("merge", "-q", "--allow-unrelated-histories", "-m", "join", "vendored")
    who = b"author J\xf6rg <j@x> 1234567890 -0930\ncommitter J\xf6rg <j@x> 1234567890 -0930\n"
    for text in (
        b"\nno line end",
        b"encoding ISO-8859-1\n\nJ\xf6rg's\n\nbody\n---\nmore\n",
        b"gpgsig -----BEGIN PGP SIGNATURE-----\n \n abc\n -----END PGP SIGNATURE-----\n\nsigned\n",
        b"\n",
    ):
        tree, parent = (repo.git("rev-parse", x).strip() for x in ("HEAD^{tree}", "HEAD"))
        raw = f"tree {tree}\nparent {parent}\n".encode() + who + text
        made = subprocess.run(
            ["git", "-C", str(repo.root), "hash-object", "-t", "commit", "-w", "--stdin"],
            input=raw,
            capture_output=True,
            check=True,
        )
        repo.git("reset", "-q", "--soft", made.stdout.decode().strip())
    ran = carry(repo.root)
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "third/v.py") == "V = 1\n"
    assert "gone" not in repo.tree("new")
    shown = repo.git(
        "-c", "i18n.logOutputEncoding=UTF-8",
        "log", "--reverse", "--first-parent", "--format=%s|%(trailers:key=Rebased-from,valueonly,separator=+)",
        "upstream..new",
    ).splitlines()  # fmt: skip
    subjects = ["edit", "only deletes", "join", "no line end", "Jörg's", "signed"]
    assert [x.partition("|")[0] for x in shown[:-1]] == subjects
    assert [x.partition("|")[2] for x in shown[:-1]] == repo.git(
        "log", "--reverse", "--first-parent", "--format=%H", f"{repo.base}..fork~1"
    ).split()
    raw = subprocess.run(
        ["git", "-C", str(repo.root), "cat-file", "commit", "new"], capture_output=True, check=True
    ).stdout
    assert who.splitlines()[0] in raw
    assert b"gpgsig" not in raw


def test_what_upstream_left_where_it_was(carry: Callable[..., Ran], tmp_path: Path) -> None:
    kept = {"src/MaxText/keep.txt": "1\n2\n3\n4\n5\n6\n7\n", "src/MaxText/stays.py": MODULE}
    repo = moved(tmp_path / "repo", kept | {"src/MaxText/deleted.py": MODULE})
    repo.commit(
        "fork's",
        {
            "src/MaxText/keep.txt": "1\n2\n3\n4\n5\n6\n8\n",
            "src/MaxText/stays.py": EDITED,
            "src/MaxText/uses.py": "from MaxText import m, stays\n",
        },
        remove=("src/MaxText/deleted.py",),
    )
    repo.git("checkout", "-q", "upstream")
    changed = {"src/MaxText/stays.py": MODULE.replace("VALUE_18 = 18", "VALUE_18 = 180")}
    changed |= {"src/MaxText/keep.txt": "0\n2\n3\n4\n5\n6\n7\n", "src/MaxText/deleted.py": EDITED}
    repo.commit("upstream's", changed)
    repo.git("checkout", "-q", "fork")
    ran = carry(repo.root)
    assert ran.status == 1
    assert b"src/MaxText/deleted.py: the fork deleted it, and upstream changed it" in ran.out
    assert ran.out.count(b"  conflict ") == 1
    work = tmp_path / "work"
    assert (work / "src/MaxText/keep.txt").read_text() == "0\n2\n3\n4\n5\n6\n8\n"
    assert (work / "src/MaxText/stays.py").read_text() == RIGHT
    uses = (work / "src/maxtext/uses.py").read_text()
    assert "import m\n" in uses.replace("from maxtext ", "")
    assert "from MaxText import stays" in uses


def test_a_folder_gives_way_to_a_file(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo", {"bin/a": "1\n", "bin/b": "2\n"})
    repo.commit("a file", {"bin": "3\n"}, remove=("bin/a", "bin/b"))
    ran = carry(repo.root)
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "bin") == "3\n"


def test_a_merge_of_three(carry: Callable[..., Ran], tmp_path: Path) -> None:
    repo = moved(tmp_path / "repo")
    for name in "abc":
        repo.git("checkout", "-q", "-b", name, "fork")
        repo.commit(name, {f"{name}.txt": name})
    repo.git("checkout", "-q", "fork")
    repo.git("merge", "-q", "-m", "octopus", "a", "b", "c")
    ran = carry(repo.root)
    assert ran.status == 2
    assert "a merge of 3 branches cannot be carried as it is; use --squash" in ran.err
    assert not (tmp_path / "work").exists()
    assert carry(repo.root, "--squash").status == 0
    assert {"a.txt", "b.txt", "c.txt"} <= set(repo.tree("new"))


def test_objects_named_by_sha256_are_refused(carry: Callable[..., Ran], tmp_path: Path) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    repo = Repo(root)
    repo.git("init", "-q", "-b", "upstream", "--object-format=sha256")
    repo.commit("base", {"a": "b\n"})
    ran = carry(root)
    assert ran.status == 2
    assert "only SHA-1" in ran.err
