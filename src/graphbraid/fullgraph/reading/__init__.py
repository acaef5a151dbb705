"""Reading: a user's model becomes a program, is watched for changes, or runs as it is written.

``source`` holds the graph and the user's data; ``calling`` binds the parameters of a ``forward``; ``read`` is
the entry point; ``trace`` follows a ``forward``. The readers say for each exact class or function what it
computes; ``layers`` is their table. ``exact`` checks the conditions on an instance for that to hold.
"""
