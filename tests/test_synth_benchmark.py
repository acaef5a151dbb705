"""The benchmark of synthesised programs: its launcher of compilers, and its check of losses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.common.contenders import Contender
from benchmarks.synth import beside_engine, compile_once

COMPILER = """\
import pathlib, sys
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text("object")
print("compiled")
"""


def test_a_source_is_compiled_once_and_counts_in_each_program(tmp_path: Path):
    (tmp_path / "objects").mkdir()
    said = []
    fake = tmp_path / "compiler.py"
    fake.write_text(COMPILER)
    for folder, text in (("one", "a"), ("two", "a"), ("three", "b")):
        (tmp_path / folder).mkdir()
        source, to = tmp_path / folder / "kernel.cpp", tmp_path / folder / "kernel.o"
        source.write_text(text)
        command = [
            sys.executable,
            compile_once.__file__,
            str(tmp_path / "objects"),
            sys.executable,
            str(fake),
        ]
        command += ["-O2", f"-I{tmp_path / folder}", "-o", str(to), "-c", str(source)]
        said.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert to.read_text() == "object"
    assert said == ["compiled\n", "", "compiled\n"]
    log = (tmp_path / "objects" / "log").read_text()
    lines = [tuple(map(float, line.split())) for line in log.splitlines()]
    assert len(lines) == 3
    assert lines[0][1] == lines[1][1] != lines[2][1]


def test_losses_that_differ_are_no_result():
    engine = Contender("engine", [], [{"losses": [4.0, 2.0, 1.0]}])
    program = Contender("program", [], [{"losses": [4.0, 2.0, 1.000005]}])
    pyg = Contender("pyg", [], [{"epochs_s": [0.1], "loss": 2.0001}])
    off = beside_engine.check_losses("a graph", [program, engine], pyg)
    assert off == pytest.approx({"program": 5e-6, "engine": 0, "pyg": 5e-5})
    program.runs.append({"losses": [4.0, 2.0001, 1.0]})
    with pytest.raises(SystemExit, match="a graph: the losses differ"):
        beside_engine.check_losses("a graph", [program, engine], pyg)
