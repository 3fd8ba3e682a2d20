"""Write the JSON schemas that kubeconform reads, from the Go modules of Kubernetes and of two operators.

    tools/kubernetes_schemas.py MODULES DIRECTORY

They are strict: a field that is not in the schema is an error, as it is for the API server.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

_DEFINITION: Final = "#/definitions/"
_KINDS: Final = (
    "io.k8s.api.apps.v1.StatefulSet",
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.networking.v1.NetworkPolicy",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
)
_SCALARS: Final = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["number", "string"]},
}


def strict(schema: Any) -> Any:
    """Return a schema that refuses unknown fields; one without fields stays open."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    result = {key: strict(value) for key, value in schema.items() if key != "description"}
    if isinstance(schema.get("properties"), dict):
        # A field may be called description.
        result["properties"] = {k: strict(v) for k, v in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            result.setdefault("additionalProperties", False)
    return result


def used(name: str, definitions: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Add a definition and those that it refers to, to `found`."""
    if name not in found:
        found[name] = _SCALARS.get(name) or strict(definitions[name])
        for part in json.dumps(found[name]).split(f'"{_DEFINITION}')[1:]:
            used(part.split('"')[0], definitions, found)
    return found


def main(modules: Path, directory: Path) -> None:
    """Write a file for each kind, named as kubeconform asks for it: `statefulset-apps-v1.json`."""
    directory.mkdir(parents=True, exist_ok=True)

    def write(kind: str, group: str, version: str, schema: dict[str, Any]) -> None:
        parts = [kind.lower(), *group.split(".")[:1], version]
        name = "-".join(part for part in parts if part)
        (directory / f"{name}.json").write_text(json.dumps(schema), encoding="utf-8")

    (swagger,) = modules.glob("k8s.io/kubernetes@*/api/openapi-spec/swagger.json")
    definitions = json.loads(swagger.read_bytes())["definitions"]
    for name in _KINDS:
        (meant,) = definitions[name]["x-kubernetes-group-version-kind"]
        whole = {"$ref": _DEFINITION + name, "definitions": used(name, definitions, {})}
        write(meant["kind"], meant["group"], meant["version"], whole)
    (keda,) = modules.glob(
        "github.com/kedacore/keda/v2@*/config/crd/bases/keda.sh_scaledobjects.yaml"
    )
    (monitor,) = modules.glob(
        "github.com/prometheus-operator/prometheus-operator@*/example/prometheus-operator-crd/"
        "monitoring.coreos.com_servicemonitors.yaml"
    )
    for path in (keda, monitor):
        spec = yaml.safe_load(path.read_bytes())["spec"]
        for version in spec["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            write(spec["names"]["kind"], spec["group"], version["name"], schema)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
