"""Average the shares that an arm dropped over its seeds, into a table that another arm replays.

python training/studies/mean_rates.py training/studies/attendout_few.toml attendout \
    training/studies/rates/attendout_few.json

The table has a row for each line of the runs' logs and a rate for each layer, lowest first:
`attention_dropout.table` of kind `scheduled_bernoulli` drops as much as the arm did, at random.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from lamina_training.attention_dropout.schedule import write_rate_table
from lamina_training.study.definition import read_study
from lamina_training.study.results import load_results


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("study", type=Path)
    options.add_argument("arm")
    options.add_argument("output", type=Path)
    arguments = options.parse_args()
    found = load_results(read_study(arguments.study), arguments.study)
    runs = [
        [layers for _, layers in line["drop_rates"]]
        for line in found.of_arm(arguments.arm).values()
    ]
    if not runs:
        options.error(f"{arguments.study}: arm {arguments.arm} has no result that notes rates")
    mean = np.array(runs).mean(axis=0)  # (lines, layers)
    rows: list[list[float]] = mean.round(4).tolist()
    write_rate_table(arguments.output, rows)


if __name__ == "__main__":
    main()
