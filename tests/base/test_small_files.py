"""Small files that ask for very much, or hold what is no plain value: refused at once, with the limit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hspmd_compiler.base.limits import MOST_DEVICES
from hspmd_compiler.cli.main import main
from hspmd_compiler.cluster.read import read_cluster
from hspmd_compiler.cluster.slurm import job_nodes
from hspmd_compiler.errors import ClusterError, HspmdError, StrategyError
from hspmd_compiler.strategy.formats.expanded import Choices
from hspmd_compiler.strategy.formats.read import read_text, text_entries

SECONDS = 5
MERGES = "a: &a {" + ", ".join(f"k{n}: 1" for n in range(10)) + "}\n"
ALIASES = "a0: &a0 [x]\n"
for level in range(1, 12):
    ALIASES += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    MERGES += f"b{level}: &b{level} {{<<: [{', '.join(['*a' if level == 1 else f'*b{level - 1}'] * 10)}]}}\n"


def own(devices: str = "[0]", layers: str = "1", micro_batches: str = "[1]", more: str = "") -> str:
    stage = f"{{devices: {devices}, layers: {layers}}}"
    return f"pipelines:\n- {{stages: [{stage}], micro_batches: {micro_batches}}}\n{more}"


RECOMPUTED = "[{layers: [0, 999999999], kind: full}]"
OWN = {
    "aliases": (ALIASES, "values: at most"),
    "merged keys": (MERGES, "values: at most"),
    "in itself": ("pipelines: &a [*a]\n", "nested deeper"),
    "nested": ("pipelines: " + "[" * 3000 + "]" * 3000, "nested too deep"),
    "nested JSON": ('{"pipelines": ' + "[" * 200 + "]" * 200 + "}", "nested deeper than 100"),
    "devices": (own('"0-999999999"'), "1,000,000,000 devices: at most 65,536"),
    "many digits of devices": (own('"0-' + "9" * 5000 + '"'), "a range is low-high"),
    "layers": (own(layers="999999999"), "999,999,999 as a layer: at most"),
    "layer ends": (own(layers="[0, 4611686018427387904]"), "as a layer: at most"),
    "groups": (own(micro_batches="{count: 999999999, size: 1}"), "999999999: at most 65,536 micro-batches"),
    "samples": (own(micro_batches=f"[{2**62}]"), "samples: at most"),
    "a long number": (own(micro_batches=f"[{2**70}]"), "of 71 bits: of at most 63"),
    "5,000 digits": (own(micro_batches="[" + "9" * 5000 + "]"), "malformed YAML"),
    "accumulation": (own(more="accumulation: 999999999\n"), "micro-batches: at most"),
    "recompute": (
        own(more="").replace("]}\n", "], recompute: [{layers: [0, 999999999], kind: full}]}\n"),
        "at most",
    ),
    "a date": (own(micro_batches="[2026-11-28]"), "'2026-11-28'"),
    "a wrong date": (own(micro_batches="[2026-13-45]"), "'2026-13-45'"),
    "a time": (own(micro_batches="[1:30]"), "'1:30'"),
    "bytes": (own(more="name: !!binary aGVsbG8=\n"), "a bytes"),
    "a set": (own(more="name: !!set {a, b}\n"), "a set"),
    "an object of Python": (own(more="name: !!python/name:os.system\n"), "malformed YAML"),
    "no number": (own(micro_batches="[.nan]"), "nan: a finite number"),
    "infinite": ('{"pipelines": [Infinity]}', "inf: a finite number"),
    "a key": (own(more="1.5: x\n"), "keys are texts"),
    "a null": ("pipelines: \x00\n", "malformed YAML"),
    "twice": ('{"pipelines": [], "pipelines": []}', "stands 2 times"),
}


@pytest.mark.parametrize("name", OWN)
def test_a_strategy_is_refused_at_once(name: str) -> None:
    text, told = OWN[name]
    start = time.process_time()
    with pytest.raises(StrategyError) as error:
        read_text(text)
    assert told in str(error.value)
    assert time.process_time() - start < SECONDS


MANY = "999999999"
LARGE = "999999"
FORMATS = {
    "lines": f'DP={MANY}\nTP=1\nLAYERS_NUM_LIST="[[2]]"\n',
    "lines, TP": f'DP=1\nTP={LARGE}\nLAYERS_NUM_LIST="[[2]]"\n',
    "lines, alike": f"HETERO=false\nDP={LARGE}\nTP={LARGE}\nPP=2\nNUM_LAYERS=2\n",
    "lines, micro-batches": f'DP=1\nTP=1\nLAYERS_NUM_LIST="[[2]]"\nMICRO_BATCH_NUM_LIST="[{MANY}]"\n',
    "lines, context": f'DP=1\nTP=1\nCP_LIST="[{LARGE}]"\nLAYERS_NUM_LIST="[[2]]"\n',
    "cases": f'{{"dp": {MANY}, "tp": {MANY}, "layers_num_list": [[2]]}}',
    "hexiscale": f'--hetero_configs "[[{LARGE}]]" --layer_partitions "[[2]]"',
    "hexiscale, chunks": f'--hetero_configs "[[1]]" --layer_partitions "[[2]]" --chunks {LARGE}',
    "hexiscale, empty": '--hetero_configs "[[]]" --layer_partitions "[[2]]"',
    "hydraulis": f"[({LARGE}, {LARGE})]",
    "hydraulis, context": f"[[({LARGE}, 1, 1)]]",
    "hydraulis, pool": f'{{"pool": {{"gpus": {LARGE}, "strategies": [[[1, 1, {LARGE}]]]}}}}',
    "hotspa": f'{{"bucket_sizes": [8, 0], "strategies": [[{LARGE}, {LARGE}, {LARGE}]], "layers": {LARGE}}}',
    "flagscale": f"hetero_process_meshes: [{LARGE}, 1, 1, {LARGE}, 1]\nhetero_pipeline_layer_split: [2]\n",
    "flagscale, batch": (
        "hetero_process_meshes: [1, 1, 1, 1, 1]\nhetero_pipeline_layer_split: [2]\n"
        f"global_batch_size: {LARGE}\nmicro_batch_size: 1\n"
    ),
    "annotation": f'{{"llama": {{"blocks": {{"blocks0": {{"range": [0, {LARGE}], "a": {{"type": "variable", '
    '"device_group_union": [[0]], "dup": [1], "split": {"0": [1]}}}}}}',
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_published_format_is_refused_at_once(name: str) -> None:
    start = time.process_time()
    with pytest.raises(StrategyError) as error:
        for entry in text_entries(FORMATS[name], Choices(num_layers=2))[1]:
            entry.expand()
    assert any(rule in str(error.value) for rule in ("at most", "at least one", "sum of CP_LIST"))
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize(
    "text",
    [
        "a slots=99999999\n",
        "a slots=" + "9" * 5000 + "\n",
        "{nodes: [{address: a, devices: [{count: 999999999}]}]}",
        '{"nodes": [{"address": "a", "devices": [{"ids": "0-999999999"}]}]}',
        '{"nodes": [{"address": "a", "devices": [{"count": ' + "9" * 5000 + "}]}]}",
    ],
    ids=lambda text: text[:50],
)
def test_machines_are_refused_at_once(text: str, tmp_path: Path) -> None:
    path = tmp_path / ("cluster.yaml" if "nodes" in text else "hosts")
    path.write_text(text)
    start = time.process_time()
    with pytest.raises(ClusterError):
        read_cluster(path)
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize(
    ("nodes", "gpus", "tasks"),
    [
        ("gpu[0-999999999]", "1", ""),
        ("gpu[0-9999][0-9999]", "1", ""),
        ("gpu[0-" + "9" * 5000 + "]", "1", ""),
        ("a,b", "99999999", ""),
        ("a,b", "", "1(x999999999)"),
        ("a,b", "", "999999999,1"),
    ],
)
def test_a_job_is_refused_at_once(nodes: str, gpus: str, tasks: str) -> None:
    given = {"SLURM_JOB_NODELIST": nodes, "SLURM_GPUS_PER_NODE": gpus, "SLURM_TASKS_PER_NODE": tasks}
    with pytest.raises(ClusterError):
        job_nodes(given)


def test_a_beginning_that_marks_utf_8_is_no_part_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "strategy.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + own().encode())
    assert main(["strategy", "show", str(path)]) == 0


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, own().encode("utf-16"), b"\xff\xfe\x00", None])
def test_what_is_no_text_is_told(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "strategy.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    for command in (["strategy", "show"], ["strategy", "expand"]):
        assert main([*command, str(path)]) == 2
    with pytest.raises(HspmdError):
        read_cluster(path)


def test_the_limits_leave_room_for_published_sizes() -> None:
    text = own(f'"0-{MOST_DEVICES - 1}"', "60", "{count: 4096, size: 8}")
    assert read_text(text).world_size == MOST_DEVICES
