"""A rank of a real run, for end-to-end tests: `python rank_process.py [--hidden N] [--samples N] ...`.

Trains a small classifier on synthetic data with `paceline.Session`, prints one JSON line at the end. The options make
it misbehave in one way each; the connection comes from the environment, as for any script.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import OrderedDict

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--rename", action="store_true", help="the same shapes under other names")
    parser.add_argument("--samples", type=int, default=480)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--poison-at", type=int, default=-1, help="the step after which one parameter is NaN")
    parser.add_argument("--raise-at", type=int, default=-1, help="the step at which the script raises")
    parser.add_argument("--leave-at", type=int, default=-1, help="the step after which the script leaves its loop")
    parser.add_argument("--wait", action="store_true", help="say `ready` and wait for a line before joining")
    parser.add_argument("--hold-at", type=int, action="append", help="a step in which it says so and waits for a line")
    parser.add_argument("--say-steps", action="store_true", help="print a line per step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(options.samples, 4)
    dataset = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    model = nn.Sequential(nn.Linear(4, options.hidden), nn.BatchNorm1d(options.hidden), nn.ReLU(),
                          nn.Linear(options.hidden, 2))  # fmt: skip
    if options.rename:
        model = nn.Sequential(OrderedDict((f"layer{number}", layer) for number, layer in enumerate(model)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if options.wait:
        print(json.dumps({"ready": True}), flush=True)
        input()
    session = paceline.Session(model, optimizer, dataset, batch_size=options.batch_size, epochs=options.epochs)
    print(json.dumps({"joined": session.rank}), flush=True)
    steps = 0
    for batch in session:
        if steps == options.raise_at:
            raise RuntimeError("the script's own mistake")
        if steps + 1 in (options.hold_at or ()):
            print(json.dumps({"holding": steps + 1}), flush=True)
            input()
        loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
        loss.backward()
        session.step(loss)
        time.sleep(options.step_ms / 1000)  # work, not waiting: it makes a step long enough to be interrupted
        steps += 1
        if options.say_steps:
            print(json.dumps({"step": steps, "tracked": int(model[1].num_batches_tracked)}), flush=True)
        if steps == options.poison_at:
            with torch.no_grad():
                model[0].weight[0, 0] = float("nan")
        if steps == options.leave_at:
            session.close()
            break
    flat = torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])
    print(json.dumps({
        "rank": session.rank, "steps": steps, "version": session.version, "global_step": session.global_step,
        "norm": float(flat.norm()), "finite": bool(flat.isfinite().all()),
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
