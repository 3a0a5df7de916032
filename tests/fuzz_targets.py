"""Targets for hostile input. A longer campaign (pip install atheris): python tests/fuzz_targets.py TARGET [libFuzzer's
options, such as -max_total_time=600]; it begins with the seeds in tests/fuzz/TARGET and puts new ones there.

A target takes any bytes and raises when something other than a value or the documented exception comes out of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared_env import check, first_host, load_task
from shared_env.check import torchrun_trap
from shared_env.hostlist import HostlistError, expand_nodelist, expand_task_counts
from shared_env.shell import sky_prefix
from shared_env.task import Task, TaskError
from tl_sky_adapter import SkyTaskError, prefix_run, sky_config
from tl_slurm_adapter import render_batch_script
from tl_slurm_adapter.options import (
    OptionError,
    check_num_nodes,
    effective,
    leading_directives,
    parse_flags,
    task_layout,
)
from tl_slurm_adapter.script import BatchRequest, RequestError

SEEDS = Path(__file__).with_name("fuzz")
SEPARATOR = "\x1e"  # between the arguments of a target that takes several
SHELL = (Path(__file__).parents[1] / "shared_env" / "shell" / "first_host.sh").read_text(encoding="utf-8")


@contextmanager
def refused(*expected: type[Exception]) -> Iterator[None]:
    """Let the documented exceptions pass, if each says something on one readable line."""
    try:
        yield
    except expected as error:
        lines = str(error).split("\n")
        assert len(lines) == len(getattr(error, "problems", lines[:1])), lines
        assert all(line.strip() and len(line) < 2000 for line in lines), lines
        assert all(line.isprintable() for line in lines), lines


def text_of(data: bytes) -> str:
    """Text as it comes from a command line: bytes that are no UTF-8 are lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def fields_of(data: bytes, count: int) -> list[str]:
    """The arguments of a target that takes several; missing ones are empty."""
    found = text_of(data).split(SEPARATOR, count - 1)
    return found + [""] * (count - len(found))


def shell(script: str, *arguments: str, env: Mapping[str, str] | None = None, program: str = "sh") -> bytes:
    """What a shell prints, with one canary: nothing may be written to its directory."""
    with tempfile.TemporaryDirectory(prefix="canary") as directory:
        done = subprocess.run(
            [program, "-s", "--", *map(os.fsencode, arguments)], input=os.fsencode(script), cwd=directory,
            env={"PATH": os.defpath, **(env or {})}, capture_output=True, timeout=20,
        )  # fmt: skip
        assert os.listdir(directory) == [], (script, arguments)
        assert done.returncode in (0, 1), done
        assert done.returncode or not done.stderr, done
        return done.stdout


def hostlist(data: bytes) -> None:
    """expand_nodelist and first_host agree wherever the first reads the text."""
    text = text_of(data)
    with refused(HostlistError):
        first_host(text)
    with refused(HostlistError):
        hosts = expand_nodelist(text)
        assert hosts and all(hosts)
        assert first_host(text) == hosts[0]


def shell_host(data: bytes) -> None:
    """The first host in the shell is Python's, or nothing; the text is never run."""
    text = text_of(data).replace("\0", "")
    found = os.fsdecode(shell(f'{SHELL}\n_tlmn_first_host "$1"; printf "%s" "$_tlmn_host"\n', text))
    with refused(HostlistError):
        hosts = expand_nodelist(text)
        assert found in ("", hosts[0])


def task_counts(data: bytes) -> None:
    """Counts are numbers, one a node."""
    with refused(HostlistError):
        assert all(count >= 0 for count in expand_task_counts(text_of(data)))


def flags(data: bytes) -> None:
    """What was read from flags is read again from their own header lines."""
    text = text_of(data)
    with refused(OptionError):
        options = effective(parse_flags(text))
        again = parse_flags("\n".join(option.header() for option in options))
        assert again == options
        check_num_nodes(options, 2)
        assert task_layout(options, 2).world_size_fallback >= 0
    with refused(OptionError):
        leading_directives(text)


