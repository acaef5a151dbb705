"""Python programs as processes of their own that need not import torch again, which outlasts most of them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.extras import PATIENCE

ROOT = Path(__file__).parents[1]


class WarmProcesses:
    """Starts programs by forking from tests/warm_server.py, which is started with the first.

    Not for a test of what happens while Python starts and imports, nor of variables that a library reads when
    it is loaded, as OpenMP does.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: subprocess.Popen[str] | None = None

    def run(
        self,
        arguments: Sequence[object],
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: float = 2 * PATIENCE,
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run([sys.executable, *arguments], capture_output=True, text=True)``."""
        texts = [str(argument) for argument in arguments]
        if "LD_PRELOAD" in os.environ:  # a sanitizer, which does not follow threads begun after a fork
            return subprocess.run(
                [sys.executable, *texts],
                cwd=cwd,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        server = self._running()
        streams = {name: str(self._folder / name) for name in ("stdout", "stderr")}
        where = {"cwd": str(cwd or Path.cwd()), "environment": dict(environment or os.environ)}
        assert server.stdin is not None
        server.stdin.write(json.dumps({"arguments": texts, **where, **streams}) + "\n")
        server.stdin.flush()
        process = self._answer(timeout)
        try:
            status = self._answer(timeout)
        except subprocess.TimeoutExpired:
            os.kill(process, signal.SIGKILL)
            self._answer(timeout)
            raise
        out, err = (Path(path).read_text() for path in streams.values())
        return subprocess.CompletedProcess(texts, os.waitstatus_to_exitcode(status), out, err)

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.communicate(timeout=PATIENCE)

    def processor_seconds(self) -> float:
        """Of the server and of the programs that have ended, as Linux knows them; 0 elsewhere."""
        if self._server is None or self._server.returncode is not None:
            return 0.0  # or it is counted among the processes that have been waited for
        try:
            fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def _running(self) -> subprocess.Popen[str]:
        if self._server is None:
            paths = (os.environ.get("PYTHONPATH"), str(ROOT), str(ROOT / "src"))
            self._server = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "warm_server.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
        return self._server

    def _answer(self, timeout: float) -> int:
        server = self._running()
        assert server.stdout is not None
        if not select.select([server.stdout], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(server.args), timeout)
        line = server.stdout.readline()
        assert line, "the server of warm processes has ended"
        return int(line)
