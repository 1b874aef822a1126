"""Getting hold of an upstream MaxText tree: a folder, or a released version fetched once and kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from codemods.errors import UserError

PROJECT = "maxtext"
CACHE_VARIABLE = "LING2_MIGRATE_CACHE"
FETCH_TIMEOUT = 300.0

# sha256 of the wheels on PyPI.
KNOWN_WHEELS = {
    "0.1.0": "820e09354bcef49c6f871c15a4142916089eef90606f13d5c7a8760e3b65eabb",
    "0.2.0": "d302ec3eb5ef5ecd6987b008e61d32ece4a384821988b4fd7325443f1b5edbee",
    "0.2.1": "f2bcd4a84975f7376b97b3c64e1c25c16e98ad2318fc869716a61cda4e97e740",
    "0.2.2": "221252d4e9d894fa04a93a11d8ffe4ad3c4237b77fa6a5d48ef43c9c0cd32462",
    "0.2.3": "1f05cb1484a69f59ee9ed95d9357ab603930c3d25156c14fea45ff2b61bbdbcc",
    "0.2.4": "ce0fbdee6fab4b6696b3c483dc6bb8e39ea2b875e91f033ccd374bac68188acd",
    "0.2.5": "2fe8e4ffc3a06bd06f94daeaaf5fe3ecee748bb6f661c0f426e07e2ca10c9406",
}

_VERSION = re.compile(r"^\d+(\.\d+)+((a|b|rc|\.dev|\.post)\d+)*$")


@dataclass(frozen=True, slots=True)
class Upstream:
    """An upstream tree.

    Attributes:
        root: the folder given or unpacked: a repository's root, or a folder that holds packages.
        label: what a person calls it: the version, or the folder's path.
        python_root: the folder that holds the import package.
        version: the version that its own text states, or "".
        layout: the import package: `maxtext`, or `MaxText` for a tree on the old layout.
    """

    root: Path
    label: str
    python_root: Path
    version: str
    layout: str

    @property
    def wheel(self) -> bool:
        """Whether the packages lie at the root, as in a wheel, rather than below `src/`."""
        return self.python_root == self.root


def is_version(spec: str) -> bool:
    """Whether an upstream is given as a version number rather than a folder."""
    return _VERSION.match(spec) is not None


def cache_folder() -> Path:
    """Where fetched wheels are kept: `$LING2_MIGRATE_CACHE`, else `ling2-migrate` in the user's cache folder."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "ling2-migrate"


def resolve_upstream(spec: str) -> Upstream:
    """Find the tree that `--upstream` names.

    Args:
        spec: a folder (a git checkout, an unpacked wheel or site-packages) or a version on PyPI.

    Raises:
        UserError: no such folder, no MaxText in it, or a version that cannot be had.
    """
    folder = Path(spec).expanduser()
    version = spec.removeprefix("v")  # as release tags have it
    if is_version(version) and not folder.is_dir():
        # PyPI knows 0.2 as 0.2.0.
        return _describe(_fetched(f"{version}.0" if version.count(".") == 1 else version), spec)
    if not folder.exists():
        raise UserError(f"{spec}: no such folder, and no version number either")
    if not folder.is_dir():
        raise UserError(
            f"{spec}: not a folder; give a MaxText checkout, an unpacked wheel or a version"
        )
    return _describe(folder.resolve(), spec)


def require_target(upstream: Upstream) -> Upstream:
    """The same tree, if it can be migrated to.

    Raises:
        UserError: it is on the old layout.
    """
    if upstream.layout != "maxtext":
        raise UserError(
            f"{upstream.label}: this MaxText is on the old layout (package MaxText); give one that has "
            "the package maxtext, such as 0.2.5"
        )
    return upstream


def _describe(root: Path, label: str) -> Upstream:
    # Old and new package stood side by side for a time; the new one then holds the code. It had no
    # `__init__.py` at first.
    for layout in ("maxtext", "MaxText"):
        for python_root in (root / "src", root):
            package = python_root / layout
            if _spelled(python_root, layout) and (package / "layers").is_dir():
                return Upstream(root, label, python_root, _stated_version(package), layout)
    raise UserError(
        f"{label}: no MaxText in it (looked for maxtext/ and MaxText/, also below src/)"
    )


