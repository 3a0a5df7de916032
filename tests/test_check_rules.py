"""What each rule says about spellings that the recorded cases do not have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shared_env import load_task
from shared_env.check import Finding, check
from shared_env.check.rules_counts import OF_SRUN, REMOVED, RENAMED, UNDERSCORED


def slurm(script, nodes=2, gpus="A100:4", env=None, **more):
    resources = {"provider": "slurm", "num_nodes": nodes, "accelerators": gpus}
    return load_task({"resources": resources, "script": script, "env": env or {}, **more})


def sky(script, nodes=2, gpus="A100:4", env=None, **more):
    resources = {"provider": "skypilot", "num_nodes": nodes, "accelerators": gpus}
    return load_task({"resources": resources, "script": script, "env": env or {}, **more})


def codes(task, **kwargs):
    return {finding.code for finding in check(task, **kwargs)}


STATIC = "--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT"
IN_TASK = "torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID"

FOUND = [
    ("MN101", "srun python train.py --rank ${SLURM_PROCID:-0}"),
    ("MN101", "srun python train.py --rank $((SLURM_PROCID + 1))"),
    ("MN101", "srun python train.py --rank `echo $RANK`"),
    ("MN101", "HOSTS=(a b); srun python train.py --host ${HOSTS[$SLURM_NODEID]}"),
    ("MN101", "srun --mpi=pmix -l -n 4 --cpu-bind cores python train.py --rank=$RANK"),
    ("MN101", "srun bash <<EOF\npython train.py --rank $SLURM_PROCID\nEOF"),
    ("MN101", "cat > run.sh <<EOF\npython train.py --rank $SLURM_PROCID\nEOF\nsrun bash run.sh"),
    ("MN101", "for i in 1 2; do srun python train.py --rank $SLURM_PROCID; done"),
    ("MN101", "srun bash -c \"bash -c 'echo $SLURM_PROCID'\""),
    ("MN102", f"srun bash -c 'torchrun --nnodes=2 --nproc_per_node=4 --node-rank 1 {STATIC} t.py'"),
    ("MN102", f"R=0; srun torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$R {STATIC} t.py"),
    ("MN102", "srun accelerate launch --num_machines 2 --num_processes 8 --machine_rank 0 t.py"),
    ("MN103", f"torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$NODE_RANK {STATIC} t.py"),
    ("MN101", "srun torchrun --rdzv_conf=is_host=$(if ((SLURM_NODEID)); then echo 0; fi) --rdzv_backend=c10d t.py"),
    ("MN102", "srun accelerate launch --rdzv_backend static --machine_rank 0 t.py"),
    ("MN103", "source env/bin/activate\ncd src\nCUDA=1 python3.11 -u -m trainer --epochs 3"),
    ("MN103", "HEAD=$(hostname); accelerate launch t.py"),
    ("MN104", "#SBATCH --ntasks-per-node=4\nsrun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d t.py"),
    ("MN105", "srun torchrun --nnodes=4 --nproc_per_node=4 --rdzv_backend=c10d t.py"),
    ("MN105", "N=3; srun torchrun --nnodes $N --rdzv_backend=c10d t.py"),
    ("MN105", "srun torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d t.py"),
    ("MN105", "export WORLD_SIZE=7\nsrun python t.py"),
    ("MN106", "export MASTER_ADDR=127.0.0.1; srun python t.py"),
    ("MN106", "srun bash -c 'MASTER_ADDR=$(hostname -I | cut -d\" \" -f1) python t.py'"),
    ("MN106", "srun bash -c 'export MASTER_ADDR=$HOSTNAME; python t.py'"),
    ("MN106", "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:29400 t.py"),
    ("MN106", "srun env MASTER_ADDR=localhost python t.py"),
    ("MN107", "srun bash -c 'MASTER_PORT=$(shuf -i 10000-20000 -n1) python t.py'"),
    ("MN107", "srun bash -c 'torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_id=$RANDOM t.py'"),
    ("MN107", "srun bash -c 'torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_id=$(uuidgen) t.py'"),
    ("MN107", "srun bash -c 'P=$(python -c \"import socket; print(1)\"); torchrun --nnodes=2 --master_port=$P t.py'"),
    ("MN108", "srun torchrun --rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:1234 --master-addr $MASTER_ADDR t.py"),
    ("MN111", "srun python t.py --rank-file $SLURM_LOCAL_RANK"),
    ("MN111", "srun python t.py --ips $SKYPILOT_NODE_IPS"),
    ("MN111", "srun python t.py $SLRUM_JOB_ID"),
    ("MN114", "export MASTER_PORT=80\nsrun python t.py"),
    ("MN114", "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:0 t.py"),
    ("MN114", "srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_port=90000 t.py'"),
    (
        "MN115",
        "#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1\nsrun bash -c 'python t.py --gpu cuda:$LOCAL_RANK'",
    ),
    ("MN116", "CUDA_VISIBLE_DEVICES=0,1 srun python t.py"),
    ("MN117", "cd /x\n#SBATCH -N 2\nsrun python t.py"),
    ("MN118", "mpirun -np 4 --hostfile h python -m trainer"),
    ("MN120", "#SBATCH --cpus_per_task=4\nsrun python t.py"),
    ("MN120", "#SBATCH --label\nsrun python t.py"),
    ("MN121", "#SBATCH --nodes=4\nsrun python t.py"),
    ("MN121", "#SBATCH -N1\nsrun python t.py"),
    ("MN121", "#SBATCH --ntasks=1\nsrun python t.py"),
    ("MN121", "srun -N 3 python t.py"),
    ("MN122", "srun python -m torch.distributed.run --standalone --nproc_per_node=4 t.py"),
]


@pytest.mark.parametrize(("code", "script"), FOUND)
def test_found_on_slurm(code, script):
    assert code in codes(slurm(script))


QUIET = [
    ("MN101", "srun torchrun --nnodes 2 --node_rank $SLURM_NODEID --rdzv_backend c10d --rdzv_endpoint $H:29500 t.py"),
    ("MN101", 'srun bash -c "accelerate launch --rdzv_backend c10d --machine_rank $SLURM_PROCID t.py"'),
    ("MN102", "srun torchrun --nnodes 2 --node_rank 0 --rdzv_backend=c10d --rdzv_endpoint $H:29500 t.py"),
    ("MN101", "srun -N1 -n1 python prepare.py --rank $SLURM_PROCID"),
    ("MN101", "srun --output=log-$SLURM_PROCID.txt python t.py"),
    ("MN101", "srun python t.py > log-$SLURM_PROCID.txt"),
    ("MN101", "srun bash -c \"bash -c 'echo \\$SLURM_PROCID'\""),
    ("MN101", "RANK=16\nsrun python t.py --lora-rank $RANK"),
    ("MN101", "srun python t.py '$SLURM_PROCID'"),
    ("MN102", "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d t.py --node_rank 0"),
    ("MN102", f"if [ $X = 1 ]; then srun torchrun --nnodes=2 --node_rank=0 {STATIC} t.py; fi"),
    ("MN103", "./go.sh"),
    ("MN103", "bash -x go.sh && python report.py"),
    ("MN103", 'eval "$CMD"; python x.py'),
    ("MN103", "python launch.py --nodes 2"),
    ("MN103", "pip install x; python -m pip list; echo done"),
    ("MN103", 'python t.py "$('),
    ("MN104", "srun --ntasks-per-node=4 torchrun --nnodes=8 --nproc_per_node=1 --rdzv_backend=c10d t.py"),
    ("MN105", "srun --ntasks-per-node=4 torchrun --nnodes=8 --nproc_per_node=1 --rdzv_backend=c10d t.py"),
    ("MN105", "srun torchrun --nnodes=1:4 --nproc_per_node=auto --rdzv_backend=c10d t.py"),
    ("MN105", "srun -N1 -n1 torchrun --nnodes=1 --nproc_per_node=4 t.py"),
    ("MN106", "export MASTER_ADDR=${MASTER_ADDR:-localhost}; srun python t.py"),
    (
        "MN106",
        "MASTER_ADDR=localhost; [ $SLURM_NNODES -gt 1 ] && MASTER_ADDR=$(scontrol show hostnames | head -1); srun x",
    ),
    ("MN106", "export MASTER_ADDR=$(srun -N1 -n1 -w $HEAD hostname -i); srun python t.py"),
    ("MN106", "#SBATCH --nodelist=node17,node18\nexport MASTER_ADDR=node17; srun python t.py"),
    ("MN106", "export MASTER_ADDR=$HOSTNAME; srun python t.py"),
    ("MN107", "export MASTER_PORT=$RANDOM; srun bash -c 'torchrun --nnodes=2 --master_port=$MASTER_PORT t.py'"),
    ("MN107", "srun bash -c 'RANDOM=$SLURM_JOB_ID; export MASTER_PORT=$((10000 + RANDOM % 9999)); python t.py'"),
    ("MN111", "export SLURM_MY_OWN=1; srun python t.py $SLURM_MY_OWN $SLURM_CPUS_ON_NODE $SLURM_TMPDIR"),
    ("MN111", "srun python t.py ${SKYPILOT_NODE_RANK:-0}"),
    ("MN115", "srun --ntasks-per-node=4 --gpus-per-node=4 bash -c 'python t.py cuda:$LOCAL_RANK'"),
    ("MN115", "srun --ntasks-per-node=4 --gpus-per-task=1 --gpu-bind=none bash -c 'python t.py cuda:$LOCAL_RANK'"),
    ("MN116", "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID; CUDA_VISIBLE_DEVICES= python prepare.py; srun x"),
    ("MN117", "#SBATCH --time=1:00\n\n# text\n#SBATCH -p gpu\n##SBATCH -N 9\nsrun python t.py"),
    ("MN117", "tfl-remote-trap -- '#SBATCH -p gpu\n#SBATCH --time=10\nsrun python t.py'"),
    ("MN117", "cat > j.sh <<EOF\n#SBATCH -N 2\nEOF\nsrun python t.py"),
    ("MN118", "mpirun -x A -np 4 python t.py; mpiexec -ppn 2 python t.py; mpirun -np 1 python t.py; mpirun ./a.out"),
    ("MN120", "#SBATCH --time=1:00 --mem=4G  # --workdir=/x\nsrun python t.py"),
    ("MN120", "#SBATCH --site_plugin=x --container-image=y\nsrun python t.py"),
    ("MN120", "#SBATCH --comment='--workdir=/x --share'\nsrun python t.py"),
    ("MN121", "#SBATCH --nodes=1-4 --ntasks-per-node=2\nsrun -N 2 -n 4 python t.py; srun -n 1 python t.py"),
    ("MN121", "srun --nodes=$SLURM_NNODES --ntasks=$SLURM_NNODES python t.py"),
    ("MN122", "torchrun --standalone --nproc_per_node=4 tok.py; srun python t.py"),
]


@pytest.mark.parametrize(("code", "script"), QUIET)
def test_quiet_on_slurm(code, script):
    assert code not in codes(slurm(script))


ON_SKYPILOT = [
    ("MN101", False, f"torchrun --nnodes=2 --node_rank=$NODE_RANK {STATIC} t.py"),
    ("MN102", True, f"torchrun --nnodes=2 --nproc_per_node=4 --node_rank=0 {STATIC} t.py"),
    ("MN102", False, f"[ $SKYPILOT_NODE_RANK = 0 ] && torchrun --nnodes=2 --node_rank=0 {STATIC} t.py"),
    ("MN103", False, "python t.py"),
    ("MN105", True, "torchrun --nnodes=3 --node_rank=$NODE_RANK t.py"),
    ("MN106", True, "export MASTER_ADDR=$(hostname -i); torchrun --nnodes=2 t.py"),
    ("MN106", True, "torchrun --nnodes=2 --node_rank=$NODE_RANK --master_addr=10.0.0.7 t.py"),
    ("MN107", True, "export MASTER_PORT=$((RANDOM % 9000 + 20000)); torchrun --nnodes=2 t.py"),
    ("MN109", True, "srun torchrun t.py"),
    ("MN109", False, "if command -v srun; then srun hostname; fi; torchrun --nnodes=2 --node_rank=$NODE_RANK t.py"),
    ("MN111", True, "torchrun --nnodes=$SLURM_NNODES --node_rank=$NODE_RANK t.py"),
    ("MN111", True, "torchrun --nnodes=2 --node_rank=$SKYPILOT_RANK t.py"),
    ("MN112", True, "N=`echo $SKYPILOT_NODE_IPS | wc -l`; torchrun --nnodes=$N t.py"),
    ("MN112", False, "for ip in $SKYPILOT_NODE_IPS; do echo $ip | head -n1; done; A=($SKYPILOT_NODE_IPS)"),
    ("MN112", False, "H=$(echo $SKYPILOT_NODE_IPS | awk '{print $1}'); N=$(echo $SKYPILOT_NODE_IPS | wc -w)"),
    ("MN116", False, "export CUDA_VISIBLE_DEVICES=0,1; torchrun --nnodes=2 t.py"),
    ("MN117", False, "cd /x\n#SBATCH -N 2\ntorchrun t.py"),
    ("MN122", True, "torchrun --standalone --nproc_per_node=4 t.py"),
    ("MN124", True, "cd src && python -u train.py --epochs 3"),
    ("MN124", False, "export WORLD_SIZE=$SKYPILOT_NUM_NODES; python train.py"),
    ("MN124", False, "python prepare.py; torchrun --nnodes=2 --node_rank=$NODE_RANK t.py"),
    ("MN124", False, "export JAX_PLATFORMS=cuda; python train.py"),
    ("MN124", False, "bash run.sh; python report.py"),
]


@pytest.mark.parametrize(("code", "expected", "script"), ON_SKYPILOT)
def test_on_skypilot(code, expected, script):
    assert (code in codes(sky(script))) is expected


def test_per_node_scripts_run_on_every_node():
    def per_node(script):
        return codes(slurm(script, launch="per-node"))

    assert per_node(f"torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$NODE_RANK {STATIC} t.py") == set()
    assert "MN109" in per_node("srun python t.py")
    assert "MN102" in per_node("torchrun --nnodes=2 --node_rank=0 t.py")
    assert "MN106" in per_node("export MASTER_ADDR=$(hostname); python t.py")
    assert "MN107" in per_node("export MASTER_PORT=$RANDOM; python t.py")


def test_nothing_is_said_about_one_node():
    script = "srun torchrun --standalone --node_rank=$SLURM_NODEID --master_addr=localhost t.py"
    assert codes(slurm(script, nodes=1)) == set()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("MASTER_PORT", "29500", {}),
        ("MASTER_PORT", "", {}),
        ("MASTER_PORT", "1023", {"MN114": "error"}),
        ("MASTER_PORT", "40000", {"MN114": "warning"}),
        ("MASTER_PORT", "\u0663\u0663\u0663\u0663", {"MN114": "error"}),
        ("MASTER_PORT", "9" * 5000, {"MN114": "error"}),
        ("MASTER_ADDR", "::1", {"MN106": "error"}),
        ("MASTER_ADDR", "node4", {"MN106": "warning"}),
        ("RANK", "0", {"MN113": "warning"}),
        ("LOCAL_RANK", "0", {"MN113": "warning"}),
        ("WORLD_SIZE", "8", {"MN113": "warning"}),
        ("CUDA_VISIBLE_DEVICES", "0,1", {"MN116": "warning"}),
        ("NAME", "'quoted'", {"MN119": "warning"}),
        ("NAME", "it's 'half' quoted", {}),
        ("NAME", "${now:%Y-%m-%d}", {}),
        ("NAME", "$HOME/x", {}),
    ],
)
def test_env(name, value, expected):
    found = check(slurm("srun python t.py", env={name: value}))
    assert {item.code: item.severity for item in found} == expected
    assert all(item.key == f"env.{name}" for item in found)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (None, set()),
        ("", set()),
        ("--exclusive\n#SBATCH --time=10 -p gpu", set()),
        ("--workdir=/x", {"MN120"}),
        ("-p gpu\n#SBATCH --nodes 4", {"MN121"}),
        ("--nodes=4 -N 2", set()),
        ("--ntasks-per-node=2 --ntasks=99", {"MN121"}),
        ("--comment='unfinished", set()),
    ],
)
def test_sbatch_flags(flags, expected):
    assert codes(slurm("srun python t.py"), sbatch_flags=flags) == expected


def test_flags_give_the_layout_of_srun():
    task = slurm("srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d t.py")
    assert codes(task) == set()
    assert codes(task, sbatch_flags="--ntasks-per-node=4") == {"MN104"}


def test_gpus_of_the_flags_count_when_accelerators_says_nothing():
    task = slurm("srun torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d t.py", gpus=None)
    assert codes(task) == set()
    assert codes(task, sbatch_flags="--gres=gpu:a100:4") == {"MN105"}
    assert codes(task, sbatch_flags="--gpus-per-node=a100:8") == set()


def test_place_in_the_file(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text(
        "resources:\n  provider: slurm\n  num_nodes: 2\nenv:\n  MASTER_PORT: '70000'\n"
        "setup: |\n  #SBATCH -N 2\nscript: |\n  # a comment\n  srun python t.py \\\n    --r\u00e4nk $SLURM_PROCID\n"
    )
    found = [(item.code, item.line, item.column, item.text) for item in check(load_task(path))]
    assert found == [
        ("MN114", 5, 17, "MASTER_PORT: 70000"),
        ("MN117", 7, 3, "#SBATCH -N 2"),
        ("MN101", 11, 12, "$SLURM_PROCID"),
    ]
    assert check(load_task(path))[0].path == str(path)


def test_place_without_a_file():
    [found] = check(slurm("true\nsrun python t.py $RANK"))
    assert (found.path, found.line, found.column) == (None, 2, 18)


def test_silenced_on_the_line_and_in_yaml(tmp_path):
    script = "srun python t.py $RANK{}\nsrun python t.py $RANK"
    assert [item.line for item in check(slurm(script.format("")))] == [1, 2]
    assert [item.line for item in check(slurm(script.format("  # multinode: ignore MN101")))] == [2]
    assert [item.line for item in check(slurm(script.format("  # multinode: ignore")))] == [2]
    assert [item.line for item in check(slurm(script.format("  # multinode: ignore MN102")))] == [1, 2]
    path = tmp_path / "task.yaml"
    text = "resources: {provider: slurm, num_nodes: 2}\nenv:\n  MASTER_PORT: '40000'%s\nscript: srun python t.py\n"
    path.write_text(text % "")
    assert codes(load_task(path)) == {"MN114"}
    path.write_text(text % "  # multinode: ignore MN114, MN106")
    assert codes(load_task(path)) == set()


def test_findings_are_complete_and_plain_data():
    records = yaml.safe_load((Path(__file__).parent / "cases" / "check.yaml").read_text())
    for finding in (item for record in records for item in check(load_task(record["task"]))):
        assert isinstance(finding, Finding)
        assert finding.text
        assert finding.severity in ("error", "warning")
        assert "\n" not in finding.message + finding.fix
        assert json.loads(json.dumps(finding.as_dict()))["code"] == finding.code
        assert not any("\ue000" <= char <= "\uf8ff" for char in finding.text + finding.message + finding.fix)


@pytest.mark.parametrize("first", ["pass", "import shared_env.check", "from shared_env.check import torchrun_trap"])
def test_module_and_function_share_a_name(first):
    """``shared_env.check(task)`` works whatever was imported before."""
    code = "import shared_env; task = shared_env.load_task({'script': 'true'}); assert shared_env.check(task) == []"
    subprocess.run([sys.executable, "-c", f"{first}\n{code}"], check=True)


def test_what_the_adapter_repairs_is_a_warning():
    """torchrun's frozen node rank does not stop a submission: `tl-slurm` gives it another rendezvous."""
    [found] = check(slurm("srun -l torchrun --nnodes=2 --node_rank=$NODE_RANK t.py"))
    assert (found.code, found.severity, found.text) == ("MN101", "warning", "--node_rank=$NODE_RANK")
    [found] = check(slurm("srun accelerate launch --machine_rank=$NODE_RANK t.py"))
    assert (found.code, found.severity) == ("MN101", "error")


