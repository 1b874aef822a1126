"""Scores in TPU cycles: what is read from libtpu's files, how it is added up, and one real measurement."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from scripts import tpu_cost
from scripts.tpu_cost import CostError, parse_hlo, trip_count, walk

# A counted loop around a kernel and a fusion, in the shape that libtpu prints.
LOOP = """\
HloModule jit_step, is_scheduled=true

%body.1 (state: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %state = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%state), index=1
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%i, %one)
  %moved = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%x)
  %sum = f32[8,128]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%inner.1, backend_config={"window_config":{"estimated_cycles":"700"}}
  %scale.1 = f32[8,128]{1,0:T(8,128)} custom-call(%sum), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{}}
  ROOT %new = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%next, %scale.1)
}

%inner.1 (p: f32[8,128]) -> f32[8,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %twice = f32[8,128]{1,0:T(8,128)} add(%p, %p), backend_config={"window_config":{"estimated_cycles":"99999"}}
}

%condition.1 (state.1: (s32[], f32[8,128])) -> pred[] {
  %limit = s32[]{:T(128)} constant(LIMIT)
  %state.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %go = pred[]{:T(512)} compare(%i.1, %limit), direction=DIRECTION, metadata={op_name="jit(step)/while/cond/lt"}
}

ENTRY %main.1 (a: f32[8,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0:T(8,128)} parameter(0)
  %start = s32[]{:T(128)} constant(START)
  %started = s32[]{:T(128)} copy(%start)
  %first = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%started, %a)
  %loop = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) while(%first), condition=%condition.1, body=%body.1
  ROOT %end = f32[8,128]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""


def loop(start: str = "0", limit: str = "12", direction: str = "LT") -> str:
    return LOOP.replace("START", start).replace("LIMIT", limit).replace("DIRECTION", direction)


@pytest.mark.parametrize(
    ("start", "limit", "direction", "trips"),
    [
        ("0", "12", "LT", 12),
        ("3", "12", "LT", 9),
        ("0", "12", "LE", 13),
        ("12", "3", "LT", 0),
        ("-2", "2", "LT", 4),
        ("0", "12", "GT", None),
    ],
)
def test_trips_are_counted_from_start_to_limit(
    start: str, limit: str, direction: str, trips: int | None
) -> None:
    program = parse_hlo(loop(start, limit, direction))
    instruction = program.computations["main.1"]["loop"]
    assert trip_count(program, "main.1", instruction) == trips


def test_trips_of_a_loop_with_a_computed_start_are_not_guessed() -> None:
    text = loop().replace("%started = s32[]{:T(128)} copy(%start)", "%started = s32[] add(%s, %s)")
    program = parse_hlo(text)
    assert trip_count(program, "main.1", program.computations["main.1"]["loop"]) is None
    assert {t for i, t in walk(program) if i.name == "sum"} == {None}


def test_every_instruction_that_runs_is_met_with_its_trips() -> None:
    met = {i.name: (i, trips) for i, trips in walk(parse_hlo(loop()))}
    assert met["sum"][1] == 12
    assert met["sum"][0].cycles == 700
    assert met["scale.1"][1] == 12
    assert met["scale.1"][0].is_pallas
    assert met["end"][1] == 1
    assert "twice" not in met, "what a fusion is made of is part of its own figure"
    assert [name for name, (i, _) in met.items() if i.moves_data] == ["moved"]


def test_text_without_an_entry_is_an_error() -> None:
    with pytest.raises(CostError, match="no entry computation"):
        parse_hlo("HloModule empty\n")


def test_profile_gives_the_operation_and_its_cycles() -> None:
    text = 'hlo_op_estimate {\n  hlo_op_name: "scale.1"\n  estimated_cycles: 4711\n}\n'
    assert tpu_cost.parse_profile(text) == ("scale.1", 4711)
    assert tpu_cost.parse_profile('hlo_op_estimate {\n  hlo_op_name: "scale.1"\n}\n') is None


