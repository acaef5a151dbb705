"""The ``graphbraid`` command: thin commands over the library, one file each."""
