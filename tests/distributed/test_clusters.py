"""examples/clusters: each file is run here as far as one machine can, and read by a parser of its form."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
import yaml
from benchmarks.distributed.links import Links, why_not
from tests.distributed.ranks import ROOT, environment, mpi_launcher
from tests.extras import PATIENCE, ran

FILES = ROOT / "examples" / "clusters"
PAGE = ROOT / "docs" / "clusters.md"
SMALL = ["--data", "braid-10k", "--epochs", "1", "--quiet", "--set", "test_at_end=false"]
SRUN = """#!{python}
import os, subprocess, sys
own = sys.argv[1:]
assert own[:2] == ["--kill-on-bad-exit=1", "--cpus-per-task=1"], own
step = {{"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "{job}"}}
each = [os.environ | step | {{"SLURM_PROCID": str(n), "SLURM_LOCALID": str(n)}} for n in range(2)]
processes = [subprocess.Popen(own[2:], env=variables) for variables in each]
sys.exit(max(process.wait() for process in processes))
"""
"""What ``srun`` does with two tasks, where there is no Slurm."""


def variables(tmp_path: Path, **own: str) -> dict[str, str]:
    """Those of a shell whose ``python`` is this one, without a launcher's."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    if not (programs / "python").exists():
        (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (programs / "python").chmod(0o755)
    path = os.pathsep.join([str(programs), sysconfig.get_path("scripts"), os.environ["PATH"]])
    found = environment(PATH=path, GRAPHBRAID_CACHE=str(tmp_path / "cache"), **own)
    del found["GLOO_SOCKET_IFNAME"]
    return found


def done(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return ran(command, timeout=2 * PATIENCE, **options)


def run_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "result.json").read_text())


def test_the_page_names_every_file():
    text = PAGE.read_text()
    assert all(f"examples/clusters/{path.name}" in text for path in FILES.iterdir() if path.is_file())


@pytest.mark.parametrize("name", ["torchrun.sh", "mpirun.sh", "slurm.sbatch"])
def test_shells_read_the_scripts(name):
    shell = "bash" if name == "slurm.sbatch" else "sh"
    read = done([shell, "-n", str(FILES / name)])
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.distributed
def test_two_machines_by_torchrun(tmp_path):
    """Each machine is a network of its own, which does not know the other's name."""
    if why := why_not():
        pytest.skip(why)
    with Links(2, 1e9) as links:
        processes = []
        for node in range(2):
            own = {"FIRST": links.address(0), "NODE": str(node), "JOB": "job-1"}
            own |= {"ADDRESS": links.address(node)}
            command = ["sh", str(FILES / "torchrun.sh"), *SMALL, "--out", str(tmp_path / "run")]
            processes.append(
                subprocess.Popen(
                    links.command(node, command),
                    env=variables(tmp_path, **own),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        said = [process.communicate(timeout=2 * PATIENCE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert run_of(tmp_path / "run")["status"] == "finished"


@pytest.mark.slow
@pytest.mark.distributed
def test_a_file_of_hosts_by_mpirun(tmp_path):
    launcher = Path(mpi_launcher())
    said = done([str(launcher), "--version"]).stdout
    (tmp_path / "hosts").write_text("localhost slots=2\n" if "Open" in said else "localhost:2\n")
    command = ["sh", str(FILES / "mpirun.sh"), *SMALL, "--out", str(tmp_path / "run")]
    own = variables(tmp_path, RANKS="2", HOSTS=str(tmp_path / "hosts"))
    programs, _, others = own["PATH"].partition(os.pathsep)
    own["PATH"] = os.pathsep.join([programs, str(launcher.parent), others])
    found = done(command, env=own)
    assert found.returncode == 0, found.stderr
    assert run_of(tmp_path / "run")["status"] == "finished"


def test_directives_of_slurm_stand_before_the_first_command():
    """``sbatch`` reads no further; each option is one of its long ones, with a value where it takes one."""
    lines = (FILES / "slurm.sbatch").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert directives == [line for line in lines[:first] if line.startswith("#SBATCH")]
    forms = {
        "job-name": r"=\S+",
        "nodes": r"=\d+",
        "ntasks-per-node": r"=\d+",
        "cpus-per-task": r"=\d+",
        "time": r"=(\d+-)?\d\d:\d\d:\d\d",
        "requeue": "",
        "open-mode": "=(append|truncate)",
    }
    for line in directives:
        name = line.removeprefix("#SBATCH --").partition("=")[0]
        assert re.fullmatch(rf"#SBATCH --{name}{forms[name]}", line), line


@pytest.mark.slow
@pytest.mark.distributed
def test_the_script_of_slurm_trains_and_goes_on_when_it_is_started_again(tmp_path):
    own = variables(tmp_path, SLURM_CPUS_PER_TASK="1", SLURM_NTASKS="2", SLURM_PROCID="0")
    srun = tmp_path / "bin" / "srun"
    srun.write_text(SRUN.format(python=sys.executable, job=20_000 + os.getpid() % 3_000))
    srun.chmod(0o755)
    script = shutil.copy(FILES / "slurm.sbatch", tmp_path)
    for epochs in ("1", "2"):
        command = ["bash", str(script), *SMALL, "--epochs", epochs, "--out", str(tmp_path / "run")]
        found = done(command, env=own)
        assert found.returncode == 0, found.stderr
    assert [row["epoch"] for row in run_of(tmp_path / "run")["history"]] == [0, 1]


def job() -> dict[str, object]:
    return yaml.safe_load((FILES / "pytorchjob.yaml").read_text())


def test_the_job_of_kubernetes_has_what_the_operator_asks_for():
    found = job()
    assert (found["apiVersion"], found["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", found["metadata"]["name"])
    replicas = found["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"}
    assert replicas["Master"]["replicas"] == 1
    for of_kind in replicas.values():
        assert of_kind["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        pod = of_kind["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "pytorch"
        assert all(isinstance(each, str) for each in (*container["command"], *container["args"]))
        assert all(isinstance(each["value"], str) for each in container["env"])
        assert {each["name"] for each in container["volumeMounts"]} <= {
            each["name"] for each in pod["volumes"]
        }
        limits, requests = (container["resources"][name] for name in ("limits", "requests"))
        assert limits == requests


@pytest.mark.slow
@pytest.mark.distributed
def test_the_commands_of_kubernetes_train_with_the_operators_variables(tmp_path):
    replicas = job()["spec"]["pytorchReplicaSpecs"]
    port, processes = str(20_000 + os.getpid() % 9_000), []
    for rank, kind in enumerate(("Master", "Worker")):
        (container,) = replicas[kind]["template"]["spec"]["containers"]
        arguments = [text.replace("/data", str(tmp_path)) for text in container["args"]]
        arguments[arguments.index("--data") + 1] = "braid-10k"
        own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        own |= {each["name"]: each["value"] for each in container["env"]} | {"OMP_NUM_THREADS": "1"}
        processes.append(
            subprocess.Popen(
                [*container["command"], *arguments, *SMALL[2:]],
                env=variables(tmp_path, **own),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [process.communicate(timeout=2 * PATIENCE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert run_of(tmp_path / "runs" / "papers-1")["status"] == "finished"


@pytest.mark.long
@pytest.mark.distributed
def test_ray_train_on_this_machine(tmp_path):
    pytest.importorskip("ray.train.torch", reason="needs Ray Train: pip install 'graphbraid[ray]'")
    own = variables(tmp_path, RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", OMP_NUM_THREADS="1")
    command = [sys.executable, str(FILES / "ray_train.py"), "--epochs", "20", "--out", str(tmp_path / "run")]
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # names of its sockets are limited
        found = done(command, env=own | {"RAY_TMPDIR": short, "HOME": str(tmp_path)}, cwd=tmp_path)
    assert found.returncode == 0, found.stderr[-5000:]
    accuracy = re.search(r"2 ranks, test accuracy (\d\.\d+)", found.stdout)
    assert accuracy
    assert float(accuracy[1]) > 0.5
    assert run_of(tmp_path / "run")["status"] == "finished"


def test_the_container_copies_and_runs_what_there_is():
    """Its instructions are those of the format, and it is built from the root, where ``.`` is the project."""
    lines = [line for line in (FILES / "Containerfile").read_text().splitlines() if line and line[0] != "#"]
    assert {line.split()[0] for line in lines} == {"FROM", "RUN", "COPY", "ENTRYPOINT"}
    (entry,) = (line for line in lines if line.startswith("ENTRYPOINT"))
    assert json.loads(entry.removeprefix("ENTRYPOINT ")) == ["python", "-m", "graphbraid"]
    assert (ROOT / "pyproject.toml").is_file()
