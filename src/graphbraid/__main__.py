"""``graphbraid`` and ``python -m graphbraid``: signals are taken before anything slow is imported."""

from __future__ import annotations

import sys

from graphbraid.cli import signals


def run() -> None:
    """Entry point of the ``graphbraid`` script."""
    try:
        signals.take()
        for stream in (sys.stdout, sys.stderr):  # names may hold what the terminal's encoding lacks
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        from graphbraid.cli.main import app

        app(prog_name="graphbraid")
    except (signals.Stopped, KeyboardInterrupt):  # while it was imported or read its arguments
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
