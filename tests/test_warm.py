"""Programs that stand-ins for Python start: streams, folder, exit codes, signals, and what ends with what."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.extras import PATIENCE
from tests.warm import ADDRESS, processes_in

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks from a warm process on Linux"),
    pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="under a sanitizer nothing is forked"),
    pytest.mark.usefixtures("warm_python"),
]


def started(code, *arguments, **options):
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options)


def test_it_reads_and_writes_the_streams_of_who_starts_it_in_its_folder(tmp_path):
    code = "import os, sys; print(sys.stdin.read(), os.getcwd(), sys.argv[1:]); print('no', file=sys.stderr)"
    process = started(code, "a b", cwd=tmp_path)
    out, err = process.communicate("said", timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, f"said {tmp_path} ['a b']\n", "no\n")


@pytest.mark.slow
def test_it_has_the_imports_of_the_warm_process_and_so_have_those_that_it_starts(warm):
    code = "import sys; print('torch' in sys.modules, sys.executable)"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    out, err = started(nested).communicate(timeout=PATIENCE)
    assert out == f"True {sys.executable}\n", err
    assert warm.run(["-c", nested]).stdout == out


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('why')", 1),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_it_ends_as_the_program_does(ends, code):
    process = started(f"import os, sys; {ends}")
    process.communicate(timeout=PATIENCE)
    assert process.returncode == code


def test_at_its_end_threads_and_exit_handlers_run_and_what_it_made_is_let_go_of():
    process = started(
        "import atexit, threading\n"
        "class Made:\n"
        "    def __del__(self): print('collected')\n"
        "made = Made(); made.itself = made\n"
        "atexit.register(print, 'exit handler')\n"
        "threading.Timer(0.05, print, ['thread']).start()\n"
        "print('program')\n"
    )
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert out == "program\nthread\nexit handler\ncollected\n"


def test_what_it_cannot_write_is_told_by_its_code():
    process = started("print('lost'); import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 120
    assert "No space left on device" in err


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_it_hands_signals_on(number):
    process = started(
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(3))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.01)\n"
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 3


def test_what_it_runs_is_killed_with_it_and_its_seconds_count(warm):
    before = warm.processor_seconds()
    process = started("print('ready', flush=True)\nwhile True: pass")
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate(timeout=PATIENCE)  # ends with the last process that holds its pipes
    assert process.returncode == -signal.SIGKILL
    assert warm.processor_seconds() >= before


@pytest.mark.slow
def test_what_was_begun_for_one_that_is_gone_ends(tmp_path):
    request = {
        "arguments": ["-c", "while True: pass"],
        "cwd": str(tmp_path),
        "environment": dict(os.environ),
        "stdout": os.devnull,
        "stderr": os.devnull,
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        serving = int(connection.makefile().readline())
        connection.sendall(json.dumps(request).encode() + b"\n")
    # Closed before it hears the number of the process.
    until = time.monotonic() + PATIENCE
    while is_running(serving):
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.2)  # for a process that is left over to enter its folder
    assert processes_in(tmp_path) == []


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