def test_vmem_is_what_all_allocations_there_take() -> None:
    text = (
        "$region0: #{scale.1}\n"
        "  #allocation0 [shape = 'u32[]', space=smem, size = 0x4, offset = 0x4, tag = 'core index']\n"
        "  #allocation1 [shape = 'f32[8,128]{1,0}', space=vmem, size = 0x1000, scoped, tag = 'scratch']\n"
        "    #allocation2 [shape = 'u8[8192]{0}', space=vmem, size = 8192, scoped, tag = 'window']\n"
    )
    assert tpu_cost.parse_vmem(text) == 0x1000 + 8192


def test_spills_are_summed_over_the_bundles() -> None:
    text = (
        "== CAPACITY:\nMATMUL, VSTORE, VSTORE:SPILL, SALU\n     4      1      1      2\n"
        "== UTILIZATION:\n0 1 1 0\n2 0 0 1\n0 1 1 2\n\n"
    )
    assert tpu_cost.parse_spills(text) == 2
    assert tpu_cost.parse_spills("== UTILIZATION:\n") is None


# Adding up, with a compiler that is a table

DUMPS = {
    "pre-finalize-registers-and-allocations": (
        "  #allocation1 [shape = 'f32[8,128]{1,0}', space=vmem, size = 0x1000, scoped]\n"
    ),
    "final_hlo-static-per-bundle-utilization": (
        "== CAPACITY:\nSALU, VSTORE:SPILL\n 2 1\n== UTILIZATION:\n0 1\n1 1\n"
    ),
}


def fake_compiler(
    monkeypatch: pytest.MonkeyPatch,
    hlo: str,
    kernels: list[tuple[bool, int | None]],
    simulated: int | None,
    status: int = 0,
) -> None:
    """Replace the child process: the whole program, then each kernel with its profile."""

    def run(
        spec: str, topology: str, kernel: int | None, flags: str, out: Path, timeout: float
    ) -> tuple[int, str]:
        alone = (
            "ENTRY %main.2 (a: f32[8,128]) -> f32[8,128] {\n  ROOT %_call.1 = f32[8,128]{1,0} "
            'custom-call(%a), custom_call_target="tpu_custom_call"\n}\n'
        )
        compiled = {
            "device": "TPU of paper",
            "hlo": hlo if kernel is None else alone,
            "kernels": kernels,
            "lower_seconds": 0.5,
            "compile_seconds": 1.0,
            "hbm_temp_bytes": 64,
            "hbm_argument_bytes": 546_000,
            "hbm_output_bytes": 546_000,
        }
        aborts = status and "static_llo_profile" in flags
        if kernel is not None and "static_llo_profile" in flags and simulated is not None:
            folder = Path(flags.rpartition("profile_to=")[2])
            (folder / "_call.1_static_llo_profile.textproto").write_text(
                f'hlo_op_name: "_call.1"\nestimated_cycles: {simulated}\n'
            )
        if kernel is not None:
            dumps = Path(flags.partition("dump_to=")[2].partition(" ")[0])
            number = len(list(dumps.iterdir()))
            for kind, text in DUMPS.items():
                (dumps / f"{number}-_call.1-00-{kind}.txt").write_text(text)
        if kernel is None or not aborts:
            out.write_text(json.dumps(compiled))
            return 0, ""
        return status, (
            "*** Check failure stack trace: ***\n"
            "F1 llo.cc] Static LLO profiling of _call.1 failed: a window it cannot simulate\n"
            "E1 coredump_hook.cc] RAW: Cannot send fingerprint: stat failed\n"
        )

    monkeypatch.setattr(tpu_cost, "_run", run)
    monkeypatch.setattr(tpu_cost, "has_libtpu", lambda: True)


def test_kernels_count_the_larger_of_cycles_and_bytes_and_others_their_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = f"{__file__}:fake_compiler"
    fake_compiler(monkeypatch, loop(), [(False, 12)], simulated=1500)
    cost = tpu_cost.measure(spec, "v5e")
    by_bytes = 2 * 546_000 / 546
    assert cost.score == 12 * 700 + 12 * by_bytes
    assert cost.kernel_cycles == 12 * 1500
    assert cost.not_counted == {"copy-start": 12}
    assert cost.incomplete == []
    fake_compiler(monkeypatch, loop(), [(False, 12)], simulated=2500)
    assert tpu_cost.measure(spec, "v5e").score == 12 * 700 + 12 * 2500
    fake_compiler(monkeypatch, loop(), [(False, 12)], simulated=1500)
    assert tpu_cost.measure(spec, "tpu7x").score == 12 * 700 + 12 * 1500


