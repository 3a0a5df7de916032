"""Fixtures for tests on a real Slurm cluster, which the session starts on this machine."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster import Cluster, missing
from skypilot import SkyPilot
from skypilot import missing as skypilot_missing

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script. What tests start would inherit it, and they interrupt some of that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        through_a_fixture = "_cluster_possible" in getattr(item, "fixturenames", ())
        if through_a_fixture and not item.get_closest_marker("one_release"):
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def _cluster_possible() -> None:
    if reason := missing():
        pytest.fail(reason, pytrace=False)


@pytest.fixture(scope="session")
def cluster(_cluster_possible: None) -> Iterator[Cluster]:
    """The session's cluster of 3 nodes with 4 GPUs each. Leave it as it was: break others, from make_cluster."""
    with Cluster() as started:
        yield started


@pytest.fixture
def make_cluster(_cluster_possible: None) -> Iterator[Callable[..., Cluster]]:
    """Start another cluster, for this test alone: make_cluster(nodes=2, gres="gpu:4", extra_conf="KillWait=5")."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Cluster(settings))


@pytest.fixture(scope="session")
def skypilot() -> Iterator[SkyPilot]:
    """The session's SkyPilot, with a Slurm cluster of its own (of the installed release only, so not marked slurm)."""
    if reason := skypilot_missing():
        pytest.fail(reason, pytrace=False)
    with SkyPilot() as started:
        yield started


@pytest.fixture
def workdir(cluster: Cluster) -> Path:
    """A fresh directory with the same path on every host of `cluster`."""
    return Path(tempfile.mkdtemp(dir=cluster.scratch))


@pytest.fixture(autouse=True)
def _no_job_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails in the middle leaves no job in the way of the next one: its jobs end with it."""
    if "cluster" not in request.fixturenames:
        yield
        return
    shared: Cluster = request.getfixturevalue("cluster")
    yield
    try:
        shared.cancel_all()
    except TimeoutError:
        shared.start()  # the next test need not suffer from a daemon that has died
        raise
    for host in shared.nodes:  # a job that was killed could not clean up
        shared.run("sh", "-c", "rm -f /tmp/tl-multinode.*", host=host)
