"""Run folders from elsewhere run no code and do not say what is written; the user's own files stay."""

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.robustness.workplace import QUICK, graph
from typer.testing import CliRunner

from graphbraid import nn
from graphbraid.cli.main import app
from graphbraid.datasets import save_store
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.train import Trainer
from graphbraid.train.run_folder import checkpoint
from graphbraid.train.run_folder.folder import RunFolder


class Exploit:
    """Unpickling this makes a folder."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.made),)


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    save_store(graph(), folder / "store")
    done = command("train", "--data", folder / "store", "--out", folder / "run", *QUICK)
    assert done.exit_code == 0, done.stderr
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def plant(run: Path, made: Path) -> None:
    """Make ``run`` what somebody would send who wants his code run: it says to trust exploits."""
    config = json.loads((run / "config.json").read_text())
    for options in (config["train"], config["info"]["settings"]):
        options["trust_checkpoint"] = True
    config.pop("checksum", None)
    (run / "config.json").write_text(json.dumps(config))
    for name in ("best.pt", "last.pt"):
        contents = checkpoint.read(run / "checkpoints" / name)
        contents.pop("format")
        checkpoint.write(run / "checkpoints" / name, contents | {"info": {"x": Exploit(made)}})


@pytest.mark.parametrize("what", ["predict", "resume", "yaml"])
def test_a_run_from_elsewhere_runs_no_code(run, tmp_path, what):
    made = tmp_path / "made by the exploit"
    plant(run, made)
    (tmp_path / "run.yaml").write_text("trust_checkpoint: true\nepochs: 2\n")
    commands = {
        "predict": ("predict", "--run", run, "--out", tmp_path / "p.csv"),
        "resume": ("train", "--resume", "--out", run, "--epochs", 2, "--quiet"),
        "yaml": ("train", "--resume", "--out", run, "--config", tmp_path / "run.yaml", "--quiet"),
    }
    done = command(*commands[what])
    assert not made.exists()
    assert done.exit_code == (2 if what == "yaml" else 3), done.stderr
    assert "--trust-checkpoint" in done.stderr


def test_the_caller_may_trust(run, tmp_path):
    """The exploit does run where the caller says so: the test above can fail."""
    made = tmp_path / "made"
    plant(run, made)
    done = command("predict", "--run", run, "--out", tmp_path / "p.csv", "--trust-checkpoint")
    assert made.is_dir()
    assert done.exit_code == 0, done.stderr


def test_a_bare_pickle_as_checkpoint_runs_nothing(run, tmp_path):
    made = tmp_path / "made"
    last = run / "checkpoints" / "last.pt"
    for bare in (True, False):
        last.unlink()
        if bare:
            last.write_bytes(pickle.dumps(Exploit(made)))
        else:
            with zipfile.ZipFile(last, "w") as archive:
                archive.writestr("last/data.pkl", pickle.dumps(Exploit(made)))
        done = command("train", "--resume", "--out", run, "--epochs", 2, "--quiet")
        assert done.exit_code == 3, done.stderr
        assert not made.exists()


@pytest.mark.slow
def test_a_run_folder_does_not_say_where_a_trace_is_written(finished, tmp_path):
    run, data = tmp_path / "run", finished.with_name("store")
    done = command("train", "--data", data, "--out", run, "--plan", "cpu", *QUICK)
    assert done.exit_code == 0, done.stderr
    victim = tmp_path / "precious"
    victim.write_text("mine")
    config = json.loads((run / "config.json").read_text())
    config["info"]["settings"] |= {"trace": str(victim), "out_dir": str(tmp_path)}
    config.pop("checksum", None)
    (run / "config.json").write_text(json.dumps(config))
    done = command("train", "--resume", "--out", run, "--epochs", 2, "--quiet")
    assert done.exit_code == 0, done.stderr
    assert victim.read_text() == "mine"


# ---- the user's own folders


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.csv", "result.json", "thesis.txt", "checkpoints", "data"]
)
@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": "auto"}], ids=str)
def test_a_folder_of_the_users_is_refused_and_untouched(tmp_path, name, options):
    if "." in name:
        (tmp_path / name).write_text("mine")
    else:
        (tmp_path / name).mkdir()
        (tmp_path / name / "last.txt").write_text("mine")
    (tmp_path / ".notes.tmp").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="is not empty and no run of graphbraid"):
        trainer(tmp_path, **options).fit()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_lock_of_another_program_is_refused(tmp_path):
    (tmp_path / ".lock").write_text("4711\n")
    with pytest.raises(ConfigError, match="not one of graphbraid's"):
        trainer(tmp_path).fit()
    assert (tmp_path / ".lock").read_text() == "4711\n"


def test_remains_of_others_block_nothing_and_stay(tmp_path):
    (tmp_path / ".x.tmp").mkdir()
    (tmp_path / ".x.tmp" / "file").write_text("mine")
    (tmp_path / ".y.tmp").write_text("mine")
    (tmp_path / ".config.json.0123456789ab.tmp").write_text("a killed writer's")
    trainer(tmp_path).fit()
    assert (tmp_path / ".x.tmp" / "file").read_text() == "mine"
    assert (tmp_path / ".y.tmp").exists()
    assert not (tmp_path / ".config.json.0123456789ab.tmp").exists()
    trainer(tmp_path, overwrite=True).fit()
    assert (tmp_path / ".x.tmp").is_dir()


def test_a_folder_of_another_living_writer_keeps_its_temporary(tmp_path):
    import fcntl

    temp = tmp_path / ".config.json.0123456789ab.tmp"
    with temp.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        trainer(tmp_path).fit()
        assert temp.exists()


def test_a_run_killed_right_after_its_start_can_be_started_again(tmp_path):
    for content, folders in ((b"", False), (b"", True), (b"graphbraid run\n", True)):
        place = tmp_path / f"{len(content)}{folders}"
        place.mkdir()
        (place / ".lock").write_bytes(content)
        if folders:
            (place / "checkpoints").mkdir()
        assert trainer(place).fit().num_epochs == 1


def test_two_runs_in_one_folder_at_once(tmp_path):
    with RunFolder(tmp_path / "run"), pytest.raises(ResourceError, match="is in use by another run"):
        trainer(tmp_path / "run").fit()


@pytest.mark.parametrize("step", ["_refuse_the_users", "_claim", "_check_writable", "_files"])
@pytest.mark.parametrize("exists", [False, True])
def test_an_interrupt_while_the_folder_is_opened_leaves_it_as_it_was(tmp_path, monkeypatch, step, exists):
    run = tmp_path / "run"
    if exists:
        run.mkdir()
    done = getattr(RunFolder, step)

    def interrupted(self: RunFolder) -> Any:
        result = done(self)
        if self._lock is not None:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(RunFolder, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer(run).fit()
    assert list(tmp_path.rglob("*")) == [run] * exists


def test_modes_are_kept(tmp_path):
    trainer(tmp_path / "run").fit()
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    last.chmod(0o600)
    trainer(tmp_path / "run", resume=True, epochs=2).fit()
    assert last.stat().st_mode & 0o777 == 0o600


LINKED = [
    *(
        (name, os.symlink)
        for name in ("checkpoints", "tensorboard", "checkpoints/last.pt", "checkpoints/best.pt")
    ),
    *((f"{name}.json", os.symlink) for name in ("config", "environment", "result", "plan", "lowering")),
    *((name, link) for name in ("metrics.csv", "steps.jsonl", ".lock") for link in (os.symlink, os.link)),
    *((name, os.link) for name in ("config.json", "checkpoints/last.pt")),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"resume": True, "epochs": 2}, {"overwrite": True}], ids=["resume", "new"]
)
def test_nothing_is_written_through_links(tmp_path, options):
    run, theirs, sound = tmp_path / "run", tmp_path / "theirs", tmp_path / "sound"
    trainer(sound).fit()
    for name, link in LINKED:
        shutil.copytree(sound, run)
        place = run / name
        if not place.exists():
            place.mkdir() if name == "tensorboard" else place.write_text("a user's")
        place.replace(theirs)
        before = contents_of(theirs)
        link(theirs, place)
        try:
            trainer(run, **options).fit()
        except ResourceError as error:
            why = "is a symbolic link" if link is os.symlink else "has another name"
            assert f"{Path(name).name}: it {why}" in str(error), error
        else:
            assert link is os.link, name
            assert not place.samefile(theirs), name
        assert contents_of(theirs) == before, (name, link)
        shutil.rmtree(run)
        shutil.rmtree(theirs) if theirs.is_dir() else theirs.unlink()


def contents_of(place: Path) -> dict[str, bytes]:
    files = [place] if place.is_file() else place.rglob("*")
    return {str(file): file.read_bytes() for file in files}


@pytest.mark.parametrize("out", ["", " ", "a\0b"])
def test_an_empty_name_is_no_folder(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="out_dir"):
        trainer(out).fit()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    for flag in ("--out=", "--config=", "--trace="):
        done = command("train", flag)
        assert done.exit_code == 2, done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def trainer(out_dir: Path | str, **options: Any) -> Trainer:
    torch.manual_seed(0)
    given = {"epochs": 1, "fanouts": (3, 3), "batch_size": 32, "test_at_end": False, "out_dir": out_dir}
    return Trainer(nn.GraphSAGE(6, 8, 3), graph(), **given | options)
