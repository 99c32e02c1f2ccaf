#!/usr/bin/env bash
# A Slurm cluster of virtual nodes on this machine's loopback interface, for `make test-slurm`.
#
#   tests/slurm/cluster.sh start     installs Debian's packages, starts daemons, prints "slurm ready"
#   tests/slurm/cluster.sh stop      ends jobs and daemons, and takes its files out of /etc
#   tests/slurm/cluster.sh node N    starts the daemon of node N again, after a test killed it
#
# As root, without systemd or cgroups; nothing listens outside 127.0.0.1. A cluster that is already there
# and was not started by this script is left alone. CPUS, GPUS: what each of its nodes claims to have.
#
# Nodes 1 and 2 are the partition debug, where no test kills a node or preempts a job. Every pytest worker that
# may has two nodes of its own besides, so that workers do not meet: worker 0's are 3 and 4, in the partitions
# own0, low0 and high0. PAIRS: for how many workers.
set -euo pipefail

PAIRS=${PAIRS:-4} CPUS=${CPUS:-8} GPUS=${GPUS:-2}
NODES=$((2 + 2 * PAIRS))
HOME_DIR=/var/lib/rethink-slurm
ETC=/etc/slurm
MARK='# rethink test cluster'
HOSTS_MARK='# rethink-slurm'
PACKAGES=(munge slurmctld slurmd slurm-client slurmdbd mariadb-server-core mariadb-client-core)
SQL=(mariadb --no-defaults -h 127.0.0.1 -P 6820 -u slurm -pslurm)
export PATH=$PATH:/usr/sbin:/sbin
unset SLURM_CONF

say() { echo "cluster.sh: $*" >&2; }

