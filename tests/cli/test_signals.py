"""The command line's handlers of signals: what an import or a destructor is doing is never broken off."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.extras import ran

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals and timers")

START = """
import gc, os, signal, sys, time
from graphbraid.cli import signals

signals.take()
"""


def run(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-c", START + program], cwd=directory)


def test_signal_during_an_import_waits_for_its_end(tmp_path):
    (tmp_path / "slow_module.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"
        "for _ in range(1000):\n    pass\ncomplete = True\n"
    )
    done = run(
        """
try:
    import slow_module
    time.sleep(60)
except signals.Stopped:
    signals.ending()
    print(sys.modules["slow_module"].complete)
""",
        tmp_path,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


def test_an_import_without_end_is_interrupted(tmp_path):
    (tmp_path / "endless_module.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\nwhile True:\n    time.sleep(0.01)\n"
    )
    done = run(
        """
signals._IMPORT_SECONDS = 0.3
try:
    import endless_module
except signals.Stopped:
    signals.ending()
    print("stopped")
""",
        tmp_path,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("stopped\n", "", 0)


def test_signal_in_a_destructor_is_raised_again_and_says_nothing(tmp_path):
    done = run(
        """
signals._AGAIN_SECONDS = 0.1

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        print("not reached")

try:
    last = Last()
    del last
    time.sleep(60)
except signals.Stopped:
    signals.ending()
    print("stopped")
""",
        tmp_path,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("stopped\n", "", 0)


def test_a_destructor_of_what_a_signal_left_half_made_says_nothing(tmp_path):
    """As of zipfile.ZipFile, whose destructor reads what its constructor sets last."""
    done = run(
        """
class File:
    def __init__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        self.is_open = True

    def __del__(self):
        assert self.is_open

try:
    File()
except signals.Stopped:
    signals.ending()
print("stopped")
""",
        tmp_path,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("stopped\n", "", 0)


def test_other_errors_of_destructors_are_still_said(tmp_path):
    done = run(
        """
class Broken:
    def __del__(self):
        raise RuntimeError("a destructor's own")

Broken()
""",
        tmp_path,
    )
    assert "RuntimeError: a destructor's own" in done.stderr
