"""What this machine, or this container's share of it, can run."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_threads() -> int:
    """Count the CPUs that this process may use: its affinity, cut by the container's quota.

    Runtimes that ask for the machine's cores start too many threads inside a container and are
    then throttled, so thread counts come from here. At least 1.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = _cgroup_cpus(_CGROUP)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cpu_model() -> str:
    """Name the processor, as its maker does; the architecture where that is not told."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def cpu_features() -> dict[str, bool]:
    """Tell which vector extensions matter for int8 arithmetic and are present."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].split("\n")[0].split())
    except OSError:
        flags = set()
    return {
        "avx2": "avx2" in flags,
        "avx512": "avx512f" in flags,
        "vnni": bool({"avx512_vnni", "avx_vnni"} & flags),
    }


def _cgroup_cpus(root: Path) -> float | None:
    """Read the CPU quota of control groups v2, then v1; None if there is none."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        if quota != "max":
            return int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        v1_quota = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        v1_period = int((root / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return v1_quota / v1_period if v1_quota > 0 and v1_period > 0 else None