def test_score_is_incomplete_when_a_figure_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = f"{__file__}:fake_compiler"
    fake_compiler(monkeypatch, loop(), [(False, 12)], simulated=None)
    silent = tpu_cost.measure(spec, "v5e")
    assert silent.score is None
    assert silent.kernel_cycles is None
    assert silent.incomplete == ["kernel _call.1: the simulator gave no figure"]
    assert silent.known == 12 * 700 + 12 * 2000

    fake_compiler(monkeypatch, loop(), [(False, 12)], simulated=None, status=-6)
    (why,) = tpu_cost.measure(spec, "v5e").incomplete
    assert why == (
        "kernel _call.1: the simulator ended the process: "
        "F1 llo.cc] Static LLO profiling of _call.1 failed: a window it cannot simulate"
    )

    fake_compiler(monkeypatch, loop(direction="GT"), [(False, None)], simulated=9000)
    assert [w.partition(":")[0] for w in tpu_cost.measure(spec, "v5e").incomplete] == [
        "sum",
        "kernel _call.1",
    ]

    fake_compiler(monkeypatch, loop(), [(True, 12)], simulated=9000)
    interpreted = tpu_cost.measure(spec, "v5e")
    assert interpreted.score is None
    assert "interpret mode" in interpreted.incomplete[0]

    fake_compiler(monkeypatch, loop(), [(False, 12), (False, 12)], simulated=9000)
    assert "in 1 places, the traced one in 2" in tpu_cost.measure(spec, "v5e").incomplete[0]


def test_figure_written_before_the_simulator_ends_the_process_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_compiler(monkeypatch, loop(), [(False, 12)], simulated=2500, status=-6)
    cost = tpu_cost.measure(f"{__file__}:fake_compiler", "v5e")
    assert cost.score == 12 * 700 + 12 * 2500
    assert (cost.vmem_bytes, cost.spills) == (0x1000, 2), "of one compilation, not of both"


# The command line


