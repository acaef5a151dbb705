"""Reading: a user's model becomes a program, is watched for changes, or runs as it is written.

``read`` is the entry point. A forward is traced (``tracer``), and ``trace_reader`` turns its calls into
operations: of a known class or function by its reader, of any other message passing layer by its message
(``messages``), of anything else by a graph break (``islands``).
"""
