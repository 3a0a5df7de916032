"""The command lines where no cluster is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tl_slurm_adapter.cli import group

SKY = {
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_GPUS_PER_NODE": "2",
}  # fmt: skip
BIN = Path(sys.executable).parent


def run(command: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / command, *arguments], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **(env or {})}
    )


def test_show() -> None:
    done = run("shared-env", "show", env=SKY)
    assert done.stdout.splitlines() == [
        "MASTER_ADDR  10.0.0.1  host of rank 0; from SKYPILOT_NODE_IPS (first line)",
        "MASTER_PORT  29500     port on that host; from 29500 (default on SkyPilot)",
        "NODE_RANK    1         number of this node; from SKYPILOT_NODE_RANK",
        "RANK         1         number of this process; from SKYPILOT_NODE_RANK",
        "LOCAL_RANK   0         number of this process on its node; from 0 (one process a node)",
        "WORLD_SIZE   4         number of processes; from SKYPILOT_NUM_NODES * max(1, SKYPILOT_NUM_GPUS_PER_NODE)",
    ]
    as_json = json.loads(run("shared-env", "show", "--json", env=SKY).stdout)
    assert as_json["values"]["RANK"] == "1"
    assert as_json["system"] == "skypilot"
    assert as_json["sources"]["RANK"] == "SKYPILOT_NODE_RANK"


def test_show_outside_a_task() -> None:
    done = run("shared-env", "show")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: this process is not part of a multi-node task")
    assert done.stderr.count("\n") == 1
    assert "Traceback" in run("shared-env", "--debug", "show").stderr


def test_exec_becomes_the_command() -> None:
    done = run("shared-env", "exec", "--", "sh", "-c", 'echo "$RANK/$WORLD_SIZE $1"; exit 5', "x", "a b", env=SKY)
    assert (done.returncode, done.stdout) == (5, "1/4 a b\n")
    assert run("shared-env", "exec", "printf", "%s", "--json", env=SKY).stdout == "--json"


@pytest.mark.parametrize(
    ("arguments", "env", "status", "words"),
    [
        (["exec", "--", "true"], {}, 1, "not part of a multi-node task"),
        (["exec", "--"], SKY, 2, "no command"),
        (["exec", "--nope", "x"], SKY, 2, "unknown option --nope"),
        (["exec", "--", "no-such-command"], SKY, 127, "no-such-command: not found"),
        (["exec", "--", "/etc/passwd"], SKY, 126, "/etc/passwd: Permission denied"),
        (["exec"], SKY, 2, "Usage: shared-env exec"),
        (["nothing"], {}, 2, "No such command"),
    ],
)
def test_exit_statuses(arguments: list[str], env: dict[str, str], status: int, words: str) -> None:
    done = run("shared-env", *arguments, env=env)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_exec_does_not_load_what_is_slow() -> None:
    code = (
        "import os, sys; sys.argv[1:] = ['exec', '--', 'true']; os.execvp = lambda *_: print(*sys.modules)\n"
        "from shared_env.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=SKY, check=True,
                          cwd=Path(__file__).parents[1])  # fmt: skip
    assert not {"click", "rich", "yaml", "pydantic", "re", "typing", "json"} & set(done.stdout.split())


@pytest.mark.parametrize("command", ["shared-env", "tl-slurm"])
def test_help_and_version(command: str) -> None:
    assert "Examples:" in run(command, "--help").stdout
    assert "0.1.0" in run(command, "--version").stdout
    for name in group.commands if command == "tl-slurm" else ("show", "exec"):
        done = run(command, name, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith(f"Usage: {command} {name}")


def test_render(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text("name: x\nresources: {provider: slurm, num_nodes: 2}\nscript: srun hostname\nnmae: y\n")
    done = run("tl-slurm", "render", str(path), "--sbatch-flags", "-t 5", "--set", "A=b c")
    assert done.returncode == 0
    assert "#SBATCH --time=5" in done.stdout
    assert "export A='b c'" in done.stdout
    assert "nmae" in done.stderr  # the unknown key is named
    assert "name" in done.stderr


def test_errors_of_a_task_name_the_place(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text("resources:\n  num_nodes: 0\nenv:\n  A: true\nscript: x\n")
    done = run("tl-slurm", "render", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{path}:2:14: resources.num_nodes: must be an integer >= 1, not 0" in done.stderr
    assert f"{path}:4:6: env.A" in done.stderr
    missing = run("tl-slurm", "render", str(tmp_path / "none.yaml"))
    assert missing.returncode == 1
    assert "none.yaml" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_colour_only_on_a_terminal(tmp_path: Path) -> None:
    def on_a_terminal(**env: str) -> str:
        return subprocess.run(
            ["script", "-qec", f"{BIN}/tl-slurm render {tmp_path}/none.yaml", "/dev/null"],
            env={"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", **env},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        ).stdout

    assert "\x1b[1;31m" in on_a_terminal()
    assert "\x1b[1;31m" not in on_a_terminal(NO_COLOR="1")
    assert "\x1b" not in run("tl-slurm", "render", str(tmp_path / "none.yaml")).stderr


def test_task_prolog_runs_as_printed(tmp_path: Path) -> None:
    prolog = tmp_path / "prolog.sh"
    prolog.write_text(run("tl-slurm", "task-prolog").stdout)
    prolog.chmod(0o755)
    task = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_PROCID": "1", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}  # fmt: skip
    done = subprocess.run([prolog], env=task, capture_output=True, text=True, check=True)
    assert "export RANK=1\n" in done.stdout
    assert "export MASTER_ADDR=n1\n" in done.stdout


@pytest.mark.parametrize(("command", "word"), [("tl-slurm", "submit"), ("shared-env", "check")])
def test_completion(command: str, word: str) -> None:
    variable = f"_{command.upper().replace('-', '_')}_COMPLETE"
    assert f"{command}" in run(command, env={variable: "bash_source"}).stdout
    done = run(command, env={variable: "bash_complete", "COMP_WORDS": f"{command} {word[:3]}", "COMP_CWORD": "1"})
    assert f"plain,{word}\n" in done.stdout


def test_public_names_are_no_modules_whatever_was_imported_before() -> None:
    code = """
import importlib, pkgutil, types
for package in ("shared_env", "tl_slurm_adapter", "tl_sky_adapter"):
    module = importlib.import_module(package)
    for each in pkgutil.iter_modules(module.__path__):
        if each.name != "policy":  # needs SkyPilot
            importlib.import_module(f"{package}.{each.name}")
    for name in set(module.__all__) - {"MultiNodePolicy"}:
        if type(getattr(module, name)) is types.ModuleType:
            print(package, name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