def request(data: bytes) -> None:
    """Any arguments become a script that bash could read, or are refused."""
    run, options, setup, accelerators, cpus, memory, suffix, seconds = fields_of(data, 8)
    limit: Any = None
    with refused(RequestError, OptionError, ValueError):
        limit = float(seconds) if seconds else None
    with refused(RequestError, OptionError):
        text = render_batch_script(
            run, num_nodes=2, sbatch_flags=options, setup=setup, accelerators=accelerators or None, cpus=cpus or None,
            memory=memory or None, master_addr_suffix=suffix, time_limit_seconds=limit, job_name=suffix,
        )  # fmt: skip
        assert text.startswith("#!")


def env(data: bytes) -> None:
    """Values arrive in bash byte for byte, and none of them is run."""
    values = {f"V{number}": value for number, value in enumerate(fields_of(data, 4))}
    with refused(RequestError):
        script = render_batch_script("env -0", env=values)
        found = dict(item.split(b"=", 1) for item in shell(script, program="bash").split(b"\0") if item)
        assert {name: os.fsdecode(found[name.encode()]) for name in values} == values


def task_yaml(data: bytes) -> None:
    """Any file is a task that every part of the package can take, or is refused."""
    with tempfile.NamedTemporaryFile(prefix="fuzz", suffix=".yaml") as file:
        file.write(data)
        file.flush()
        with refused(TaskError):
            use(load_task(file.name))


def overrides(data: bytes) -> None:
    """Any texts of --set."""
    with refused(TaskError):
        use(load_task({"script": "srun a", "env": {"A": "1"}}, overrides=text_of(data).split(SEPARATOR)))


def use(task: Task) -> None:
    """Everything that is done with a task after it was read."""
    assert repr(task)
    assert all(str(problem).isprintable() for problem in task.warnings)
    for finding in check(task):
        assert finding.as_dict()
    with refused(RequestError, OptionError):
        assert str(BatchRequest.from_task(task)).startswith("#!")
    with refused(SkyTaskError):
        assert sky_config(task)["num_nodes"] == task.num_nodes


def script(data: bytes) -> None:
    """The linter reads any script, setup and flags."""
    run, setup, options = fields_of(data, 3)
    torchrun_trap(run)
    for provider in ("slurm", "skypilot"):
        resources = {"provider": provider, "num_nodes": 2, "accelerators": "L4:2"}
        with refused(TaskError):
            task = load_task({"resources": resources, "script": run, "setup": setup})
            for finding in check(task, sbatch_flags=options):
                assert finding.as_dict()


def prefix(data: bytes) -> None:
    """The prefix goes in front of any command, once; with any addresses it gives one of them or stops."""
    run, addresses, task_id = (text.replace("\0", "") for text in fields_of(data, 3))
    prefixed = prefix_run(run, 2)
    assert prefixed.endswith(run) and prefix_run(prefixed, 2) == prefixed
    native = {"SKYPILOT_NODE_IPS": addresses, "SKYPILOT_TASK_ID": task_id, "MASTER_PORT": "auto"}
    given = {name: os.fsencode(value).decode("utf-8", "surrogateescape") for name, value in native.items()}
    found = os.fsdecode(shell(sky_prefix() + 'printf "%s\\n%s" "$MASTER_ADDR" "$MASTER_PORT"\n', env=given))
    if found:
        address, _, port = found.rpartition("\n")
        assert address and address in addresses and not set(address) & set(" \t\n\r")
        assert 10000 <= int(port) < 32768


Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        hostlist, shell_host, task_counts, flags, request, env, task_yaml, overrides, script, prefix,
    )
}  # fmt: skip


def campaign(name: str, arguments: list[str]) -> None:
    """Run libFuzzer on one target until its options or a failure end it."""
    import atheris

    atheris.instrument_all()
    seeds = SEEDS / name
    seeds.mkdir(parents=True, exist_ok=True)
    options = [f"-artifact_prefix={seeds}/", "-timeout=5", "-rss_limit_mb=2048", *arguments]
    atheris.Setup([sys.argv[0], *options, str(seeds)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    campaign(sys.argv[1], sys.argv[2:])
