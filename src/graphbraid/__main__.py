"""Entry point of ``graphbraid`` and ``python -m graphbraid``: handles signals before any slow import."""

from __future__ import annotations

import os
import sys

from graphbraid.cli import signals


def run() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        signals.take()
        if "--debug" not in sys.argv:  # what torch logs is stack traces of errors that are reported anyway
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
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
    finally:
        signals.ending()


if __name__ == "__main__":
    run()
