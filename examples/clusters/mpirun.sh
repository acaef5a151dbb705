#!/bin/sh
# The machines of the file `hosts` by mpirun of MPICH or Intel MPI, which start ranks by ssh:
#
#     RANKS=4 sh mpirun.sh --data /data/papers --out /data/runs/papers-1
#
# Open MPI writes `slots=2` in place of `:2` in that file, and --hostfile for -f.
set -eu
exec "${MPIRUN:-mpirun}" -f "${HOSTS:-hosts}" -n "$RANKS" "${PYTHON:-python}" -m graphbraid train --comm mpi "$@"
