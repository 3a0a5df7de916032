#!/usr/bin/env bash
# chroot.sh - other Slurm releases than the machine's own, each in a Debian root of its own.
#
#   chroot.sh make RELEASE         build the root if it is absent (minutes; needs the package mirror and PyPI)
#   chroot.sh run RELEASE CMD...   run CMD in it, in the current directory
#   chroot.sh path RELEASE         where it is
#   chroot.sh releases             the releases there are
#
# A root is built once into ${TL_MULTINODE_CACHE:-/var/cache/tl-multinode} and never changed again. `run` puts
# a layer in memory over it, and CMD has its own process and mount namespaces: when it ends, every process,
# mount and file that it made is gone. CMD sees this checkout, the directories in $KEEP, and
# $PYTHON with its virtual environment, at their usual paths. Needs root and the package mmdebstrap.
set -euo pipefail

CACHE=${TL_MULTINODE_CACHE:-/var/cache/tl-multinode}
PYTHON=${PYTHON:-python3}          # runs the tests, also inside; PySlurm is built for it
KEEP=${KEEP:-}                     # more directories that the command sees, and may write to
PYSLURM=25.11.2
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

die() { printf 'chroot.sh: %s\n' "$*" >&2; exit 1; }

# Slurm with REST, what its network needs, and the libraries of a python from elsewhere.
packages=slurmctld,slurmd,slurm-client,munge,slurmrestd,slurm-wlm-jwt-plugin
packages+=,iproute2,nftables,mount,util-linux,bsdutils,procps,python3,openssh-server,openssh-client,ca-certificates,libgomp1,libstdc++6,libffi8,libsqlite3-0,libssl3t64,libbz2-1.0
release() {
  case ${1:-} in
    24.11) suite=trixie packages+=,slurmdbd,slurm-wlm-mysql-plugin,mariadb-server ;;
    # No accounting: the client library of forky's MariaDB refuses what slurmdbd asks first.
    26.05) suite=forky packages+=,libslurm-dev,gcc,libc6-dev ;;
    *) die "'${1:-}' is no release; choose one of 24.11 26.05" ;;
  esac
  slurm=$1
  # Another list of packages, or another builder, is another root.
  root=$CACHE/slurm-$slurm-$suite-$({ echo "$packages"; declare -f bootstrap; } | sha256sum | cut -c1-8)
}

bootstrap() {                      # into $1
  local mirror
  mirror=$(grep -rhoE '^[^#]*https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2> /dev/null |
    grep -oE 'https?://[^ ]+' | head -n 1) || true
  # A mirror may serve a testing suite whose Release file is older than its own limit.
  mmdebstrap --quiet --variant=apt --aptopt='Acquire::Check-Valid-Until "false"' --include="$packages" \
    "$suite" "$1" "${mirror:-http://deb.debian.org/debian}"
  [[ $(chroot "$1" slurmctld -V) == *" $slurm."* ]] ||
    die "Debian $suite now has $(chroot "$1" slurmctld -V), not $slurm; change the releases in $0"
  rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*
}

# PySlurm X.Y refuses any Slurm but X.Y, and there is no distribution with Slurm 25.11: give it headers with
# that number, and Slurm's own wrappers for the functions that 26.05 renamed. It is built for $PYTHON.
pyslurm_dir() { echo "$root.pyslurm-$PYSLURM-$("$PYTHON" -c 'import sys; print(sys.implementation.cache_tag)')"; }
build_pyslurm() {                  # into $1
  # shellcheck disable=SC2016
  KEEP="$KEEP $1" enter bash -c '
    set -e
    cp -r /usr/include/slurm /opt/slurm
    sed -i "s/^#define SLURM_VERSION_NUMBER .*/#define SLURM_VERSION_NUMBER 0x190b02/" /opt/slurm/slurm_version.h
    mkdir /opt/include
    mv /opt/slurm /opt/include
    export SLURM_INCLUDE_DIR=/opt/include PYSLURM_BUILD_JOBS=2
    SLURM_LIB_DIR=$(dirname "$(ls /usr/lib/*/libslurm.so)")
    export SLURM_LIB_DIR CFLAGS="-O0 -g0 -w -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf \
      -DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2007"
    "$1" -m pip install --quiet --no-input --no-deps --no-binary pyslurm --target "$2" "pyslurm==$3"' \
    bash "$PYTHON" "$1" "$PYSLURM"
}

make_root() {
  [ "$(id -u)" = 0 ] || die "must be root"
  command -v mmdebstrap > /dev/null || die "mmdebstrap is missing; type: apt-get install mmdebstrap"
  mkdir -p "$CACHE"
  exec 9> "$CACHE/$slurm.lock"
  flock 9                          # somebody else may be building it
  once "$root" bootstrap
  [ "$slurm" != 26.05 ] || once "$(pyslurm_dir)" build_pyslurm
  exec 9>&-
}
once() {                           # once DIR BUILD: build it under another name, so that half of one is never used
  [ ! -e "$1" ] || return 0
  rm -rf --one-file-system "$1.new"
  mkdir "$1.new"
  "$2" "$1.new"
  mv "$1.new" "$1"
}

enter() {
  local prefixes
  prefixes=$("$PYTHON" -c 'import os, sys; print(*{os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)})')
  # shellcheck disable=SC2016
  setpriv --pdeathsig KILL -- unshare --mount --propagation private --pid --fork --kill-child -- bash -c '
    set -e
    root=$1 cwd=$2 pyslurm=$3 keep=$4; shift 4
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/upper /mnt/work /mnt/root
    mount -t overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
    mount -t proc proc /mnt/root/proc
    mount --rbind /sys /mnt/root/sys
    mount --rbind /dev /mnt/root/dev
    mount -t tmpfs -o mode=755 tmpfs /mnt/root/run
    mkdir /mnt/root/run/sshd
    for file in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
      [ ! -e "$file" ] || cp -L "$file" "/mnt/root$file"
    done
    [ -e /mnt/root/etc/hosts ] || echo "127.0.0.1 localhost" > /mnt/root/etc/hosts
    for dir in $keep; do
      case $dir in / | /usr | /usr/local) continue ;; esac
      mkdir -p "/mnt/root$dir"
      mount --rbind "$dir" "/mnt/root$dir"
    done
    [ -z "$pyslurm" ] || { mkdir /mnt/root/opt/pyslurm; mount --bind "$pyslurm" /mnt/root/opt/pyslurm; }
    cd /
    # Process 1 waits for whatever loses its parent; the command itself could not.
    exec chroot /mnt/root env -C "$cwd" -- bash -c "\"\$@\"; exit \$?" bash "$@"' \
    bash "$root" "$PWD" "$(pyslurm=$(pyslurm_dir); [ ! -d "$pyslurm" ] || echo "$pyslurm")" "$checkout $prefixes $KEEP" "$@"
}

case ${1:-} in
  make) release "${2:-}"; make_root ;;
  run) release "${2:-}"; shift 2; make_root; enter "$@" ;;
  path) release "${2:-}"; echo "$root" ;;
  releases) echo 24.11 26.05 ;;
  *) sed -n '2,13p' "$0"; exit 2 ;;
esac
