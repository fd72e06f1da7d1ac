"""The manifests against the schemas of Kubernetes, and their commands and those of the page against the real verbs."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from erlcli.cli.app import app
from erlcli.recipe.shipped import find

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "deploy").glob("*.yaml"))
VERSIONS = ("1.29", "1.33", "1.36")

# Those fields of KubeRay's ray.io/v1 that are used here: its schema is no part of Kubernetes.
RAY_JOB = {"backoffLimit": int, "shutdownAfterJobFinishes": bool, "ttlSecondsAfterFinished": int, "entrypoint": str,
           "rayClusterSpec": dict}  # fmt: skip
CLUSTER = {"rayVersion": str, "enableInTreeAutoscaling": bool, "headGroupSpec": dict, "workerGroupSpecs": list}
HEAD = {"rayStartParams": dict, "template": dict}
WORKER = {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int, **HEAD}


def documents(path):
    yaml = pytest.importorskip("yaml", reason="comes with kubernetes-validate, of the extra `test`")
    return list(yaml.safe_load_all(path.read_text()))


def check_kinds(value, kinds):
    assert value.keys() == kinds.keys()
    for key, kind in kinds.items():
        assert type(value[key]) is kind, key


def pods(document):
    """Pod templates of a document."""
    if document["kind"] == "Job":
        return [document["spec"]["template"]]
    if document["kind"] != "RayJob":
        return []
    cluster = document["spec"]["rayClusterSpec"]
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_document_is_of_its_kind(path, version):
    validate = pytest.importorskip("kubernetes_validate", reason="of the extra `test`").validate
    for document in documents(path):
        if document["kind"] != "RayJob":
            validate(document, version, strict=True)
        for template in pods(document):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}
            validate(pod, version, strict=True)


def test_a_mistake_is_found():
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="of the extra `test`")
    _, job = documents(ROOT / "deploy" / "job.yaml")
    job["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


def test_the_ray_job_has_the_fields_of_its_operator():
    _, job = documents(ROOT / "deploy" / "rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    check_kinds(job["spec"], RAY_JOB)
    cluster = job["spec"]["rayClusterSpec"]
    check_kinds(cluster, CLUSTER)
    check_kinds(cluster["headGroupSpec"], HEAD)
    for group in cluster["workerGroupSpecs"]:
        check_kinds(group, WORKER)
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    # One slot has to fit on a node, or the cluster would never grow.
    [command] = [line for line in erl_commands(job["spec"]["entrypoint"]) if "tournament" in line]
    cpus = int(command[command.index("--cpus") + 1])
    worker = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    assert int(worker["resources"]["limits"]["cpu"]) >= cpus


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_pods_have_no_rights_and_share_the_volume_of_the_run(path):
    claims = {d["metadata"]["name"] for d in documents(path) if d["kind"] == "PersistentVolumeClaim"}
    for document in documents(path):
        for template in pods(document):
            spec = template["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["runAsUser"] == 1000
            mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
            [data] = [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
            assert mounts[data["name"]] == "/data"
            assert data["persistentVolumeClaim"]["claimName"] in claims
    assert "--run-dir /data/" in path.read_text()


def erl_commands(text):
    """Argument lists of all calls of erl in a script or in the code blocks of a page."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = re.findall(r"(?:^|[\s;&|'])erl ([a-z][^\n;&|#']*)", joined, flags=re.M)
    return [shlex.split(line) for line in found]


def scripts():
    for path in MANIFESTS:
        code = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
        yield path.name, code
    page = (ROOT / "docs" / "cluster.md").read_text()
    yield "cluster.md", "\n".join(re.findall(r"```(?:sh|console)\n(.*?)```", page, flags=re.S)).replace("$ ", "")


COMMANDS = [(name, command) for name, text in scripts() for command in erl_commands(text)]


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[f"{name}-{' '.join(c)[:40]}" for name, c in COMMANDS])
def test_every_command_can_be_typed(name, command):
    verb, *arguments = command
    group = typer.main.get_command(app)
    assert verb in group.commands, f"{name}: erl {verb}"
    context = group.commands[verb].make_context(verb, list(arguments))  # parses, and runs nothing
    if verb == "tournament":
        assert find(context.params["recipe"])


def test_commands_are_found_at_all():
    assert {command[0] for _, command in COMMANDS} >= {"tournament", "resume", "scale", "watch", "doctor"}
    assert sum(name.endswith(".yaml") for name, _ in COMMANDS) == 4


def test_the_image_has_extras_that_there_are_and_a_user():
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    tomllib = pytest.importorskip("tomli", reason="a dependency")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [wanted] = re.findall(r'"\.\[(.*?)\]"', text)
    assert set(wanted.split(",")) <= extras.keys()
    assert "\nUSER 1000\n" in text
    assert "ARG TORCH_INDEX=\n" in text
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", text, flags=re.M):
        assert all((ROOT / name).exists() for name in copied.split())
