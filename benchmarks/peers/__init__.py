"""What other libraries do, measured the same way as ours.

Each script runs in its library's environment (``make peers``), imports nothing of the project's and prints
one JSON line.
"""