fail() {
    say "$*"
    tail -n 12 $HOME_DIR/log/*.log >&2 2> /dev/null || true
    exit 1
}

until_ok() { # seconds, what is waited for, command
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    while ! "$@" > /dev/null 2>&1; do
        ((SECONDS < deadline)) || fail "gave up waiting for $what"
        sleep 0.2
    done
}

nodes() { seq -f 'node%g' 1 "$NODES"; }

running() { # pid file, program: whether that program still runs under that pid (a zombie does not)
    local pid
    pid=$(cat "$1" 2> /dev/null) || return 1
    [ "$(cat "/proc/$pid/comm" 2> /dev/null)" = "$2" ] && ! grep -q '^State:.*Z' "/proc/$pid/status"
}

is_up() {
    scontrol ping 2> /dev/null | grep -q 'is UP' || return 1
    local n
    for n in $(nodes); do running $HOME_DIR/run/slurmd.$n.pid slurmd || return 1; done
    [ "$(sinfo -h -N -t idle,alloc,mix -o %N | sort -u | wc -l)" = "$NODES" ]
}

install_packages() {
    local lacking=() p
    for p in "${PACKAGES[@]}"; do
        dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2> /dev/null | grep -q '^ii' || lacking+=("$p")
    done
    ((${#lacking[@]})) || return 0
    say "installing ${lacking[*]}"
    # the packages shall start no services: everything is started below, with files of our own
    local policy=/usr/sbin/policy-rc.d made=
    [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' > $policy; chmod +x $policy; made=1; }
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends "${lacking[@]}"; } > $HOME_DIR/apt.log 2>&1 \
        || { tail $HOME_DIR/apt.log >&2; [ -z "$made" ] || rm $policy; fail "apt-get failed"; }
    [ -z "$made" ] || rm $policy
}

name_hosts() { # node names, and this host's own name if it has no loopback address
    local names
    names=$(nodes | tr '\n' ' ')
    getent ahostsv4 "$(uname -n)" | head -n 1 | grep -q '^127\.' || names="$(uname -n) $names"
    local rest
    rest=$(cat /etc/hosts) # rewritten in place: it may be a mount
    printf '127.0.0.1 %s %s\n%s\n' "$names" "$HOSTS_MARK" "$rest" > /etc/hosts
}

partitions_of() { # worker, nodes: where a higher partition preempts a lower one
    echo "PartitionName=own$1 Nodes=$2 State=UP PriorityTier=10 PreemptMode=OFF"
    echo "PartitionName=low$1 Nodes=$2 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20"
    echo "PartitionName=high$1 Nodes=$2 State=UP PriorityTier=10 PreemptMode=OFF"
}

write_configuration() {
    local i gres='' port=6827 version n
    : > $ETC/gres.conf
    if ((GPUS)); then
        # a GPU is any character device; a bare count makes the node invalid
        for ((i = 0; i < GPUS; i++)); do mknod $HOME_DIR/dev/gpu$i c 1 3; done
        gres="Gres=gpu:$GPUS"
        printf '%s\nName=gpu File=%s/dev/gpu[0-%d]\n' "$MARK" $HOME_DIR $((GPUS - 1)) > $ETC/gres.conf
    fi
    # before 23.02 slurmd cannot do without a cgroup plugin; v1 is the one that starts without a mount
    version=$(slurmctld -V | sed -n 's/[^0-9]*\([0-9]*\)\.\([0-9]*\).*/\1\2/p')
    printf '%s\nCgroupPlugin=%s\n' "$MARK" "$([ "$version" -lt 2302 ] && echo cgroup/v1 || echo disabled)" > $ETC/cgroup.conf
    cat > $ETC/slurm.conf << CONF
$MARK
ClusterName=rethinktest
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# a requeued job may start again after so many seconds (120 by default)
AuthInfo=cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort=6817
SrunPortRange=60001-62000
StateSaveLocation=$HOME_DIR/state
SlurmdSpoolDir=$HOME_DIR/spool/%n
SlurmctldPidFile=$HOME_DIR/run/slurmctld.pid
SlurmdPidFile=$HOME_DIR/run/slurmd.%n.pid
SlurmctldLogFile=$HOME_DIR/log/slurmctld.log
SlurmdLogFile=$HOME_DIR/log/slurmd.%n.log
# nothing that needs cgroups
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
# believe what the nodes claim
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=256
# react at once
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=50000,bf_interval=1
KillWait=5
SlurmdTimeout=20
SlurmctldTimeout=20
MinJobAge=600
ReturnToService=2
JobRequeue=1
# refuse what can never run
EnforcePartLimits=ALL
# preemption warns with the job's own signal, at the start of the grace time
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=6819
$(((GPUS)) && echo GresTypes=gpu)
$(for n in $(nodes); do echo "NodeName=$n NodeAddr=127.0.0.1 NodeHostname=localhost Port=$((port++)) CPUs=$CPUS RealMemory=16000 $gres"; done)
PartitionName=debug Nodes=node[1-2] Default=YES State=UP PriorityTier=10 PreemptMode=OFF
$(for ((i = 0; i < PAIRS; i++)); do partitions_of $i "node[$((3 + 2 * i))-$((4 + 2 * i))]"; done)
CONF
    (umask 077; cat > $ETC/slurmdbd.conf) << CONF
$MARK
AuthType=auth/munge
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=6819
SlurmUser=root
PidFile=$HOME_DIR/run/slurmdbd.pid
LogFile=$HOME_DIR/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=6820
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
CommunicationParameters=NoInAddrAny
CONF
}

start_munge() {
    munge -n 2> /dev/null | unmunge > /dev/null 2>&1 && return
    install -d -o munge -g munge -m 755 /run/munge
    install -d -o munge -g munge -m 700 /var/log/munge /etc/munge
    if [ ! -s /etc/munge/munge.key ]; then
        (umask 077; head -c 128 /dev/urandom > /etc/munge/munge.key)
        chown munge:munge /etc/munge/munge.key
    fi
    rm -f /run/munge/munge.socket.2*
    runuser -u munge -- /usr/sbin/munged
    cp /run/munge/munged.pid $HOME_DIR/run/munged.pid 2> /dev/null || true
}

