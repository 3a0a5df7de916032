"""The output of several nodes as one stream: complete, in whole lines, in constant memory."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from try_runs import Directory, free_port

from shared_env.local import output
from shared_env.local.output import Output

NAMES = ("node1", "node2")
PIECES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.binary(max_size=30) | st.text("ab\r\n", max_size=9).map(str.encode))
)


def merged(pieces: list[tuple[str, bytes]]) -> bytes:
    """What Output writes."""
    with tempfile.TemporaryFile() as file:
        out = Output(file.fileno())
        for name, data in pieces:
            out.feed(name, data)
        for name in NAMES:
            out.end(name)
        file.seek(0)
        return file.read()


def given_data(pieces: list[tuple[str, bytes]], name: str) -> bytes:
    data = b"".join(data for owner, data in pieces if owner == name)
    return data + b"\n" if data and not data.endswith(b"\n") else data


@given(PIECES)
def test_lines_of_a_node_are_complete_and_in_order(pieces: list[tuple[str, bytes]]) -> None:
    found = dict.fromkeys(NAMES, b"")
    for line in re.findall(rb".*?(?:\r\n|\n|\r(?!\n))", merged(pieces), re.DOTALL):
        name = line[1:6].decode()
        assert line.startswith(f"[{name}] ".encode())
        found[name] += line[8:]
    assert found == {name: given_data(pieces, name) for name in NAMES}


def test_a_line_without_end_goes_out_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LONGEST_LINE", 4)
    assert merged([("node1", b"abcdefgh"), ("node1", b"ij\n")]) == b"[node1] abcdefghij\n"
    assert (
        merged([("node1", b"abcdefgh"), ("node2", b"x\n"), ("node1", b"i")])
        == b"[node1] abcdefg\n[node2] x\n[node1] hi\n"
    )
    assert merged([("node1", b"abcdefg\r"), ("node1", b"\nh\n")]) == b"[node1] abcdefg\r\n[node1] h\n"


def test_a_progress_bar_is_shown_as_it_moves() -> None:
    reader, writer = os.pipe()
    out = Output(writer)
    out.feed("node1", b"\r 10%")
    out.feed("node1", b"\r 20%")
    assert os.read(reader, 99) == b"[node1] \r[node1]  10%\r"
    os.close(reader)
    os.close(writer)


def test_a_lost_reader_is_told_once() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = Output(writer)
    with pytest.raises(BrokenPipeError):
        out.feed("node1", b"x\n")
    out.feed("node1", b"y\nz")
    out.end("node1")
    os.close(writer)


def peak_memory(pid: int) -> int:
    """The most memory that a process has had since its exec, in KiB; rusage would count this process, too."""
    try:
        found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def test_a_hundred_megabytes_in_constant_memory(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    script = """
if [ "$NODE_RANK" = 1 ]; then head -c 40000000 /dev/zero | tr '\\0' x; exit; fi
python3 -c '
import os
line = bytes(range(14, 256)) + bytes(range(10)) + b"\\n"
for _ in range(400):
    os.write(1, line * 1000)'
"""
    task = place.task(script, resources={"provider": "skypilot"}, env_={"MASTER_PORT": str(free_port())})
    with (tmp_path / "output").open("wb") as file, place.popen(task, stdout=file) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, peak_memory(process.pid))
            time.sleep(0.05)
        err = process.stderr.read()  # type: ignore[union-attr]
    assert process.returncode == 0, err
    place.assert_clean()
    assert 1_000 < peak < 100_000  # KiB
    digest, xs = hashlib.sha256(), 0
    with (tmp_path / "output").open("rb") as file:
        for line in file:
            if line.startswith(b"[node2] "):
                xs += line.count(b"x")
            else:
                digest.update(line.removeprefix(b"[node1] "))
    expected = hashlib.sha256()
    for _ in range(400):
        expected.update((bytes(range(14, 256)) + bytes(range(10)) + b"\n") * 1000)
    assert (digest.digest(), xs) == (expected.digest(), 40_000_000)
