"""Profiles: the fit recovers known links, Slurm's variables are read, and `measure` writes a file for `design`."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from helpers.warm import WARM
from partreduce import Cluster, Hardware, Link, load_cluster
from partreduce.runtime.profile import (
    Measurement,
    calibration_phases,
    fit_hardware,
    gpu_topology,
    num_rails,
    predicted_seconds,
    profile,
    random_phases,
    slurm_words,
)
from partreduce.topo.hardware import Switch
from partreduce.topo.slurm import switches_of
from partreduce.topo.timing.cost import group_seconds
from partreduce.topo.timing.loads import SummingGroups

TABLE = (
    "\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\n"
    "GPU0\t X \tNV18\tPIX\tSYS\tSYS\t0-47\n"
    "GPU1\tNV18\t X \tSYS\tPXB\tSYS\t48-95\n"
    "NIC0\tPIX\tSYS\t X \tSYS\tSYS\t\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)


@pytest.mark.parametrize(
    ("shape", "hardware"),
    [
        ("1x8", Hardware(inside=Link(1e-4, 2e-9), bus=Link(2e-5, 4e-10))),
        ("1x6", Hardware(inside=Link(5e-5, 1e-9))),
        ("3,2", Hardware(inside=Link(2e-5, 1e-10), nic=Link(1e-4, 8e-9), bus=Link(1e-5, 5e-10))),
    ],
)
def test_fit_predicts_unseen_phases_of_known_hardware(shape, hardware):
    """Measurements made by the cost model itself, with 3 % noise: unseen phases are predicted within 15 %."""
    cluster, rng = Cluster.parse(shape), np.random.default_rng(5)
    measured = [
        Measurement(
            phase, size, (predicted_seconds(Measurement(phase, size, (1.0,)), cluster, hardware) * rng.normal(1, 0.03),)
        )
        for phase in calibration_phases(cluster)
        for size in (8_000_000, 4_000_000, 1_000_000)
    ]
    fitted = fit_hardware(measured, cluster, Hardware())
    for phase in random_phases(cluster, 20, rng):
        unseen = Measurement(phase, 8_000_000, (1.0,))
        truth = predicted_seconds(unseen, cluster, hardware)
        assert predicted_seconds(unseen, cluster, fitted.hardware) == pytest.approx(truth, rel=0.15)


def test_a_slow_nic_is_fitted_where_phases_inside_nodes_are_noisy():
    """As on a loaded machine with thin links: sums of a few milliseconds inside nodes take up to ten times longer."""
    cluster, rng, slow = Cluster.parse("2x2"), np.random.default_rng(80), Link(1e-4, 1e-7)  # 80 Mbit/s
    hardware = Hardware(inside=Link(3e-4, 2e-9), nic=slow)
    measured = []
    for phase in calibration_phases(cluster):
        inside = all(len({rank // 2 for rank in group.members}) == 1 for group in phase)
        for size in (262_144, 131_072, 32_768):
            exact = predicted_seconds(Measurement(phase, size, (1.0,)), cluster, hardware)
            noise = rng.uniform(1, 10) if inside else rng.normal(1, 0.05)
            measured.append(Measurement(phase, size, (exact * noise,)))
    nic = fit_hardware(measured, cluster, Hardware()).hardware.nic
    seconds = nic.latency + 262_144 * nic.seconds_per_byte
    assert seconds == pytest.approx(slow.latency + 262_144 * slow.seconds_per_byte, rel=0.2)


def test_fit_keeps_unmeasured_values():
    cluster = Cluster.parse("1x4")
    base = Hardware(num_nics=2, slowdown=((1, 2.0),), compute=0.5, model_bytes=7)
    measured = [Measurement(phase, 1000, (1e-3,)) for phase in calibration_phases(cluster)]
    hardware = fit_hardware(measured, cluster, base).hardware
    assert (hardware.num_nics, hardware.slowdown, hardware.compute, hardware.model_bytes) == (2, ((1, 2.0),), 0.5, 7)
    assert hardware.nic == base.nic


@pytest.mark.parametrize("shape", ["1x4", "3,2"])
def test_prediction_from_prepared_groups_is_the_same_to_the_last_digit(shape):
    cluster, rng = Cluster.parse(shape), np.random.default_rng(7)
    hardware = Hardware(inside=Link(2e-5, 1e-10), nic=Link(1e-4, 8e-9), bus=Link(1e-5, 5e-10), num_nics=2)
    for phase in random_phases(cluster, 10, rng):
        measured, groups = Measurement(phase, 4_000_000, (1.0,)), SummingGroups.of(phase, cluster, "ring")
        exact = group_seconds(phase, cluster, hardware, model_bytes=4_000_000).max()
        assert predicted_seconds(measured, cluster, hardware) == exact
        assert predicted_seconds(measured, cluster, hardware, groups) == exact


def test_fit_computes_the_groups_of_a_measurement_once(monkeypatch):
    cluster, computed, of = Cluster.parse("1x4"), [], SummingGroups.of
    monkeypatch.setattr(SummingGroups, "of", lambda *arguments: computed.append(arguments[0]) or of(*arguments))
    measured = [Measurement(phase, 1000, (1e-3,)) for phase in calibration_phases(cluster)]
    fit_hardware(measured, cluster, Hardware())
    assert len(computed) == len(measured)


def test_rails_are_the_nics_next_to_a_gpu():
    assert num_rails(TABLE) == 2
    assert num_rails("") == 1


def test_slurm_words_are_the_variables_of_the_job():
    assert slurm_words({"SLURM_JOB_ID": "7", "HOME": "/"}) == {"SLURM_JOB_ID": "7"}
    assert slurm_words({}) == {}


def test_slurm_addresses_name_the_switches_above_the_nodes():
    """Two pods of two racks; the switch over everything and the second one over the same nodes are left out."""
    tree = [f"core.pod{pod}.rack{pod}{rack}.n{n}" for pod, rack, n in ((0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 0, 3))]
    switches = switches_of([f"{address}\nswitch.switch.switch.node" for address in tree])
    assert [switch.nodes for switch in switches] == [(0, 1), (2,), (3,), (0, 1, 2)]
    assert {switch.uplink for switch in switches} == {Link()}
    Hardware(switches=switches)


@pytest.mark.parametrize("address", ["", "node7", "s0.node7", "a.b.c"])
def test_addresses_without_switches_give_no_switches(address):
    assert switches_of([f"{address}\nnode", "\n", "s1.n.example.org\nswitch.node"]) == (Switch((2,)),)


def run(*arguments, **environment):
    clean = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    return WARM.run("partreduce", "measure", *arguments, environment=clean | environment)


def test_one_worker_fits_and_all_workers_get_the_result(ranks, monkeypatch):
    """Sixteen concurrent fits on two cores once took longer than the measurement."""
    fits = []

    def fit(measured, cluster, base):
        fits.append(fit_hardware(measured, cluster, base))
        return fits[-1]

    monkeypatch.setattr(sys.modules[profile.__module__], "fit_hardware", fit)
    cluster = Cluster.regular(2, 2)
    profiles = ranks.run(4, lambda world: profile(cluster, model_bytes=4096, repetitions=2, num_checks=2, world=world))
    links = [(p.cluster.hardware.inside, p.cluster.hardware.bus, p.cluster.hardware.nic) for p in profiles]
    (fitted,) = fits
    assert links == [(fitted.hardware.inside, fitted.hardware.bus, fitted.hardware.nic)] * 4
    assert [p.fit_errors for p in profiles] == [fitted.errors] * 4


@pytest.mark.processes
def test_default_model_size_is_not_written_to_the_cluster_file(tmp_path):
    """Otherwise `design` would silently plan for a model of 8 MB."""
    path = tmp_path / "cluster.yaml"
    done = run("--workers", "2", "--repetitions", "1", "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    hardware = load_cluster(path).hardware
    assert hardware is not None
    assert hardware.model_bytes is None
    assert hardware.inside.seconds_per_byte > 0 or hardware.bus.seconds_per_byte > 0


@pytest.mark.processes
def test_profile_writes_a_cluster_file_that_loads(tmp_path):
    (tmp_path / "train.py").write_text("import time\ndef step():\n    time.sleep(0.002)\n")
    path = tmp_path / "cluster.yaml"
    done = run(
        "--workers", "4", "--nodes", "2", "--model-bytes", "64kB", "--repetitions", "2", "-o",
        str(path), "--step", f"{tmp_path}/train.py:step", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cluster = load_cluster(path)
    assert str(cluster) == "2x2"
    assert cluster.hardware is not None
    assert cluster.hardware.model_bytes == 64_000
    assert (cluster.hardware.compute or 0) >= 0.002
    measured = dict(cluster.hardware.codec)
    assert sorted(measured) == ["bfloat16", "float16", "int4", "int8"]
    assert all(0 < seconds < 1e-5 for codec in measured.values() for seconds in (codec.encode, codec.decode))
    document = json.loads("\n".join(line.removeprefix("[0] ") for line in done.stdout.splitlines()))
    assert len(document["checks"]) == 10


def test_profile_outside_a_job_names_the_launch_option():
    done = run()
    assert done.returncode == 2
    assert "--workers N: measure runs on all workers: give N here" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_step_function_is_named(tmp_path):
    (tmp_path / "train.py").write_text("x = 1\n")
    done = run("--workers", "2", "--step", f"{tmp_path}/train.py:step")
    assert done.returncode == 2
    assert "has no function step" in done.stderr


def test_gpu_topology_is_none_if_the_tool_hangs(monkeypatch):
    def hang(*_args, timeout, **_options):
        raise subprocess.TimeoutExpired("nvidia-smi", timeout)

    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", hang)
    assert gpu_topology() is None