def test_bad_arguments_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tpu_cost.main(["nothing"]) == 2
    assert capsys.readouterr().err == "tpu_cost: 'nothing' is not of the form FILE.py:FUNC\n"
    assert tpu_cost.main([f"{tmp_path}/absent.py:f"]) == 2
    assert capsys.readouterr().err == f"tpu_cost: {tmp_path}/absent.py: no such file\n"
    monkeypatch.setattr(tpu_cost, "has_libtpu", lambda: False)
    assert tpu_cost.main([f"{__file__}:f"]) == 2
    assert "libtpu is not installed" in capsys.readouterr().err
    monkeypatch.setattr(tpu_cost, "has_libtpu", lambda: True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    assert tpu_cost.main([f"{__file__}:f", "--keep", str(tmp_path / "kept")]) == 2
    assert "is not empty" in capsys.readouterr().err


# The table of the GLA kernels


@pytest.mark.model
def test_floor_counts_inputs_outputs_and_gradients_once() -> None:
    from scripts import bench_gla, gla_specs

    tokens, states = 2 * 4096 * 16 * 128 * 2, 2 * 16 * 128 * 128 * 4
    dense = gla_specs.CASES["dense"]
    assert bench_gla.floor_bytes(dense, "forward") == 4 * tokens + 16 * 4
    assert bench_gla.floor_bytes(dense, "train_forward") == 4 * tokens + 16 * 4
    assert bench_gla.floor_bytes(dense, "xla_backward_64") == 7 * tokens + 16 * 4
    packed = gla_specs.CASES["segments_states"]
    extra = 16 * 4 + 2 * 4096 * 4
    assert bench_gla.floor_bytes(packed, "forward") == 4 * tokens + 2 * states + extra
    assert bench_gla.floor_bytes(packed, "backward") == 7 * tokens + 3 * states + extra


@pytest.mark.model
def test_table_puts_training_together_and_compares_with_the_best_scan() -> None:
    from scripts import bench_gla

    def measured(program: str, score: int | None, floor: float) -> bench_gla.Measured:
        kernels = [] if program.startswith("xla") else [("kernel", 900_000)]
        parts = [
            tpu_cost.Part(name, tpu_cost.PALLAS, 1, cycles, cycles, 1, 3_000_000, 7)
            for name, cycles in kernels
        ]
        cost = tpu_cost.Cost(
            spec=program,
            topology="v5e:2x2",
            device="TPU of paper",
            score=score,
            known=score or 5,
            incomplete=[] if score else ["no figure"],
            parts=parts,
            not_counted={},
            hbm_temp_bytes=2_000_000,
            hbm_argument_bytes=1,
            hbm_output_bytes=1,
            lower_seconds=1.0,
            compile_seconds=2.0,
            bytes_per_cycle=546,
        )
        return bench_gla.Measured("v5e", "dense", program, cost, None, floor, None)

    found = [
        measured("forward", 1_000_000, 800_000),
        measured("train_forward", 1_000_000, 800_000),
        measured("backward", 2_000_000, 1_200_000),
        measured("xla_forward_64", 7_000_000, 800_000),
        measured("xla_forward_128", 6_000_000, 800_000),
        measured("xla_backward_64", None, 1_200_000),
        measured("xla_backward_128", 27_000_000, 1_200_000),
    ]
    table = {
        row[0]: dict(zip(bench_gla.COLUMNS, row, strict=True))
        for row in bench_gla.rows(found, True)
    }
    assert list(table) == [
        *bench_gla.OURS,
        bench_gla.TRAINING,
        "xla_forward_128",
        "xla_backward_128",
    ]
    assert table["forward"]["score"] == "1.000"
    assert table["forward"]["kernel cycles"] == "0.900"
    assert table["forward"]["XLA / ours"] == "6.0"
    assert table["forward"]["score / floor"] == "1.25"
    assert table["forward"]["spills"] == "7"
    training = table[bench_gla.TRAINING]
    assert training["score"] == "3.000"
    assert training["floor"] == "2.000"
    assert training["score / floor"] == "1.50"
    assert training["XLA / ours"] == "9.0"
    assert training["compile"] == "6.0"
    assert table["xla_forward_128"]["kernel cycles"] == ""
    everything = {row[0]: row for row in bench_gla.rows(found, False)}
    assert everything["xla_backward_64"][1] == "≥ 0.000 (no figure)"


# With libtpu

PROGRAM = """\
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def scale(x, y):
    y[...] = 2 * x[...]


def looped():
    block = pl.BlockSpec((256, 128), lambda i: (i, 0))
    kernel = pl.pallas_call(
        scale,
        grid=(16,),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((4096, 128), jnp.float32),
    )

    def run(x):
        return jax.lax.scan(lambda y, _: (jnp.sin(kernel(y)), None), x, None, length=5)[0]

    return run, (jax.ShapeDtypeStruct((4096, 128), jnp.float32),)


def wrong():
    return looped()[0]
"""


@pytest.mark.aot
@pytest.mark.model
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu, which compiles for TPUs, is not installed (it is for x86-64 Linux only)",
)
def test_a_kernel_in_a_scan_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    spec = f"{tmp_path}/program.py:looped"
    assert tpu_cost.main([spec, "--topo", "v5e", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)
    (kernel,) = (p for p in cost["parts"] if p["kind"] == tpu_cost.PALLAS)
    assert kernel["trips"] == 5
    assert kernel["hbm_bytes"] == 2 * 4096 * 128 * 4
    assert kernel["score"] == 5 * max(kernel["cycles"], kernel["hbm_bytes"] / 546)
    assert kernel["cycles"] > 16
    assert kernel["vmem_bytes"] >= 4 * 256 * 128 * 4
    assert kernel["spills"] == 0
    others = [p for p in cost["parts"] if p["kind"] != tpu_cost.PALLAS]
    assert any(p["trips"] == 5 and p["cycles"] > 1000 for p in others), "the sine"
    assert cost["score"] == round(sum(p["score"] for p in cost["parts"]))

    for function, said in (("absent", "has no function 'absent'"), ("wrong", "must return")):
        assert tpu_cost.main([f"{tmp_path}/program.py:{function}"]) == 2
        assert said in capsys.readouterr().err
    assert tpu_cost.main([spec, "--topo", "v5e:3x7"]) == 2
    assert "knows no topology 'v5e:3x7'" in capsys.readouterr().err
