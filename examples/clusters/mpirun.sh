#!/bin/sh
# The machines of the file `hosts` by mpirun, which starts ranks by ssh:
#
#     RANKS=4 sh mpirun.sh --data /data/papers --out /data/runs/papers-1
#
# A line of that file is `host-a:2` for MPICH and Intel MPI, and `host-a slots=2` for Open MPI. mpirun must be
# of the library that mpi4py loads.
set -eu
exec "${MPIRUN:-mpirun}" -hostfile "${HOSTS:-hosts}" -n "$RANKS" "${PYTHON:-python}" -m graphbraid train --comm mpi "$@"
