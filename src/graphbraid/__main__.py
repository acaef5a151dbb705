"""``python -m graphbraid``: the command line, for where its script is not on the path."""

from graphbraid.cli.main import run

if __name__ == "__main__":
    run()
