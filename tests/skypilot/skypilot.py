"""SkyPilot's client, API server and Slurm cloud, unmodified, inside the hosts of one test cluster."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster import Cluster
from cluster import missing as cluster_missing

from skypilot.environment import client, environment

HERE = Path(__file__).resolve().parent
COMMANDS = ("ssh", "ssh-keygen", "rsync", "socat")
SSHD = "/usr/sbin/sshd"
POLICY = "admin_policy: tl_sky_adapter.MultiNodePolicy\n"


def missing() -> str:
    """Say in one sentence why no SkyPilot can run here, or return an empty string."""
    absent = [name for name in COMMANDS if not shutil.which(name)] + ([] if Path(SSHD).exists() else ["sshd"])
    if reason := cluster_missing():
        return reason
    return f"a real SkyPilot needs {', '.join(absent)}; type: make setup" if absent else ""


class SkyPilot:
    """SkyPilot's client on the login host of its own Slurm cluster: 4 nodes with 8 CPUs and 4 fake L4 each.

    Two SkyPilot clusters must not share a node: SkyPilot's daemon on the first node of each wants the same port.
    The cluster's hosts have no way out: what SkyPilot would download is put where it looks for it. Everything runs in
    the hosts' namespaces and ends with them; all files are below the cluster's scratch directory.
    """

    def __init__(self) -> None:
        self.cluster = Cluster({"nodes": 4, "cpus": 8, "mem": 64000, "gres": "gpu:L4:4"})
        self._environ: dict[str, str] = {}

    def __enter__(self) -> SkyPilot:
        self.venv = environment()
        self.cluster.start()
        try:
            self._make_home()
            self._start_sshd()
            self.sky("api", "start", check=True, timeout=120)
            self.sky("check", "slurm", check=True, timeout=120)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()

    @property
    def python(self) -> str:
        """The interpreter that has SkyPilot."""
        return str(self.venv / "bin" / "python")

    @property
    def home(self) -> Path:
        """The home directory of the user on the login host and the nodes."""
        return self.cluster.scratch / "home"

    @property
    def client(self) -> Path:
        """The home directory of SkyPilot's user, with ~/.sky."""
        return self.cluster.scratch / "client"

    def run(self, *argv: Any, env: Mapping[str, str | None] | None = None, **kwargs: Any) -> Any:
        """Run a command on the login host with SkyPilot's environment; see Cluster.run."""
        kwargs.setdefault("timeout", 110)
        kwargs.setdefault("cwd", self.client)
        return self.cluster.run(*map(str, argv), env={**self._environ, **(env or {})}, **kwargs)

    def sky(self, *argv: Any, **kwargs: Any) -> Any:
        """Run SkyPilot's own command line."""
        return self.run(self.python, self.venv / "bin" / "sky", *argv, **kwargs)

    def tl_sky(self, *argv: Any, **kwargs: Any) -> Any:
        """Run tl-sky of the checkout."""
        return self.run(self.python, "-m", "tl_sky_adapter.cli", *argv, **kwargs)

    def code(self, text: str, *argv: Any, **kwargs: Any) -> Any:
        """Run Python code that can import sky and the checkout."""
        return self.run(self.python, "-c", text, *argv, **kwargs)

    def set_policy(self, on: bool) -> None:
        """Switch the admin policy in SkyPilot's configuration, which client and API server read for each request."""
        (self.client / ".sky" / "config.yaml").write_text(POLICY if on else "")

    def _make_home(self) -> None:
        for directory in (self.home / ".ssh", self.client / ".slurm"):
            directory.mkdir(parents=True)
        (self.home / ".ssh").chmod(0o700)
        key, host_key = self.client / "id", self.client / "hostkey"
        for path in (key, host_key):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        (self.home / ".ssh/authorized_keys").write_text(Path(f"{key}.pub").read_text())
        (self.client / ".slurm/config").write_text(
            f"Host ci\n  HostName 127.0.0.1\n  User root\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
        )
        self._environ = client(self.venv, self.client)
        self.set_policy(False)
        # The user's home directory on the hosts, for sshd, ssh and the shell alike.
        passwd = self.cluster.scratch / "passwd"
        text = Path("/etc/passwd").read_text()
        passwd.write_text(text.replace(f":{pwd.getpwuid(0).pw_dir}:", f":{self.home}:", 1))
        for host in (self.cluster.login, *self.cluster.nodes):
            self.cluster.run("mount", "--bind", passwd, "/etc/passwd", host=host, check=True)
        prolog = self.cluster.scratch / "node_prolog.sh"
        values = {
            "CONF": self.cluster.conf,
            "HOME": self.home,
            "VENV": self.venv,
            "SITE_BIN": Path(sys.executable).parent,
        }
        text = (HERE / "node_prolog.sh").read_text()
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        prolog.write_text(text)
        prolog.chmod(0o755)
        with self.cluster.conf.open("a") as conf:
            conf.write(f"Prolog={prolog}\n")
        self.cluster.run("scontrol", "reconfigure", check=True)

    def _start_sshd(self) -> None:
        """The login node's sshd, on the loopback of its own network namespace."""
        config = self.client / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1\nHostKey {self.client}/hostkey\nPidFile {self.client}/sshd.pid\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "StrictModes no\nUsePAM no\nMaxSessions 100\nMaxStartups 100:30:200\n"
            f"SetEnv SLURM_CONF={self.cluster.conf} UV_OFFLINE=1 UV_NO_INDEX=1 "
            "UV_PYTHON_DOWNLOADS=never UV_NO_CACHE=1 PYTHONDONTWRITEBYTECODE=1\n"
        )
        # sshd wants an empty directory /run/sshd: the login host gets a /run of its own, with the cluster's directory.
        own, base = self.cluster.scratch / "run", self.cluster.base
        for directory in (own / "sshd", own / base.name):
            directory.mkdir(parents=True, mode=0o755)
        self.cluster.run("mount", "--rbind", base, own / base.name, check=True)
        self.cluster.run("mount", "--rbind", own, "/run", check=True)
        self.cluster.run(SSHD, "-f", config, "-E", self.client / "sshd.log", check=True)
