"""Figures, dumps, specifications, and what is said when something cannot be compared."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from codemods.errors import UserError
from migration_tests.parity import command, dumps, merge, metrics, plan, report, run, spec, weights
from migration_tests.parity.tests.conftest import CHECKOUT, REPOSITORY


def said(parity: run.Parity) -> str:
    """What is printed, without line breaks."""
    console = Console(width=400, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    report.print_table(parity, console)
    return " ".join(console.export_text().split())


class TestMetrics:
    def test_equal(self) -> None:
        x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
        found = metrics.compare(x, x.copy(), 0.0)
        assert found.verdict == metrics.PASS
        assert found.max_abs == found.relative_l2 == found.ulp_max == 0
        assert found.cosine == pytest.approx(1)
        assert found.first_index is None

    def test_figures(self) -> None:
        x = np.ones((2, 3), np.float32)
        y = x.copy()
        y[1, 2] = np.nextafter(np.float32(1), np.float32(2))
        found = metrics.compare(x, y, 1e-6)
        assert found.verdict == metrics.PASS
        assert (found.ulp_max, found.differing, found.first_index) == (1, 1, (1, 2))
        assert found.max_abs == pytest.approx(2.0**-23)
        assert metrics.compare(x, y, 1e-8).verdict == metrics.FAIL

    def test_units_in_the_last_place(self) -> None:
        x = np.ones(1, np.float32)
        y = x + np.float32(2.0**-7)
        assert metrics.compare(x, y, 1.0, "bfloat16").ulp_max == 1
        assert metrics.compare(x, y, 1.0).ulp_max == 2**16
        tiny = np.full(1, 1e-45, np.float32)
        assert metrics.compare(-tiny, tiny, 9.0).ulp_max == 2

    def test_first_beyond_tolerance_and_not_first_unequal(self) -> None:
        x = np.ones(5, np.float32)
        y = x + np.array([1e-6, 0, 0.5, 0, 0.5], np.float32)
        assert metrics.compare(x, y, 1e-3).first_index == (2,)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("which", [0, 1])
    def test_not_finite(self, value: float, which: int) -> None:
        arrays = [np.ones((2, 2), np.float32) for _ in range(2)]
        arrays[which][1, 0] = value
        found = metrics.compare(arrays[0], arrays[1], 1e9, names=("old", "new"))
        assert found.verdict == metrics.FAIL
        name = ("old", "new")[which]
        assert found.problem == f"1 of 4 values of {name} are not finite, the first at [1, 0]"

    def test_shapes(self) -> None:
        found = metrics.compare(np.ones((2, 3)), np.ones((3, 2)), 1.0, names=("old", "new"))
        assert found.problem == "shapes differ: old [2, 3], new [3, 2]"

    def test_zeros(self) -> None:
        zeros = np.zeros(3, np.float32)
        assert metrics.compare(zeros, zeros, 0.0).verdict == metrics.PASS
        assert metrics.compare(zeros, zeros + 1e-9, 1e-3).verdict == metrics.FAIL
        json.dumps(metrics.compare(zeros, zeros + 1, 1e-3).as_json(), allow_nan=False)

    def test_choices_have_to_be_equal(self) -> None:
        tokens = np.array([100_000, 1, 2**60])
        for by in (1, 2**40):
            other = tokens.copy()
            other[1] += by
            found = metrics.compare(tokens, other, 1e9)
            assert (found.verdict, found.first_index) == (metrics.FAIL, (1,))
        large = np.array([2**60 + 1], np.int64)
        assert metrics.compare(large, large - 1, 0.0).verdict == metrics.FAIL
        assert metrics.compare(tokens, tokens.copy(), 0.0).verdict == metrics.PASS
        assert metrics.compare(tokens, tokens.astype(np.float32), 1e-6).verdict == metrics.PASS

    @pytest.mark.parametrize("size", [1e300, 1e-300])
    def test_numbers_beyond_float32(self, size: float) -> None:
        x = np.array([1.0, 2.0]) * size
        found = metrics.compare(x, x * [1, 0.5], 1e-3)
        assert found.verdict == metrics.FAIL
        assert found.max_abs == pytest.approx(size)
        assert found.relative_l2 == pytest.approx(5**-0.5)


class TestDumps:
    def write(self, path: Path, **arrays: np.ndarray) -> Path:
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return path

    def test_first_that_is_apart(self, tmp_path: Path) -> None:
        x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
        old = self.write(tmp_path / "old.npz", embedding=x, layer_0=x, layer_1=x, logits=x)
        new = self.write(
            tmp_path / "new.npz", logits=x + 1, layer_1=x * 1.01, layer_0=x, embedding=x
        )
        parity = dumps.compare(old, new)
        assert parity.status == 1
        assert parity.first is not None
        assert parity.first.component.title == "layer_1"
        assert "The sides first part at: layer_1 (float32)" in said(parity)
        assert dumps.compare(old, old).status == 0

    def test_bfloat16(self, tmp_path: Path) -> None:
        bits = np.array([0x3F80, 0x3F81], np.uint16)
        old = self.write(tmp_path / "old.npz", x=bits.view("V2"))
        new = self.write(tmp_path / "new.npz", x=bits[::-1].copy().view("V2"))
        (row,) = dumps.compare(old, new).rows
        assert row.dtype == plan.BFLOAT16
        worst = row.worst(("first", "second"))
        assert worst is not None
        assert worst[1].ulp_max == 1

    @pytest.mark.parametrize("dtype", [plan.FLOAT32, plan.FLOAT16, plan.BFLOAT16])
    def test_the_usual_tolerance_can_be_failed(self, dtype: str, tmp_path: Path) -> None:
        x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
        pair = []
        for name, array in (("old.npz", x), ("new.npz", x * 1.3)):
            stored = array.astype(np.float16) if dtype == plan.FLOAT16 else array
            key = "x|bfloat16" if dtype == plan.BFLOAT16 else "x"
            pair.append(self.write(tmp_path / name, **{key: stored}))
        parity = dumps.compare(pair[0], pair[1])
        assert (parity.status, parity.rows[0].dtype) == (1, dtype)
        assert not parity.notes
        assert "that passing says nothing" in said(dumps.compare(pair[0], pair[1], 2.0**24))

    def test_the_coarser_dtype_counts(self, tmp_path: Path) -> None:
        x = np.linspace(1, 2, 9, dtype=np.float32)
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        wide, narrow = (
            self.write(tmp_path / "wide.npz", x=x),
            self.write(tmp_path / "narrow.npz", x=bits.view("V2")),
        )
        for pair in ((wide, narrow), (narrow, wide)):
            parity = dumps.compare(*pair)
            assert (parity.status, parity.rows[0].dtype) == (0, plan.BFLOAT16)

    def test_names_that_are_markup(self, tmp_path: Path) -> None:
        name = "[/]<b>[red]"
        files = [self.write(tmp_path / f"{n}.npz", **{name: np.full(2, n)}) for n in (1.0, 2.0)]
        parity = dumps.compare(files[0], files[1])
        assert f"first part at: {name} (float32)" in said(parity)
        assert "<b>" not in report.page(parity)

    def test_missing_array(self, tmp_path: Path) -> None:
        x = np.ones(2, np.float32)
        old = self.write(tmp_path / "old.npz", a=x, b=x)
        new = self.write(tmp_path / "new.npz", a=x)
        parity = dumps.compare(old, new)
        assert parity.status == 1
        assert "new.npz: has no b" in said(parity)

    def test_infinities(self, tmp_path: Path) -> None:
        x = np.array([1.0, -np.inf, np.inf], np.float32)
        old = self.write(tmp_path / "old.npz", scores=x)
        assert dumps.compare(old, old).status == 0
        parity = dumps.compare(old, self.write(tmp_path / "new.npz", scores=-x))
        assert parity.status == 1
        assert "2 of 3 values of first are not finite" in said(parity)

    def test_files_that_are_none(self, tmp_path: Path) -> None:
        text = tmp_path / "text.npz"
        text.write_text("no dump")
        fine = self.write(tmp_path / "fine.npz", a=np.ones(100))
        empty = self.write(tmp_path / "empty.npz")
        np.save(tmp_path / "one.npy", np.ones(1))
        half, wrong, other = (tmp_path / f"{name}.npz" for name in ("half", "wrong", "other"))
        half.write_bytes(fine.read_bytes()[:300])
        stored = bytearray(fine.read_bytes())
        stored[400] ^= 255
        wrong.write_bytes(stored)
        with zipfile.ZipFile(other, "w") as archive:
            archive.writestr("readme.txt", "no array")
        objects = self.write(tmp_path / "objects.npz", a=np.array([{}, 1], object))
        complexes = self.write(tmp_path / "complexes.npz", a=np.ones(1, np.complex64))
        absent, one = tmp_path / "absent.npz", tmp_path / "one.npy"
        for bad in (text, absent, empty, one, half, wrong, other, objects, complexes):
            with pytest.raises(UserError, match=bad.name):
                dumps.compare(fine, bad)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("old = 3", "old has to be a string like package.module:name"),
        ("old = 'MaxText.layers'", "old has to be a string like package.module:name"),
        ("inputs = {}", "inputs has to be a dict of arrays by name"),
        ("inputs = {'x': np.array(['text'])}", "inputs['x'] is no array of numbers"),
        ("new_init = 3", "new_init has to be a dict, or a function that returns one"),
        ("weights = 3", "weights has to be a dict"),
        ("side = 'old'", "side has to be 'target' or 'migrated'"),
        ("dtype = 'float8'", "dtype has to be 'float32' or 'bfloat16'"),
        ("ulps = 'few'", "ulps has to be a number"),
        ("ulps = float('nan')", "ulps has to be a number"),
        ("gradients = ['y']", "gradients has to be True, False or a list of names of inputs"),
        ("ulps = '3'", "ulps has to be a number"),
        ("inputs = {'x': [[1], [1, 2]]}", "inputs['x'] is no array of numbers"),
        ("inputs = {'x': {'y': np.ones(1)}}", "inputs['x'] is no array of numbers"),
        ("weights = {'scale': 3}", "weights has to map paths to paths"),
        ("weights = {'a': 'c', 'b': 'c'}", "weights maps two paths to one"),
        ("old_output = 3", "old_output has to be a function"),
        ("dtype = np.float32", "dtype has to be 'float32' or 'bfloat16'"),
        ("import MaxText", "import a side's packages in a function"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def", "SyntaxError"),
    ],
)
def test_bad_specifications(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.py"
    file.write_text(SPEC + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        spec.read(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_bad_arguments(tmp_path: Path) -> None:
    for arguments, message in (
        (command.Arguments(), "CHECKOUT is missing"),
        (command.Arguments(checkout=tmp_path / "absent"), "no such folder"),
        (command.Arguments(checkout=tmp_path), "has no package MaxText"),
        (command.Arguments(checkout=CHECKOUT, only=("nothing",)), "nothing: no such component"),
        (command.Arguments(checkout=CHECKOUT, sides=("old",)), "two sides at least"),
        (command.Arguments(checkout=CHECKOUT, sides=("old", "young")), "young: no such side"),
        (command.Arguments(checkout=CHECKOUT, dtypes=("float8",)), "float8: no such dtype"),
        (command.Arguments(checkout=CHECKOUT, overlay=tmp_path), "has no package maxtext"),
        (command.Arguments(checkout=CHECKOUT, ulps=3), "--ulps is for --dumps"),
        (command.Arguments(checkout=CHECKOUT, sides=("old", "old")), "two sides at least"),
        (
            command.Arguments(checkout=CHECKOUT, only=("router_choice",), dtypes=("bfloat16",)),
            "nothing is compared: router_choice: not in bfloat16",
        ),
        (command.Arguments(checkout=CHECKOUT, json=tmp_path), "is a folder"),
        (
            command.Arguments(checkout=CHECKOUT, json=tmp_path / "a", page=tmp_path / "a"),
            "name the same file",
        ),
        (
            command.Arguments(checkout=CHECKOUT, spec=tmp_path, only=("moe",)),
            "--only does not go with --spec",
        ),
        (
            command.Arguments(dumps=(tmp_path, tmp_path), overlay=tmp_path),
            "--overlay does not go with --dumps",
        ),
        (command.Arguments(aot="v5e", dumps=(tmp_path, tmp_path)), "do not go together"),
        (command.Arguments(aot="v99"), "v99: no such topology"),
        (command.Arguments(checkout=CHECKOUT, json=tmp_path / "no" / "f"), "no such folder"),
    ):
        with pytest.raises(UserError, match=message):
            command.execute(arguments, Console(quiet=True), Console(quiet=True))


def test_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "codemods.cli", "parity", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "has no package MaxText" in done.stderr


SPEC = """
import numpy as np

