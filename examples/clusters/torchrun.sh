#!/bin/sh
# Two machines by torchrun. The same line on each, with NODE=0 on the first, whose name FIRST gives:
#
#     FIRST=host-a NODE=0 JOB=papers-1 sh torchrun.sh --data /data/papers --out /data/runs/papers-1
#
# JOB must be new for each job. RANKS is the number of ranks on each machine. ADDRESS is this machine's own, where other
# machines do not find it by its name. A lost rank ends the job, which goes on from its last checkpoint.
set -eu
is_host=false
[ "$NODE" = 0 ] && is_host=true
exec "${PYTHON:-python}" -m torch.distributed.run \
  --nnodes "${NODES:-2}" --nproc-per-node "${RANKS:-1}" --max-restarts "${RESTARTS:-3}" \
  --rdzv-backend c10d --rdzv-endpoint "$FIRST:${PORT:-29400}" --rdzv-conf "is_host=$is_host" --rdzv-id "$JOB" \
  ${ADDRESS:+--local-addr "$ADDRESS"} \
  -m graphbraid train "$@"
