"""How `shared-env try` ends: failures, interrupts, the end of the time; nothing is left behind."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest
from try_runs import Directory, free_port, lines_of, read_until, wait_for_exit

PROVIDERS = ["slurm", "skypilot"]
# A node that has every kind of process that could be left: in the background, and in a session of its own.
BUSY = """
sleep 600 &
(setsid sleep 600 &)
bash -c 'setsid sleep 600 & sleep 600' &
echo ready $NODE_RANK
"""


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def task(place: Directory, script: str, provider: str = "skypilot", **keys: object) -> Path:
    env = {"MASTER_PORT": str(free_port())}
    return place.task(script, launch="per-node", resources={"provider": provider}, env_=env, **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_first_failure_ends_every_node(place: Directory, provider: str) -> None:
    script = f"{BUSY}\nprintf 'last words'\nif [ $NODE_RANK = 1 ]; then sleep 0.5; exit 7; fi\nsleep 600\n"
    done = place.run(task(place, script, provider, nodes=3))
    assert done.returncode == 7
    for rank in range(3):
        assert lines_of(done.stdout, f"node{rank + 1}")[:2] == [f"ready {rank}", "last words"]
    states = [line.split()[3:5] for line in done.stderr.splitlines()[1:4]]
    assert states[1] == ["7", "failed"]
    assert states[0][1] == states[2][1] == "ended"
    assert done.stderr.splitlines()[-1] == "node2 failed with exit status 7"


def test_a_program_that_a_signal_kills_has_the_status_of_a_shell(place: Directory) -> None:
    done = place.run(task(place, "[ $NODE_RANK = 0 ] || kill -SEGV $$\nsleep 600\n", "slurm"))
    assert done.returncode == 128 + signal.SIGSEGV


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_node_that_is_done_leaves_nothing_and_the_others_go_on(place: Directory, provider: str) -> None:
    script = """
if [ $NODE_RANK = 0 ]; then sleep 600 & echo $! > server.part; mv server.part server; exit 0; fi
until [ -f server ] && ! kill -0 $(cat server) 2> /dev/null; do sleep 0.1; done
echo gone
"""
    done = place.run(task(place, script, provider))
    assert done.returncode == 0, done.stderr
    assert "gone" in lines_of(done.stdout, "node2")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_nothing(place: Directory, provider: str, number: signal.Signals) -> None:
    file = task(place, f"{BUSY}\nsleep 600\n", provider, setup="sleep 600 &\n")
    with place.popen(file) as process:
        read_until(process.stdout, "[node1] ready 0", "[node2] ready 1")
        assert len(list(place.processes())) > 6
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "interrupted; nothing was left running" in err
    place.assert_clean()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_interrupt_during_setup_leaves_nothing(place: Directory, provider: str) -> None:
    file = task(place, "echo never", provider, setup=f"{BUSY}\nsleep 600\n")
    with place.popen(file) as process:
        read_until(process.stdout, "[node1] ready")
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    place.assert_clean()


def test_a_second_interrupt_kills_what_ignores_the_first(place: Directory) -> None:
    stubborn = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: print('no', flush=True))\n"
    (place.path / "stubborn.py").write_text(f"{stubborn}print('ready', flush=True)\nwhile True: time.sleep(60)\n")
    with place.popen(task(place, "exec python3 stubborn.py", "slurm")) as process:
        read_until(process.stdout, "[node1] ready", "[node2] ready")
        os.killpg(process.pid, signal.SIGINT)
        read_until(process.stdout, "[node1] no", "[node2] no")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "137 ended" in err
    place.assert_clean()


def test_a_program_below_the_script_has_time_to_save_its_state(place: Directory) -> None:
    (place.path / "save.py").write_text("""
import signal, time
def save(*_):
    time.sleep(0.3)
    print('saved', flush=True)
    raise SystemExit
signal.signal(signal.SIGTERM, save)
time.sleep(600)
""")
    done = place.run(task(place, "python3 save.py\ntrue", "slurm"), "--timeout", "2")
    assert lines_of(done.stdout, "node1") == lines_of(done.stdout, "node2") == ["saved"]


def test_what_ignores_sigterm_is_killed(place: Directory) -> None:
    done = place.run(task(place, "trap '' TERM\nwhile :; do sleep 0.1; done\n", "slurm"), "--timeout", "1")
    assert done.returncode == 124
    assert "137 ended" in done.stderr


def test_an_interrupt_while_nobody_reads(place: Directory) -> None:
    with place.popen(task(place, "yes")) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.5)  # the pipe is full now
        os.killpg(process.pid, signal.SIGINT)
        assert wait_for_exit(process) == 130
    place.assert_clean()


def test_the_end_of_the_reader_ends_the_nodes(place: Directory) -> None:
    with place.popen(task(place, f"{BUSY}\nyes"), stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        assert wait_for_exit(process) == 1
    place.assert_clean()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_end_of_the_time(place: Directory, provider: str) -> None:
    done = place.run(task(place, f"{BUSY}\nsleep 600\n", provider), "--timeout", "2")
    assert done.returncode == 124
    assert "(--timeout)" in done.stderr
    assert lines_of(done.stdout, "node2")[:1] == ["ready 1"]


def test_nohup_is_respected(place: Directory) -> None:
    file = task(place, "echo ready\nuntil [ -f go ]; do sleep 0.1; done\n")
    with place.popen(file) as process:
        read_until(process.stdout, "[node1] ready")
        os.killpg(process.pid, signal.SIGHUP)
        assert process.wait(30) == 129
    with place.popen(file, under=["nohup"]) as process:
        read_until(process.stdout, "[node1] ready", "[node2] ready")
        os.killpg(process.pid, signal.SIGHUP)
        (place.path / "go").touch()
        assert process.wait(30) == 0
    place.assert_clean()


def terminal_output(place: Directory, file: Path, **env: str) -> str:
    master, slave = pty.openpty()
    with place.popen(file, stdout=slave, stderr=subprocess.DEVNULL, env={"TERM": "xterm", **env}) as process:
        os.close(slave)
        data = b""
        while process.poll() is None or data.count(b"hello") < 2:
            try:
                data += os.read(master, 4096)
            except OSError:  # the other end is closed
                break
    os.close(master)
    place.assert_clean()
    return data.decode()


def test_colours_on_a_terminal_only(place: Directory) -> None:
    file = task(place, "echo hello")
    shown = terminal_output(place, file)
    assert sorted(shown.replace("\r", "").splitlines()) in (
        ["\x1b[31m[node1]\x1b[0m hello", "\x1b[32m[node2]\x1b[0m hello"],
        ["\x1b[31m[node2]\x1b[0m hello", "\x1b[32m[node1]\x1b[0m hello"],
    )
    assert "\x1b" not in terminal_output(place, file, NO_COLOR="1")
    assert "\x1b" not in place.run(file).stdout
