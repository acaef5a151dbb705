"""In a container with little memory, what the system would kill is refused beforehand."""

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.extras import NO_PYG
from tests.robustness.workplace import QUICK, arrays
from tests.train.labelled_edges import own_model, people
from tests.train.typed_communities import bibliography
from typer.testing import CliRunner

from graphbraid import Graph, GraphSet
from graphbraid.cli.main import app
from graphbraid.errors import ResourceError
from graphbraid.estimates import limits
from graphbraid.machine import hardware
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.nn import GIN, RGCN, PooledModel
from graphbraid.train import Trainer

MIB = 1 << 20


def container(
    root: Path, monkeypatch: pytest.MonkeyPatch, version: int, limit: int, used: int, files: int = 0
) -> Path:
    """A tree of ``proc`` and ``sys`` as a container sees it; ``files`` of what is used are files' pages."""
    tree = {"proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n"}
    if version == 2:
        tree |= {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": f"{limit}\n",
            "sys/fs/cgroup/memory.current": f"{used}\n",
            "sys/fs/cgroup/memory.stat": f"anon 4096\nactive_file {files // 2}\ninactive_file {files // 2}\n",
        }
    else:
        stat = f"active_file 0\ntotal_active_file {files // 2}\ntotal_inactive_file {files // 2}\n"
        tree |= {
            "proc/self/cgroup": "5:memory:/docker/abc\n",  # a name of outside; here the group is the top
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{limit}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{used}\n",
            "sys/fs/cgroup/memory/memory.stat": stat,
        }
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(hardware, "ROOT", root)
    monkeypatch.setattr(hardware, "LEAST_BYTES", 0)  # what is counted here is tiny
    monkeypatch.setattr(limits, "_RESERVE_BYTES", 0)
    return root


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_the_containers_and_files_in_memory_count_as_free(tmp_path, monkeypatch, version):
    container(tmp_path, monkeypatch, version, 512 * MIB, 500 * MIB)
    assert free_memory_bytes() == 12 * MIB
    container(tmp_path, monkeypatch, version, 512 * MIB, 500 * MIB, files=400 * MIB)
    assert free_memory_bytes() == 412 * MIB
    container(tmp_path, monkeypatch, version, 64 << 30, 0)
    assert free_memory_bytes() == 32 << 30  # the machine has no more


def command(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stderr


@pytest.mark.parametrize("version", [1, 2])
def test_convert_refuses_what_does_not_fit(tmp_path, monkeypatch, version):
    edges = np.random.default_rng(0).integers(0, 1000, (2, 100_000))
    np.savez_compressed(tmp_path / "g.npz", edge_index=edges)
    (tmp_path / "g.csv").write_text("source,destination\n" + "10,20\n" * 100_000)
    np.savez(tmp_path / "small.npz", **arrays())
    container(tmp_path / "root", monkeypatch, version, 8 * MIB, 5 * MIB)
    for source in ("g.npz", "g.csv", "braid-10k"):
        monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "none"))
        place = tmp_path / source
        if source == "braid-10k":
            container(tmp_path / "root", monkeypatch, version, 8 * MIB, 8 * MIB - 1000)
        code, err = command("convert", place if place.exists() else source, tmp_path / "store")
        assert code == 4, err
        assert "takes about" in err
        assert "are free" in err
        assert not (tmp_path / "store").exists()
    container(tmp_path / "root", monkeypatch, version, 8 * MIB, 5 * MIB)
    code, err = command("convert", tmp_path / "small.npz", tmp_path / "store")
    assert code == 0, err


def test_modes_heed_the_container(tmp_path, monkeypatch):
    np.savez(tmp_path / "small.npz", **arrays())
    given = ("train", "--data", tmp_path / "small.npz", *QUICK)
    roomy = container(tmp_path / "root", monkeypatch, 2, 512 * MIB, 0)
    code, err = command(*given[:-1], "--mode", "auto", "--out", tmp_path / "roomy")
    assert code == 0, err
    assert "full: the whole graph needs" in err
    container(roomy, monkeypatch, 2, 512 * MIB, 512 * MIB - 30_000)
    code, err = command(
        *given[:-1], "--mode", "auto", "--hidden", 64, "--set", "check_data=false", "--out", tmp_path / "a"
    )
    assert code in (0, 4), err
    assert "full: the whole graph needs" not in err
    code, err = command(*given, "--mode", "full", "--hidden", 8, "--out", tmp_path / "b")
    assert code == 4, err
    assert "are free" in err


