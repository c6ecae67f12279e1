#!/bin/sh
# A run on hosts that ssh reaches, without a scheduler: one process on each host of a file that has a name a line.
#
#   sh examples/distributed/hosts.sh hosts.txt run.yaml
#
# The program, the run file, the model, the data and output_dir are at the same paths on all hosts.
set -eu
if [ $# -lt 2 ] || [ ! -r "$1" ]; then
	echo "hosts.sh: give a file with a host's name on each line, and a run file" >&2
	exit 2
fi
hosts=$1
shift
count=$(grep -c '[^[:space:]]' "$hosts")
case $(mpiexec --version 2>/dev/null) in
*"Open MPI"* | *OpenRTE* | *PRRTE*)
	exec mpiexec -n "$count" --hostfile "$hosts" --map-by ppr:1:node --bind-to none millrace train "$@"
	;;
*)
	exec mpiexec -n "$count" -ppn 1 -f "$hosts" millrace train "$@"
	;;
esac
