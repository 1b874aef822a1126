"""Runs the sides and compares what they compute."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from codemods.errors import UserError
from migration_tests.parity import merge, metrics, plan, weights

OLD, MIGRATED, TARGET, ORACLE = "old", "migrated", "target", "oracle"
SIDES = (OLD, MIGRATED, TARGET)
# The reference first.
PAIRS = ((OLD, MIGRATED), (OLD, TARGET), (MIGRATED, TARGET))
ORACLE_PAIRS = ((ORACLE, OLD), (ORACLE, TARGET))
ORACLE_SLOPES = "zero_based"
ORACLE_COMPONENT = plan.Component(
    "oracle",
    "published code",
    1024,
    "another framework's sums, over up to seven layers",
    (plan.FLOAT32,),
)
WEIGHTS_COMPONENT = plan.Component(
    "weights", "weights", 0, "every parameter has its place", (plan.FLOAT32,), exact=True
)


# Seconds after which it is told what a side is at, if it has been at that before.
_PATIENCE = 90.0
# Of a TPU host, one chip: the batch is that of one device.
_ONE_CHIP = {
    "TPU_VISIBLE_CHIPS": "0",
    "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
    "TPU_PROCESS_BOUNDS": "1,1,1",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """What to compare. Folders that are not given are made."""

    checkout: Path
    upstream: str = "0.2.5"
    migrated: Path | None = None
    overlay: Path | None = None
    oracle: Path | None = None
    sides: tuple[str, ...] = SIDES
    dtypes: tuple[str, ...] = plan.DTYPES
    only: tuple[str, ...] = ()
    jobs: int = 2
    keep: Path | None = None


@dataclasses.dataclass
class SideRun:
    """One side: where its code is, and what has come of it."""

    name: str
    roots: list[str]
    code: str
    failed: str = ""
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    errors: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    loaded: list[str] = dataclasses.field(default_factory=list)
    results: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    parameters: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    weight_problems: dict[str, str] = dataclasses.field(default_factory=dict)
    # Trees of parameters that the side could not even make.
    unmade: set[str] = dataclasses.field(default_factory=set)
    # While it runs.
    process: subprocess.Popen[str] | None = dataclasses.field(default=None, repr=False)

    def of(self, component: str, dtype: str) -> dict[str, np.ndarray]:
        """What a component has computed, by name."""
        prefix = f"{component}|{dtype}|"
        computed = {
            k.removeprefix(prefix): v for k, v in self.results.items() if k.startswith(prefix)
        }
        if component in ("gradients", "step"):
            return weights.canonical(computed, self.parameters.get("unscanned", {}))
        return computed


@dataclasses.dataclass
class Row:
    """One component in one dtype: the comparison of each pair, array by array."""

    component: plan.Component
    dtype: str
    pairs: dict[tuple[str, str], dict[str, metrics.Difference]]

    def verdict(self, pair: tuple[str, str]) -> str:
        """The worst verdict among a pair's arrays."""
        found = {difference.verdict for difference in self.pairs.get(pair, {}).values()}
        for verdict in (metrics.ERROR, metrics.FAIL, metrics.MISSING):
            if verdict in found:
                return verdict
        return metrics.PASS

    def worst(self, pair: tuple[str, str]) -> tuple[str, metrics.Difference] | None:
        """The array with the largest error, or one that could not be compared."""
        compared = self.pairs.get(pair, {})
        if not compared:
            return None

        def badness(item: tuple[str, metrics.Difference]) -> tuple[bool, bool, float]:
            difference = item[1]
            unknown = difference.error is None and difference.verdict != metrics.PASS
            return difference.verdict != metrics.PASS, unknown, difference.error or 0.0

        return max(compared.items(), key=badness)

    @property
    def failed(self) -> bool:
        """Whether a pair is apart, or could not be compared."""
        return any(self.verdict(pair) in (metrics.FAIL, metrics.ERROR) for pair in self.pairs)