start_accounting() { # sacct, through a MariaDB of our own
    install -d -o slurm -g slurm $HOME_DIR/db $HOME_DIR/run/sql
    runuser -u slurm -- mariadb-install-db --no-defaults --datadir=$HOME_DIR/db --skip-test-db \
        --auth-root-authentication-method=normal --skip-name-resolve > $HOME_DIR/log/install.log 2>&1
    cat > $HOME_DIR/run/init.sql << SQL
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';
SQL
    install -o slurm /dev/null $HOME_DIR/log/sql.log
    setsid /usr/sbin/mariadbd --no-defaults --user=slurm --datadir=$HOME_DIR/db --bind-address=127.0.0.1 \
        --port=6820 --skip-name-resolve --socket=$HOME_DIR/run/sql/socket \
        --pid-file=$HOME_DIR/run/sql/mariadbd.pid --init-file=$HOME_DIR/run/init.sql \
        --log-error=$HOME_DIR/log/sql.log --innodb-buffer-pool-size=64M --innodb-log-file-size=16M \
        --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=2 < /dev/null > /dev/null 2>&1 &
    until_ok 30 MariaDB "${SQL[@]}" -e 'select 1' slurm_acct_db
    /usr/sbin/slurmdbd
    until_ok 30 slurmdbd sacctmgr -n show cluster
    sacctmgr -i add cluster rethinktest > /dev/null 2>&1 || true
}

start_node() {
    mkdir -p $HOME_DIR/spool/"$1"
    /usr/sbin/slurmd -N "$1"
}

start() {
    [ ! -e $ETC/slurm.conf ] || grep -qF "$MARK" $ETC/slurm.conf || fail "$ETC/slurm.conf is another cluster's"
    mkdir -p $HOME_DIR/log
    install_packages
    if is_up; then
        echo "slurm ready"
        return
    fi
    stop > /dev/null
    rm -rf $HOME_DIR/{state,spool,log,run,db,dev}
    mkdir -p $HOME_DIR/{state,spool,log,run,dev} $ETC
    name_hosts
    write_configuration
    start_munge
    until_ok 10 munged bash -o pipefail -c 'munge -n | unmunge'
    start_accounting
    /usr/sbin/slurmctld
    until_ok 20 slurmctld bash -c "scontrol ping | grep -q 'is UP'"
    local n
    for n in $(nodes); do start_node "$n"; done
    until_ok 30 "idle nodes" is_up
    timeout 60 srun -N 2 -n 2 true || fail "srun does not run anything"
    echo "slurm ready"
}

end() { # pid file, program
    running "$1" "$2" || return 0
    local pid i
    pid=$(cat "$1")
    kill "$pid" || true
    for ((i = 0; i < 100; i++)); do
        running "$1" "$2" || return 0
        sleep 0.1
    done
    kill -9 "$pid" || true
}

stop() {
    grep -qsF "$MARK" $ETC/slurm.conf || { echo "slurm stopped"; return; }
    local i f p
    timeout 10 squeue -h -o %A 2> /dev/null | sort -u | xargs -r timeout 20 scancel || true
    for ((i = 0; i < 80; i++)); do
        [ -n "$(timeout 5 squeue -h 2> /dev/null)" ] || break
        sleep 0.1
    done
    for f in $HOME_DIR/run/slurmd.*.pid; do end "$f" slurmd; done
    end $HOME_DIR/run/slurmctld.pid slurmctld
    end $HOME_DIR/run/slurmdbd.pid slurmdbd
    end $HOME_DIR/run/sql/mariadbd.pid mariadbd
    end $HOME_DIR/run/munged.pid munged
    for p in /proc/[0-9]*; do # step daemons that outlived their node
        if [ "$(cat "$p/comm" 2> /dev/null)" = slurmstepd ] && [ "$(readlink "$p/cwd")" = $HOME_DIR/log ]; then
            kill -9 "${p#/proc/}" || true
        fi
    done
    for f in slurm gres cgroup slurmdbd; do
        if grep -qsF "$MARK" $ETC/$f.conf; then rm -f $ETC/$f.conf; fi
    done
    p=$(grep -v "$HOSTS_MARK\$" /etc/hosts || true)
    printf '%s\n' "$p" > /etc/hosts
    echo "slurm stopped"
}

[ "$(id -u)" = 0 ] || { say "needs root"; exit 1; }
case ${1:-} in
    start) start ;;
    stop) stop ;;
    node) start_node "node$2" ;;
    *) sed -n '2,15s/^# \?//p' "$0" >&2; exit 2 ;;
esac
