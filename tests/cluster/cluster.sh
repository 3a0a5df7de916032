#!/usr/bin/env bash
# cluster.sh - a real Slurm cluster of several nodes on one Linux machine.
#
#   cluster.sh start          start everything, wait until all nodes are idle (repeat it at will:
#                             it also starts daemons that have died)
#   cluster.sh stop           end everything and leave nothing behind (repeat it at will)
#   cluster.sh status         what the nodes and the controller say
#   cluster.sh exec CMD...    run CMD on the login host
#   cluster.sh node N CMD...  run CMD on node N
#
# A host (login host and controller in one, or a node) is a network, UTS and mount namespace with its
# own addresses, hostname, /etc/hosts and empty /tmp. A sleeping process holds each host, so a host
# outlives its daemons as a machine does. Nothing is mounted, named or linked outside of the
# namespaces: the kernel takes it all away with a host's last process. All files are below $BASE.
#
# Settings come from the environment (defaults below); see README.md. Needs root and the Debian
# packages slurmctld slurmd slurm-client munge iproute2 util-linux mount.
set -euo pipefail

NODES=${NODES:-3}                  # number of nodes, 1..200
CPUS=${CPUS:-8}                    # CPUs that each node claims to have
MEM=${MEM:-4000}                   # MB of memory that each node claims to have
GRES=${GRES-gpu:l4:4}              # fake devices of each node: name[:type]:count, comma separated; empty: none
PFX=${PFX:-mn}                     # host names: ${PFX}1 ${PFX}2 ... and ${PFX}ctl
NET=${NET:-10.213.7}               # first network (eth0), a /24
NET_IB=${NET_IB:-10.214.${NET##*.}} # second network (ib0, names end in -ib), a /24 of the nodes only
BASE=${BASE:-/run/mnslurm}         # config, logs, state; not below /tmp
KEEP=${KEEP:-}                     # directories below /tmp that all hosts see nevertheless; this checkout always
EXTRA_CONF=${EXTRA_CONF:-}         # lines for slurm.conf; they replace lines of the same key
CGROUP_CONF=${CGROUP_CONF:-}       # text of cgroup.conf
PRIVATE_TMP=${PRIVATE_TMP:-}       # 1: each job has its own /tmp (job_container/tmpfs)
ACCT=${ACCT:-} REST=${REST:-}      # 1: with accounting (slurmdbd) / with slurmrestd
WAIT=${WAIT:-60}                   # seconds until a start that does not get ready is given up

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
CTL=${PFX}ctl
TAG=mncluster:$BASE                # the source name of every host's /tmp: marks our processes
export SLURM_CONF=$BASE/slurm.conf
export MYSQL_UNIX_PORT=$BASE/mysql.sock
here=$PWD
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
cd /                               # the caller's directory need not exist on the hosts

say() { printf 'cluster.sh: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
nodes() { local i; for ((i = 1; i <= NODES; i++)); do echo "$PFX$i"; done; }

check_settings() {
  [ "$(id -u)" = 0 ] || die "must be root; type: sudo $0 start"
  [[ $BASE =~ ^/[A-Za-z0-9_./-]+$ && $BASE != */ ]] || die "BASE='$BASE' is not a plain absolute path"
  case $BASE/ in /tmp/* | *//* | *..*) die "BASE='$BASE' must be a plain path outside /tmp" ;; esac
  [[ $PFX =~ ^[A-Za-z]([A-Za-z0-9-]{0,11}[A-Za-z])?$ ]] || die "PFX='$PFX' is not a short name that ends in a letter"
}

# --- processes ----------------------------------------------------------------
# A process belongs to this cluster if our tagged /tmp is mounted where it runs. A number in a pid
# file proves nothing: after a crash it may be anybody's.
ours() { [ -n "${1:-}" ] && grep -qsF -- " - tmpfs $TAG rw" "/proc/$1/mountinfo"; }
members() { grep -lsF -- " - tmpfs $TAG rw" /proc/[0-9]*/mountinfo | cut -d/ -f3 || true; }
pid_of() { cat "$BASE/$1.pid" 2> /dev/null || true; }
alive() { ours "$(pid_of "$1")"; }

enter() {                          # enter HOST CMD...: become CMD there (--root: also right inside a chroot)
  local p; p=$(pid_of "host.$1")
  ours "$p" || die "host $1 is not up; type: $0 start"
  shift; exec nsenter --target "$p" --net --uts --mount --root -- "$@"
}
on() { (enter "$@"); }             # run CMD there
daemon() {                         # daemon HOST CMD...: nothing of the caller's environment, files, signals
  local h=$1; shift
  on "$h" env -i -C / --default-signal PATH="$PATH" LANG=C.UTF-8 SLURM_CONF="$SLURM_CONF" \
    MYSQL_UNIX_PORT="$MYSQL_UNIX_PORT" "$@" < /dev/null
}
until_ok() {                       # until_ok WHAT CMD...: repeat CMD until it succeeds
  local what=$1 end=$((SECONDS + WAIT)); shift
  until "$@" > /dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "$what not ready after $WAIT s"
    sleep 0.02
  done
}

# --- hosts --------------------------------------------------------------------
write_hosts() {
  local i
  echo "127.0.0.1 localhost"
  echo "$NET.1 $CTL"
  for ((i = 1; i <= NODES; i++)); do
    echo "$NET.$((10 + i)) $PFX$i"
    echo "$NET_IB.$((10 + i)) $PFX$i-ib"
  done
}
hold() {                           # hold HOST: its namespaces, held by a sleeping process
  local d keep=()
  for d in "$checkout" $KEEP; do
    case $d in /tmp/?*) [ ! -d "$d" ] || keep+=("$d") ;; esac
  done
  # The tag comes first and $BASE/hosts later: a `stop` at any moment either sees this process or
  # makes it fail.
  # shellcheck disable=SC2016
  setsid unshare --net --uts --mount --propagation private -- sh -c '
    set -e
    base=$1 tag=$2 name=$3; shift 3
    mount -t tmpfs -o mode=1777 "$tag" "$base/tmp"
    for d; do mkdir -p "$base$d"; mount --rbind "$d" "$base$d"; done
    mount --move "$base/tmp" /tmp
    mount --bind "$base/hosts" /etc/hosts
    mount --bind "$base/munge.$name" "$base/munge"
    hostname "$name"
    ip link set lo up
    echo $$ > "$base/host.$name.new"
    mv "$base/host.$name.new" "$base/host.$name.pid"
    exec env -i --default-signal sleep infinity' \
    sh "$BASE" "$TAG" "$1" "${keep[@]}" < /dev/null > "$BASE/host.$1.log" 2>&1 &
  disown                           # no word from bash when a host ends
}
start_hosts() {
  local h i p
  mkdir -p "$BASE/tmp"
  write_hosts > "$BASE/hosts"
  for h in "$CTL" $(nodes); do hold "$h"; done
  for h in "$CTL" $(nodes); do
    until alive "host.$h"; do
      [ ! -s "$BASE/host.$h.log" ] || die "host $h cannot be made"
      [ $SECONDS -lt "$WAIT" ] || die "host $h not ready after $WAIT s"
      sleep 0.01
    done
  done
  {
    printf 'link add %s type bridge\nlink set %s up\n' br0 br0 br1 br1
    echo "addr add $NET.1/24 dev br0"
    for ((i = 1; i <= NODES; i++)); do
      p=$(pid_of "host.$PFX$i")
      printf "link add %s$i type veth peer name %s netns $p\nlink set %s$i master %s up\n" \
        e eth0 e br0 i ib0 i br1
    done
  } | on "$CTL" ip -batch -
  for ((i = 1; i <= NODES; i++)); do
    printf "addr add %s.$((10 + i))/24 dev %s\nlink set %s up\n" "$NET" eth0 eth0 "$NET_IB" ib0 ib0 |
      on "$PFX$i" ip -batch -
  done
}

# --- configuration --------------------------------------------------------------
# Names only, no addresses: outside the namespaces they do not resolve, so a stray client there fails
# at once instead of sending packets to a real network.
default_conf() {
  cat << C
ClusterName=mncluster
SlurmctldHost=$CTL
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$BASE/munge/munge.socket
StateSaveLocation=$BASE/state
SlurmctldPidFile=$BASE/slurmctld.pid
SlurmdPidFile=$BASE/slurmd.%n.pid
SlurmdSpoolDir=$BASE/spool.%n
SlurmctldLogFile=$BASE/slurmctld.log
SlurmdLogFile=$BASE/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
JobAcctGatherType=jobacct_gather/linux
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=$((MEM / CPUS))
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
MailProg=/bin/true
JobRequeue=1
KillWait=2
MinJobAge=300
C
  if [ -n "$ACCT" ]; then
    printf 'AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=%s\n' "$CTL"
    echo "AccountingStoragePass=$BASE/munge/munge.socket"
  fi
  [ -z "$PRIVATE_TMP" ] || printf 'JobContainerType=job_container/tmpfs\nPrologFlags=Contain\n'
  [ -z "$REST" ] || printf 'AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=%s\n' "$BASE/jwt.key"
}
# Slurm sets CUDA_VISIBLE_DEVICES for a gpu with a device file, and any character device will do.
write_gres() {                     # writes gres.conf and the devices, prints the line for slurm.conf
  local g names="" n=0 count type first
  mkdir -p "$BASE/dev"
  for g in ${GRES//,/ }; do
    [[ $g =~ ^([a-z]+)(:([A-Za-z][A-Za-z0-9_-]*))?:([1-9][0-9]?)$ ]] || die "GRES: '$g' is not name[:type]:count"
    type=${BASH_REMATCH[3]} count=${BASH_REMATCH[4]} first=$n
    for ((; n < first + count; n++)); do mknod "$BASE/dev/fake$n" c 1 3; done
    echo "Name=${BASH_REMATCH[1]}${type:+ Type=$type} File=$BASE/dev/fake[$first-$((n - 1))]" >> "$BASE/gres.conf"
    case ,$names in *,"${BASH_REMATCH[1]}",*) ;; *) names+=${BASH_REMATCH[1]}, ;; esac
  done
  [ -z "$names" ] || echo "GresTypes=${names%,}"
}
write_conf() {
  local i extra_keys
  extra_keys=$(sed -n 's/^\([A-Za-z]*\)=.*/\1/p' <<< "$EXTRA_CONF" | paste -sd'|')
  {
    default_conf | grep -viE "^(${extra_keys:-#})="
    write_gres
    printf '%s\n' "$EXTRA_CONF"
    for ((i = 1; i <= NODES; i++)); do
      echo "NodeName=$PFX$i CPUs=$CPUS Sockets=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEM" \
        "${GRES:+Gres=$GRES }State=UNKNOWN"
    done
    echo "PartitionName=debug Nodes=${PFX}[1-$NODES] Default=YES MaxTime=INFINITE State=UP"
    echo "PartitionName=short Nodes=${PFX}[1-$NODES] MaxTime=10 State=UP"
  } > "$BASE/slurm.conf"
  printf '%s\n' "$CGROUP_CONF" > "$BASE/cgroup.conf"
  [ -z "$PRIVATE_TMP" ] || for i in $(nodes); do
    echo "NodeName=$i AutoBasePath=true BasePath=$BASE/private.$i"
  done > "$BASE/job_container.conf"
}

# --- optional: accounting and REST ------------------------------------------------
# ACCT=1 needs mariadb-server slurmdbd slurm-wlm-mysql-plugin; REST=1 slurmrestd slurm-wlm-jwt-plugin.
start_acct() {
  (umask 077 && cat > "$BASE/slurmdbd.conf") << C
DbdHost=$CTL
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$BASE/munge/munge.socket
LogFile=$BASE/slurmdbd.log
PidFile=$BASE/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
C
  [ -d "$BASE/mysql" ] || daemon "$CTL" mariadb-install-db --no-defaults --datadir="$BASE/mysql" \
    --skip-test-db --auth-root-authentication-method=socket > "$BASE/mysql-install.log" 2>&1
  alive mariadb || daemon "$CTL" setsid -f mariadbd --no-defaults --user=root --datadir="$BASE/mysql" \
    --socket="$MYSQL_UNIX_PORT" --skip-networking --pid-file="$BASE/mariadb.pid" \
    --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0 > "$BASE/mariadb.log" 2>&1
  until_ok mariadb mariadb --no-defaults --socket="$MYSQL_UNIX_PORT" -e 'select 1'
  alive slurmdbd || daemon "$CTL" slurmdbd
  until_ok slurmdbd on "$CTL" sacctmgr -n show cluster
}
start_rest() {                     # http://${PFX}ctl:6820 with tokens; it refuses to run as root
  local nobody="setpriv --reuid=nobody --regid=nogroup --clear-groups -- env SLURM_JWT=daemon" only=""
  alive slurmrestd && return 0
  # Without accounting it ends at once unless the plugins of slurmdbd are left out.
  # shellcheck disable=SC2086
  [ -n "$ACCT" ] || only="-s $(daemon "$CTL" $nobody slurmrestd -s list 2>&1 |
    grep -o 'openapi/[a-z0-9.]*' | grep -vE '/(db|slurmdbd)' | paste -sd,)"
  # shellcheck disable=SC2016,SC2086
  daemon "$CTL" $nobody setsid -f sh -c 'echo $$; exec slurmrestd $1 -a rest_auth/jwt "$0:6820" > /dev/null 2>&1' \
    "$CTL" "$only" > "$BASE/slurmrestd.pid" 2> /dev/null
  until_ok slurmrestd on "$CTL" bash -c "exec 3<> /dev/tcp/$CTL/6820"
}

