"""Simulated cohorts: the production machines under virtual time, one action after the other.

`World` holds a whole run in one process: a `Coordinator`, a `Worker` for each rank, the lanes between them, an averager
over the production `Round`, and training processes whose parameters are numbers. Nothing in it decides anything about
the protocol: it lists what could happen next, and makes it happen. Around it:

- `setup.py`, `action.py`: what a run is made of, and what can happen in it, as plain values;
- `process.py`, `averager.py`, `frames.py`: one life of a rank, the averager, the wire between them;
- `moves.py`, `strikes.py`: what each action does, without and with a fault;
- `ghost.py`, `invariants.py`: a record kept apart from the machines, and the invariants of protocol section 16;
- `schedule.py`: a run as a text file, a list of actions with their times; `paceline replay` plays it;
- `transcript.py`, `sequence.py`: a run in words, one line for each event, and as a sequence diagram;
- `simulator.py`: a run drawn from a seed: `draws.py` its setup, `clockwork.py` its time, `storms.py` and `faults.py`
  what strikes it, `marks.py` what it came upon; `campaign.py` adds up many of them;
- `shrink.py`: the shortest schedule that still breaks the same invariant;
- `walk.py`, `strategies.py`: runs from plain numbers, for fuzzers and property tests (the latter needs hypothesis, so
  nothing here imports it).
"""

from .action import COORDINATOR, Action
from .setup import Setup
from .violation import Violation
from .world import Step, Turn, World

__all__ = ["COORDINATOR", "Action", "Setup", "Step", "Turn", "Violation", "World"]