old = "MaxText.layers.normalizations:GroupRMSNorm"
new = "maxtext.layers.normalizations:GroupRMSNorm"
old_init = {"num_features": 64, "group_norm_size": 4}
new_init = {"num_features": 64, "num_groups": 4}
inputs = {"x": np.random.default_rng(0).standard_normal((2, 8, 64), np.float32)}
weights = {"scale": "scale"}
"""
FUNCTIONS = """
import numpy as np

rng = np.random.default_rng(0)
old = "MaxText.layers.attention_gla:chunk_gla"
new = "maxtext.kernels.gla:chunk_gla"
inputs = {name: rng.standard_normal((1, 20, 2, 4), np.float32) for name in "qkv"}
inputs["g"] = -np.array([0.1, 0.5], np.float32)
old_kwargs = {"chunk_size": 8}
gradients = ["q", "k", "v"]  # the decay is a constant in the new one
ulps, reason = 256, "sums in another order"
"""


LAYER_NORM = """
import numpy as np

old = "flax.linen:LayerNorm"
new = "flax.nnx:LayerNorm"

def old_init():
    from MaxText.layers import normalizations  # the checkout, which is there in the side's process alone
    return {"epsilon": 1e-3 if normalizations.GroupRMSNorm else 1.0}

new_init = {"epsilon": 1e-3, "num_features": 6}
inputs = {"x": np.random.default_rng(0).standard_normal((2, 3, 6), np.float32)}
"""


@pytest.mark.model
class TestSpec:
    def run(self, trees: tuple[Path, Path], file: Path, text: str) -> run.Parity:
        file.write_text(text, encoding="utf-8")
        return run.run_spec(run.Request(CHECKOUT, migrated=trees[0], overlay=trees[1]), file)

    def test_module(self, trees: tuple[Path, Path], tmp_path: Path) -> None:
        parity = self.run(trees, tmp_path / "spec.py", SPEC)
        assert parity.status == 0, said(parity)
        wrong = SPEC.replace('"num_groups": 4', '"num_groups": 16')
        parity = self.run(trees, tmp_path / "spec.py", wrong)
        assert parity.status == 1
        assert "first part at: spec" in said(parity)

    def test_linen_and_nnx(self, trees: tuple[Path, Path], tmp_path: Path) -> None:
        parity = self.run(trees, tmp_path / "spec.py", LAYER_NORM)
        assert parity.status == 0, said(parity)
        (row,) = parity.rows
        (compared,) = row.pairs.values()
        gradients = {"gradient of x", "gradient of scale", "gradient of bias"}
        assert set(compared) == {"out", *gradients}
        half = self.run(trees, tmp_path / "half.py", LAYER_NORM + 'dtype = "bfloat16"\n')
        assert half.status == 0, said(half)
        assert half.rows[0].dtype == plan.BFLOAT16

    def test_what_an_owner_may_write(self, trees: tuple[Path, Path], tmp_path: Path) -> None:
        """It prints, draws its inputs at random, has static inputs, and a loss that is one of two outputs of one side."""
        (tmp_path / "owners_own.py").write_text(
            "def old(x, axis, keys):\n  print('described')\n  return (x * x).sum(axis).mean(), None\n"
            "def new(x, axis, keys):\n  return {'loss': (x * x).sum(axis).mean(), 'count': x.sum()}\n"
        )
        text = (
            "import numpy as np, owners_own\nold, new = 'owners_own:old', 'owners_own:new'\n"
            "inputs = {'x': np.random.standard_normal((3, 4)), 'axis': 1, 'keys': None}\n"
            "def old_kwargs():\n  print('described')\n  return {}\n"
            "new_output = lambda out: out['loss']\nnew_kwarg = {}\n"
        )
        parity = self.run(trees, tmp_path / "spec.py", text)
        assert parity.status == 0, said(parity)
        (compared,) = parity.rows[0].pairs.values()
        assert set(compared) == {"out", "gradient of x"}
        assert "new_kwarg means nothing here; is it new_kwargs?" in said(parity)

    def test_calls_that_cannot_be_compared(self, trees: tuple[Path, Path], tmp_path: Path) -> None:
        (tmp_path / "other.py").write_text(
            "import numpy\ndef nothing(x):\n  return None\n"
            "def axis(x):\n  return numpy.arange(int(x[0]))\n"
        )
        text = "import numpy as np\nold, new = 'other:nothing', 'other:axis'\ninputs = {'x': np.ones(2)}\n"
        parity = self.run(trees, tmp_path / "spec.py", text)
        assert parity.status == 1
        assert "old: ValueError: the call returned no array" in said(parity)
        swapped = text.replace("'other:nothing', 'other:axis'", "'other:axis', 'other:nothing'")
        text = said(self.run(trees, tmp_path / "spec.py", swapped))
        assert "an input is used as a constant" in text

    def test_a_fault_of_the_backward_pass_alone(
        self, trees: tuple[Path, Path], tmp_path: Path
    ) -> None:
        text = "import numpy as np\nold, new = 'jax.numpy:positive', 'jax.lax:stop_gradient'\n"
        text += "inputs = {'x': np.arange(4.0)}\n"
        parity = self.run(trees, tmp_path / "spec.py", text)
        assert parity.status == 1
        worst = parity.rows[0].worst((run.OLD, "target"))
        assert worst is not None
        assert worst[0] == "gradient of x"
        assert self.run(trees, tmp_path / "no.py", text + "gradients = False\n").status == 0

    def test_weights_that_are_of_one_side_alone(
        self, trees: tuple[Path, Path], tmp_path: Path
    ) -> None:
        lacking = LAYER_NORM.replace('"num_features": 6', '"num_features": 6, "use_bias": False')
        parity = self.run(trees, tmp_path / "a.py", lacking)
        assert parity.status == 1
        assert "the new module has no weight bias for bias of the old one; it has scale" in said(
            parity
        )
        parity = self.run(trees, tmp_path / "b.py", LAYER_NORM + 'weights = {"gain": "scale"}\n')
        assert parity.status == 1
        assert "the old module has no weight gain, which `weights` names" in said(parity)

    def test_what_cannot_be_compared(self, trees: tuple[Path, Path], tmp_path: Path) -> None:
        parity = self.run(
            trees, tmp_path / "a.py", SPEC.replace('{"scale": "scale"}', '{"scale": "gain"}')
        )
        assert parity.status == 1
        assert "no old weight is mapped to scale; the old module has scale" in said(parity)
        parity = self.run(
            trees,
            tmp_path / "b.py",
            SPEC.replace('"num_features": 64, "num_groups"', '"num_features": 32, "num_groups"'),
        )
        assert parity.status == 1
        assert "scale has shape [32], scale has [64]" in said(parity)
        parity = self.run(
            trees,
            tmp_path / "c.py",
            SPEC.replace("maxtext.layers.normalizations", "maxtext.layers.absent"),
        )
        assert parity.status == 2
        assert "No module named 'maxtext.layers.absent'" in said(parity)
        with pytest.raises(UserError, match="new has to be a string"):
            self.run(trees, tmp_path / "d.py", SPEC.replace("new =", "unused ="))

    def test_functions_of_the_migrated_side(self, trees: tuple[Path, Path], tmp_path: Path) -> None:
        # The target's returns the state too, which is None here: one array is one array.
        parity = self.run(trees, tmp_path / "spec.py", FUNCTIONS)
        assert parity.status == 0, said(parity)
        moved = FUNCTIONS.replace("maxtext.kernels.gla:", "maxtext.layers.attention_gla:")
        text = moved + 'side = "migrated"\nnew_kwargs = {"chunk_size": 4}\n'
        parity = self.run(trees, tmp_path / "spec.py", text)
        assert parity.status == 0, said(parity)


def test_the_page_leads_to_the_first_part(tmp_path: Path) -> None:
    x = np.ones(4, np.float32)
    for name, by in (("old", 0.0), ("new", 1.0)):
        np.savez(tmp_path / f"{name}.npz", a=x, b=x + by, c=x + by)
    parity = dumps.compare(tmp_path / "old.npz", tmp_path / "new.npz")
    parity.depth = {
        plan.FLOAT32: [
            ("layer_0", {"old-migrated": 0.0, "old-target": 1e-7}),
            ("layer_<1>", {"old-migrated": 1e-7, "old-target": 1e-2}),
            ("layer_2", {"old-migrated": 1e-7, "old-target": 1e-1}),
        ]
    }
    page = report.page(parity)
    assert 'first part at: <a href="#first">b</a>' in page
    assert page.count('<tr class="first" id="first"><td><span title="the usual one">b</span>') == 1
    assert page.count('id="first"') == 1
    assert "first beyond it: layer &lt;1&gt;" in page
    assert "nan" not in page


def test_a_side_that_is_long_at_one_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_PATIENCE", 0.01)
    (tmp_path / "doing").write_text("computing moe in float32")
    heard: list[str] = []
    done = threading.Event()

    def say(text: str) -> None:
        heard.append(text)
        done.set()

    run._watch(run.SideRun("old", [], ""), tmp_path, say, done)
    assert heard == [
        "the old side is still computing moe in float32; interrupt it if it hangs (Control-C)"
    ]


def small_checkout(path: Path, source: str) -> Path:
    (path / "src" / "MaxText").mkdir(parents=True)
    (path / "src" / "MaxText" / "__init__.py").write_text("")
    (path / "ALModel").mkdir()
    (path / "ALModel" / "al_model.py").write_text(source)
    return path


@pytest.mark.model
class TestReportsInsteadOfTracebacks:
    def test_both_sides_fail_to_import(self, tmp_path: Path) -> None:
        checkout = small_checkout(tmp_path / "fork", "import not_there\n")
        (tmp_path / "overlay" / "maxtext").mkdir(parents=True)
        (tmp_path / "overlay" / "maxtext" / "__init__.py").write_text("")
        request = run.Request(checkout, overlay=tmp_path / "overlay", sides=("old", "target"))
        parity = run.run(request)
        assert parity.status == 2
        text = said(parity)
        assert (
            "The old side could not run: ModuleNotFoundError: No module named 'not_there' (ALModel/al_model.py:1)"
            in text
        )
        assert (
            "The target side could not run: ModuleNotFoundError: No module named 'maxtext.models'"
            in text
        )

    def test_a_side_that_dies(self, tmp_path: Path) -> None:
        checkout = small_checkout(tmp_path / "fork", "import os\nos._exit(7)\n")
        (tmp_path / "overlay" / "maxtext").mkdir(parents=True)
        request = run.Request(checkout, overlay=tmp_path / "overlay", sides=("old", "target"))
        parity = run.run(request)
        assert parity.status == 2
        assert "its process ended with status 7 while importing the model" in said(parity)

    def test_missing_and_strange_weights(self) -> None:
        params = weights.parameter_map()
        options = plan.MODEL | plan.RUN | plan.UNSCANNED
        dims = params.ModelDims.from_maxtext_config(options)
        described = {"/".join(p.path): (p.shape, True) for p in params.parameters(dims, False)}
        assert len(weights.mapped(described, options)) == len(described)
        one = "decoder/moe_layers_0/self_attention/wkv_a/kernel"
        lacking = {path: shape for path, shape in described.items() if path != one}
        with pytest.raises(weights.CarryError, match=one):
            weights.mapped(lacking, options)
        with pytest.raises(weights.CarryError, match="decoder/moe_layers_0/extra"):
            weights.mapped(described | {"decoder/moe_layers_0/extra/kernel": ((2,), True)}, options)
        turned = described | {one: (described[one][0][::-1], True)}
        parameters = weights.mapped(turned, options)
        with pytest.raises(
            weights.CarryError, match=r"has shape \[20, 48\]; the map makes it \[48, 20\]"
        ):
            weights.carry(turned, parameters, plan.tensor)


def test_laying_over(tmp_path: Path) -> None:
    """The fork's module stands; a name that it lacks is upstream's; packages import nothing."""
    for tree, source in (("fork/src", "HERE = 'fork'\n"), ("up", "HERE = 'upstream'\nONLY = 1\n")):
        package = tmp_path / tree / "maxtext" / "layers"
        package.mkdir(parents=True)
        (package / "common.py").write_text(source)
        (package / "__init__.py").write_text("raise ImportError\n")
    (tmp_path / "up" / "maxtext" / "layers" / "other.py").write_text(
        "from maxtext.layers.common import HERE, ONLY\n"
    )
    merged = merge.lay_over(tmp_path / "fork", tmp_path / "up", tmp_path / "out")
    assert merged.of_fork == merged.over_upstream == ("layers/common.py",)
    code = "from maxtext.layers import other, common; import parity_fallback as p; print(other.HERE, other.ONLY, p.taken); common.no"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "out",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["fork", "1", "['maxtext.layers.common.ONLY']"]
    assert "has no attribute 'no', and upstream's has none either" in done.stderr
