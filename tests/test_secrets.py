"""Credentials: not in previews, logs, errors, command lines or readable files; and a clean environment is clean."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cluster import Cluster
from slurm_jobs import PYTHON, follow, tl_slurm, write_task

from shared_env import check, load_task
from shared_env.credentials import is_credential, mask
from shared_env.task import Task, TaskError
from tl_sky_adapter import sky_config
from tl_slurm_adapter.options import OptionError, parse_flags
from tl_slurm_adapter.script import BatchRequest, RequestError, render_batch_script

BIN = Path(sys.executable).parent
VALUE = "hunter2-$(touch made)'x"  # every surface must leave out its first word
SHOWN = "hunter2"
YES = """
    HF_TOKEN HUGGING_FACE_HUB_TOKEN GITHUB_TOKEN AWS_SESSION_TOKEN AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID WANDB_API_KEY
    OPENAI_APIKEY apiKey KAGGLE_KEY DB_PASS DB_PWD MYSQL_PWD PGPASSWORD SSH_PRIVATE_KEY AUTH BASIC_AUTH AUTH_TOKEN TOKEN
    GOOGLE_APPLICATION_CREDENTIALS SECRET SECRETS PASSWORD PASSWD API_KEY API_KEY_2 HF_TOKEN2 TOKEN_PROD GITHUB_PAT
    CREDS HFTOKEN dbPassword hf-token api-key SSH_PASSPHRASE CI_JOB_JWT AZURE_STORAGE_KEY SECRET_KEY_BASE
"""
NO = """
    TOKENIZERS_PARALLELISM MAX_TOKENS AUTHOR KEYBOARD NUM_KEYS PAD_TOKEN PAD_TOKEN_ID EOS_TOKEN MAX_TOKEN TOKEN_COUNT
    TOKENIZER TOKENIZER_PATH PWD OLDPWD KEY PASS NUM_PASSES AUTH_METHOD VAULT_TOKEN_FILE SORT_KEY PRIMARY_KEY PATH
    COMPASS AUTHORITY SECRETARY MONKEY _ __ LR XAUTHORITY SSH_AUTH_SOCK tokens_per_batch FLOPS_PER_TOKEN MASTER_PORT