# --- daemons --------------------------------------------------------------------
# One on each host, which sees its own directory as $BASE/munge. To a munged that served several hosts, the second
# one that decodes a credential would replay it, and with such errors slurmd 22.05 frees memory twice and aborts.
start_munge() {
  local h m=$BASE/munge started=()
  for h in "$CTL" $(nodes); do
    alive "munge.$h/munged" && continue
    rm -f "$m.$h/munged.pid"
    daemon "$h" setpriv --reuid=munge --regid=munge --clear-groups -- munged --force \
      --socket="$m/munge.socket" --key-file="$BASE/key/munge.key" \
      --pid-file="$m/munged.pid" --log-file="$m/munged.log" --seed-file="$m/munged.seed" &
    started+=($!)
  done
  wait_for munged ${started[@]+"${started[@]}"}
}
wait_for() {                       # wait_for WHAT PID...: these background commands that start daemons
  local what=$1 p; shift
  for p; do wait "$p" || die "a $what did not start"; done
}
start_slurm() {
  local h started=()
  alive slurmctld || daemon "$CTL" slurmctld -f "$SLURM_CONF"
  for h in $(nodes); do
    alive "slurmd.$h" && continue
    daemon "$h" slurmd -f "$SLURM_CONF" -N "$h" &
    started+=($!)
  done
  wait_for slurmd ${started[@]+"${started[@]}"}
}
all_idle() { [ "$(on "$CTL" sinfo -h -N -p debug -t idle,alloc,mix -o %N 2> /dev/null | wc -l)" -eq "$NODES" ]; }