@pytest.mark.parametrize(
    "script",
    [
        "srun -l torchrun --nnodes=2 --node_rank=$NODE_RANK t.py",
        'srun python t.py --rank "${SLURM_PROCID}" --name "a b"',
        "env A=b /usr/bin/srun --mpi=pmix python t.py --rank $RANK",
    ],
)
def test_the_fix_can_be_pasted(script):
    task = slurm(script)
    [found] = check(task)
    assert "bash -c '" in found.fix
    assert check(slurm(found.fix)) == []


def test_the_fix_does_not_lose_a_variable_of_the_script():
    [found] = check(slurm("N=2\nsrun torchrun --nnodes=$N --node_rank=$NODE_RANK t.py"))
    assert "..." in found.fix


@pytest.fixture
def sbatch(tmp_path):
    """Does the real sbatch know this option? It prints its help without asking any server."""
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/none\n"
        "NodeName=n1\nPartitionName=p Nodes=n1\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(tmp_path / "slurm.conf")}

    def known(name, value="=1"):
        command = ["sbatch", f"--{name}{value}", "--help"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ("unrecognized option" in done.stderr) is not (done.returncode == 0), done.stderr
        return done.returncode == 0

    return known


def test_sbatch_knows_none_of_the_old_names(sbatch):
    """MN120 against the real program: no name of its tables is an option, each replacement is one."""
    assert [name for name in (*RENAMED, *REMOVED, *OF_SRUN, *UNDERSCORED) if sbatch(name)] == []
    values = {"--mem-bind": "=none", "--oversubscribe": ""}
    assert all(sbatch(new[2:], values.get(new, "=1")) for new in RENAMED.values())
