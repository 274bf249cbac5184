from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from lamina_index.runtime import _cgroup_cpus, available_threads, cpu_features, cpu_model


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_quota_is_read_from_either_control_group(
    tmp_path: Path, files: dict[str, str], cpus: float | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert _cgroup_cpus(tmp_path) == cpus


def test_threads_are_between_one_and_the_affinity() -> None:
    assert 1 <= available_threads() <= len(os.sched_getaffinity(0))


def test_cpu_features_agree_with_the_kernel() -> None:
    words = Path("/proc/cpuinfo").read_text().split()
    assert cpu_features()["avx2"] == ("avx2" in words)


def test_the_cpu_is_named_as_the_kernel_names_it_or_by_its_architecture() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    assert cpu_model() in (names or {platform.machine()})