# --- start and stop ---------------------------------------------------------------
# What distinguishes one cluster from another; a start with other settings must not touch a running one.
settings() {
  printf '%s\n' "$NODES" "$CPUS" "$MEM" "$GRES" "$PFX" "$NET" "$NET_IB" "$KEEP" "$EXTRA_CONF" "$CGROUP_CONF" \
    "$PRIVATE_TMP" "$ACCT" "$REST"
}
hosts_up() {
  local h
  [ -e "$BASE/settings" ] || return 1
  for h in "$CTL" $(nodes); do alive "host.$h" || return 1; done
}

create() {                         # everything that is made once
  mkdir -p "$BASE"
  chmod 755 "$BASE"
  : > "$BASE/.mncluster"
  mkdir "$BASE/state" "$BASE/munge"
  for h in $(nodes); do mkdir "$BASE/spool.$h"; done
  mkdir -m 700 "$BASE/key"
  (umask 077 && head -c 128 /dev/urandom > "$BASE/key/munge.key")
  for h in "$CTL" $(nodes); do mkdir "$BASE/munge.$h"; done
  chown -R munge:munge "$BASE/key" "$BASE"/munge.*
  [ -z "$REST" ] || (umask 077 && head -c 32 /dev/urandom > "$BASE/jwt.key")
  write_conf
  start_hosts
  settings > "$BASE/settings"
}
run_daemons() {
  start_munge
  [ -z "$ACCT" ] || start_acct
  start_slurm
  until_ok "some node" all_idle
  [ -z "$REST" ] || start_rest
}
# A new cluster comes up in a process group of its own: a signal ends that as a whole, wherever it is, and then a
# failure is undone here.
start_new() {
  local starter status=0 signal=0
  [ ! -e "$BASE" ] || [ -e "$BASE/.mncluster" ] || [ -z "$(ls -A "$BASE")" ] ||
    die "BASE=$BASE holds files of something else; choose another directory"
  take_down
  trap 'signal=130' INT
  trap 'signal=143' TERM HUP
  set -m
  { create; run_daemons; } < /dev/null &
  set +m
  starter=$!
  wait "$starter" || status=$?
  if [ $signal != 0 ]; then
    status=$signal
    kill -KILL -- "-$starter" 2> /dev/null || true
    wait "$starter" 2> /dev/null || true
  fi
  [ $status != 0 ] || return 0
  trap '' INT TERM HUP
  say "start failed; the ends of the logs:"
  # shellcheck disable=SC2261
  tail -n 10 "$BASE"/*.log "$BASE"/munge.*/munged.log >&2 2> /dev/null || true
  take_down
  exit $status
}
start() {
  local name
  [[ $NODES =~ ^[1-9][0-9]{0,2}$ && $NODES -le 200 ]] || die "NODES='$NODES' is not a number from 1 to 200"
  if [ -e "$BASE/settings" ] && [ -n "$(members)" ] && ! settings | cmp -s - "$BASE/settings"; then
    die "a cluster with other settings runs in $BASE; type: $0 stop"
  fi
  if hosts_up; then run_daemons; else start_new; fi
  name=$(basename "$0")
  say "up: $NODES nodes, ${PFX}1..$PFX$NODES; try: $name exec srun -N$NODES hostname"
}

