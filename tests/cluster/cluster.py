"""The Python side of cluster.sh: start clusters, run commands on their hosts."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().with_name("cluster.sh")
CHECKOUT = SCRIPT.parents[2]
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
COMMANDS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "ip", "nsenter", "unshare")
# Noise of a surrounding job or launcher, which would change what Slurm's commands do.
NOISE = ("SLURM", "SBATCH", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_", "PMI", "OMPI_", "PET_", "SKYPILOT_")
# TMPDIR too: it may name a directory that no host has, because each has its own /tmp.
NOISE_NAMES = {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TMPDIR", "TEMP", "TMP"}
# squeue(1), JOB STATE CODES: the states that a job does not leave by itself.
FINAL = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
}  # fmt: skip

Arg = str | os.PathLike[str]
Env = Mapping[str, str | None]


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")


NSENTER = _which("nsenter") or "nsenter"  # absolute: a test may take nearly everything out of PATH
ENV = _which("env") or "env"


def missing() -> str:
    """Say in one sentence why no cluster can run here, or return an empty string."""
    absent = [name for name in COMMANDS if not _which(name)]
    if os.geteuid() != 0:
        return "a real Slurm cluster needs root; type: sudo make test"
    return f"a real Slurm cluster needs {', '.join(absent)}; type: make setup" if absent else ""


def _letters(number: int) -> str:
    text = ""
    while number or not text:
        number, digit = divmod(number, 26)
        text = chr(ord("a") + digit) + text
    return text


@dataclass
class Cluster:
    """One cluster. `settings` are those of cluster.sh in lower case, such as nodes=2 or gres="gpu:4".

    After start(): `login` and `nodes` are host names, `conf` is its slurm.conf, and `scratch` is a
    directory with the same path on every host (each has its own /tmp).
    """

    settings: dict[str, str | int] = field(default_factory=dict)
    name: str = ""
    _guard: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def base(self) -> Path:
        """Configuration, logs and state of the daemons."""
        return Path("/run", self.name)

    @property
    def conf(self) -> Path:
        return self.base / "slurm.conf"

    @property
    def scratch(self) -> Path:
        return Path("/var/tmp", self.name)

    @property
    def login(self) -> str:
        return f"{self.name}ctl"

    @property
    def nodes(self) -> list[str]:
        return [f"{self.name}{i}" for i in range(1, int(self.settings.get("nodes", 3)) + 1)]

    @property
    def controller(self) -> int:
        """The process id of slurmctld; when it has ended, start() starts it again."""
        return int((self.base / "slurmctld.pid").read_text())

    def start(self) -> Cluster:
        """Start it, or what of it has died. Returns itself; raises RuntimeError with the script's words."""
        if not self.name:
            self._claim()
        try:
            self._script("start")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every process of the cluster and remove all its files. May be repeated."""
        if not self.name:
            return
        self._script("stop")
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self._guard and self._guard.stdin:
            self._guard.stdin.close()
            self._guard.wait()
        self.name, self._guard = "", None

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def popen(
        self, *argv: Arg, host: str | None = None, env: Env | None = None, cwd: Arg | None = None, **kwargs: Any
    ) -> subprocess.Popen[Any]:
        """Start a command on a host (default: the login host); its pid is the command's own.

        It sees the caller's environment without the noise of other jobs, with SLURM_CONF; then `env` is
        applied, where None removes a name. `cwd` defaults to `scratch`.
        """
        pid = (self.base / f"host.{host or self.login}.pid").read_text().strip()
        enter = [NSENTER, "--target", pid, "--net", "--uts", "--mount", "--root", "--"]
        return subprocess.Popen(
            [*enter, ENV, "-C", cwd or self.scratch, "--", *argv], env=self._environ(env or {}), **kwargs
        )

    def run(
        self,
        *argv: Arg,
        input: str | bytes | None = None,
        timeout: float = 60,
        check: bool = False,
        text: bool = True,
        **kwargs: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command on the login host; arguments and result as with subprocess.run.

        Output is captured, as bytes with text=False. `timeout` is in seconds; the command and its
        children are killed at the end of it. See popen() for `host`, `env` and `cwd`.
        """
        kwargs.setdefault("stdin", subprocess.DEVNULL if input is None else subprocess.PIPE)
        kwargs.setdefault("stdout", subprocess.PIPE)
        kwargs.setdefault("stderr", subprocess.PIPE)
        if text:
            kwargs.update(encoding="utf-8", errors="surrogateescape")
        with self.popen(*argv, start_new_session=True, **kwargs) as process:
            try:
                out, err = process.communicate(input, timeout)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        result = subprocess.CompletedProcess(argv, process.returncode, out, err)
        if check and result.returncode:
            raise RuntimeError(f"{' '.join(map(str, argv))}: exit status {result.returncode}: {err or out}")
        return result

    def node(self, index: int, *argv: Arg, **kwargs: Any) -> subprocess.CompletedProcess[Any]:
        """Run a command on node `index` (1, 2, ...), as run() does on the login host."""
        return self.run(*argv, host=self.nodes[index - 1], **kwargs)

    def sbatch(self, script: str, *flags: str, **kwargs: Any) -> str:
        """Submit the text of a script; return the job id. A missing first line becomes #!/bin/bash."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
        return str(self.run("sbatch", "--parsable", *flags, input=text, check=True, **kwargs).stdout).strip()

    def wait(self, job_id: str, timeout: float = 60) -> str:
        """Wait until a job (all its tasks, if it is an array) has ended; return its state, the worst one of several."""
        end = time.monotonic() + timeout
        while not (states := self._states(job_id)) or not states <= FINAL:
            if time.monotonic() > end:
                raise TimeoutError(f"job {job_id} is {', '.join(states)} after {timeout} s")
            time.sleep(0.05)
        return min(states, key=lambda state: state == "COMPLETED")

    def requeue(self, job_id: str) -> None:
        """Requeue a running job, and spare the test the two minutes that Slurm holds a requeued job back."""
        self.run("scontrol", "requeue", job_id, check=True)
        time.sleep(1.1)  # a slurmd refuses what starts again in the second in which it was killed
        end = time.monotonic() + 60
        while self._states(job_id).isdisjoint(FINAL | {"RUNNING"}):
            if time.monotonic() > end:
                raise TimeoutError(f"job {job_id} does not start again")
            self.run("scontrol", "update", f"jobid={job_id}", "starttime=now")
            time.sleep(0.05)

    def cancel_all(self) -> bool:
        """Cancel whatever jobs there are and wait until they are gone. Returns whether there were any."""
        end, found = time.monotonic() + 30, False
        while jobs := self.run("squeue", "--noheader", "--format=%i %T").stdout.splitlines():
            if time.monotonic() > end:
                raise TimeoutError(f"these jobs do not end: {'; '.join(jobs)}; daemons that ended: {self._ended()}")
            self.run("scancel", "--full", "--signal=KILL", "--user=root")
            self.run("scancel", "--user=root")
            time.sleep(0.05)
            found = True
        return found

    def _ended(self) -> list[str]:
        pids = {path.stem: path.read_text().strip() for path in self.base.glob("slurm*.pid")}
        return [name for name, pid in pids.items() if not Path("/proc", pid, "exe").exists()]

    def _states(self, job_id: str) -> set[str]:
        query = self.run("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T", check=True)
        return set(query.stdout.split())

    def _claim(self) -> None:
        """Take a free name: mkdir succeeds for one only. It ends in a letter, so that host names stay plain."""
        for serial in itertools.count():
            self.name = f"mn{_letters(os.getpid())}{_letters(serial)}"
            try:
                self.base.mkdir()
            except FileExistsError:
                continue
            try:
                self.scratch.mkdir()
                break
            except FileExistsError:
                self.base.rmdir()
        # Should this process be killed, the end of its pipe takes the cluster down.
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read -r _; "$0" stop; rm -rf --one-file-system "$1"', SCRIPT, self.scratch],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self._script_env(),
            cwd="/", start_new_session=True,
        )  # fmt: skip

    def _script_env(self) -> dict[str, str]:
        pid = os.getpid()
        keep = {os.path.realpath(path) for path in (CHECKOUT, sys.prefix, sys.base_prefix, self.scratch)}
        settings = {name.upper(): str(value) for name, value in self.settings.items()}
        own = {"PFX": self.name, "BASE": str(self.base), "NET": f"10.{64 + pid // 256 % 128}.{pid % 256}"}
        return {"PATH": os.environ.get("PATH", os.defpath), "KEEP": " ".join(sorted(keep)), **settings, **own}

    def _script(self, command: str) -> None:
        # A session of its own: an interrupt from the terminal reaches it once, from here.
        script = subprocess.Popen(
            [SCRIPT, command], env=self._script_env(), cwd="/", text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            _, err = script.communicate()
        except BaseException:
            script.terminate()
            script.communicate()
            raise
        if script.returncode:
            raise RuntimeError(f"cluster.sh {command} failed ({script.returncode}): {err}")

    def _environ(self, changes: Env) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(NOISE) and k not in NOISE_NAMES}
        merged: dict[str, str | None] = {**clean, "SLURM_CONF": str(self.conf), **changes}
        return {name: value for name, value in merged.items() if value is not None}
