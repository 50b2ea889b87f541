"""A module that never comes back from its import. Nobody imports it but the command that is told to."""

from __future__ import annotations

import itertools

WAITED = max(itertools.count())
