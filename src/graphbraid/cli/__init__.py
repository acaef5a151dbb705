"""The ``graphbraid`` command: thin commands over the library."""
