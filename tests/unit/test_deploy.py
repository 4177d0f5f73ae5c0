"""The manifests for Kubernetes: what they name is there, and they are what Kubernetes expects."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import ROOT

from millrace_lab.servers import installed

FOLDER = ROOT / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))


def objects() -> list[dict[str, Any]]:
    return [one for file in FILES for one in yaml.safe_load_all(file.read_text())]


def of(kind: str) -> dict[str, Any]:
    (found,) = [one for one in objects() if one["kind"] == kind]
    return found


def names(kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in objects() if one["kind"] == kind}


def arguments(container: dict[str, Any]) -> dict[str, str]:
    settings = [a.removeprefix("--conf=") for a in container["args"] if a.startswith("--conf=")]
    return dict(setting.split("=", 1) for setting in settings)


def test_what_is_named_is_there() -> None:
    pod = of("Deployment")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["serviceAccountName"] in names("ServiceAccount")
    binding = of("RoleBinding")
    assert binding["roleRef"]["name"] in names("Role")
    assert {subject["name"] for subject in binding["subjects"]} == names("ServiceAccount")
    labels = pod["metadata"]["labels"]
    assert of("Service")["spec"]["selector"] == labels
    assert of("Deployment")["spec"]["selector"]["matchLabels"] == labels
    (secret,) = [each["secretRef"]["name"] for each in container["envFrom"]]
    assert secret in names("Secret")

    settings = arguments(container)
    assert settings["spark.kubernetes.container.image"] == container["image"]
    assert settings["spark.kubernetes.authenticate.serviceAccountName"] in names("ServiceAccount")
    assert settings["spark.driver.host"] == f"{of('Service')['metadata']['name']}.$(NAMESPACE).svc"
    ports = {port["port"] for port in of("Service")["spec"]["ports"]}
    assert ports == {port["containerPort"] for port in container["ports"]}
    for name in ("spark.driver.port", "spark.driver.blockManager.port"):
        assert int(settings[name]) in ports
    # Every $(NAME) is a variable of the container.
    known = {variable["name"] for variable in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= known


def test_the_program_has_its_variables_and_its_port() -> None:
    (container,) = of("Deployment")["spec"]["template"]["spec"]["containers"]
    program = (FOLDER / "job.py").read_text()
    ast.parse(program)
    known = {variable["name"] for variable in container["env"]} | of("Secret")["stringData"].keys()
    assert set(re.findall(r'os\.environ\["(\w+)"\]', program)) <= known
    (port,) = re.findall(r"port=(\d+)", program)
    assert int(port) in {each["containerPort"] for each in container["ports"]}
    assert container["args"][-1] == "/opt/job/job.py"
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert mounts == {"/opt/job"}


def strict(schema: Any) -> Any:
    """The same schema, in which what is not declared is refused."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(each) for name, each in schema.items()}
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made:
        made["additionalProperties"] = False
    if made.get("format") == "int-or-string":
        made["type"] = ["integer", "string"]
    return made


def schema_of(one: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    group, _, version = one["apiVersion"].rpartition("/")
    wanted = {"group": group, "version": version, "kind": one["kind"]}
    for name, definition in definitions.items():
        if wanted in definition.get("x-kubernetes-group-version-kind", []):
            return {"$ref": f"#/definitions/{name}", "definitions": definitions}
    raise AssertionError(f"Kubernetes has no {wanted}")


@pytest.fixture(scope="module")
def definitions() -> Any:
    swagger = json.loads(Path(installed("kubernetes/swagger.json")).read_text())
    return strict(swagger["definitions"])


@pytest.mark.stress
def test_manifests_are_what_kubernetes_expects(definitions: dict[str, Any]) -> None:
    import jsonschema_rs

    for one in objects():
        validator = jsonschema_rs.Draft4Validator(schema_of(one, definitions))
        errors = [f"{e.instance_path}: {e.message}" for e in validator.iter_errors(one)]
        assert errors == [], f"{one['kind']} {one['metadata']['name']}"
    # The check can fail.
    wrong = of("Deployment")
    wrong["spec"]["replica"] = 1
    assert not jsonschema_rs.Draft4Validator(schema_of(wrong, definitions)).is_valid(wrong)
