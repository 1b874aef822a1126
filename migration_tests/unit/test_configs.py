"""Configuration keys in YAML, JSON, on command lines and in Python."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from migration_tests.unit.test_text_paths import make_project, migrate

MODEL = "src/MaxText/configs/models/al_model.yml"

YAML_CASES = [
    ('decoder_block: "al_model"  # ours\n', 'decoder_block: "ling2"  # ours\n'),
    ("model_name: 'al_model'\n", "model_name: 'ling2'\n"),
    ('"layer_group_size": 5\n', '"inhomogeneous_layer_cycle_interval": 5\n'),
    (
        "moe_layer_freq: [0, 0, 1, 1]  # two dense\nx: 1\n",
        "first_num_dense_layers: 2  # two dense\ninterleave_moe_layer_step: 1\nx: 1\n",
    ),
    (
        "moe_layer_freq:\n  - 0  # dense\n  - 1\n  - 1\nx: 1\n",
        "first_num_dense_layers: 1\n# dense\ninterleave_moe_layer_step: 1\nx: 1\n",
    ),
    (
        "moe_layer_freq: [\n  0,\n  1,\n]\n",
        "first_num_dense_layers: 1\ninterleave_moe_layer_step: 1\n",
    ),
    ("moe_layer_freq: [1, 1]\n", "first_num_dense_layers: 0\ninterleave_moe_layer_step: 1\n"),
    (
        "moe_layer_freq: ([0]*1+[1]*19)\n",
        "first_num_dense_layers: 1\ninterleave_moe_layer_step: 1\n",
    ),
    (
        "m: {moe_layer_freq: [0, 1], layer_group_size: 5}\n",
        "m: {first_num_dense_layers: 1, interleave_moe_layer_step: 1, inhomogeneous_layer_cycle_interval: 5}\n",
    ),
    (
        "- moe_layer_freq: [0, 1]\n  a: 1\n",
        "- first_num_dense_layers: 1\n  interleave_moe_layer_step: 1\n  a: 1\n",
    ),
    (
        "a: &a\n  layer_group_size: 5\nb:\n  <<: *a\n  layer_group_size: 6\n",
        "a: &a\n  inhomogeneous_layer_cycle_interval: 5\nb:\n  <<: *a\n  inhomogeneous_layer_cycle_interval: 6\n",
    ),
    (
        "---\nlayer_group_size: 5\n---\nlayer_group_size: 6\n",
        "---\ninhomogeneous_layer_cycle_interval: 5\n---\ninhomogeneous_layer_cycle_interval: 6\n",
    ),
    ("a: 1\nargus_dump_dir: ''\nargus_dump_steps:\n  - 1\n  - 2\nb: 2\n", "a: 1\nb: 2\n"),
    ("argus_dump_dir: x  # where\nb: 2\n", "# where\nb: 2\n"),
    ("m: {a: 1, argus_dump_x: [1, 2], b: 2}\n", "m: {a: 1, b: 2}\n"),
    ("m: {a: 1, argus_dump_x: 2}\n", "m: {a: 1}\n"),
    (
        "moe_layer_freq: [0, 1]\r\nb: 2\r\n",
        "first_num_dense_layers: 1\r\ninterleave_moe_layer_step: 1\r\nb: 2\r\n",
    ),
]


@pytest.mark.parametrize(("before", "after"), YAML_CASES)
def test_yaml(before: str, after: str) -> None:
    run = migrate(before, MODEL)
    assert run.text == after
    assert not run.listed
    list(YAML().load_all(run.text))


YAML_LISTED = [
    "moe_layer_freq: [0, 1, 0, 1]\n",
    "moe_layer_freq: [1, 1, 0]\n",
    "moe_layer_freq: [0, 0]\n",
    "moe_layer_freq: 1\n",
    "base_num_decoder_layers: 3\nmoe_layer_freq: [0, 1]\n",
    "a: &f [0, 1]\nmoe_layer_freq: *f\n",
    "moe_layer_freq: &f [0, 1]\na: *f\n",
    "first_num_dense_layers: 3\nmoe_layer_freq: [0, 1]\n",
    "inhomogeneous_layer_cycle_interval: 3\nlayer_group_size: 5\n",
    "layer_group_size: 5\nlayer_group_size: 6\n",
    "argus_dump_x: &d 1\nb: *d\n",
]


@pytest.mark.parametrize("text", YAML_LISTED)
def test_yaml_that_a_person_has_to_decide(text: str) -> None:
    run = migrate(text, MODEL)
    assert run.text == text
    assert run.listed
    assert all(s.reason and s.todo for s in run.file.sites)


def test_step_that_is_set_already_is_not_set_twice() -> None:
    run = migrate("moe_layer_freq: [0, 1]\ninterleave_moe_layer_step: 1\n", MODEL)
    assert run.text == "first_num_dense_layers: 1\ninterleave_moe_layer_step: 1\n"


def test_unknown_keys_are_listed_where_the_fields_are_known() -> None:
    text = "mlp_dim: 8\nno_such_key: 1\nlayer_group_size: 5\n# old_key: 1\n"
    fields = frozenset({"mlp_dim", "inhomogeneous_layer_cycle_interval"})
    run = migrate(text, MODEL, make_project(fields))
    assert run.listed == ["no_such_key"]
    assert not migrate(text, "jobs/a.yml", make_project(fields)).listed
    assert not migrate(text, MODEL).listed


def test_base_config_is_found_from_the_new_place() -> None:
    project = make_project(
        extra={
            "src/MaxText/configs/inference.yml": "src/maxtext/configs/inference/inference.yml",
            "src/MaxText/configs/v5e/a.yml": "src/maxtext/configs/tpu/v5e/a.yml",
        }
    )
    run = migrate('base_config: "inference.yml"\n', "src/MaxText/configs/v5e/a.yml", project)
    assert run.text == 'base_config: "inference/inference.yml"\n'
    run = migrate('base_config: "base.yml"\n', "src/MaxText/configs/sft.yml", project)
    assert run.text == 'base_config: "base.yml"\n'


def test_json() -> None:
    before = '{\n  "model_name": "al_model",\n  "moe_layer_freq": [0, 1],\n  "argus_dump_x": 1\n}\n'
    assert migrate(before, "a.json").text == (
        '{\n  "model_name": "ling2",\n  "first_num_dense_layers": 1,\n  "interleave_moe_layer_step": 1\n}\n'
    )
    theirs = '{"model_type": "bailing", "layer_group_size": 5, "moe_layer_freq": [0, 1]}\n'
    run = migrate(theirs, "config.json")
    assert run.text == theirs
    assert not run.listed


def test_command_lines() -> None:
    before = 'cmd layer_group_size=5 moe_layer_freq="[0, 1]" \\\n  "moe_layer_freq=[0,0,1]"\n'
    assert migrate(before).text == (
        "cmd inhomogeneous_layer_cycle_interval=5 first_num_dense_layers=1 interleave_moe_layer_step=1 \\\n"
        '  "first_num_dense_layers=2" "interleave_moe_layer_step=1"\n'
    )
    assert migrate("cmd moe_layer_freq=[0,1,0]\n").listed == ["moe_layer_freq=[0,1,0]"]


PYTHON = [
    ("y = config.layer_group_size", "y = config.inhomogeneous_layer_cycle_interval"),
    (
        "y = self.config.layer_group_size * 2",
        "y = self.config.inhomogeneous_layer_cycle_interval * 2",
    ),
    ("y = hf_config.layer_group_size", "y = hf_config.layer_group_size"),
    ('y = config["layer_group_size"]', 'y = config["inhomogeneous_layer_cycle_interval"]'),
    ('y = hf_config["layer_group_size"]', 'y = hf_config["layer_group_size"]'),
    (
        'y = {"model_type": "a", "moe_layer_freq": 1}',
        'y = {"model_type": "a", "moe_layer_freq": 1}',
    ),
    ("f(layer_group_size=5)", "f(inhomogeneous_layer_cycle_interval=5)"),
    ("f(moe_layer_freq=[0] + [1] * 3)", "f(first_num_dense_layers=1, interleave_moe_layer_step=1)"),
    (
        'y = {"moe_layer_freq": [0, 1]}',
        'y = {"first_num_dense_layers": 1, "interleave_moe_layer_step": 1}',
    ),
    ('y = ["layer_group_size=5"]', 'y = ["inhomogeneous_layer_cycle_interval=5"]'),
    (
        'y = ["moe_layer_freq=[0,1]", 1]',
        'y = ["first_num_dense_layers=1", "interleave_moe_layer_step=1", 1]',
    ),
    ("y = c.moe_layer_freq[i] == 0", "y = i < c.first_num_dense_layers"),
    ("y = c.moe_layer_freq[i + 1] == 1", "y = i + 1 >= c.first_num_dense_layers"),
    ("y = c.moe_layer_freq[i] != 0", "y = i >= c.first_num_dense_layers"),
    (
        "y = not c.moe_layer_freq[a if b else d] == 0",
        "y = not (a if b else d) < c.first_num_dense_layers",
    ),
]


@pytest.mark.parametrize(("before", "after"), PYTHON)
def test_python(before: str, after: str) -> None:
    run = migrate(before + "\n", "scripts/tool.py")
    assert run.text == after + "\n"
    assert not run.listed


@pytest.mark.parametrize(
    "text",
    [
        "y = c.moe_layer_freq[-1] == 0",
        "y = sum(c.moe_layer_freq)",
        "y = 0 < c.moe_layer_freq[i] == 1",
        "f(moe_layer_freq=freq)",
        'y = c["moe_layer_freq"]',
        "class C:\n  layer_group_size: int = 5",
    ],
)
def test_python_that_a_person_has_to_decide(text: str) -> None:
    run = migrate(text + "\n", "scripts/tool.py")
    assert run.text == text + "\n"
    assert run.listed


def test_keyword_of_the_checkouts_own_function_stays() -> None:
    text = "def f(layer_group_size):\n  return layer_group_size\n\n\nf(layer_group_size=config.layer_group_size)\n"
    run = migrate(text, "scripts/tool.py")
    assert run.text.endswith("f(layer_group_size=config.inhomogeneous_layer_cycle_interval)\n")
