"""The situations of cases/submit.yaml: provoked on the real cluster here, or in the test that the table names."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import yaml
from cluster import Cluster
from slurm_jobs import PROBE, PYTHON, files_left, follow, job_id, probes, tl_slurm, write_task

from shared_env import derive_port

TESTS = Path(__file__).parent
RECORDS = yaml.safe_load((TESTS / "cases" / "submit.yaml").read_text())
SRUN_PROBE = f"srun sh -c '{PROBE}'\n"
SHARED_ENV = f"{PYTHON} -m shared_env.cli"

# Where each situation is shown: a test of this file, or FILE::TEST.
SHOWN = {
    "B07": "test_a_node_list_that_cannot_be_read_stops_the_job",
    "B15": "test_a_node_list_is_text_and_no_file",
    "B17": "test_a_scontrol_that_fails",
    "B19": "test_slurm_placement.py::test_no_scontrol_in_path",
    "B20": "test_srun_on_the_login_host_meets_at_task_0",
    "B21": "test_slurm_placement.py::test_master_addr_where_names_of_nodes_do_not_resolve",
    "B23": "test_preflight_cluster.py::test_name_does_not_resolve_on_one_node",
    "B24": "test_slurm_placement.py::test_master_addr_suffix_names_the_second_network",
    "B25": "test_preflight_cluster.py::test_loopback",
    "B27": "test_an_address_is_ipv4_where_there_is_one",
    "B28": "test_given_address_and_port_win_and_say_where_they_came_from",
    "B32": "test_contract.py::test_ports_stay_in_their_window",
    "B33": "test_slurm_ranks.py::test_env_start_without_torchrun",
    "B35": "test_two_jobs_on_the_same_nodes_have_different_ports",
    "B36": "test_preflight_cluster.py::test_port_taken",
    "B37": "test_two_jobs_on_the_same_nodes_have_different_ports",
    "B39": "test_check_rules.py::test_found_on_slurm",
    "B40": "test_check_rules.py::test_env",
    "B41": "test_slurm_placement.py::test_requeue_same_job_other_port",
    "B44": "test_slurm_torchrun.py::test_static_rendezvous_in_single_quotes_stays_static",
    "B45": "test_the_batch_shell_is_no_task",
    "B48": "test_slurm_ranks.py::test_env_start_without_torchrun",
    "B49": "test_slurm_ranks.py::test_arbitrary_distribution_meets_at_the_first_host_of_the_host_file",
    "B51": "test_slurm_ranks.py::test_salloc_with_shared_env_exec",
    "B53": "test_check_rules.py::test_found_on_slurm",
    "B56": "test_slurm_ranks.py::test_salloc_with_shared_env_exec",
    "B57": "test_slurm_ranks.py::test_env_start_without_torchrun",
    "B63": "test_one_process_a_node_beside_a_total_of_tasks",
    "B65": "test_slurm_torchrun.py::test_per_node_with_a_bare_torchrun",
    "B69": "test_slurm_ranks.py::test_salloc_with_shared_env_exec",
    "B71": "test_submitted_from_inside_another_job",
    "B72": "test_submitted_from_inside_another_job",
    "B73": "test_slurm_environment.py::test_clean_env_passes_a_login_and_nothing_else",
    "B75": "test_tasks_that_end_at_different_times_are_no_failure",
    "B76": "test_transformerlab.py::test_resources_timeout_and_requeue",
    "B77": "test_sky_launch.py::test_errors_are_skypilots_own_words",
    "B85": "test_options_may_stand_before_and_behind_the_path",
    "B87": "test_a_value_with_commas_arrives_whole",
    "B88": "test_a_port_is_not_forced_by_export",
    "B89": "test_tasks_meant_as_nodes",
    "B91": "test_a_site_filter_is_quoted_and_obeyed",
    "B92": "test_script.py::test_recorded_flags",
    "B96": "test_a_host_filter_is_no_option_of_sbatch",
    "B108": "test_sky_prefix.py::test_case",
    "B115": "test_sky_launch.py::test_a_failing_rank_fails_the_job",
    "B116": "test_slurm_placement.py::test_requeue_same_job_other_port",
    "B119": "test_preflight_cluster.py::test_all_well_shows_every_rank_and_leaves_nothing",
    "B120": "test_check_rules.py::test_on_skypilot",
    "B121": "test_sky_launch.py::test_two_jobs_at_once_do_not_share_an_automatic_port",
    "B123": "releases/test_pyslurm_same.py::test_slurm_keeps_the_same_job",
    "B124": "test_slurm_environment.py::test_the_submitting_shell_does_not_leak_into_the_job",
    "B125": "test_pyslurm.py::test_a_broken_pyslurm_never_harms_the_caller",
    "B127": "releases/test_pyslurm_same.py::test_the_batch_script_finds_the_same_environment",
    "B128": "releases/test_pyslurm_same.py::test_slurm_keeps_the_same_job",
    "C01": "test_options.py::test_sbatch_splits_words_alike",
    "C02": "test_rest.py::test_a_job_gets_its_nodes_its_tasks_and_the_six",
    "C03": "test_slurm_environment.py::test_the_submitting_shell_does_not_leak_into_the_job",
    "C04": "test_a_plain_program_is_warned_about_before_it_is_sent",
    "C07": "test_contract.py::test_ports_stay_in_their_window",
    "C08": "test_check_rules.py::test_on_skypilot",
    "T05": "test_slurm_environment.py::test_the_submitting_shell_does_not_leak_into_the_job",
    "T15": "test_preflight_cluster.py::test_name_does_not_resolve_on_one_node",
    "T23": "test_nothing_of_a_script_is_shown_when_it_is_refused",
    "T25": "test_an_hour_is_an_hour",
    "T27": "test_slurm_submit.py::test_resources_arrive",
    "T31": "test_slurm_submit.py::test_status_wait_logs_cancel",
    "T33": "test_transformerlab.py::test_the_specifications_example_in_the_trap",
    "T39": "test_sky_launch.py::test_env_overrides_each_of_the_six",
    "T41": "test_slurm_submit.py::test_bad_num_nodes_names_the_place",
    "P35": "test_a_scontrol_that_fails",
    "P36": "test_slurm_ranks.py::test_two_steps_at_once_have_different_ports",
    "P37": "test_slurm_ranks.py::test_srun_pty_is_a_step_of_one_task",
    "P38": "test_slurm_submit.py::test_test_only",
}


def test_the_table_is_complete() -> None:
    assert list(SHOWN) == [record["id"] for record in RECORDS]


def test_the_table_names_tests() -> None:
    for place in sorted(set(SHOWN.values())):
        file, _, name = place.rpartition("::")
        tree = ast.parse((TESTS / (file or Path(__file__).name)).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, place


# --- node lists -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", ["n{1..2}", "n@[1-2]"])
def test_a_node_list_that_cannot_be_read_stops_the_job(cluster: Cluster, workdir: Path, nodes: str) -> None:
    setup = f"export SLURM_JOB_NODELIST='{nodes}'\n"
    done = follow(cluster, workdir, "echo unreached\n", setup=setup)
    assert done.returncode == 1
    assert f"SLURM_JOB_NODELIST='{nodes}': set MASTER_ADDR in env" in done.stdout
    assert "unreached" not in done.stdout
    given = follow(cluster, workdir, 'echo "at $MASTER_ADDR"\n', setup=setup, env_={"MASTER_ADDR": cluster.nodes[1]})
    assert given.returncode == 0, given.stdout
    assert f"at {cluster.nodes[1]}\n" in given.stdout


def test_a_node_list_is_text_and_no_file(cluster: Cluster, workdir: Path) -> None:
    for name in (f"{cluster.name}[1-2]", cluster.nodes[0]):
        (workdir / name).write_text("elsewhere1\nelsewhere2\n")
    done = follow(cluster, workdir, SRUN_PROBE)
    assert [(p.rank, p.master_addr) for p in probes(done.stdout)] == [(0, cluster.nodes[0]), (1, cluster.nodes[0])]


@pytest.mark.parametrize("answer", ["exit 1", "exit 0", "echo wrong; exit 0"], ids=["fails", "says nothing", "lies"])
def test_a_scontrol_that_fails(cluster: Cluster, workdir: Path, answer: str) -> None:
    stub = workdir / "bin" / "scontrol"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\n{answer}\n")
    stub.chmod(0o755)
    done = follow(cluster, workdir, SRUN_PROBE, setup=f"export PATH={stub.parent}:$PATH\n")
    assert done.returncode == 0, done.stdout
    assert {p.master_addr for p in probes(done.stdout)} == {cluster.nodes[0]}


def test_srun_on_the_login_host_meets_at_task_0(cluster: Cluster) -> None:
    show = f"echo \"launch $SLURM_LAUNCH_NODE_IPADDR\"; exec {SHARED_ENV} exec -- sh -c '{PROBE}'"
    done = cluster.run("srun", "--nodes=2", "sh", "-c", show, check=True)
    found = probes(done.stdout)
    assert [(p.rank, p.host, p.master_addr) for p in found] == [
        (rank, host, cluster.nodes[0]) for rank, host in enumerate(cluster.nodes[:2])
    ]
    launch = re.findall(r"launch (\S+)", done.stdout)
    login = cluster.run("getent", "ahostsv4", cluster.login, check=True).stdout.split()[0]
    assert launch == [login, login]  # the address that would have been wrong


def test_an_address_is_ipv4_where_there_is_one(make_cluster) -> None:
    cluster = make_cluster(nodes=2)
    name = cluster.nodes[0]
    (line,) = (line for line in cluster.node(1, "cat", "/etc/hosts").stdout.splitlines() if line.split()[1] == name)
    hosts = Path(cluster.base, "hosts")
    hosts.write_text(f"fe80::1 {name}\nfd00::1 {name}\n{hosts.read_text()}")
    done = follow(cluster, cluster.scratch, SRUN_PROBE, "--master-addr=ip")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {p.master_addr for p in probes(done.stdout)} == {line.split()[0]}


# --- addresses and ports --------------------------------------------------------------------------------------------


def test_given_address_and_port_win_and_say_where_they_came_from(cluster: Cluster, workdir: Path) -> None:
    env = {"MASTER_ADDR": cluster.nodes[1], "MASTER_PORT": "12345"}
    done = follow(cluster, workdir, f"srun {SHARED_ENV} show\n", env_=env)
    assert done.returncode == 0, done.stdout
    for name, value in env.items():
        assert len(re.findall(rf"(?m)^ *{name} +{value} +.*{name}", done.stdout)) == 2, done.stdout
    assert len(re.findall(r"(?m)^ *NODE_RANK +\d .*SLURM_NODEID|^ *NODE_RANK +\d .*NODE_RANK", done.stdout)) == 2


def test_two_jobs_on_the_same_nodes_have_different_ports(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, f"{SRUN_PROBE}srun sleep 1\n")
    flags = f"--nodelist={cluster.nodes[0]},{cluster.nodes[1]} --output=%j.log"
    jobs = [
        tl_slurm(cluster, "submit", path, "--sbatch-flags", flags, *extra, cwd=workdir, check=True).stdout.strip()
        for extra in ((), (), ("--set", "env.MASTER_PORT=12345"))
    ]
    for job in jobs:
        assert cluster.wait(job) == "COMPLETED"
    found = [probes((workdir / f"{job}.log").read_text()) for job in jobs]
    assert {p.master_addr for each in found for p in each} == {cluster.nodes[0]}
    ports = [{p.master_port for p in each} for each in found]
    assert ports == [{derive_port(int(jobs[0]))}, {derive_port(int(jobs[1]))}, {12345}]
    assert ports[0] != ports[1]


def test_a_port_is_not_forced_by_export(cluster: Cluster, workdir: Path) -> None:
    flags = ("--sbatch-flags", "--export=ALL,MASTER_PORT=2222")
    done = follow(cluster, workdir, SRUN_PROBE, *flags, env={"MASTER_PORT": "1111"})
    assert {p.master_port for p in probes(done.stdout)} == {derive_port(int(job_id(done)))}
    inside = follow(cluster, workdir, f"export MASTER_PORT=3333\n{SRUN_PROBE}", *flags)
    assert {p.master_port for p in probes(inside.stdout)} == {3333}


# --- tasks ----------------------------------------------------------------------------------------------------------


def test_the_batch_shell_is_no_task(cluster: Cluster, workdir: Path) -> None:
    done = follow(cluster, workdir, f"env | grep -E '^(LOCAL_|NODE_)?RANK=' || echo none\n{SHARED_ENV} show\n")
    assert "none\n" in done.stdout
    assert done.returncode != 0
    assert "srun" in done.stdout.partition("none\n")[2]


def test_one_process_a_node_beside_a_total_of_tasks(cluster: Cluster, workdir: Path) -> None:
    for flags in ("--ntasks=4", "--ntasks-per-node=3"):
        done = follow(cluster, workdir, f"{PROBE}\n", "--sbatch-flags", flags, launch="per-node")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [(p.node_rank, p.local_rank, p.host) for p in probes(done.stdout)] == [
            (0, 0, cluster.nodes[0]), (1, 0, cluster.nodes[1]),
        ], flags  # fmt: skip


def test_tasks_that_end_at_different_times_are_no_failure(cluster: Cluster, workdir: Path) -> None:
    script = "srun sh -c '[ $RANK = 0 ] || { sleep 4; echo late $RANK; }'\n"
    done = follow(cluster, workdir, script)
    assert (done.returncode, "late 1\n" in done.stdout) == (0, True), done.stdout
    failing = follow(cluster, workdir, "srun sh -c '[ $RANK = 0 ] && exit 3; sleep 300'\n")
    assert failing.returncode not in (0, 124)


def test_a_plain_program_is_warned_about_before_it_is_sent(cluster: Cluster, workdir: Path) -> None:
    done = tl_slurm(cluster, "submit", write_task(workdir, "python train.py\n"), "--test-only", cwd=workdir)
    assert "MN103" in done.stderr
    assert "srun" in done.stderr


# --- submission -----------------------------------------------------------------------------------------------------


def test_submitted_from_inside_another_job(cluster: Cluster, workdir: Path) -> None:
    inner = write_task(workdir, f"{SRUN_PROBE}env | grep -c '^SLURM_OUTER=' || :\n", name="inner.yaml")
    command = f"{PYTHON} -m tl_slurm_adapter.cli submit {inner} --follow --sbatch-flags --output=inner.log"
    outer = f"export SLURM_OUTER=1 PMIX_RANK=9 SBATCH_PARTITION=nowhere\nsrun --ntasks=1 --nodes=1 {command}\n"
    done = follow(cluster, workdir, outer, resources={"provider": "slurm", "num_nodes": 1})
    assert done.returncode == 0, done.stdout + done.stderr
    # SLURM_CONF, beside the variables of the outer job, was kept: there is no other way to find this cluster.
    (inner_job,) = re.findall(r"submitted job (\d+)", done.stdout)
    log = (workdir / "inner.log").read_text()
    assert [(p.rank, p.world_size, p.master_port) for p in probes(log)] == [
        (rank, 2, derive_port(int(inner_job))) for rank in (0, 1)
    ]
    assert log.endswith("\n0\n")


def test_options_may_stand_before_and_behind_the_path(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "true\n")
    flags = ("--partition", "short", "--sbatch-flags", "--hold")
    for arguments in ((*flags, path), (path, *flags)):
        job = tl_slurm(cluster, "submit", *arguments, cwd=workdir, check=True).stdout.strip()
        assert "Partition=short" in cluster.run("scontrol", "show", "job", job).stdout


def test_a_value_with_commas_arrives_whole(cluster: Cluster, workdir: Path) -> None:
    script = 'printf \'<%s>\\n\' "$LIST"\nsrun sh -c \'printf "<%s>\\n" "$LIST"\'\n'
    done = follow(cluster, workdir, script, "--sbatch-flags", "--export=NONE", env_={"LIST": "a,b=c,ALL,d"})
    assert done.stdout.count("<a,b=c,ALL,d>\n") == 3, done.stdout


def test_tasks_meant_as_nodes(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "srun true\n", resources={"provider": "slurm", "num_nodes": 3})
    done = tl_slurm(cluster, "submit", path, "--sbatch-flags", "-n 2", cwd=workdir)
    assert done.returncode == 1
    assert "-N counts nodes, -n counts tasks" in done.stderr
    pasted = write_task(workdir, "#SBATCH -n 3\nsrun true\n", resources={"provider": "slurm", "num_nodes": 3})
    job = tl_slurm(cluster, "submit", pasted, "--sbatch-flags", "--hold", cwd=workdir, check=True).stdout.strip()
    assert re.search(r"NumNodes=3(-3)? ", cluster.run("scontrol", "show", "job", job).stdout)


def test_a_site_filter_is_quoted_and_obeyed(make_cluster) -> None:
    cluster = make_cluster(nodes=2, extra_conf="JobSubmitPlugins=require_timelimit")
    path = write_task(cluster.scratch, "true\n")
    plain = cluster.run("sbatch", input="#!/bin/sh\n")
    words = re.sub(r"^sbatch: error: (Batch job submission failed: )?", "", plain.stderr.strip().splitlines()[-1])
    done = tl_slurm(cluster, "submit", path)
    assert done.returncode == 1
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert tl_slurm(cluster, "submit", path, "--sbatch-flags", "--time=5", "--follow").returncode == 0


def test_a_host_filter_is_no_option_of_sbatch(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "srun true\n")
    done = tl_slurm(cluster, "submit", path, "--sbatch-flags", f"--include={cluster.nodes[1]}", cwd=workdir)
    assert done.returncode == 1
    assert "--include" in done.stderr
    flags = ("--sbatch-flags", f"--nodelist={cluster.nodes[1]},{cluster.nodes[2]}")
    assert [(p.rank, p.host) for p in probes(follow(cluster, workdir, SRUN_PROBE, *flags).stdout)] == [
        (0, cluster.nodes[1]), (1, cluster.nodes[2]),
    ]  # fmt: skip


def test_nothing_of_a_script_is_shown_when_it_is_refused(cluster: Cluster, workdir: Path) -> None:
    hidden = {"API_KEY": "hunter2-env"}
    path = write_task(
        workdir, "export TOKEN=hunter2-script\nsrun true\n", env_=hidden, secrets={"KEY": "hunter2-secret"},
        setup="export PASSWORD=hunter2-setup\n",
    )  # fmt: skip
    refused = tl_slurm(cluster, "submit", path, "--partition", "nowhere", cwd=workdir)
    taken = tl_slurm(cluster, "submit", path, "--follow", cwd=workdir)
    assert (refused.returncode, taken.returncode) == (1, 0), refused.stderr + taken.stderr
    for text in (refused.stdout, refused.stderr, taken.stdout, taken.stderr):
        assert "hunter2" not in text
    assert files_left(cluster, workdir) == []


def test_an_hour_is_an_hour(cluster: Cluster, workdir: Path) -> None:
    program = (
        "import json, tl_slurm_adapter as tl\n"
        "job = tl.submit('true', num_nodes=2, time_limit_seconds=3600, sbatch_flags='--hold')\n"
        "print(json.dumps(job.job_id))\n"
    )
    job = json.loads(cluster.run(PYTHON, "-c", program, cwd=workdir, check=True).stdout)
    assert "TimeLimit=01:00:00" in cluster.run("scontrol", "show", "job", job).stdout
