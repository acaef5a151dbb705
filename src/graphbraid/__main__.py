"""Entry point of ``graphbraid`` and ``python -m graphbraid``: handles signals before any slow import."""

import io
import os
import sys
from typing import Any

from graphbraid.cli import signals


def run() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        signals.take()
        if "--debug" not in sys.argv:  # what torch logs is stack traces of errors that are reported anyway
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        _open_streams()
        for stream in (sys.stdout, sys.stderr):  # a name may hold characters that the terminal cannot show
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        from graphbraid.cli.main import app

        app(prog_name="graphbraid")
    except (signals.Stopped, KeyboardInterrupt):  # during the imports or the parsing of arguments
        signals.ending()
        if "--json" in sys.argv:
            error = '{"type": "Stopped", "message": "interrupted", "exit_code": 130}'
            sys.stdout.write(f'{{"error": {error}}}\n')
        else:
            sys.stderr.write("stopped: interrupted\n")
        sys.exit(signals.EXIT_CODE)
    except BrokenPipeError:
        raise
    except OSError as error:  # of --help or --version; commands report theirs
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr.write(f"error: cannot write to standard output: {error.strerror}\n")
        sys.exit(4)
    finally:
        signals.ending()


class _Lossy(io.FileIO):
    """Standard error that drops what a full disk does not take: a lost message must not end a run."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:
            return memoryview(data).nbytes


def _open_streams() -> None:
    """Open closed standard streams as /dev/null: else the next file that is opened would get their numbers.

    Writing to a closed standard output is an error, as on a full disk.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  (for as long as the process lives)
    raw = io.BufferedWriter(_Lossy(2, "w", closefd=False))
    encoding = getattr(sys.stderr, "encoding", None)
    sys.stderr = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)


if __name__ == "__main__":
    run()
