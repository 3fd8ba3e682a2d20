"""deploy/kubernetes: its schemas, and that what it says of a worker is true of one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kmr.settings import WORKER, Settings

HERE: Final = Path(__file__).parents[2] / "deploy" / "kubernetes"
SCHEMAS: Final = Path(sys.prefix) / "share" / "kubernetes-schemas"


def objects() -> dict[str, Any]:
    """The objects that are applied, by kind."""
    paths = [path for path in sorted(HERE.rglob("*.yaml")) if path.name != "kustomization.yaml"]
    found = [yaml.safe_load(path.read_bytes()) for path in paths]
    return {each["kind"]: each for each in found}


def pod() -> Any:
    return objects()["StatefulSet"]["spec"]["template"]["spec"]


def settings_in(pod_name: str) -> Settings:
    """The settings of a worker in a pod: those of the file, and the variables that are set there."""
    (container,) = pod()["containers"]
    names = {"metadata.name": pod_name}
    variables = {
        each["name"]: names[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container["env"]
    }
    return WORKER.load(HERE / "base" / Path(container["args"][-1]).name, variables, {})


def built(folder: Path) -> str:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed: it builds what kubeconform checks")
    return subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, check=True
    ).stdout


def conform(manifests: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.prefix) / "bin" / "kubeconform"
    if not program.exists():
        pytest.skip("kubeconform is not built: tools/kubeconform needs Go")
    place = f"{SCHEMAS}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    return subprocess.run(
        [program, "-strict", "-summary", "-schema-location", place],
        input=manifests,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("folder", "count"), [(".", 7), ("base", 5)])
def test_the_built_objects_fit_the_schemas_of_kubernetes_and_of_the_operators(
    folder: str, count: int
) -> None:
    manifests = built(HERE / folder)
    done = conform(manifests)
    assert done.returncode == 0, done.stdout
    assert f"Valid: {count}, Invalid: 0, Errors: 0, Skipped: 0" in done.stdout


def test_a_field_that_kubernetes_does_not_know_is_refused() -> None:
    done = conform(built(HERE).replace("readOnlyRootFilesystem", "readOnlyRoot"))
    assert done.returncode == 1
    assert "additional properties 'readOnlyRoot' not allowed" in done.stdout


def test_without_the_operators_no_object_of_theirs_is_built_and_with_keda_no_number_of_pods() -> (
    None
):
    base = {each["kind"]: each for each in yaml.safe_load_all(built(HERE / "base"))}
    whole = {each["kind"]: each for each in yaml.safe_load_all(built(HERE))}
    assert whole.keys() - base.keys() == {"ServiceMonitor", "ScaledObject"}
    assert base["StatefulSet"]["spec"]["replicas"] == 2
    assert "replicas" not in whole["StatefulSet"]["spec"]


def test_each_selector_selects_the_pods_and_the_monitor_the_service() -> None:
    every = {each["kind"]: each for each in yaml.safe_load_all(built(HERE))}
    labels = every["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert len(labels) == 2
    assert every["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert every["Service"]["spec"]["selector"] == labels
    assert every["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert every["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert every["ServiceMonitor"]["spec"]["selector"]["matchLabels"] == labels
    assert every["Service"]["metadata"]["labels"] == labels


def test_the_name_of_the_pod_is_the_static_member_id() -> None:
    assert settings_in("kmr-1").group_instance_id == "kmr-1"


def test_kubernetes_waits_longer_than_a_worker_takes_to_end() -> None:
    assert pod()["terminationGracePeriodSeconds"] >= settings_in("kmr-0").shutdown_deadline + 5


def test_keda_scales_by_the_lag_of_the_topic_and_the_group_of_the_workers() -> None:
    settings = settings_in("kmr-0")
    spec = objects()["ScaledObject"]["spec"]
    (trigger,) = spec["triggers"]
    assert trigger["metadata"]["consumerGroup"] == settings.group
    assert (trigger["metadata"]["topic"],) == settings.topics
    assert trigger["metadata"]["bootstrapServers"] == settings.bootstrap_servers
    assert spec["scaleTargetRef"]["name"] == objects()["StatefulSet"]["metadata"]["name"]
    scaling = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    down = scaling["scaleDown"]["stabilizationWindowSeconds"]
    assert down > scaling["scaleUp"]["stabilizationWindowSeconds"] > 0


def test_the_ports_and_paths_of_probes_service_policy_and_monitor_are_those_of_the_worker() -> None:
    (container,) = pod()["containers"]
    (port,) = container["ports"]
    settings = settings_in("kmr-0")
    assert (settings.http.host, settings.http.port) == ("0.0.0.0", port["containerPort"])
    probes = [container[f"{each}Probe"]["httpGet"] for each in ("startup", "liveness", "readiness")]
    assert [probe["path"] for probe in probes] == ["/live", "/live", "/ready"]
    (served,) = objects()["Service"]["spec"]["ports"]
    (endpoint,) = objects()["ServiceMonitor"]["spec"]["endpoints"]
    (ingress,) = objects()["NetworkPolicy"]["spec"]["ingress"]
    names = [
        *(probe["port"] for probe in probes),
        served["targetPort"],
        ingress["ports"][0]["port"],
    ]
    assert {*names, endpoint["port"]} == {port["name"]}
    assert (served["name"], served["port"]) == (port["name"], port["containerPort"])