"""


def test_names_of_credentials() -> None:
    assert [name for name in YES.split() if not is_credential(name)] == []
    assert [name for name in NO.split() if is_credential(name)] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export HF_TOKEN=hunter2", "export HF_TOKEN=***"),
        ("HF_TOKEN='a hunter2' srun a", "HF_TOKEN=*** srun a"),
        ('HF_TOKEN="a hunter2" srun a', "HF_TOKEN=*** srun a"),
        ("HF_TOKEN='hunter2 not closed", "HF_TOKEN=***"),
        ("--export=ALL,API_KEY=hunter2,B=1", "--export=ALL,API_KEY=***,B=1"),
        ("a --api-key hunter2 --lr 1", "a --api-key *** --lr 1"),
        ("a --hf-token=hunter2", "a --hf-token=***"),
        ("run='export PASSWORD=\\'hunter2 b\\' c'", "run='export PASSWORD=*** c'"),
        ("no 'HF_TOKEN=hunter2'", "no 'HF_TOKEN=***'"),
        # of a variable, of nothing, of no credential, of plain words
        ('HF_TOKEN="$HF_TOKEN" HF_TOKEN=$A a', 'HF_TOKEN="$HF_TOKEN" HF_TOKEN=$A a'),
        ("HF_TOKEN= a", "HF_TOKEN= a"),
        ("MAX_TOKENS=5 --max-tokens 5", "MAX_TOKENS=5 --max-tokens 5"),
        ("write --set HF_TOKEN=...; the token was wrong", "write --set HF_TOKEN=...; the token was wrong"),
    ],
)  # fmt: skip
def test_what_is_given_to_a_credential_is_masked_in_any_text(text: str, shown: str) -> None:
    assert mask(text) == shown


TASK = {
    "name": "x",
    "resources": {"num_nodes": 2, "provider": "slurm"},
    "env": {"HF_TOKEN": VALUE, "LR": "0.1"},
    "secrets": {"PLAIN": VALUE + "2", "RANK": VALUE + "3"},
    "script": "srun env\n",
}


def a_task(**changes: object) -> Task:
    return load_task(copy.deepcopy({**TASK, **changes}))


def tl(command: str, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / command, *arguments], capture_output=True, text=True, cwd=cwd, env={"PATH": os.defpath, **(env or {})}
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(TASK))
    return tmp_path


# --- previews


def test_a_rendered_script_shows_no_credential_and_still_runs(place: Path) -> None:
    done = tl("tl-slurm", "render", "task.yaml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert SHOWN not in done.stdout + done.stderr
    assert "export LR=0.1\n" in done.stdout
    assert re.findall(r"3 values of credentials left out; --show-secrets prints them", done.stderr)
    head = done.stdout.partition("# --- rendezvous")[0] + "env -0\n"
    secrets = dict.fromkeys(("HF_TOKEN", "PLAIN", "RANK"), VALUE)
    given = subprocess.run(["bash"], input=head, env={"PATH": os.defpath, **secrets}, capture_output=True, text=True)
    found = dict(item.split("=", 1) for item in given.stdout.split("\0") if "=" in item)
    assert {name: found[name] for name in secrets} == secrets
    for missing in secrets:
        env = {"PATH": os.defpath, **secrets}
        del env[missing]
        ended = subprocess.run(["bash"], input=head, env=env, capture_output=True, text=True)
        assert ended.returncode != 0
        assert ended.stdout == ""
        assert f"{missing}: left out of this preview; set it where sbatch is called" in ended.stderr


def test_show_secrets_prints_exactly_what_is_submitted(place: Path) -> None:
    done = tl("tl-slurm", "render", "task.yaml", "--show-secrets", cwd=place)
    assert done.stdout == str(BatchRequest.from_task(a_task()))
    assert done.stdout.count(SHOWN) == 3
    assert "left out" not in done.stderr


def test_without_credentials_the_preview_is_what_is_submitted(place: Path) -> None:
    (place / "task.yaml").write_text("env: {MAX_TOKENS: 5}\nresources: {num_nodes: 2}\nscript: srun a\n")
    done = tl("tl-slurm", "render", "task.yaml", cwd=place)
    assert done.stdout == str(BatchRequest.from_task(load_task(place / "task.yaml")))
    assert done.stderr == ""


def test_credentials_in_export_are_names_alone_in_a_preview() -> None:
    request = BatchRequest("true", sbatch_flags="--export=ALL,HF_TOKEN=hunter2,LR=1", env={"API_KEY": SHOWN})
    text, count = request.preview()
    assert SHOWN not in text
    assert "#SBATCH --export=ALL,HF_TOKEN,LR=1\n" in text
    assert count == 2
    assert "#SBATCH --export=ALL,HF_TOKEN=hunter2,LR=1\n" in str(request)


def test_the_users_own_text_is_left_alone() -> None:
    text, _ = BatchRequest.from_task(a_task(script=f"echo {SHOWN}\n")).preview()
    assert text.endswith(f"# Main run command\necho {SHOWN}\n")


def test_rendered_skypilot_yaml_shows_no_credential(place: Path) -> None:
    (place / "task.yaml").write_text(yaml.safe_dump({**TASK, "resources": {"num_nodes": 2}}))
    done = tl("tl-sky", "render", "task.yaml", cwd=place)
    assert SHOWN not in done.stdout + done.stderr
    config = yaml.safe_load(done.stdout)
    assert config["envs"] == {"HF_TOKEN": None, "LR": "0.1"}
    assert config["secrets"] == {"PLAIN": None, "RANK": None}
    assert "3 values of credentials left out; --show-secrets prints them" in done.stderr
    assert "sky launch: --env HF_TOKEN --secret PLAIN --secret RANK" in done.stderr
    full = tl("tl-sky", "render", "task.yaml", "--show-secrets", cwd=place)
    assert yaml.safe_load(full.stdout) == sky_config(load_task(place / "task.yaml"))
    assert full.stdout.count(SHOWN) == 3


def test_the_functions_give_the_true_text() -> None:
    assert SHOWN in render_batch_script("true", env={"HF_TOKEN": VALUE})
    assert sky_config(a_task(resources={}))["envs"]["HF_TOKEN"] == VALUE


# --- objects, findings, errors


def test_no_object_shows_a_credential() -> None:
    task = a_task()
    request = BatchRequest.from_task(task, sbatch_flags=f"--export=API_KEY={SHOWN}", setup=f"export TOKEN={SHOWN}\n")
    for thing in (task, request, request.options, [task], {"a": request}):
        for text in (repr(thing), f"{thing!r}", f"{[thing]}"):
            assert SHOWN not in text
    assert SHOWN not in str(task)
    assert "LR" in repr(task) and "0.1" in repr(request)


def test_findings_show_no_credential(place: Path) -> None:
    task = a_task(
        env={"HF_TOKEN": f"'{SHOWN}'", "API_KEY": f"{SHOWN}${{HUNTER2}}", "LR": "'1'"},
        script=f"HF_TOKEN={SHOWN} srun torchrun --node_rank=$NODE_RANK --api-key {SHOWN} a.py {SHOWN}-plain\n",
        secrets={"PLAIN": f"{SHOWN}-plain"},
    )
    found = check(task)
    assert {"MN119", "MN101"} <= {finding.code for finding in found}
    for finding in found:
        assert "hunter2" not in (repr(finding) + json.dumps(finding.as_dict())).lower()
    assert any("write LR: 1" in finding.fix for finding in found)
    (place / "task.yaml").write_text(
        yaml.safe_dump({**TASK, "env": task.env, "secrets": task.secrets, "script": task.script})
    )
    for arguments in (("check", "task.yaml"), ("check", "--json", "task.yaml")):
        done = tl("shared-env", *arguments, cwd=place)
        assert done.returncode == 0
        assert "MN119" in done.stdout
        assert "hunter2" not in (done.stdout + done.stderr).lower()


BAD_YAML = [
    "env: {HF_TOKEN: !hunter2 x}\n", "secrets: {A: !hunter2}\n", "env: {HF_TOKEN: *hunter2}\n",
    "secrets: {A: &hunter2 x, B: &hunter2 y}",
    "secrets: {A: !hunter2!x y}\n", "secrets: {A: [hunter2]}\n", "env: {HF_TOKEN=hunter2: }\n",
    "env: {'HF_TOKEN=hunter2': x}\n",
    'secrets: {A: "hunter2\\q"}\n', "secrets: {A: 'hunter2}\n", "secrets: {A: hunter2: 3}\n",
    "secrets: {A: |hunter2}\n",
    "secrets:\n\tA: hunter2\n", "secrets: {A: \"hunter2\\0\"}\n", "secrets: {A: %hunter2}\n",
    "secrets: {A: @hunter2}\n",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_YAML)
def test_errors_of_a_file_show_no_credential(tmp_path: Path, text: str) -> None:
    (tmp_path / "task.yaml").write_text(text)
    for command in (("check",), ("--debug", "check"), ("try",)):
        done = tl("shared-env", *command, "task.yaml", cwd=tmp_path)
        assert done.returncode == 2
        assert "hunter2" not in done.stdout + done.stderr
    with pytest.raises(TaskError) as caught:
        load_task(tmp_path / "task.yaml")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", "secrets.A.B=hunter2"), ("--set", "HF-TOKEN=hunter2"), ("--set", "resources.HF_TOKEN=[hunter2"),
        ("--set", "HF_TOKEN=hunter2", "--sbatch-flags", "--nodes=9"), ("HF_TOKEN=hunter2",), ("--hf-token=hunter2",),
        ("--sbatch-flags", "--export=ALL,HF_TOKEN='hunter2"), ("--sbatch-flags", "--nope --export=HF_TOKEN=hunter2"),
        ("--sbatch-flags", '--export=HF_TOKEN="a hunter2" x'), ("--time-limit", "HF_TOKEN=hunter2"),
        ("--sbatch-flags", "--export=HF_TOKEN=hunter2\x07"),
    ],
)  # fmt: skip
def test_errors_of_a_command_line_show_no_credential(place: Path, arguments: tuple[str, ...]) -> None:
    for debug in ((), ("--debug",)):
        done = tl("tl-slurm", *debug, "render", "task.yaml", *arguments, cwd=place)
        assert done.returncode in (1, 2), done.stdout
        assert "hunter2" not in done.stdout + done.stderr
        assert done.stderr


def test_errors_of_the_functions_show_no_credential() -> None:
    with pytest.raises(RequestError) as refused:
        BatchRequest("true", env={"HF_TOKEN": ["hunter2"]})  # type: ignore[dict-item]
    assert "hunter2" not in f"{refused.value!r} {refused.value}"
    with pytest.raises(OptionError) as wrong:
        parse_flags("--export=HF_TOKEN=hunter2 --nope")
    assert "hunter2" not in f"{wrong.value!r} {wrong.value}"


# --- a run on this machine


def test_try_prints_no_credential_and_its_files_are_private(place: Path) -> None:
    script = (
        "echo lr=$LR ${#HF_TOKEN} ${#PLAIN}\n"
        "for d in ${TMPDIR%/*} $0; do echo file $(stat -c %a $d) $d; done\n"
    )  # fmt: skip
    for provider in ("slurm", "skypilot"):
        resources = {"num_nodes": 2, "provider": provider}
        keys = {"resources": resources, "script": script, "launch": "per-node", "secrets": {"PLAIN": VALUE}}
        (place / "task.yaml").write_text(yaml.safe_dump({**TASK, **keys}))
        for option in ((), ("--json",)):
            command = f'umask 0; exec "{BIN}/shared-env" try task.yaml {" ".join(option)}'
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=place)
            assert done.returncode == 0, done.stderr
            assert SHOWN not in done.stdout + done.stderr
            assert f"lr=0.1 {len(VALUE)} {len(VALUE)}" in done.stdout + done.stderr
            directories = re.findall(r"file (\d+) (\S*/tl-multinode-try-\w+)$", done.stdout + done.stderr, re.M)
            assert {mode for mode, _ in directories} == {"700"}
            assert not [path for _, path in directories if Path(path).exists()]


# --- a real cluster


@pytest.mark.one_release
def test_submit_puts_no_credential_into_a_command_line_or_a_file(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "true\n", env_=TASK["env"], secrets={"PLAIN": VALUE})
    trace = workdir / "trace"
    strace = f"strace -f -qq -v -s 1000000 -e trace=execve,openat,creat,memfd_create -o {trace}"
    program = f'umask 0; exec {strace} {PYTHON} -B -m tl_slurm_adapter.cli "$@"'
    for arguments in (("submit", "--hold"), ("submit", "--test-only"), ("render", "")):
        flags = ("--sbatch-flags", arguments[1]) if arguments[1] == "--hold" else arguments[1:]
        done = cluster.run(
            "sh", "-c", program, "sh", arguments[0], path, *filter(None, flags), cwd=workdir, timeout=100
        )
        assert done.returncode == 0, done.stderr
        assert SHOWN not in done.stdout + done.stderr
        calls = trace.read_text().splitlines()
        assert any("execve(" in call and "sbatch" in call for call in calls) == (arguments[0] == "submit")
        assert not [call for call in calls if SHOWN in call]
        made = [call for call in calls if re.search(r"O_CREAT|O_TMPFILE|creat\(", call) and "/dev/null" not in call]
        assert not [call for call in made if not re.search(r", 0600\)", call)]


def test_files_on_the_nodes_are_private(cluster: Cluster, workdir: Path) -> None:
    """With a umask that hides nothing, in the batch shell, in the tasks, and where the script itself is placed."""
    (workdir / "look.sh").write_text(
        "find /tmp /var/tmp /dev/shm $HOME . -maxdepth 2 -name '*tl-multinode*' -type f -printf 'mode %m %p\\n'\n"
    )
    for keys in ({"launch": "per-node"}, {}):
        script = "sh ./look.sh 2> /dev/null\n" + ("" if keys else "srun sh ./look.sh 2> /dev/null\n")
        done = follow(cluster, workdir, script, setup="umask 0\n", env_=TASK["env"], **keys)
        modes = re.findall(r"mode (\d+) (\S+)", done.stdout)
        assert any(path.endswith("task-prolog") for _, path in modes), done.stdout + done.stderr
        assert any(path.endswith("run") for _, path in modes) == bool(keys)
        assert all(mode.endswith("00") for mode, _ in modes), modes


def test_no_command_of_a_running_job_shows_a_credential(cluster: Cluster, workdir: Path) -> None:
    """Every process on this machine, which plays all nodes, while the job runs."""
    program = workdir / "look.py"
    program.write_text(
        "import glob\n"
        "for name in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    try: print('argv', open(name, 'rb').read().replace(b'\\0', b' '))\n"
        "    except OSError: pass\n"
    )
    for keys in ({"launch": "per-node"}, {}):
        script = f"{PYTHON} {program}\n"
        done = follow(
            cluster, workdir, script if keys else f"srun {script}", env_=TASK["env"], secrets={"PLAIN": VALUE}, **keys
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("look.py") >= 2
        assert "slurmstepd" in done.stdout
        assert SHOWN not in done.stdout


CALLER = {
    "SECRET_OF_CALLER": "x", "HF_TOKEN": "x", "LD_LIBRARY_PATH": "/nowhere",
    "TMPDIR": "/nowhere",
    "VIRTUAL_ENV": "/nowhere", "SSH_AUTH_SOCK": "/nowhere", "SLURM_JOB_ID": "99", "SBATCH_EXPORT": "ALL",
    "EDITOR": "x",
    "LC_TIME": "C", "LANG": "C", "TERM": "dumb", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/sh",
    "HTTP_PROXY": "x",
    "BASH_FUNC_f%%": "() { :; }", "PS1": "x", "PET_NNODES": "9", "RANK": "9",
}  # fmt: skip
LOGIN = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_TIME", "TERM", "SLURM_CONF"}
OF_THE_TASK = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LR"}
OF_A_RANK = {"RANK", "LOCAL_RANK", "NODE_RANK"}
# slurmd, slurmstepd and srun, and in newer releases sbatch for the launchers of MPI libraries
OF_SLURM = re.compile(
    r"(SLURM|SLURMD|SRUN|SBATCH|SBCAST|PMI|PMIX|PRTE_MCA|OMPI_MCA|HYDRA|I_MPI_HYDRA)_\w+|ENVIRONMENT|HOSTNAME|TMPDIR|GPU_DEVICE_ORDINAL"
    r"|LC_\w+|CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK|SLURM_\w+"
)
OF_BASH = {"PWD", "SHLVL", "_", "OLDPWD"}


def test_a_clean_environment_holds_what_is_listed_and_nothing_else(cluster: Cluster, workdir: Path) -> None:
    script = "env -0 > batch.env\nsrun sh -c 'env -0 > task.$RANK.env'\n"
    path = write_task(workdir, script, env_={"LR": "0.1"})
    done = tl_slurm(cluster, "submit", path, "--follow", "--clean-env", cwd=workdir, env=CALLER)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("batch.env", "task.0.env", "task.1.env"):
        found = dict(item.split("=", 1) for item in (workdir / name).read_text().split("\0")[:-1])
        ranks = OF_A_RANK if name != "batch.env" else set()
        allowed = LOGIN | OF_THE_TASK | ranks | OF_BASH
        assert {each for each in found if each not in allowed and not OF_SLURM.fullmatch(each)} == set()
        assert (LOGIN | OF_THE_TASK | ranks) <= set(found)
        assert {each: found[each] for each in ("LANG", "LC_TIME", "TERM", "LR")} == {
            "LANG": "C", "LC_TIME": "C", "TERM": "dumb", "LR": "0.1",
        }  # fmt: skip
        assert not {"99", "/nowhere", "x"} & set(found.values())
