"""sbatch_command through a real ssh to a real sshd, whose login shell is bash or dash."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import PROBE, files_left, probes, wait_for

from tl_slurm_adapter import SubmitError, parse_sbatch_output, render_batch_script, sbatch_command

PORT = 2222
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
Ssh = Callable[[str], "subprocess.CompletedProcess[str]"]
# sshd in a mount namespace of its own, where the user's login shell is another one; `exec` keeps the pid.
# /run/sshd is sshd's own directory, which Debian makes when the machine starts.
START = 'mount --bind "$1" /etc/passwd && mkdir -p /run/sshd && exec "$2" -D -e -f "$3"'


@pytest.fixture(scope="module", params=["/bin/bash", "/bin/dash"])
def ssh(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Ssh]:
    """Run a command line in a remote shell on the login host; Slurm is in its PATH, as on any login host."""
    assert SSHD, "sshd is missing; type: make setup"
    directory = Path(tempfile.mkdtemp(dir=cluster.scratch))
    for key in ("host", "user"):
        cluster.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / key, check=True)
    accounts = Path("/etc/passwd").read_text()
    (directory / "passwd").write_text(re.sub(r"^(root:.*):[^:\n]*$", rf"\1:{request.param}", accounts, flags=re.M))
    (directory / "sshd_config").write_text(
        f"Port {PORT}\nListenAddress 127.0.0.1\nHostKey {directory}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {directory}/user.pub\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        f"SetEnv SLURM_CONF={cluster.conf}\n"
    )
    with (directory / "sshd.log").open("w") as log:
        server = cluster.popen(
            "unshare", "--mount", "sh", "-c", START, "sh", directory / "passwd", SSHD, directory / "sshd_config",
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_for(lambda: "Server listening" in (directory / "sshd.log").read_text())

        def run(command: str) -> subprocess.CompletedProcess[str]:
            options = ("StrictHostKeyChecking=no", f"UserKnownHostsFile={directory}/known", "LogLevel=ERROR")
            return cluster.run(
                "ssh", "-F", "none", "-i", directory / "user", "-p", str(PORT),
                *(word for option in (*options, "BatchMode=yes") for word in ("-o", option)), "root@127.0.0.1", command,
            )  # fmt: skip

        assert run("echo $0").stdout.strip() == Path(request.param).name
        yield run
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def nothing_left(cluster: Cluster, workdir: Path) -> Iterator[None]:
    before = cluster.run("find", "/tmp", "/root", "-maxdepth", "1").stdout
    assert files_left(cluster, workdir) == []
    yield
    assert cluster.run("find", "/tmp", "/root", "-maxdepth", "1").stdout == before
    wait_for(lambda: files_left(cluster, workdir) == [])  # a job may still be ending


def stored(cluster: Cluster, job: str) -> str:
    """The script that Slurm has stored for a job."""
    return cluster.run("scontrol", "write", "batch_script", job, "-", check=True, text=False).stdout.decode()


def test_a_job_of_two_nodes(cluster: Cluster, workdir: Path, ssh: Ssh, nothing_left: None) -> None:
    script = render_batch_script(
        f"srun sh -c '{PROBE}'\n", num_nodes=2, job_name="two", sbatch_flags=f"--chdir={workdir} --output=log"
    )
    done = ssh(sbatch_command(script))
    job = parse_sbatch_output(done.stdout, done.stderr)
    assert done.stdout == f"{job}\n"
    assert cluster.wait(job) == "COMPLETED"
    assert [(p.rank, p.host) for p in probes((workdir / "log").read_text())] == [
        (0, cluster.nodes[0]), (1, cluster.nodes[1]),
    ]  # fmt: skip


def delimiter(script: str) -> str:
    """The here-document word that is chosen for a script."""
    return sbatch_command(script).rpartition("\n")[2]


def hostile() -> str:
    lines = [
        "EOF",
        "'EOF'",
        "EOFSLURM",
        "cat <<'EOF'",
        "$(touch made) `touch made`",
        "a'b\"c",
        "\\",
        "!!",
        "# é \u2028",
    ]
    script = "#!/bin/sh\n#SBATCH --hold\nexit 0\n" + "".join(f"{line}\n" for line in lines) + "return\rbell\a\ttab\n"
    return f"{script}{delimiter(script)}\n{delimiter(script)}"  # no line end at the end either


@pytest.mark.parametrize(
    "script",
    [hostile(), hostile() + "\n", "#!/bin/sh\n#SBATCH --hold\n" + "# 'x' $HOME\n" * 8500],
    ids=["hostile", "line end", "100 kB"],
)
def test_slurm_gets_the_script_as_it_is(
    cluster: Cluster, workdir: Path, ssh: Ssh, nothing_left: None, script: str
) -> None:
    done = ssh(f"cd {workdir}\n{sbatch_command(script)}")
    job = parse_sbatch_output(done.stdout, done.stderr)
    assert stored(cluster, job) == script.removesuffix("\n") + "\n"
    assert not list(workdir.iterdir())


def test_a_name_and_values_with_shell_characters(cluster: Cluster, workdir: Path, ssh: Ssh, nothing_left: None) -> None:
    name = '$(touch made) `touch made` "it\'s" ; | & > made # é \\'
    value = "$(touch made)\r\n'\"`touch made`"
    script = render_batch_script(
        'printf %s "$VALUE" > value\n', job_name=name, env={"VALUE": value}, sbatch_flags=f"--chdir={workdir}"
    )
    done = ssh(sbatch_command(script))
    job = parse_sbatch_output(done.stdout, done.stderr)
    shown = cluster.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%j", check=True).stdout
    assert shown.rstrip("\n") == name
    assert cluster.wait(job) == "COMPLETED"
    assert (workdir / "value").read_bytes() == value.encode()
    assert not (workdir / "made").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [("--partition=nowhere", "nvalid partition name specified"), ("--gres=unicorn:1", "Invalid generic resource")],
)
@pytest.mark.parametrize("one_stream", [False, True], ids=["two streams", "one stream"])
def test_a_rejection_raises_with_slurms_words(
    cluster: Cluster, ssh: Ssh, nothing_left: None, flags: str, words: str, one_stream: bool
) -> None:
    before = cluster.run("squeue", "--noheader", "--states=all").stdout
    command = sbatch_command(render_batch_script("true", sbatch_flags=flags))
    done = ssh(f"exec 2>&1\n{command}" if one_stream else command)
    assert done.returncode == 1
    with pytest.raises(SubmitError, match=f"Slurm did not take the job: .*{words}"):
        parse_sbatch_output(done.stdout, done.stderr)
    assert cluster.run("squeue", "--noheader", "--states=all").stdout == before


def test_no_sbatch_over_there_raises(ssh: Ssh, nothing_left: None) -> None:
    done = ssh("PATH=/nonexistent\n" + sbatch_command("#!/bin/sh\n"))
    with pytest.raises(SubmitError, match=r"sbatch.*not found"):
        parse_sbatch_output(done.stdout, done.stderr)