def test_limits_of_the_process_count(tmp_path, monkeypatch):
    """As ``ulimit -v`` and ``ulimit -d`` set them: the system refuses memory beyond, whatever is free."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 33554432 kB\n")
    (tmp_path / "proc/self/status").write_text("VmSize:\t 102400 kB\nVmData:\t  51200 kB\n")
    limits = {resource.RLIMIT_AS: 600 * MIB, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda name: (limits[name], resource.RLIM_INFINITY))
    assert free_memory_bytes(root=tmp_path) == 500 * MIB
    limits[resource.RLIMIT_DATA] = 60 * MIB
    assert free_memory_bytes(root=tmp_path) == 10 * MIB
    limits[resource.RLIMIT_DATA] = 20 * MIB  # less than is held already
    assert free_memory_bytes(root=tmp_path) == 0


def test_every_command_that_trains_refuses_what_the_system_would_kill(tmp_path, monkeypatch):
    np.savez(tmp_path / "small.npz", **arrays())
    root = container(tmp_path / "root", monkeypatch, 2, 512 * MIB, 0)
    container(root, monkeypatch, 2, 512 * MIB, 512 * MIB - 50_000)
    for words, what in (
        (("train", "--epochs", 1, "--out", tmp_path / "run"), "training on mini-batches"),
        (("plan",), "measuring a run's stages for a plan"),
    ):
        code, err = command(*words, "--data", tmp_path / "small.npz", "--hidden", 32)
        assert code == 4, err
        assert f"{what} needs" in err
        assert "beside what is in memory, where" in err


@pytest.mark.parametrize("version", [1, 2])
def test_with_less_memory_than_a_count_takes_commands_do_not_start(tmp_path, monkeypatch, version):
    """A cgroup killed them while they counted, or imported what the count needs."""
    np.savez(tmp_path / "small.npz", **arrays())
    least = hardware.LEAST_BYTES
    container(tmp_path / "root", monkeypatch, version, least + 9 * MIB, 10 * MIB)
    monkeypatch.setattr(hardware, "LEAST_BYTES", least)
    data = ("--data", tmp_path / "small.npz")
    for words in (
        ("train", *data, "--out", tmp_path / "run"),
        ("plan", *data),
        ("estimate", *data),
        ("convert", tmp_path / "small.npz", tmp_path / "store"),
        ("info", tmp_path / "small.npz", "--check"),
    ):
        code, err = command(*words)
        assert code == 4, err
        assert f"graphbraid {words[0]} needs at least 96.0 MiB of free memory" in err
        assert "95.0 MiB are free" in err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["root", "small.npz"]


def test_a_run_with_types_is_counted_before_it_starts(tmp_path, monkeypatch):
    graph = bibliography()
    container(tmp_path / "root", monkeypatch, 2, 512 * MIB, 512 * MIB - 100_000)
    with pytest.raises(ResourceError, match=r"training on mini-batches needs .* where 97\.7 KiB are free"):
        Trainer(RGCN.of(graph, 32), graph, fanouts=(5, 5), epochs=1).fit()


def test_runs_on_labels_of_edges_and_graphs_are_counted_before_they_start(tmp_path, monkeypatch):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    from tests.train.molecules import SPLITS, molecules

    graphs, options = (
        GraphSet.from_pyg(molecules(dtype=torch.float32), splits=SPLITS),
        {"epochs": 1, "batch_size": 16},
    )
    pooled = PooledModel(GIN(3, 32, 32, 2), torch.nn.Linear(32, 2))
    runs: list[tuple[str, torch.nn.Module, Graph | GraphSet, dict[str, Any]]] = [
        ("edge", own_model(), people(), {"fanouts": (5, 5), **options}),
        ("graph", pooled, graphs, options),
    ]
    for task, model, learned, given in runs:
        Trainer(model, learned, task=task, **given).fit()
        with monkeypatch.context() as limit:
            container(tmp_path / task, limit, 2, 512 * MIB, 512 * MIB - 50_000)
            with pytest.raises(ResourceError, match=r"training on mini-batches needs .* 48\.8 KiB are free"):
                Trainer(model, learned, task=task, **given).fit()


def test_a_plan_for_labels_of_edges_is_counted_before_it_is_measured(tmp_path, monkeypatch):
    trainer = Trainer(own_model(), people(), task="edge", fanouts=(5, 5), epochs=1, plan="auto")
    monkeypatch.setattr("graphbraid.estimates.limits.require_sampled", lambda *_, **__: None)
    container(tmp_path / "root", monkeypatch, 2, 512 * MIB, 512 * MIB - 50_000)
    with pytest.raises(ResourceError, match="measuring a run's stages for a plan needs"):
        trainer.fit()
