#!/usr/bin/env bash
# A real 2-node training job: three Slurm nodes on this machine, two of which meet and sum their ranks.
set -euo pipefail
cd "$(dirname "$0")"
cluster=../tests/cluster/cluster.sh
# A name of its own, so that it is in nobody's way.
PFX=demo BASE=/run/tl-multinode-demo NET=10.213.99 KEEP="$(dirname "$PWD") $(python -c 'import sys; print(sys.prefix, sys.base_prefix)')"
export PFX BASE NET KEEP
work=$(mktemp -d /var/tmp/tl-multinode-demo.XXXXXX)
trap '"$cluster" stop; rm -rf "$work"' EXIT
cp train.py train-slurm.yaml "$work"

echo "==> starting Slurm with three nodes, each a network of its own"
"$cluster" start
"$cluster" exec sinfo
echo "==> tl-slurm submit train-slurm.yaml --follow"
"$cluster" exec env -C "$work" tl-slurm submit train-slurm.yaml --follow
echo "==> stopping Slurm, nothing is left"