@dataclasses.dataclass
class Parity:
    """Everything that is reported."""

    sides: dict[str, SideRun]
    rows: list[Row]
    depth: dict[str, list[tuple[str, dict[str, float]]]]
    notes: list[str]
    seconds: float

    @property
    def first(self) -> Row | None:
        """The first component along the model that is apart."""
        return next((row for row in self.rows if row.failed), None)

    @property
    def status(self) -> int:
        """The exit status."""
        if any(side.failed for side in self.sides.values()):
            return 2
        return 1 if self.first is not None else 0

    def erring(self, row: Row) -> list[str]:
        """The sides on which a component could not be computed."""
        return [
            name
            for name in (*self.sides, ORACLE)
            if any(
                difference.verdict == metrics.ERROR and difference.problem.startswith(f"{name}: ")
                for compared in row.pairs.values()
                for difference in compared.values()
            )
        ]

    def odd_one(self, row: Row) -> str:
        """The side that is apart from two others that agree, or that could not compute; else all that are apart."""
        erring = self.erring(row)
        if erring:
            return " and ".join(erring)
        apart = {pair for pair in row.pairs if row.verdict(pair) == metrics.FAIL}
        named = [name for name in self.sides if any(name in pair for pair in row.pairs)]
        for pair in row.pairs:
            if row.verdict(pair) == metrics.PASS and len(named) > 2:
                return next(name for name in named if name not in pair)
        return " and ".join(name for name in (*named, ORACLE) if any(name in p for p in apart))


def run(request: Request, say: Any = lambda text: None) -> Parity:
    """Prepares the sides, runs them and compares.

    Args:
        request: what to compare.
        say: is told what is going on.

    Raises:
        UserError: a folder is missing or is not what it should be, a name is unknown, or JAX is not installed.
    """
    started = time.monotonic()
    components = _chosen(request)
    _need_jax()
    with _folder(request.keep) as folder:
        sides, notes = _prepare(request, folder, say)
        oracle = _Oracle.read(request.oracle) if request.oracle else None
        if oracle is None:
            notes.append(
                "the old side was not compared with the published code: no checkpoint was given (--oracle)"
            )
        _run_sides(sides, components, oracle, folder, request.jobs, say)
        rows = _compare(sides, components, oracle)
        depth = {dtype: _depth(sides, dtype) for dtype in request.dtypes}
    notes += _notes(sides)
    return Parity(sides, rows, depth, notes, time.monotonic() - started)


def _prepare(request: Request, folder: Path, say: Any) -> tuple[dict[str, SideRun], list[str]]:
    """Makes the trees that are not given; returns the sides with their import paths, and notes."""
    checkout = request.checkout.resolve()
    old_roots = [str(p) for p in (checkout / "src", checkout) if p.is_dir()]
    if not any(Path(root, "MaxText").is_dir() for root in old_roots):
        raise UserError(
            f"{request.checkout}: has no package MaxText, neither in src/ nor at the top"
        )
    for given in (request.overlay, request.migrated):
        if given is not None:
            merge.package_of(given)
    notes: list[str] = []
    sides: dict[str, SideRun] = {}
    overlay = (request.overlay or folder / "overlay").resolve()
    if {MIGRATED, TARGET} & set(request.sides) and request.overlay is None:
        say(f"putting Ling2 into upstream {request.upstream}")
        _tool("overlay", "--upstream", request.upstream, "--out", str(overlay))
    if OLD in request.sides:
        sides[OLD] = SideRun(OLD, old_roots, "the checkout as it is")
    if MIGRATED in request.sides:
        migrated = request.migrated or folder / "migrated"
        if request.migrated is None:
            say("migrating the checkout")
            _tool("run", str(checkout), "--upstream", request.upstream, "--out", str(migrated))
        merged = merge.lay_over(migrated, overlay, folder / "merged")
        code = (
            f"{len(merged.of_fork)} modules of the migrated checkout, {len(merged.over_upstream)} of them in place of "
            "upstream's; all other modules are upstream's with Ling2 put in"
        )
        sides[MIGRATED] = SideRun(MIGRATED, [str(folder / "merged")], code)
    if TARGET in request.sides:
        root = str(merge.package_of(overlay).parent)
        sides[TARGET] = SideRun(TARGET, [root], "upstream's tree with Ling2 put in")
    return sides, notes


def usual_jobs() -> int:
    """How many sides run at the same time: one where there is a TPU, which is one process's alone."""
    has_tpu = any(Path(device).exists() for device in ("/dev/accel0", "/dev/vfio/0"))
    return 1 if has_tpu else min(2, os.cpu_count() or 1)


