"""What a trainer sees: a loop over batches, and one call per step (architecture section 5).

    session = paceline.Session(model, optimizer, dataset, batch_size=32, epochs=3)
    for batch in session:
        loss = loss_fn(model(batch.inputs), batch.targets)
        loss.backward()
        session.step(loss)

Everything else happens inside `step` and between two batches: chunks, epochs, averages, pauses, the end. The worker
machine decides; a thread of its own talks to the coordinator, so heartbeats do not depend on the length of a step;
this module carries out the machine's orders in the caller's thread, because only there the model may be touched.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import torch

from ..core import effects as fx
from ..core import events as ev
from ..core.config import OWN_STATES
from ..core.dispatch.permutation import decode, partition
from ..core.errors import ConfigError, LocalProtocolError, PacelineError
from ..core.messages import NO_RANK, IntentKind, Outcome
from ..core.worker import stop_error
from .bundle import check_file
from .checkpoint import load_flat, restore_optimizer
from .chunk import Chunk
from .connection import Connection, Environment, connect
from .data import Collator, Upcoming, dataset_identity
from .duties import Callbacks
from .flat import FlatModel, Snapshot
from .rank_files import RankFiles
from .schema import schema_of
from .terminal import LeaveSignals, say_errors_in_one_line
from .trace import Tracer

__all__ = ["Batch", "Session"]

WAIT_S = 0.5
"""How often a rank that waits for orders looks whether its connection is still there."""


@attrs.frozen(eq=False)
class Batch:
    """One batch: `inputs` and `targets` as the data set's items collate (any further parts in `parts`), `samples`
    the indices of its samples in the data set, `epoch` the epoch it belongs to."""

    inputs: Any
    targets: Any
    parts: tuple[Any, ...]
    samples: tuple[int, ...]
    epoch: int


class Session:
    """One rank of a run.

    `dataset` has `__len__` and `__getitem__`, the same on every rank; a `prefetch(indices)` that it may have is told
    which samples may come next (see `data.Upcoming`). `batch_size`, `epochs`, `seed` are wishes: they fill what the
    coordinator left open and must agree with what it did not (V-6). `lr_schedule` maps the schedule position
    (steps of the whole cohort, W-8) to a learning rate, set on every parameter group before each step.
    `on_epoch(epoch, session)`, `evaluate(model)` and `on_checkpoint(version, session)` are called at one rank of the
    cohort, so every rank brings them: at the first plan of an epoch; on the consensus of a version, giving a metric or
    `(metric, count)`; and when that consensus is checkpointed. What they raise is told and does not end the training.

    `optimizer_file` gives this rank the optimizer state back that it saved when the run that is resumed ended; `{rank}`
    in it stands for its number (K-12).

    `url`, `token` and the rest of the connection come from the environment that `paceline run` and `paceline join`
    set, or from `environment`.

    Raises `ConfigError` for a data set or model that cannot be trained, `TransportError` if no coordinator answers,
    `RefusedError` if it refuses this rank, `CheckpointError` for an `optimizer_file` that is not its own. The loop
    raises `StallError` when the run gave up, or was over before this rank had its consensus, `TransportError` when the
    coordinator is lost, and `ConfigError` when the model is no longer the one with which the run began.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        *,
        batch_size: int | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        lr_schedule: Callable[[int], float] | None = None,
        device: torch.device | str | None = None,
        on_epoch: Callable[[int, Session], Any] | None = None,
        evaluate: Callable[[torch.nn.Module], Any] | None = None,
        on_checkpoint: Callable[[int, Session], Any] | None = None,
        optimizer_file: str | Path | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._dataset = dataset
        self._collate = Collator(dataset, device)
        self._schedule = lr_schedule
        self._callbacks = Callbacks(epoch=on_epoch, evaluate=evaluate, checkpoint=on_checkpoint)
        say_errors_in_one_line()
        self._environment = environment or Environment.from_process()
        wishes = {"batch_size": batch_size, "num_epochs": epochs, "seed": seed}
        schema = schema_of(model)
        self._flat = FlatModel(model, schema)
        self._connection: Connection = connect(
            self._environment, schema, dataset_identity(dataset, batch_size),
            {knob: wish for knob, wish in wishes.items() if wish is not None}, self._flat,
            self._callbacks.names,
        )  # fmt: skip
        self._config: dict[str, Any] = dict(self._connection.welcome.config)
        self._signals = LeaveSignals()
        self._tracer = Tracer(self._environment.trace, self.rank)
        driver = self._connection.driver
        self._files = RankFiles(self._flat, optimizer, driver.feed, driver.worker.settings.run_id)
        self._chunk: Chunk | None = None
        self._parked = False
        self._averaging = False
        self._stop: fx.Stop | None = None
        self._snapshot: Snapshot | None = None
        self._given_at = 0.0
        self._data_ms = 0.0
        self._duty_ms = 0.0
        self._stepped = True
        self._batch_size, self._samples = int(self._config["batch_size"]), 0
        self._left = False
        self._over = False
        atexit.register(self._abandon)
        self._scale = 1.0 + (self.world - 1) * float(self._config["lr_scale_ratio"])
        if optimizer_file is not None:
            self._restore(optimizer_file)

    # --- facts ---------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The seat of this process in the run."""
        return self._connection.driver.worker.settings.rank

    @property
    def world(self) -> int:
        """Seats of the run as of formation."""
        return int(self._config["world"])

    @property
    def version(self) -> int:
        """Number of the consensus this rank holds; 0 is the common initial state."""
        return self._connection.driver.worker.version

    @property
    def global_step(self) -> int:
        """Steps of all ranks that the consensus contains."""
        return self._connection.driver.worker.global_step

    @property
    def local_step(self) -> int:
        """Steps this rank has taken."""
        return self._connection.driver.worker.local_step

    # --- the loop ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        """Batches until the run ends, all epochs. Leaving the loop before its end, by `break` or an error, is the death
        of this rank (W-24), unless `close` was called before."""
        if self._over:
            raise LocalProtocolError("this session is over: one loop covers all epochs; a new run takes a new Session")
        try:
            while self._stop is None:
                if self._chunk is None or self._parked:
                    self._wait()
                    continue
                asked = time.monotonic()
                batch = self._load(self._chunk)
                self._stepped = False
                self._tracer.state("training", self.local_step)
                self._set_rate()
                self._given_at = time.monotonic()
                self._data_ms = (self._given_at - asked) * 1000
                yield batch
                if not self._stepped and self._stop is None:
                    raise LocalProtocolError("the loop went on without session.step(loss); call it once per batch")
        except BaseException as error:
            self._fail(error)
            raise
        self._end()

    def step(self, loss: torch.Tensor | float | None = None) -> None:
        """Take the optimizer step of this batch, report it, and do what the coordinator asks: called once per batch,
        after `backward()`. Gradients are zeroed. `loss` (a scalar) is for reports and displays only."""
        chunk = self._chunk
        if chunk is None or self._stepped:
            raise LocalProtocolError("session.step was called without a batch; call it once per batch of the loop")
        value = None if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._stepped = True
        elapsed = time.monotonic() - self._given_at
        if self._environment.slow > 1.0:
            time.sleep(elapsed * (self._environment.slow - 1.0))
        batch_ms = (time.monotonic() - self._given_at) * 1000
        self._count(chunk, value, batch_ms)

    def report(self, name: str, value: torch.Tensor | float, count: int = 1) -> None:
        """Tell a number of this batch, such as an accuracy, between the batch and its `step`: a mean over `count`
        observations. Of each name the timeline has, with each epoch that closes (`EpochEnd`), the mean over all ranks,
        weighted by counts; it decides nothing (K-20). Raises `LocalProtocolError` at any other moment."""
        if self._chunk is None or self._stepped:
            raise LocalProtocolError(f"session.report({name!r}) belongs between a batch and its session.step")
        self._chunk.add(name, float(value.detach() if isinstance(value, torch.Tensor) else value), count)

    def close(self) -> None:
        """Leave the run: what this rank trained since the last average is trained again by others (W-28). After the
        end of the run it does nothing."""
        if self._over:
            return
        try:
            if self._stop is None:
                self._connection.driver.feed(ev.LeaveRequested())
                self._obey_until_stopped()
        finally:
            self._tidy()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            self.close()

    def checkpoint_now(self) -> None:
        """Ask for a checkpoint of the next consensus; `on_checkpoint` is called at the rank with that role (K-1)."""
        self._connection.driver.feed(ev.Wish(IntentKind.CHECKPOINT_NOW))

    def evaluate_now(self) -> None:
        """Ask for an evaluation of the next consensus, at the rank that holds that role (K-1)."""
        self._connection.driver.feed(ev.Wish(IntentKind.EVAL_NOW))

    # --- one step ------------------------------------------------------------------------------------------------

    def _load(self, chunk: Chunk) -> Batch:
        epoch, offset, self._samples = chunk.due(self._batch_size)
        samples = tuple(self._picks(epoch, offset, self._samples))
        parts = self._collate(samples)
        return Batch(parts[0], parts[1] if len(parts) > 1 else None, parts, samples, epoch)

    def _picks(self, epoch: int, offset: int, size: int) -> list[int]:
        """The samples of a slice, in the order in which they are trained (D-2)."""
        config, repeats = self._config, int(self._config["repeats"])
        picks = partition(
            int(config["dataset_len"]) * repeats, int(config["epoch_splits"]), int(config["seed"]), epoch, offset, size
        )
        return [decode(pick, repeats)[0] for pick in picks]

    def _hint(self, order: fx.Stage) -> None:
        """To the data set, if it can use it; what goes wrong there is no matter of the training (W-25)."""
        error = self._collate.prefetch(Upcoming(order.segments, self._picks))
        if error is not None:
            self._tracer.note("prefetch_failed", {"error": error})

    def _set_rate(self) -> None:
        if self._schedule is not None:
            rate = self._schedule(self._connection.driver.worker.position) * self._scale
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    def _count(self, chunk: Chunk, loss: float | None, batch_ms: float) -> None:
        part = chunk.part
        last = chunk.count(self._batch_size, self._samples, loss, batch_ms, self._data_ms)
        rate = self.optimizer.param_groups[0].get("lr")
        duty_ms, self._duty_ms = self._duty_ms, 0.0
        self._feed(ev.StepDone(
            samples=self._samples, part=part, batch_ms=batch_ms + duty_ms, data_ms=self._data_ms, loss=loss,
            lr=None if rate is None else float(rate), last=last,
        ))  # fmt: skip
        if last and self._chunk is chunk:
            self._chunk = None
            self._feed(chunk.done())
        self._leave_if_asked()

    # --- orders --------------------------------------------------------------------------------------------------

    def _feed(self, event: Any) -> None:
        self._connection.driver.feed(event)
        self._obey_waiting()

    def _obey_waiting(self) -> None:
        orders = self._connection.driver.orders
        while not orders.empty():
            self._obey(orders.get_nowait())

    def _wait(self) -> None:
        """Nothing to train: take orders as they come."""
        self._tracer.state("averaging" if self._averaging else "waiting", self.local_step)
        self._leave_if_asked()
        order = self._connection.next_order(WAIT_S)
        if order is not None:
            self._obey(order)

    def _leave_if_asked(self) -> None:
        if self._signals.asked and not self._left:
            self._left = True
            self._feed(ev.LeaveRequested())

    def _obey(self, order: Any) -> None:
        if isinstance(order, fx.Train):
            self._chunk = Chunk([order.plan])
        elif isinstance(order, fx.Extend):
            if self._chunk is not None:
                self._chunk.parts.append(order.plan)
        elif isinstance(order, fx.TakeSnapshot):
            self._take_copy(order)
        elif isinstance(order, fx.SendState):
            for_averager = order.joiner_rank == NO_RANK
            self._connection.link.donate(order, None if for_averager else self._flat.snapshot_static())
        elif isinstance(order, fx.Adopt):
            self._adopt(order)
        elif isinstance(order, fx.Park):
            self._parked = True
        elif isinstance(order, fx.Unpark):
            self._parked = False
        elif isinstance(order, fx.AbandonPlan):
            self._chunk = None
        elif isinstance(order, (fx.Evaluate, fx.FireCallback)):
            self._act(order)
        elif isinstance(order, fx.Save):
            self._save(order)
        elif isinstance(order, fx.Stage):
            self._hint(order)
        elif isinstance(order, fx.Publish):
            self._tracer.note(order.name, order.facts)
        elif isinstance(order, fx.Stop):
            self._stop = order

    def _take_copy(self, order: fx.TakeSnapshot) -> None:
        self._averaging = True
        begun = time.monotonic()
        if order.fresh:
            before, self._snapshot = self._snapshot, None
            if order.state:
                self._make_initial(order)
                self._snapshot = self._flat.snapshot_state()
            elif not order.header_only:
                self._snapshot = self._flat.snapshot()
            if before is not None:
                self._flat.release(before)  # not sooner: a block of it may still be on its way
        elapsed = (time.monotonic() - begun) * 1000
        # Reported before anything is shipped: what comes back would answer a copy that nobody has heard of (W-10).
        self._connection.driver.feed(ev.SnapshotTaken(order.cycle, order.attempt, elapsed, order.generation))
        self._connection.link.offer(order, self._snapshot)

    def _make_initial(self, order: fx.TakeSnapshot) -> None:
        """M-6, K-12: what this rank gives, or brings, in cycle 0: of a file, or what it stands on already (M-45)."""
        path, named = self._config.get("initial_state", "rank"), self._config.get("initial_sha256")
        retained = self._connection.link.retained
        if order.put_back and retained is not None:
            self._flat.adopt(retained)
        elif path not in OWN_STATES:
            if named is not None:
                check_file(Path(path), named)
            flat, _ = load_flat(path, schema_of(self.model))
            self._flat.adopt(flat)
            self._tracer.note("resumed", {"file": path})

    def _restore(self, optimizer_file: str | Path) -> None:
        """K-12: momentum has no consensus; a rank of a run that is resumed may have its own back."""
        try:
            if self._config.get("initial_state", "rank") in OWN_STATES:
                raise ConfigError(f"optimizer_file = {optimizer_file} goes with a run that is resumed, and this one "
                                  "begins anew (K-12)")  # fmt: skip
            restore_optimizer(optimizer_file, self.optimizer, self.rank)
        except PacelineError as error:
            self._fail(error)
            raise

    def _adopt(self, order: fx.Adopt) -> None:
        self._averaging = False
        if order.how == "keep":
            return
        flat, state = self._connection.link.take(order.cycle)
        if state:
            self._connection.link.adopted_state(flat)
        if flat is not None:
            if state:
                self._flat.adopt_state(flat)
            else:
                alpha = float(self._config["alpha"] or 1.0)
                self._flat.adopt(flat, order.how, alpha)
                self._connection.link.adopted()
                static = self._connection.link.take_static()
                if static is not None:
                    self._flat.adopt_static(static)
        if order.reset_optimizer:
            self.optimizer.state.clear()
            self._tracer.note("optimizer_reset", {"cycle": order.cycle, "outcome": Outcome(order.outcome).name})
        if order.outcome == Outcome.REFUSED:
            self._flat.check()  # one that is another model by now is refused for ever, and trains in vain

    def _act(self, order: fx.Evaluate | fx.FireCallback) -> None:
        """A callback of the user. Its time goes into the next step, out of which the coordinator takes it (K-18)."""
        self._tracer.state("evaluating" if isinstance(order, fx.Evaluate) else order.name, self.local_step)
        done = self._callbacks.act(order, self, self._flat, self._consensus())
        self._duty_ms += done.elapsed_ms
        self._connection.driver.feed(done)

    def _consensus(self) -> memoryview | None:
        """The retained consensus if the model holds something else: async blends, and steps go beyond it (K-3)."""
        differs = self._config["alpha"] is not None or self._connection.driver.worker.steps_since_avg > 0
        return self._connection.link.retained if differs else None

    def _save(self, order: fx.Save) -> None:
        self._files.write(self.rank, order, self._consensus())

    # --- ends ----------------------------------------------------------------------------------------------------

    def _obey_until_stopped(self) -> None:
        while self._stop is None:
            order = self._connection.next_order(WAIT_S)
            if order is not None:
                self._obey(order)

    def _end(self) -> None:
        stop = self._stop
        assert stop is not None, "the loop ends with a stop"
        retained = self._connection.link.retained
        if stop.status == "ok" and self._config["alpha"] is not None and retained is not None:
            self._flat.adopt(retained)  # async ranks differ by their blend; what a run yields is the consensus
        self._tidy()
        if (error := stop_error(stop)) is not None:
            raise error

    def _fail(self, error: BaseException) -> None:
        """The training raised: no Exiting, the closed link is the report (W-24)."""
        if self._over:
            return
        if self._stop is None:
            self._connection.driver.feed(ev.TrainingFailed(f"{type(error).__name__}: {error}"))
            for order in self._connection.last_saves():
                self._save(order)
        self._tidy()

    def _abandon(self) -> None:
        """The process ends while the run goes on: its script raised in the loop, or left it without `close`. Said
        before the interpreter stops its threads, or the last words would never leave."""
        self._fail(RuntimeError("the script ended in the middle of the run"))

    def _tidy(self) -> None:
        self._over = True
        atexit.unregister(self._abandon)
        self._connection.join()
        self._files.settle()  # after the last words: nobody else waits for this disk
        self._tracer.close(self.local_step)
        self._signals.restore()
