"""Programs of warm processes end, write and inherit as those of ``subprocess.run`` do."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from tests import warm


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('why')", 1),
        ("1 / 0", 1),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_a_program_ends_as_under_python(ends, code):
    assert warm.run(["-c", f"import os, sys; {ends}"]).returncode == code


def test_a_program_has_its_arguments_folder_environment_and_streams(tmp_path):
    code = "import os, sys; print(os.getcwd(), sys.argv, os.environ['A']); print('no', file=sys.stderr)"
    done = warm.run(["-c", code, "a b"], cwd=tmp_path, environment=os.environ | {"A": "1"})
    assert (done.stdout, done.stderr) == (f"{tmp_path} ['-c', 'a b'] 1\n", "no\n")


def test_threads_and_exit_handlers_run_before_a_program_ends():
    code = (
        "import atexit, threading\n"
        "atexit.register(print, 'handler')\n"
        "threading.Timer(0.05, print, ['thread']).start()"
    )
    assert sorted(warm.run(["-c", code]).stdout.split()) == ["handler", "thread"]


def test_a_program_that_takes_too_long_is_killed():
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run(["-c", "import time; time.sleep(600)"], timeout=0.5)
