"""ClusterSpecs from and to files: JSON or YAML both ways, and hostfiles in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from ..base.json_yaml import YAML_SUFFIXES, read_json, read_yaml, write_text
from ..base.plain_content import text_of
from ..errors import ClusterError
from . import hostfile
from .cluster import CLUSTER, PAGE, ClusterSpec
from .form import cluster_from
from .written import cluster_form


def read_cluster(source: Path | str | Mapping[str, object]) -> ClusterSpec:
    """The ClusterSpec of a file or a mapping, checked. A file that is no JSON or YAML is a hostfile."""
    if isinstance(source, Mapping):
        return cluster_from(source)
    path, at = Path(source), str(source)
    try:
        text = text_of(path)
    except OSError as error:
        fix = "name a hostfile, or a cluster in JSON or YAML"
        raise ClusterError(f"can't read the machines of {path}: {error.strerror}", fix=fix) from error
    except UnicodeDecodeError as error:
        raise ClusterError(f"{path} isn't a text: byte {error.start} is not UTF-8", fix=PAGE) from error
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        return cluster_from(read_json(text, CLUSTER, at, may_be_nan=True), at)
    if path.suffix in YAML_SUFFIXES:
        return cluster_from(read_yaml(text, CLUSTER, at, may_be_nan=True), at)
    return hostfile.read_hostfile(text, at)


def write_cluster(cluster: ClusterSpec, path: Path) -> None:
    """Write a file that reads back as an equal ClusterSpec, YAML where its suffix says so, else JSON."""
    write_text(path, cluster_text(cluster, path.suffix in YAML_SUFFIXES), ClusterError)


def cluster_text(cluster: ClusterSpec, is_yaml: bool) -> str:
    """What such a file holds; YAML, which people edit, has units."""
    form = cluster_form(cluster, has_units=is_yaml)
    if is_yaml:
        text: str = yaml.safe_dump(
            form, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True
        )
        return text
    return json.dumps(form, indent=2, ensure_ascii=False) + "\n"
