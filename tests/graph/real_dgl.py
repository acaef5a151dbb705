"""Runs dgl_checks.py against DGL itself, which needs an older torch: ``python -m tests.graph.real_dgl``.

By the Python of DGL's own environment, which needs no pytest; skips, and says so, where DGL is not installed.
"""

import torch


def main() -> None:
    """Run all checks against the installed DGL."""
    try:
        import dgl
    except ImportError as error:
        print(f"skipped: needs DGL, in the environment that runs this ({error})")
        return
    for name in {"uint16", "uint32", "uint64"} - set(dir(torch)):  # as in torch 2.2, which DGL 2.1 ends with
        setattr(torch, name, name)
    from tests.graph.dgl_checks import OF_BOTH, OF_DGL_ITSELF

    from graphbraid import native

    for check in (*OF_BOTH, *OF_DGL_ITSELF):
        check(dgl)
        print(f"{check.__name__.replace('_', ' ')}: ok")
    variant = native.active().variant
    print(f"DGL {dgl.__version__}, torch {torch.__version__}, kernels {variant}: all agree")


if __name__ == "__main__":
    main()
