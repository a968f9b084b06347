"""The schemas of Kubeflow Trainer and SkyPilot, as far as the files in recipes/launchers/ use them.

    python -m tests.peers.launcher_schemas --kubeflow trainer/manifests/base/crds --skypilot sky/utils/schemas.py \
        > tests/golden/launcher_schemas.json

Of each object that the files have, the names and types of all keys; of keys that they do not use, no more.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import yaml

FILES = Path(__file__).parents[2] / "recipes/launchers"
KINDS = {"ClusterTrainingRuntime": "clustertrainingruntimes", "TrainJob": "trainjobs"}


def used(schema: Any, value: Any) -> Any:
    """The part of a JSON Schema that says something of `value`, and the names of all keys beside."""
    found = {key: schema[key] for key in ("type", "enum", "required", "anyOf") if key in schema}
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        found["properties"] = {key: used(each, value.get(key)) for key, each in sorted(known.items())}
        for key in known.keys() - value.keys():
            found["properties"][key] = {}
    elif isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = used(schema["additionalProperties"], next(iter(value.values()), None))
    if isinstance(value, list) and value:
        each = {name: item for part in value for name, item in part.items()} if isinstance(value[0], dict) else value[0]
        found["items"] = used(schema["items"], each)
    return found


def of_kubeflow(folder: Path) -> dict[str, Any]:
    found = {}
    for document in yaml.safe_load_all((FILES / "kubeflow.yaml").read_text()):
        crd = yaml.safe_load((folder / f"trainer.kubeflow.org_{KINDS[document['kind']]}.yaml").read_text())
        version = next(each for each in crd["spec"]["versions"] if document["apiVersion"].endswith(each["name"]))
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
        found[document["kind"]] = used(schema, document)
    return found


def of_skypilot(path: Path) -> dict[str, Any]:
    # Of the modules that the schemas import they need lists of names, which are left out here.
    stubs = "skylet utils server server.plugins serve data data.storage utils.volume"
    for name in ["sky", *(f"sky.{stub}" for stub in stubs.split())]:
        sys.modules[name] = MagicMock(__path__=[], __spec__=None)
    names = {"ALL_CLOUDS": ["kubernetes"], "ENV_VAR_IS_SKYPILOT_SERVER": "IS_SKYPILOT_SERVER"}
    vars(sys.modules["sky.skylet"].constants).update(names)
    spec = importlib.util.spec_from_file_location("schemas", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._task_config_schema = dict
    task = yaml.safe_load((FILES / "skypilot.yaml").read_text())
    found = used(module.get_task_schema(), task)
    found["properties"]["resources"] = used(module.get_resources_schema(), task["resources"])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeflow", type=Path, required=True)
    parser.add_argument("--skypilot", type=Path, required=True)
    options = parser.parse_args()
    schemas = {"SkyPilot": of_skypilot(options.skypilot), **of_kubeflow(options.kubeflow)}
    print(json.dumps(schemas, indent=1, sort_keys=True))
