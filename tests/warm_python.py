"""Stands for Python: ``warm_python.py SECONDS ARGUMENT ...`` has a warm process run the arguments.

That process has this one's environment, folder, network, cores and standard streams, and the socket that
GRAPHBRAID_LISTENER or, for a rank of MPI, PMI_FD names; SIGINT and SIGTERM are handed on to it, and this one
ends as it does. Its processor seconds are added to the file SECONDS. tests/warm_server.py runs it.
"""

import json
import os
import signal
import socket
import sys

request = {
    "arguments": sys.argv[2:],
    "seconds": sys.argv[1],
    "cwd": os.getcwd(),  # noqa: PTH109
    "environment": dict(os.environ),
    "cores": sorted(os.sched_getaffinity(0)),
}
passed = [int(os.environ[name]) for name in ("GRAPHBRAID_LISTENER", "PMI_FD") if name in os.environ]
handed_on = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)  # until it is known to whom
line = json.dumps(request).encode() + b"\n"
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(os.environ["GRAPHBRAID_WARM_PROCESSES"])
    answers = connection.makefile()
    answers.readline()  # the number of the process that serves the connection
    with open("/proc/self/ns/net") as network:  # noqa: PTH123
        sent = socket.send_fds(connection, [line], [0, 1, 2, network.fileno(), *passed])
    connection.sendall(line[sent:])
    process = int(answers.readline())
    for number in handed_on:
        signal.signal(number, lambda number, _: os.kill(process, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
    code = os.waitstatus_to_exitcode(int(answers.readline()))
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
