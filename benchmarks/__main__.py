"""Measure again everything that README.md and docs/ claim: `python -m benchmarks`, or `make bench`.

Takes three to four hours on two cores, and wants the machine for itself. Needs wrk, 30 GB of disk,
the Quora questions (SHARED_DATA) and, for weights and for txtai, a package index. Left out are
compare_encoders.py and bench_rerank.py, which want models made first, and what needs an NVIDIA GPU
where there is none.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
SCRIPTS = (
    ("bench_index.py", "--large"),
    ("bench_service.py",),
    ("bench_search.py",),
    ("bench_filters.py",),
    ("bench_words.py",),
    ("bench_live.py",),
    ("bench_quality.py",),
    ("bench_distractors.py",),
    ("bench_sizing.py",),
    ("int8_study.py",),
    ("dropout_noise.py",),
    *((("bench_gpu.py",),) if NVIDIA_DRIVER.exists() else ()),
    ("report.py",),
)


def main() -> None:
    for script, *options in SCRIPTS:
        path = Path(__file__).with_name(script)
        subprocess.run([sys.executable, str(path), *options], check=True)


if __name__ == "__main__":
    main()
