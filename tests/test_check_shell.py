"""The shell reading below the rules: torchrun's trap, words, variables, and text that is no shell at all."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_env import load_task
from shared_env.check import check, torchrun_trap
from shared_env.check.walk import analyse

SPECIFICATION = """\
set -euo pipefail
cd /workspace/my-train-code

srun python -m torch.distributed.run \\
  --nnodes="${SLURM_NNODES}" \\
  --nproc_per_node=1 \\
  --node_rank="${NODE_RANK}" \\
  --master_addr="${MASTER_ADDR}" \\
  --master_port="${MASTER_PORT}" \\
  train.py
"""
TRAPS = [
    'srun torchrun --node-rank "$SLURM_NODEID" x.py',
    "/usr/bin/srun --nodes=2 -n2 /opt/bin/torchrun --nnodes 2 --node_rank ${RANK} x.py",
    "srun -N2 --mpi pmix --cpu-bind=cores torchrun --node_rank=$SLURM_PROCID x.py",
    "exec srun torchrun --node_rank=$NODE_RANK x.py",
    "time srun -l env A=b torchrun --node_rank=$NODE_RANK x.py",
    "env A=b srun python3 -u -m torch.distributed.launch --node_rank $NODE_RANK x.py",
    "A=1 srun torchrun --node_rank=$((SLURM_NODEID)) x.py",
    "srun torchrun --node_rank=${NODE_RANK:-0} x.py && echo done",
    "srun torchrun --node_rank=$(echo $LOCAL_RANK) x.py | tee log",
    "cd /x && srun torchrun --node_rank=$NODE_RANK x.py",
    "if ! srun torchrun --node_rank=$NODE_RANK x.py; then exit 1; fi",
    "R=$SLURM_NODEID; srun torchrun --node_rank=$R x.py",
    "A=$SLURM_NODEID; B=$A; srun torchrun --node_rank=$B x.py",
    'ARGS="--nnodes 2 --node_rank $SLURM_NODEID"; srun torchrun $ARGS x.py',
    'ARGS=(--nnodes 2 --node_rank "$SLURM_NODEID"); srun torchrun "${ARGS[@]}" x.py',
    'ARGS=(--nnodes 2); ARGS+=(--node_rank "$SLURM_NODEID"); srun torchrun "${ARGS[@]}" x.py',
    'LAUNCHER="srun torchrun"; $LAUNCHER --node_rank=$NODE_RANK x.py',
    'srun bash -c "torchrun --node_rank=$NODE_RANK x.py"',
    'CMD="torchrun --node_rank=$NODE_RANK"; srun bash -c "$CMD x.py"',
    "srun singularity exec --nv img.sif torchrun --node_rank=$SLURM_NODEID x.py",
    'run() { srun "$@"; }; run torchrun --node_rank=$NODE_RANK x.py',
    'eval "srun torchrun --node_rank=\\$NODE_RANK x.py"',
    "bash -c 'srun torchrun --node_rank=$NODE_RANK x.py'",
    "tfl-remote-trap -- 'srun torchrun --node_rank=$NODE_RANK x.py'",
    'if [ -z "$NODE_RANK" ]; then NODE_RANK=$SLURM_NODEID; fi; srun torchrun --node_rank=$NODE_RANK x.py',
    "srun torchrun \\\r\n --node_rank=$NODE_RANK x.py\r\n",
]
NO_TRAPS = [
    "srun bash -c 'torchrun --node_rank=$NODE_RANK x.py'",
    'srun bash -c "torchrun --node_rank=\\$NODE_RANK x.py"',
    "CMD='torchrun --node_rank=$NODE_RANK x.py'; srun bash -c \"$CMD\"",
    "NODE_RANK=$SLURM_NODEID; srun bash -c 'torchrun --node_rank=$NODE_RANK x.py'",
    "# srun torchrun --node_rank=$NODE_RANK x.py",
    "cat <<EOF > f\nsrun torchrun --node_rank=$NODE_RANK\nEOF",
    "srun bash <<EOF\ntorchrun --node_rank=$NODE_RANK x.py\nEOF",
    "srun bash <<'EOF'\ntorchrun --node_rank=$NODE_RANK x.py\nEOF",
    'echo "srun torchrun --node_rank=$NODE_RANK"',
    "srun python train.py --node_rank=$NODE_RANK",
    "srun torchrun x.py --node_rank=$NODE_RANK",
    "torchrun --node_rank=$NODE_RANK x.py",
    "srun torchrun --node_rank=0 x.py",
    "srun torchrun --node_rank='$NODE_RANK' x.py",
    "srun torchrun --rdzv_backend=c10d --node_rank=$NODE_RANK x.py",
    "srun torchrun --node_rank=$NODE_RANK --rdzv-endpoint $MASTER_ADDR:1234 x.py",
    "for NODE_RANK in 0 1; do srun torchrun --node_rank=$NODE_RANK x.py & done",
    "NODE_RANK=0; for h in $H; do srun torchrun --node_rank=$NODE_RANK x & NODE_RANK=$((NODE_RANK+1)); done",
    "read NODE_RANK < file; srun torchrun --node_rank=$NODE_RANK x.py",
    "srun -N1 -n1 torchrun --node_rank=$SLURM_NODEID x.py",
    'ssh host "srun torchrun --node_rank=$NODE_RANK"',
    "srun bash -c 'exec torchrun --node_rank=$0 x.py' 3",
    "",
    "srun rank",
]


def test_the_specifications_example_is_the_trap():
    found = torchrun_trap(SPECIFICATION)
    assert found is not None
    assert (found.line, found.column, found.text) == (7, 3, '--node_rank="${NODE_RANK}"')


@pytest.mark.parametrize("script", TRAPS)
def test_trap(script):
    found = torchrun_trap(script)
    assert found is not None
    assert "rank" in found.text


@pytest.mark.parametrize("script", NO_TRAPS)
def test_no_trap(script):
    assert torchrun_trap(script) is None


WORDS = [
    "show a 'b  c' \"d $X e\" f\\ g",
    'X="1 2"; show $X "$X" \'$X\' \\$X x${X}y',
    'A=(p \'q r\'); show ${A[@]} "${A[@]}" "n${A[@]}m"',
    'A=(p); A+=(q); B=x; B+=y; show "${A[@]}" $B',
    'show $\'a\\tb\' "tab\\$ \\" \\\\ \\n" a \\\n b',
    'show "$X $Y" "$X\t$X" ""',
    "bash -c 'show \"$X\" \\$X'",
    "bash -c \"show $X \\$X '$X'\"",
    'C="show $X"; $C z; bash -c "$C"; eval "$C"',
    "f() { show \"$@\" $1 $#; }; f 'a b' c",
    "bash -c 'show \"$@\" $1' zero one 'two words'",
    'B=x; C=$B$B; D="$C-$B"; show $D',
    "B=1; (B=2; show $B); show $B",
    "show a#b --x={1,2} ~no%x n:29400",
    "true && B=1; show $B",
    "B=é; show \"ü$B\" 'ß'",
]


@pytest.mark.parametrize("script", WORDS)
def test_words_are_what_bash_makes_of_them(script, tmp_path):
    """Every command named ``show``, with the arguments that the real shell gives it."""
    helper = tmp_path / "show"
    helper.write_text('#!/bin/bash\nprintf "%s\\x1f" "$@"; printf "\\x1e"\n')
    helper.chmod(0o755)
    known = "X=val Y='two words'\n"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    command = ["bash", "-c", f"export {known}set +B\n{script}"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    real = [call.split("\x1f")[:-1] for call in output.split("\x1e")[:-1]]
    ours = [
        [word.text for word in command.words[1:]]
        for command in analyse(known + script).commands
        if command.name == "show"
    ]
    expanded = [[text.replace("$#", "2") for text in call] for call in ours]
    assert expanded == real


def test_values_from_conditions_and_loops_are_unknown():
    for script in (
        "if [ $A ]; then B=1; fi; show $B",
        "B=0; while true; do B=1; done; show $B",
        "for B in 1; do show $B; done",
        "[ $A ] && B=1; show $B",
        "read -r B; show $B",
        "B=1; unset B; show $B",
        "B[0]=1; show $B",
        "((B = 3)); show $B",
    ):
        command = next(item for item in analyse(script).commands if item.name == "show")
        assert command.words[1].literal is None, script


def test_who_starts_what():
    script = analyse("A=1 srun -N2 time bash -c 'nohup torchrun a.py; echo' && mpirun -np 2 ./b; ssh h c")
    names = [(item.name, item.launcher and item.launcher.name) for item in script.commands]
    assert names == [
        ("srun", None),
        ("time", "srun"),
        ("bash", "srun"),
        ("nohup", "srun"),
        ("torchrun", "srun"),
        ("echo", "srun"),
        ("mpirun", None),
        ("b", "mpirun"),
        ("ssh", None),
    ]


def test_hostile_sizes():
    deep = "$(" * 500 + "srun rank" + ")" * 500
    nested = "srun rank " + "bash -c '" * 200
    bomb = (
        "srun=1 rank=1\n"
        + "f0() { srun rank; }\n"
        + "".join(f"f{n + 1}() {{ f{n}; f{n}; f{n}; }}\n" for n in range(30))
    )
    recursive = "f() { f; srun rank torchrun; f; }; f"
    doubling = "A=srun-rank\n" + "A=$A$A\n" * 40 + "srun torchrun $A"
    for script in (deep, nested, bomb + "f30", recursive, doubling, "if " * 3000, "((" * 3000, "'" * 3001):
        assert torchrun_trap("srun rank\n" + script) is None


PARTS = """
    srun torchrun --node_rank=$NODE_RANK bash -c ' " ` $( ) ${ } $(( )) << <<'EOF' EOF \\ && || | & ; ( ) { } if then fi
    for in do done case esac f() [[ ]] A= A=( += # #SBATCH --nodes=2 env exec eval $A "$@" ${A[@]} é mpirun $(hostname)
    --rdzv_endpoint=$(hostname):1 MASTER_PORT=$RANDOM accelerate launch -- - = $ $' local export read cat > x tee
"""
PART = st.sampled_from([*PARTS.split(), "\n", "\\\n", "\r\n", "\0", "\ue000"])


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(PART, max_size=40).map(" ".join), st.lists(PART, max_size=40).map("".join)))
def test_no_text_raises(script):
    torchrun_trap(script + " srun rank")
    script = script.replace("\0", "")
    for provider in ("slurm", "skypilot"):
        resources = {"provider": provider, "num_nodes": 2, "accelerators": "L4:2"}
        task = load_task({"resources": resources, "script": script, "setup": script})
        for finding in check(task, sbatch_flags=script):
            assert finding.as_dict()
