"""deploy/docker: its files fit together and their schemas; `make image` runs the Dockerfile's commands."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from kmr.config.schema import parse_quantity
from kmr.loading import load_strategy
from kmr.settings import WORKER, Settings
from tools.dockerfile import included, instructions

ROOT: Final = Path(__file__).parents[2]
HERE: Final = ROOT / "deploy" / "docker"
STRATEGY: Final = HERE / "strategy"


def last_stage() -> dict[str, str]:
    """The last instruction of each kind in the last stage; ENV has all of them."""
    found: dict[str, str] = {}
    for word, rest in instructions((HERE / "Dockerfile").read_text(encoding="utf-8")):
        if word == "FROM":
            found = {}
        found[word] = f"{found.get('ENV', '')} {rest}" if word == "ENV" else rest
    return found


def compose() -> Any:
    return yaml.safe_load((HERE / "compose.yaml").read_bytes())


def settings_of(service: Any) -> Settings:
    """The settings of a worker: those of the image, the strategy's file, and the service's variables."""
    image = dict(each.split("=", 1) for each in last_stage()["ENV"].split())
    variables = {k: v for k, v in (image | service["environment"]).items() if k.startswith("KMR_")}
    variables.pop("KMR_CLICKHOUSE_URL", None)
    return WORKER.load(STRATEGY / "kmr.toml", variables, {})


def workers() -> dict[str, Any]:
    return {name: each for name, each in compose()["services"].items() if "worker" in name}


def test_the_image_runs_as_a_user_and_writes_to_tmp_only() -> None:
    last = last_stage()
    assert last["USER"] == "10001:10001"
    assert "HOME=/tmp NUMBA_CACHE_DIR=/tmp/kmr" in last["ENV"]
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert "RUN" not in last


@pytest.mark.parametrize("writable", [True, False])
def test_a_new_container_gets_the_compiled_code_of_the_image_and_becomes_kmr(
    tmp_path: Path, writable: bool
) -> None:
    image, cache = tmp_path / "compiled", tmp_path / "kmr"
    image.mkdir()
    image.joinpath("json").write_text("of the image")
    image.joinpath("batches").write_text("of the image")
    if writable:
        cache.mkdir()
        cache.joinpath("json").write_text("of an earlier start")
    kmr = tmp_path / "bin" / "kmr"
    kmr.parent.mkdir()
    kmr.write_text('#!/bin/sh\necho $$ "$@"\n')
    kmr.chmod(0o755)
    entry = json.loads(last_stage()["ENTRYPOINT"].replace("/opt/kmr/compiled", str(image)))
    with subprocess.Popen(
        [*entry, "run", "a b"],
        env={
            "PATH": f"{kmr.parent}:/usr/bin:/bin",
            "NUMBA_CACHE_DIR": str(cache) if writable else "/proc/kmr",
        },
        stdout=subprocess.PIPE,
        text=True,
    ) as container:
        said, _ = container.communicate(timeout=60)
    assert said.split("\n")[0] == f"{container.pid} run a b", "signals reach kmr itself"
    if writable:
        assert cache.joinpath("json").read_text() == "of an earlier start"
        assert cache.joinpath("batches").read_text() == "of the image"


def test_what_is_compiled_for_the_image_is_what_is_installed_in_it() -> None:
    """Without -P Python would import the checkout in the working directory, which the image does not have."""
    commands = [
        rest
        for word, rest in instructions((HERE / "Dockerfile").read_text(encoding="utf-8"))
        if word == "RUN" and "warm_up" in rest
    ]
    assert [command.split()[1:4] for command in commands] == [["/opt/kmr/bin/python", "-P", "-c"]]


def test_everything_that_the_image_is_built_from_is_there() -> None:
    names = included(HERE / "Dockerfile.dockerignore")
    assert {"pyproject.toml", "requirements.lock", "framework", "kmr"} <= set(names)
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_image_of_a_strategy_is_two_lines_more(monkeypatch: pytest.MonkeyPatch) -> None:
    (base, copy) = instructions((STRATEGY / "Dockerfile").read_text(encoding="utf-8"))
    assert base == ("FROM", "kmr")
    *copied, target = copy[1].split()
    assert (copy[0], target) == ("COPY", "./")
    assert [name for name in copied if not (STRATEGY / name).exists()] == []
    monkeypatch.syspath_prepend(str(STRATEGY))
    load_strategy("strategy").validate()


def test_compose_yaml_fits_its_schema() -> None:
    schema = Path(sys.prefix) / "share" / "kubernetes-schemas" / "compose-spec.json"
    if not schema.exists():
        pytest.skip("the schema of Compose is not there: tools/kubeconform needs Go")
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_bytes()))
    validator.validate(compose())
    wrong = compose()
    wrong["services"]["kafka"]["volume"] = []
    (error,) = validator.iter_errors(wrong)
    assert error.message.startswith("'volume' does not match")


def test_every_file_that_is_mounted_is_there() -> None:
    mounted = [
        volume.split(":")[0]
        for service in compose()["services"].values()
        for volume in service.get("volumes", ())
    ]
    files = [each for each in mounted if each.startswith(".")]
    assert len(files) == 5
    assert [each for each in files if not (HERE / each).is_file()] == []
    assert {each for each in mounted if not each.startswith(".")} == compose()["volumes"].keys()


def test_the_workers_are_members_of_their_own_name_and_get_time_to_drain() -> None:
    assert len(workers()) == 2
    for name, service in workers().items():
        settings = settings_of(service)
        assert settings.group_instance_id == name
        assert settings.bootstrap_servers == "kafka:9092"
        grace = parse_quantity(service["stop_grace_period"], "seconds")
        assert grace >= settings.shutdown_deadline + 5


def test_prometheus_asks_each_worker_and_reads_the_rules() -> None:
    config = yaml.safe_load((HERE / "prometheus.yml").read_bytes())
    (job,) = config["scrape_configs"]
    (targets,) = job["static_configs"]
    ports = {name: settings_of(service).http.port for name, service in workers().items()}
    assert targets["targets"] == [f"{name}:{port}" for name, port in ports.items()]
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    subprocess.run(
        [promtool, "check", "config", "--syntax-only", HERE / "prometheus.yml"], check=True
    )
