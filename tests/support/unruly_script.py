"""A user's script whose ranks misbehave as they are told: `paceline run --ranks 2 unruly_script.py [MISDEED=RANK] ...`.

A misdeed is `import`, `stray`, `raise`, `kill`, `hang` or `late`: fail before there is a session, begin from a model of
its own, raise, die of SIGKILL or hang in the tenth step, raise after the training. `epochs=N` makes the run longer,
`loaders=N` gives each rank that many processes of its own, as a data loader does, which would wait for ever and ignore
an interrupt. `gate=RANK` lets that rank wait in the tenth step for a line from the pipe `gate` in the directory of
the run: nothing ends without it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

WHEN = 10
SETTINGS = ("epochs", "loaders")
LOADER = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.pause()"


def main() -> None:
    told = dict(word.split("=") for word in sys.argv[1:])
    who = {misdeed: rank for misdeed, rank in told.items() if misdeed not in SETTINGS}
    if os.environ["PACELINE_RANK"] == who.get("import"):
        raise ValueError("nothing works today")
    for _ in range(int(told.get("loaders", "0"))):
        loader = subprocess.Popen([sys.executable, "-S", "-c", LOADER])
        print(f"loader {loader.pid}", flush=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(320, 8)
    torch.manual_seed(1 if os.environ["PACELINE_RANK"] == who.get("stray") else 0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    session = paceline.Session(model, optimizer, dataset, batch_size=8, epochs=int(told.get("epochs", "4")))
    me = str(session.rank)
    for steps, batch in enumerate(session, 1):
        if steps == WHEN and who.get("raise") in (me, "all"):
            raise ValueError("boom [not markup]")
        if steps == WHEN and me == who.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if steps == WHEN and me == who.get("hang"):
            threading.Event().wait()
        if steps == WHEN and me == who.get("gate"):
            with open("gate") as pipe:
                pipe.readline()
        if steps == WHEN:
            print("trains", flush=True)
        loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
        loss.backward()
        session.step(loss)
    if me == who.get("late"):
        raise ValueError("too late")
    print(f"done, {session.global_step} steps together")


if __name__ == "__main__":
    main()
