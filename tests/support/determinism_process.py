"""Run cohorts whose seeds are the arguments, and print a digest of everything their machines said (I25, N-13)."""

from __future__ import annotations

import hashlib
import json
import random
import sys

from paceline.core.plain import encode
from paceline.core.roles import ROLES

from support.cohort import Cohort, Fault

POLICIES = ("cadence", "sync", "async")
KINDS = ("crash", "cut", "poison", "abort", "leave")


def main() -> None:
    """One line for all runs together."""
    said = hashlib.sha256()
    for seed in map(int, sys.argv[1:]):
        choice = random.Random(seed)
        cohort = Cohort(ranks=4, samples=80, policy=POLICIES[seed % 3], num_epochs=2, callbacks=ROLES, eval_every=1,
                        checkpoint_every=1, save_path="runs")  # fmt: skip
        faults = [Fault(choice.randrange(150), choice.choice(KINDS), choice.randrange(4)) for _ in range(2)]
        cohort.run([choice.randrange(12) for _ in range(400)], faults)
        said.update(json.dumps(encode(cohort.said)).encode())
        said.update(json.dumps(cohort.co.snapshot()).encode())
    print(said.hexdigest())


if __name__ == "__main__":
    main()
