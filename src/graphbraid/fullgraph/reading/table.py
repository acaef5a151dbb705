"""The table of readers, which the modules imported here fill.

A reader of a further class or function is one function in one of them, under :func:`.reads` or
:func:`.reads_calls`.
"""

from graphbraid.fullgraph.reading import (  # noqa: F401
    activation_readers,
    attention,
    call_readers,
    convolutions,
    module_readers,
    propagation,
    relational,
)
from graphbraid.fullgraph.reading.reader import FUNCTIONS, METHODS, READERS, checked_reader, reader_of

__all__ = ["FUNCTIONS", "METHODS", "READERS", "checked_reader", "reader_of"]