def _chosen(request: Request) -> list[tuple[plan.Component, str]]:
    for what, given, known in (
        ("side", request.sides, SIDES),
        ("dtype", request.dtypes, plan.DTYPES),
    ):
        for name in given:
            if name not in known:
                raise UserError(f"{name}: no such {what}; there are {', '.join(known)}")
    if len(set(request.sides)) < 2:
        raise UserError("two sides at least are compared")
    for pattern in request.only:
        if not any(fnmatch.fnmatch(name, pattern) for name in plan.BY_NAME):
            raise UserError(f"{pattern}: no such component; there are {', '.join(plan.BY_NAME)}")
    chosen = [
        component
        for component in plan.COMPONENTS
        if not request.only or any(fnmatch.fnmatch(component.name, p) for p in request.only)
    ]
    result = [(each, dtype) for each in chosen for dtype in each.dtypes if dtype in request.dtypes]
    if not result:
        names, dtypes = ", ".join(each.name for each in chosen), ", ".join(request.dtypes)
        raise UserError(f"nothing is compared: {names}: not in {dtypes}")
    return result


def _need_jax() -> None:
    import importlib.util

    for name in ("jax", "flax", "numpy"):
        if importlib.util.find_spec(name) is None:
            raise UserError(f"{name} is not installed: pip install 'ling2-migrate[model]'")


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        if keep.exists():
            raise UserError(f"{keep}: exists; remove it or choose another --keep")
        try:
            keep.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"{keep}: cannot be made ({error.strerror})") from error
        yield keep.resolve()
        return
    made = Path(tempfile.mkdtemp(prefix="ling2-parity-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _tool(*arguments: str) -> None:
    """Runs a command of this program; that sites are left for a person (status 1) does not matter here."""
    repository = str(Path(__file__).parents[2])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([repository, os.environ.get("PYTHONPATH", "")])
    }
    command = [sys.executable, "-m", "codemods.cli", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(last.removeprefix("ling2-migrate: error: "))


@dataclasses.dataclass(frozen=True)
class _Oracle:
    """A Hugging Face checkpoint with what the published code computes from it."""

    options: dict[str, Any]
    tensors: dict[str, np.ndarray]
    tokens: np.ndarray
    positions: np.ndarray
    expected: dict[str, np.ndarray]

    def tensor(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A tensor of the checkpoint."""
        del shape  # of which the map makes sure
        if name not in self.tensors:
            raise weights.CarryError(f"the checkpoint has no tensor {name}")
        return self.tensors[name]

    @classmethod
    def read(cls, folder: Path) -> _Oracle:
        reference = folder / f"ref_{ORACLE_SLOPES}_T200.npz"
        for path in (folder / "config.json", folder / "model.safetensors", reference):
            if not path.is_file():
                raise UserError(f"{path}: no such file")
        from safetensors.numpy import load_file

        try:
            tensors = load_file(folder / "model.safetensors")
            hf_config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            shapes = {name: value.shape for name, value in tensors.items()}
            options = weights.parameter_map().maxtext_options(hf_config, shapes)
        except Exception as error:
            raise UserError(f"{folder}: is no checkpoint of Ling2 ({error})") from error
        try:
            arrays = dict(np.load(reference))
            tokens, logits = arrays.pop("input_ids").astype(np.int32), arrays["logits"]
            positions = arrays.pop("positions", np.arange(tokens.shape[-1]))
        except KeyError as error:
            raise UserError(f"{reference}: has no {error.args[0]}") from error
        except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise UserError(f"{reference}: is no npz file of plain arrays ({error})") from error
        if tokens.ndim != 2 or not tokens.size:
            raise UserError(
                f"{reference}: input_ids has shape {list(tokens.shape)}, not [rows, tokens]"
            )
        size = hf_config["vocab_size"]
        if not (tokens.min() >= 0 and tokens.max() < size):
            raise UserError(
                f"{reference}: input_ids are not all in the vocabulary of {size} tokens"
            )
        whole = positions.ndim == 1 and positions.dtype.kind in "iu"
        if not (whole and ((positions >= 0) & (positions < tokens.shape[1])).all()):
            raise UserError(f"{reference}: positions are not all places of input_ids")
        if logits.shape != (1, len(positions), size):
            raise UserError(
                f"{reference}: logits have shape {list(logits.shape)}; of the first row they have {[1, len(positions), size]}"
            )
        names = {"logits": "logits", "mtp0_logits": "MTP logits"}
        names |= {f"layer{i}_out": f"layer {i}" for i in range(options["base_num_decoder_layers"])}
        expected = {new: arrays[name] for name, new in names.items() if name in arrays}
        options |= {"max_target_length": int(tokens.shape[1]), "router_z_loss_weight": 0.0}
        return cls(options, tensors, tokens, positions, expected)


def _run_sides(
    sides: dict[str, SideRun],
    components: list[tuple[plan.Component, str]],
    oracle: _Oracle | None,
    folder: Path,
    jobs: int,
    say: Any,
) -> None:
    inputs = plan.inputs()
    if oracle is not None:
        inputs["oracle_tokens"] = oracle.tokens
        inputs["oracle_positions"] = oracle.positions
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]
    turn = threading.Semaphore(jobs)
    stopped = threading.Event()

    def one(side: SideRun) -> None:
        with turn:
            if stopped.is_set():
                return
            say(f"running the {side.name} side")
            began = time.monotonic()
            try:
                of_side = oracle if side.name != MIGRATED else None
                _run_side(side, components, of_side, folder, say)
            except Exception as error:
                side.failed = f"{type(error).__name__}: {error}"
            say(f"the {side.name} side took {time.monotonic() - began:.0f} s")

    # The migrated side last: what the old one compiled is mostly what it needs.
    order = sorted(sides.values(), key=lambda side: side.name == MIGRATED)
    threads = [threading.Thread(target=one, args=(side,)) for side in order]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except (
        BaseException
    ):  # a signal: no side outlives this process, or writes into the folder that is removed
        stopped.set()
        for process in [side.process for side in sides.values() if side.process is not None]:
            process.kill()
            process.wait()
        raise


def _run_side(
    side: SideRun,
    components: list[tuple[plan.Component, str]],
    oracle: _Oracle | None,
    folder: Path,
    say: Any = lambda text: None,
) -> None:
    place = folder / f"side-{side.name}"
    place.mkdir()
    depth = [(component.name, dtype) for component, dtype in components]
    depth += [("depth", dtype) for name, dtype in depth if name == "logits"]
    job = {
        "kind": side.name,
        "folder": str(place),
        "roots": side.roots,
        "inputs": str(folder / "inputs.npz"),
        "components": depth,
        "oracle": oracle.options if oracle else None,
    }
    converse(side, place, job, lambda: _give_weights(side, place, oracle), say)


def _places(roots: Sequence[str]) -> dict[str, str]:
    """The variables by which MaxText finds its own files, so that none of the user's leads a side to another tree."""
    for root in roots:
        for package in ("MaxText", "maxtext"):
            folder = Path(root, package)
            if folder.is_dir():
                return {
                    "MAXTEXT_PKG_DIR": str(folder),
                    "MAXTEXT_REPO_ROOT": roots[-1],
                    "MAXTEXT_CONFIGS_DIR": str(folder / "configs"),
                }
    return {}


def _doing(place: Path) -> str:
    try:
        return (place / "doing").read_text(encoding="utf-8") or "starting"
    except FileNotFoundError:
        return "starting"


def _watch(side: SideRun, place: Path, say: Any, done: threading.Event) -> None:
    """Tells that a side is long at one thing: it may hang, which is for a person to decide."""
    before = ""
    while not done.wait(_PATIENCE):
        now = _doing(place)
        if now == before:
            say(f"the {side.name} side is still {now}; interrupt it if it hangs (Control-C)")
        before = now


def _ending(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    memory = " (as when memory runs out)" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{memory}"


def converse(
    side: SideRun, place: Path, job: dict[str, Any], give: Callable[[], None], say: Any
) -> None:
    """Starts a side's process, calls `give` once it has described its parameters, and reads what it has computed.

    Args:
        side: takes what comes of it.
        place: the folder of the side's files.
        job: what `side.py` reads.
        give: writes the weights into the folder.
        say: is told if it takes long.
    """
    (place / "job.json").write_text(json.dumps(job), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"DECOUPLE_GCLOUD": "TRUE", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= _places(side.roots)
    for name, value in _ONE_CHIP.items():
        environment.setdefault(name, value)
    # Sides share what is compiled: programs are found by what they are, so a side that compiles another finds nothing.
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(place.parent / "compiled"))
    environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    command = [sys.executable, str(Path(__file__).with_name("side.py")), str(place / "job.json")]
    with (place / "stderr").open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=place,
            text=True,
        )
        side.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        done = threading.Event()
        watch = threading.Thread(target=_watch, args=(side, place, say, done), daemon=True)
        watch.start()
        try:
            process.stdout.readline()
            if (place / "described.json").is_file():
                give()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("go\n")
                process.stdin.close()
            process.wait()
        finally:
            done.set()
            side.process = None
            if process.poll() is None:
                process.kill()
                process.wait()
    status = place / "status.json"
    if not status.is_file():
        text = (place / "stderr").read_text(encoding="utf-8", errors="replace")
        # Since it noted what it is at; before that JAX may say much, such as that there is no TPU.
        lines = text.rpartition(f"parity: {_doing(place)}\n")[2].strip().splitlines()
        last = lines[-1][:300] if lines else "nothing"
        side.failed = f"{_ending(process.returncode)} while {_doing(place)}; it last said: {last}"
        return
    told = json.loads(status.read_text(encoding="utf-8"))
    side.failed = told.get("failed", "")
    side.environment = told.get("environment", {})
    side.errors = told["errors"]
    side.seconds = told["seconds"]
    side.loaded = told.get("loaded", [])
    if (place / "results.npz").is_file():
        side.results = dict(np.load(place / "results.npz"))


def _give_weights(side: SideRun, place: Path, oracle: _Oracle | None) -> None:
    described = json.loads((place / "described.json").read_text(encoding="utf-8"))
    for tree, paths in described.items():
        if isinstance(paths, str):
            side.weight_problems[tree] = paths
            side.unmade.add(tree)
            continue
        if tree == ORACLE and oracle is not None:
            options = plan.MODEL | plan.RUN | plan.UNSCANNED | oracle.options
            tensor = oracle.tensor
        else:
            options = plan.MODEL | plan.RUN | plan.TREES[tree]
            tensor = plan.settled_tensor if tree == "settled" else plan.tensor
        try:
            parameters = weights.mapped(paths, options)
            carried = weights.carry(paths, parameters, tensor)
        except weights.CarryError as error:
            side.weight_problems[tree] = str(error)
            continue
        side.parameters[tree] = parameters
        np.savez(place / f"weights_{tree}.npz", **carried)  # type: ignore[arg-type]


def _compare(
    sides: dict[str, SideRun],
    components: list[tuple[plan.Component, str]],
    oracle: _Oracle | None,
) -> list[Row]:
    pairs = [pair for pair in PAIRS if all(name in sides for name in pair)]
    rows = []
    for component, dtype in components:
        rows.append(Row(component, dtype, {p: _pair(sides, p, component, dtype) for p in pairs}))
        if component.name == "pattern":
            rows.append(_weights_row(sides, pairs))
    if not any(component.name == "pattern" for component, _ in components):
        rows.insert(0, _weights_row(sides, pairs))
    if oracle is not None:
        expected = SideRun(ORACLE, [], "what the published code computes")
        for name, value in oracle.expected.items():
            expected.results[f"oracle|{plan.FLOAT32}|{name}"] = value
        everyone = {**sides, ORACLE: expected}
        of_oracle = [pair for pair in ORACLE_PAIRS if pair[1] in sides]
        compared = {p: _pair(everyone, p, ORACLE_COMPONENT, plan.FLOAT32) for p in of_oracle}
        rows.append(Row(ORACLE_COMPONENT, plan.FLOAT32, compared))
    return rows


def _weights_row(sides: dict[str, SideRun], pairs: Sequence[tuple[str, str]]) -> Row:
    compared: dict[tuple[str, str], dict[str, metrics.Difference]] = {}
    for pair in pairs:
        found = {}
        for name in pair:
            side = sides[name]
            # What keeps a model from being made shows at the component whose fault it is, if one fails by itself.
            shows = any("NoWeights" not in problem for problem in side.errors.values())
            for tree, problem in side.weight_problems.items():
                verdict = metrics.MISSING if tree in side.unmade and shows else metrics.ERROR
                found[f"{name}, {tree}"] = metrics.Difference(verdict, f"{name}: {problem}")
        compared[pair] = found
    return Row(WEIGHTS_COMPONENT, plan.FLOAT32, compared)


def _pair(
    sides: dict[str, SideRun], pair: tuple[str, str], component: plan.Component, dtype: str
) -> dict[str, metrics.Difference]:
    for name in pair:
        side = sides[name]
        if side.failed:
            return {"": metrics.Difference(metrics.MISSING, f"{name}: could not run")}
        problem = side.errors.get(f"{component.name}|{dtype}")
        if problem:
            trees = (ORACLE,) if component is ORACLE_COMPONENT else plan.TREES
            lacks_weights = any(tree in side.weight_problems for tree in trees)
            verdict = metrics.MISSING if lacks_weights and "NoWeights" in problem else metrics.ERROR
            return {"": metrics.Difference(verdict, f"{name}: {problem}")}
    reference, other = (sides[name].of(component.name, dtype) for name in pair)
    if component is ORACLE_COMPONENT:  # of which a reference need not have every layer
        other = {key: value for key, value in other.items() if key in reference}
    if component.name in ("gradients", "step"):
        reference, other = _without_bias(reference, other, component.name)
    compared = {}
    for key in [*reference, *(key for key in other if key not in reference)]:
        if key not in reference or key not in other:
            lacking = pair[0] if key not in reference else pair[1]
            problem = f"{lacking}: has no {key}"
            compared[key] = metrics.Difference(metrics.ERROR, problem)
        else:
            tolerance = component.tolerance(dtype)
            compared[key] = metrics.compare(reference[key], other[key], tolerance, dtype, pair)
    if not compared:
        return {"": metrics.Difference(metrics.ERROR, f"{pair[0]} and {pair[1]} computed nothing")}
    return compared


def _without_bias(
    reference: dict[str, np.ndarray], other: dict[str, np.ndarray], name: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Where the routing bias is a parameter it has a gradient, which is 0; elsewhere it has none."""

    def zero(arrays: dict[str, np.ndarray], rest: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        missing = {
            p: np.zeros_like(v)
            for p, v in rest.items()
            if p not in arrays and p.endswith("gate/bias")
        }
        return arrays | missing

    if name == "step":
        return reference, other
    return zero(reference, other), zero(other, reference)


def _depth(sides: dict[str, SideRun], dtype: str) -> list[tuple[str, dict[str, float]]]:
    """Relative error of the layers' outputs, one after the other, for each pair."""
    points: dict[str, dict[str, float]] = {}
    for pair in PAIRS:
        if any(name not in sides for name in pair):
            continue
        reference, other = (sides[name].of("depth", dtype) for name in pair)
        for key in reference:
            if key in other and reference[key].shape == other[key].shape:
                norm = float(np.linalg.norm(reference[key].astype(np.float64)))
                gap = np.linalg.norm(reference[key].astype(np.float64) - other[key])
                error = float(gap / norm) if norm else float(gap)
                if np.isfinite(error):
                    points.setdefault(key, {})["-".join(pair)] = error
    return list(points.items())


def too_wide(rows: Sequence[Row]) -> list[str]:
    """Returns a note for each component that no fault could fail: its tolerance is as large as its arrays."""
    return [
        f"{row.component.title}, {row.dtype}: the tolerance of {row.component.ulps:g} ULPs is as large as the values themselves, so "
        "that passing says nothing"
        for row in rows
        if row.component.tolerance(row.dtype) >= 1
    ]


def _notes(sides: dict[str, SideRun]) -> list[str]:
    notes = [
        "Packed sequences begin with token 0, and their first token is no target: with others, MTP differs at the end of a "
        "sequence, where upstream's stops and the fork's goes on."
    ]
    backends = {side.environment.get("backend") for side in sides.values() if side.environment}
    if backends == {"cpu"}:
        notes.append("On this CPU the Pallas kernels of the target were interpreted, not compiled.")
    return notes


def run_spec(request: Request, file: Path, say: Any = lambda text: None) -> Parity:
    """Compares a component of the user's own.

    Args:
        request: the checkout and, if they are there already, the migrated tree and the overlay.
        file: the specification; see `spec`.
        say: is told what is going on.

    Raises:
        UserError: the specification or a folder is not what it should be.
    """
    started = time.monotonic()
    _need_jax()
    from migration_tests.parity import spec as specs

    if not file.is_file():
        raise UserError(f"{file}: no such file")
    try:
        spec = specs.read(file)
    except ValueError as error:
        raise UserError(str(error)) from error
    component = specs.component(spec)
    new, dtype = str(spec["side"]), str(spec["dtype"])
    with _folder(request.keep) as folder:
        prepared, _ = _prepare(dataclasses.replace(request, sides=(OLD, new)), folder, say)
        arrays = {n: value for n, value in spec["inputs"].items() if isinstance(value, np.ndarray)}
        np.savez(folder / "inputs.npz", **arrays)  # type: ignore[arg-type]
        for which, side in (("old", prepared[OLD]), ("new", prepared[new])):
            place = folder / f"side-{side.name}"
            place.mkdir()
            job = {
                "kind": "spec",
                "which": which,
                "spec": str(file.resolve()),
                "inputs": str(folder / "inputs.npz"),
                "folder": str(place),
                "roots": side.roots,
            }
            say(f"running {spec[which]}")

            def give(side: SideRun = side, place: Path = place, which: str = which) -> None:
                _give_spec_weights(side, place, which, spec, prepared[OLD])

            converse(side, place, job, give, say)
            if side.weight_problems:
                side.errors[f"spec|{dtype}"] = side.weight_problems["spec"]
    compared = _pair(prepared, (OLD, new), component, dtype)
    rows = [Row(component, dtype, {(OLD, new): compared})]
    notes = [*spec["notes"], *too_wide(rows)]
    return Parity(prepared, rows, {}, notes, time.monotonic() - started)


def _give_spec_weights(
    side: SideRun, place: Path, which: str, spec: dict[str, Any], old: SideRun
) -> None:
    described = json.loads((place / "described.json").read_text(encoding="utf-8")).get("spec", {})
    shapes = {path: tuple(shape) for path, (shape, _) in described.items()}
    if which == "old":
        side.parameters["spec"] = shapes
        sources = {path: path for path in shapes}
        problem = ""
    else:
        before = old.parameters.get("spec", {})
        sources = {spec["weights"].get(path, path): path for path in before}
        problem = _weights_problem(spec["weights"], shapes, before, sources)
    old_shapes = old.parameters.get("spec", {})
    carried = {}
    if problem:
        side.weight_problems["spec"] = problem
        return
    for path, shape in shapes.items():
        value = plan.tensor(sources[path], old_shapes[sources[path]])
        carried[path] = value.reshape(shape)
    originals = {path: (sources[path], old_shapes[sources[path]]) for path in carried}
    np.savez(place / "weights_spec.npz", **carried)  # type: ignore[arg-type]
    (place / "weights_spec.json").write_text(json.dumps(originals), encoding="utf-8")


def _weights_problem(
    given: dict[str, str],
    shapes: dict[str, tuple[int, ...]],
    before: dict[str, tuple[int, ...]],
    sources: dict[str, str],
) -> str:
    """What stops the weights of the old module from being those of the new one, in one line; nothing if nothing does.

    Args:
        given: the weight map of the specification.
        shapes: of the new module's weights, by path.
        before: of the old module's weights, by path.
        sources: path in the new module → path in the old one.
    """
    have = ", ".join(before) or "none"
    for path in given:
        if path not in before:
            return f"the old module has no weight {path}, which `weights` names; it has {have}"
    for path, shape in shapes.items():
        if path not in sources:
            return f"no old weight is mapped to {path}; the old module has {have}"
        old_shape = before[sources[path]]
        if not weights.parameter_map().is_regrouped(shape, old_shape):
            return f"{path} has shape {list(shape)}, {sources[path]} has {list(old_shape)}"
    for path, source in sources.items():
        if path not in shapes:
            theirs = ", ".join(shapes) or "none"
            return (
                f"the new module has no weight {path} for {source} of the old one; it has {theirs}"
            )
    return ""
