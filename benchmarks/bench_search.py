"""What one search costs inside, and what it costs to have Lamina at all.

- `stages`: median milliseconds of one search, by stage, in one process and one thread.
- `help_seconds`: `lamina --help`, from start to end.
- `installed_mb`: the packages that `make run` needs, in a fresh environment.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import servers
from corpora import Corpus, quora_corpus, small_corpus
from harness import (
    LAMINA,
    REPOSITORY,
    RESULTS,
    folder_bytes,
    medians,
    parser,
    rounded,
    run_measured,
    write_result,
)

from lamina_index.encoder import OnnxEncoder
from lamina_index.searcher import Searcher

SEARCHES = 2000
WARM_UP = 100
HELP_RUNS = 10


def main() -> None:
    options = parser(__doc__)
    arguments = options.parse_args()
    work: Path = arguments.work
    corpus = small_corpus(work) if arguments.small else quora_corpus(work)
    help_times = [
        {"help_seconds": run_measured([LAMINA, "--help"]).wall_seconds} for _ in range(HELP_RUNS)
    ]
    results = {
        "stages": stages(corpus, servers.lamina_collection(corpus, work)),
        **medians(help_times),
    }
    if not arguments.small:
        results["installed_mb"] = rounded(installed_bytes(work / "venv") / 1e6)
    settings = {
        "corpus": corpus.name,
        "documents": corpus.documents,
        "searches": min(SEARCHES, len(corpus.queries)),
        "help_runs": HELP_RUNS,
    }
    write_result(arguments.output or RESULTS / "search.json", settings, results)


def stages(corpus: Corpus, collection: Path) -> dict[str, float]:
    """Search one query after the other and take the median of each stage."""
    encoder = OnnxEncoder.load("default", threads=1)
    searcher = Searcher.open(collection, encoder)
    rows = [
        {stage: seconds * 1000 for stage, seconds in searcher.search(query).took.items()}
        for query in corpus.queries[:SEARCHES]
    ]
    searcher.close()
    return {f"{stage}_ms": value for stage, value in medians(rows[WARM_UP:]).items()}


def installed_bytes(environment: Path) -> int:
    """Install Lamina with what `make run` needs and weigh it."""
    shutil.rmtree(environment, ignore_errors=True)
    run_measured([sys.executable, "-m", "venv", "--without-pip", environment])
    command = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet"]
    command += ["--constraint", REPOSITORY / "constraints.txt", f"{REPOSITORY}[cpu,service]"]
    run_measured(command)
    size = folder_bytes(environment / "lib")
    shutil.rmtree(environment)
    return size


if __name__ == "__main__":
    main()