def _spelled(folder: Path, name: str) -> bool:
    """Whether a folder has an entry of exactly this spelling, also where file names ignore case."""
    try:
        return name in os.listdir(folder)
    except OSError:
        return False


def _stated_version(package: Path) -> str:
    for path in (
        package / "version.py",
        package / "__init__.py",
        package.with_name("MaxText") / "__init__.py",
    ):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        stated = re.search(r"^__version__\s*=\s*[\"']([^\"']+)[\"']", text, re.MULTILINE)
        if stated:
            return stated.group(1)
    return ""


def _fetched(version: str) -> Path:
    """The unpacked wheel of a version, from the cache or from PyPI."""
    cache = cache_folder()
    folder = cache / f"{PROJECT}-{version}"
    name = f"{PROJECT}-{version}-py3-none-any.whl"
    wheel = cache / name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not wheel.is_file():
            _download(version, name, cache)
        found = _sha256(wheel)
        _check(version, found, wheel, cache)
        mark = folder / ".sha256"
        if not mark.is_file() or mark.read_text(encoding="utf-8") != found:
            _unpack(wheel, folder, found)
    except OSError as error:
        raise UserError(
            f"{cache}: cannot keep maxtext {version} there ({error.strerror})"
        ) from None
    return folder


def _download(version: str, name: str, cache: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", scratch]
        command += ["--python-version", "3.12", f"{PROJECT}=={version}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=FETCH_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"maxtext {version}: PyPI did not answer within {FETCH_TIMEOUT:.0f} s; try again, or "
                "unpack its wheel and give the folder"
            ) from None
        fetched = Path(scratch) / name
        if done.returncode != 0 or not fetched.is_file():
            lines = done.stderr.strip().splitlines()
            errors = [x.removeprefix("ERROR: ") for x in lines if x.startswith("ERROR: ")]
            others = [x for x in lines if not x.startswith("WARNING: ")]
            why = (errors or others or ["pip gave no wheel"])[-1]
            if "connection broken" in done.stderr and "from versions: none" in done.stderr:
                why = "no connection to it; unpack the wheel and give the folder"
            raise UserError(f"maxtext {version}: cannot be had from PyPI ({why})")
        os.replace(fetched, cache / name)


def _check(version: str, found: str, wheel: Path, cache: Path) -> None:
    """Compare a wheel's hash with the one known; of a version not known, the first one seen is kept."""
    ledger = cache / "hashes.json"
    expected = KNOWN_WHEELS.get(version)
    if expected is None:
        seen: dict[str, str] = {}
        if ledger.is_file():
            try:
                seen = json.loads(ledger.read_text(encoding="utf-8"))
            except ValueError:
                raise UserError(f"{ledger}: not readable; delete it and run again") from None
        expected = seen.get(version)
        if expected is None:
            seen[version] = found
            scratch = ledger.with_suffix(f".{os.getpid()}")
            scratch.write_text(json.dumps(seen, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            os.replace(scratch, ledger)
            return
    if found != expected:
        raise UserError(
            f"{wheel}: sha256 is {found[:12]}…, not {expected[:12]}… as maxtext {version} has; delete "
            "the file and run again"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _unpack(wheel: Path, folder: Path, digest: str) -> None:
    """Unpack beside the final place, then move it there whole."""
    with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch:
        content = Path(scratch) / "content"
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(content)
        except (zipfile.BadZipFile, ValueError) as error:
            raise UserError(f"{wheel}: not a wheel ({error}); delete it and run again") from None
        (content / ".sha256").write_text(digest, encoding="utf-8")
        if folder.exists():
            shutil.move(folder, Path(scratch) / "old")
        try:
            os.rename(content, folder)
        except OSError:
            # Another run of this program may just have put the same content there.
            if not (folder / ".sha256").is_file():
                raise