term() {                           # term PIDFILE...: ask these daemons to end and wait a little
  local f p pids=() end=$((SECONDS + 2))
  for f; do p=$(cat "$f" 2> /dev/null || true); ! ours "$p" || pids+=("$p"); done
  for p in ${pids[@]+"${pids[@]}"}; do kill "$p" 2> /dev/null || true; done
  for p in ${pids[@]+"${pids[@]}"}; do
    while ours "$p" && [ $SECONDS -lt $end ]; do sleep 0.02; done
  done
}
end_jobs() {                       # before slurmctld ends: a slurmd waits for it while a job is completing
  local end=$((SECONDS + 2))
  while [ -n "$(on "$CTL" timeout 3 squeue -h 2> /dev/null)" ] && [ $SECONDS -lt $end ]; do
    on "$CTL" timeout 3 scancel --user=root --full --signal=KILL > /dev/null 2>&1 || true
    on "$CTL" timeout 3 scancel --user=root > /dev/null 2>&1 || true
    sleep 0.05
  done
}
kill_members() {
  local p pids end=$((SECONDS + 10))
  while pids=$(members) && [ -n "$pids" ]; do
    for p in $pids; do ! ours "$p" || kill -9 "$p" 2> /dev/null || true; done
    [ $SECONDS -lt $end ] || die "these processes do not end:" "$pids"
    sleep 0.02
  done
}
take_down() {
  local end=$((SECONDS + 10))
  if alive slurmctld && alive "host.$CTL"; then end_jobs; fi
  term "$BASE"/slurmd.*.pid "$BASE/slurmctld.pid" "$BASE/slurmrestd.pid" "$BASE/slurmdbd.pid"
  kill_members                     # the holders, job steps, whatever is left
  if [ -e "$BASE/.mncluster" ]; then
    # A host that was just being made may write meanwhile.
    until rm -rf --one-file-system "$BASE" 2> /dev/null || [ $SECONDS -ge $end ]; do kill_members; done
    [ ! -e "$BASE" ] || rm -rf --one-file-system "$BASE"
  elif [ -d "$BASE" ]; then
    rmdir --ignore-fail-on-non-empty "$BASE"
  fi
  kill_members                     # a host that was just being made
}

check_settings
case ${1:-} in
  start) start ;;
  stop) take_down ;;
  status) on "$CTL" sinfo -N -l; on "$CTL" scontrol ping ;;
  exec) shift; enter "$CTL" env -C "$here" -- "$@" ;;
  node) n=$2; shift 2; enter "$PFX$n" env -C "$here" -- "$@" ;;
  *) sed -n '2,10p' "$0"; exit 2 ;;
esac
