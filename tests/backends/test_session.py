"""The session in real runs: two ranks and a coordinator as threads of this process, over TCP on loopback."""

from __future__ import annotations

import json
import math
import shutil
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from torch.utils.data import Dataset, TensorDataset

from paceline.backends.data import Collator, dataset_identity
from paceline.backends.serve import serve
from paceline.backends.session import Session
from paceline.backends.terminal import LeaveSignals
from paceline.backends.trace import Tracer
from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.errors import CheckpointError, ConfigError, LocalProtocolError, RefusedError
from paceline.core.worker import Worker

from support.patience import PATIENCE_S
from support.small_run import BATCH, SAMPLES, Seen, SmallRun, Thread, dataset, train_one
from support.transports import CREDENTIALS


class Raising(Dataset[Any]):
    """A data set that cannot give one of its samples."""

    def __init__(self) -> None:
        self.armed = False

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if self.armed and index == 17:
            raise OSError("sample 17 is unreadable")
        return dataset()[index]


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_a_run_trains_every_sample_once_and_ends_with_one_model(policy: str, tmp_path: Path):
    """I42, I44, I59, W-8, I43: whatever the policy."""
    run = SmallRun(tmp_path, policy=policy)
    ranks = [run.start(rank, lr_schedule=lambda position: 0.05 / (1 + position)) for rank in range(2)]
    seen: list[Seen] = [rank.result() for rank in ranks]
    assert run.coordinator.result().status == "ok"
    for epoch in range(2):
        trained = sorted(sample for one in seen for sample in one.samples.get(epoch, []))
        assert trained == list(range(SAMPLES))
    assert {one.session.global_step for one in seen} == {2 * SAMPLES // BATCH}
    assert len({one.session.version for one in seen}) == 1
    assert torch.equal(seen[0].parameters, seen[1].parameters)
    assert (tmp_path / "consensus.safetensors").exists() and (tmp_path / "consensus.meta.json").exists()
    for one in seen:
        assert one.rates == sorted(one.rates, reverse=True), "positions never fall"
        assert one.rates[0] == 0.05
    assert run.named("Finish") and not [r for r in run.named("Alert") if r["critical"]]


def test_what_a_script_reports_is_the_mean_of_the_cohort_in_the_record_of_the_epoch():
    """K-20: over all ranks, weighted by counts; what is no number is left out, and a mistake says what to do."""

    def tell(seen: Seen, batch: Any) -> None:
        seen.session.report("sample", torch.tensor(batch.samples).float().mean(), count=len(batch.samples))
        seen.session.report("broken", math.nan if batch.samples[0] % 2 else 1.0)
        with pytest.raises(LocalProtocolError, match="1 to 128"):
            seen.session.report("", 1.0)
        with pytest.raises(LocalProtocolError, match="from 1 to"):
            seen.session.report("nothing", 1.0, count=0)

    def train(rank: int) -> None:
        seen = Seen(run.session(rank))
        for batch in seen.session:
            tell(seen, batch)
            train_one(seen.session, batch)
            with pytest.raises(LocalProtocolError, match=r"between a batch and its session\.step"):
                seen.session.report("late", 1.0)

    run = SmallRun(target_ranks=2)
    for rank in [Thread(lambda: train(0)), Thread(lambda: train(1))]:
        rank.result()
    run.coordinator.result()
    ends = run.named("EpochEnd")
    assert [end["scalars"] for end in ends] == [{"sample": (SAMPLES - 1) / 2, "broken": 1.0}] * 2


def test_a_second_session_in_the_same_process_is_a_new_run():
    """Nothing of the first one is left behind."""
    models = []
    for _ in range(2):
        run = SmallRun(target_ranks=1)
        models.append(run.train(0).parameters)
        assert run.coordinator.result().status == "ok"
    assert torch.equal(*models), "same seeds, same data, same end"


def test_the_rate_is_scaled_by_the_size_of_the_world():
    """W-8: schedule * (1 + (world - 1) * lr_scale_ratio), on every rank."""
    run = SmallRun(target_ranks=2, min_ranks=2, lr_scale_ratio=0.5)
    ranks = [run.start(rank, lr_schedule=lambda position: 0.01) for rank in range(2)]
    assert {rate for rank in ranks for rate in rank.result().rates} == {0.015}
    run.coordinator.result()


def test_zero_epochs_end_at_once():
    """I54: nobody trains, everybody ends."""
    run = SmallRun(target_ranks=1)
    assert run.train(0, epochs=0).samples == {}
    assert run.coordinator.result().status == "ok"


def test_each_misuse_of_the_loop_says_what_to_do():
    """N-7: LocalProtocolError at once, and the rank goes; its run ends instead of waiting for it."""
    run = SmallRun(target_ranks=1)
    session = run.session(0)
    with pytest.raises(LocalProtocolError, match="without a batch"):
        session.step(1.0)
    with pytest.raises(LocalProtocolError, match=r"without session\.step"):
        for _ in session:
            pass
    with pytest.raises(LocalProtocolError, match="one loop covers all epochs"):
        next(iter(session))
    session.close()
    assert run.coordinator.result().status == "saved"


def test_step_twice_is_misuse():
    """The second call has no batch."""
    run = SmallRun(target_ranks=1)
    session = run.session(0)
    with session, pytest.raises(LocalProtocolError, match="without a batch"):
        for batch in session:
            train_one(session, batch)
            session.step()
    run.coordinator.result()


def test_a_loss_that_is_no_number_changes_nothing():
    """The step is not half done: the parameters are as before."""
    run = SmallRun(target_ranks=1)
    session = run.session(0)
    batch = next(loop := iter(session))
    session.model(batch.inputs).sum().backward()
    before = [p.detach().clone() for p in session.model.parameters()]
    with pytest.raises(ValueError):
        session.step(torch.ones(2))
    assert all(torch.equal(a, b) for a, b in zip(before, session.model.parameters(), strict=True))
    session.step(torch.tensor(math.nan))
    session.close()
    assert list(loop) == []
    run.coordinator.result()


def test_close_in_the_middle_is_a_departure():
    """W-28, M-8: no death; the others train what it held, every sample is merged once."""
    run = SmallRun()
    other = run.start(0)

    def leave() -> None:
        session = run.session(1)
        for steps, batch in enumerate(session):
            train_one(session, batch)
            if steps == 3:
                session.close()
        session.close()

    Thread(leave).result()
    assert other.result().session.global_step == 2 * SAMPLES // BATCH
    assert run.coordinator.result().status == "ok"
    assert [record["rank"] for record in run.named("Left") if record["reason"] == "leave"] == [1]
    assert run.named("Died") == []


@pytest.mark.parametrize("how", ["raise", "break", "with"])
def test_a_loop_that_is_left_is_a_death_and_the_run_goes_on(how: str):
    """W-24: no Exiting, the closed link is the report, at once and not when the process ends."""
    run = SmallRun()
    other = run.start(0)

    def loop(session: Session) -> None:
        for steps, batch in enumerate(session):
            if steps == 3:
                if how == "break":
                    break
                raise ValueError("boom")
            train_one(session, batch)

    def leave() -> None:
        session = run.session(1)
        if how == "with":
            with session:
                loop(session)
        loop(session)

    thread = Thread(leave)
    if how == "break":
        thread.result()
    else:
        with pytest.raises(ValueError, match="boom"):
            thread.result()
    assert other.result().session.global_step == 2 * SAMPLES // BATCH
    assert run.coordinator.result().status == "ok"
    assert [record["rank"] for record in run.named("Died")] == [1]


def test_a_step_that_raises_leaves_behind_the_save_that_was_ordered_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """W-24: the order waits for the end of a step, and the step does not end."""
    stepping, told = threading.Event(), threading.Event()
    receive = Worker._receive

    def heard(worker: Worker, message: Any, now: float) -> None:
        receive(worker, message, now)
        if isinstance(message, m.ShutdownWithSave):
            told.set()

    monkeypatch.setattr(Worker, "_receive", heard)
    run = SmallRun(max_failure=1, save_path=str(tmp_path))

    def before(seen: Seen) -> None:
        if sum(map(len, seen.samples.values())) == BATCH:
            if seen.session.rank == 0:
                stepping.set()
                assert told.wait(PATIENCE_S)
            assert stepping.wait(PATIENCE_S)
            raise ValueError("boom")

    for rank in [run.start(rank, before=before) for rank in range(2)]:
        with pytest.raises(ValueError, match="boom"):
            rank.result()
    assert run.coordinator.result().status == "saved"
    assert {path.name for path in tmp_path.glob("max_failure.*")} == {
        "max_failure.model.safetensors", "max_failure.rank0.optim.safetensors"
    }  # fmt: skip


def test_a_sample_that_cannot_be_read_ends_its_rank_with_its_own_error():
    """The data set's exception comes out of the loop; the other rank goes on to the end."""
    run = SmallRun()
    data = Raising()
    other = run.start(0, data=Raising())

    def before(seen: Seen) -> None:
        data.armed = True

    broken = run.start(1, data=data, before=before)
    outcomes = []
    for rank in (other, broken):
        try:
            outcomes.append(rank.result())
        except OSError as error:
            assert "sample 17" in str(error)
            outcomes.append(None)
    assert outcomes[0] is not None and outcomes[0].session.global_step == 2 * SAMPLES // BATCH
    assert run.coordinator.result().status == "ok"


def test_a_model_whose_shape_changes_ends_its_rank():
    """R-3: named, before a wrong byte leaves."""
    run = SmallRun(target_ranks=1)

    def change(seen: Seen) -> None:
        seen.session.model[2] = torch.nn.Linear(5, 2, bias=False)

    with pytest.raises(ConfigError, match=r"2\.bias"):
        run.train(0, before=change)
    run.coordinator.result()


def test_refused_for_nan_resets_the_optimizer():
    """R-17: momentum that led to NaN does not lead there again; parameters are those of the consensus."""
    run = SmallRun(anchor=2)
    poisoned: list[bool] = []

    def poison(seen: Seen) -> None:
        if not poisoned and len(seen.rates) == 1:
            poisoned.append(True)
            with torch.no_grad():
                seen.session.model[0].weight[0, 0] = math.nan

    ranks = [run.start(0), run.start(1, before=poison)]
    seen = [rank.result() for rank in ranks]
    assert run.coordinator.result().status == "ok"
    assert poisoned and [record["why"] for record in run.named("Refused")] == ["nonfinite"]
    assert torch.equal(seen[0].parameters, seen[1].parameters) and bool(seen[0].parameters.isfinite().all())


@pytest.mark.parametrize(
    ("options", "text"),
    [({"data": dataset(SAMPLES + 1)}, "data set"), ({"size": 6}, "model"), ({"batch_size": 8}, "batch_size")],
    ids=["data", "model", "knob"],
)
def test_a_rank_that_does_not_fit_is_refused_by_name(options: dict[str, Any], text: str):
    """M-5, V-6: the text names what differs; the run begins with whoever fits."""
    run = SmallRun()
    first = run.start(0)
    run.until("Joined")
    with pytest.raises(RefusedError, match=text):
        run.session(1, **options)
    second = run.start(1)
    assert [rank.result().session.version for rank in (first, second)]
    run.coordinator.result()


def test_a_copy_is_reported_before_it_is_shipped_and_never_lies_where_the_last_one_does():
    """W-10: an answer to a copy that the machine has not heard of would be dropped, and the cycle never end. R-10: a
    block of the last copy may still be on its way."""
    run = SmallRun(target_ranks=1, anchor=2)
    session = run.session(0)
    driver, link = session._connection.driver, session._connection.link
    feed, offer = driver.feed, link.offer
    order: list[str] = []
    copies: list[memoryview] = []

    def fed(event: Any) -> None:
        order.extend(["reported"] if isinstance(event, ev.SnapshotTaken) else [])
        feed(event)

    def offered(asked: fx.TakeSnapshot, snapshot: Any) -> None:
        order.append("offered")
        if snapshot is not None:
            copies.append(snapshot.memory)
        offer(asked, snapshot)

    driver.feed, link.offer = fed, offered  # type: ignore[method-assign]
    for batch in session:
        train_one(session, batch)
    assert order == ["reported", "offered"] * (len(order) // 2) and len(copies) > 3
    assert all(a is not b for a, b in pairwise(copies))
    run.coordinator.result()


def test_a_run_directory_that_cannot_be_written_is_a_clear_error(tmp_path: Path):
    """Before anybody is let in; the port is free again."""
    (tmp_path / "taken").write_text("")

    async def main() -> None:
        await serve(Config(target_ranks=1), "tcp://127.0.0.1:0", CREDENTIALS, run_dir=tmp_path / "taken")

    with pytest.raises(ConfigError, match="run directory"):
        trio.run(main)


def test_a_model_that_cannot_be_saved_in_the_end_is_an_error_and_no_rank_suffers(tmp_path: Path):
    """K-8: exit code 7 instead of a success without a file; the ranks end well and hold the model."""
    run_dir = tmp_path / "run"
    run = SmallRun(run_dir, target_ranks=1)

    def spoil(seen: Seen) -> None:
        if run_dir.is_dir():
            shutil.rmtree(run_dir)
            run_dir.write_text("in the way")

    assert run.train(0, before=spoil).session.version > 0
    with pytest.raises(CheckpointError, match="its model is not saved") as error:
        run.coordinator.result()
    assert error.value.exit_code == 7


def test_an_onlooker_that_raises_does_not_end_the_run():
    """N-12: it gets no more records."""
    calls: list[str] = []

    def look(record: dict[str, Any]) -> None:
        calls.append(record["event"])
        raise RuntimeError("no screen")

    run = SmallRun(target_ranks=1, on_record=look)
    run.train(0)
    assert run.coordinator.result().status == "ok" and len(calls) == 1


def test_a_trace_tells_what_the_rank_was_doing(tmp_path: Path):
    """One line per change, the last one says stopped."""
    run = SmallRun(target_ranks=1)
    trace = tmp_path / "deep" / "rank0.jsonl"
    run.train(0, environment={"trace": str(trace)})
    run.coordinator.result()
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    states = [line["state"] for line in lines if "state" in line]
    assert states[0] in ("waiting", "averaging")
    assert "training" in states and states[-1] == "stopped"
    assert all(a != b for a, b in pairwise(states))
    assert lines[-1]["step"] == 2 * SAMPLES // BATCH and {line["rank"] for line in lines} == {0}


def test_a_trace_that_cannot_be_written_is_given_up_in_silence(tmp_path: Path):
    """A full disk, or a wrong path, must not touch training."""
    (tmp_path / "taken").write_text("")
    tracer = Tracer(str(tmp_path / "taken" / "trace.jsonl"), 0)
    tracer.state("training", 1)
    tracer.close(1)


def test_the_throttle_counts_as_compute():
    """PACELINE_SLOW: the balancer sees a machine that is that many times slower, step for step."""
    run = SmallRun(target_ranks=1)
    fed: list[ev.StepDone] = []
    session = run.session(0, epochs=1, environment={"slow": 5.0})
    feed = session._connection.driver.feed
    batches = 0
    session._connection.driver.feed = lambda event: (fed.append(event), feed(event))[1]  # type: ignore[method-assign]
    for batch in session:
        batches += 1
        threading.Event().wait(0.002)  # the work of a step, at least this long
        train_one(session, batch)
    steps = [event for event in fed if isinstance(event, ev.StepDone)]
    assert len(steps) == batches and all(step.batch_ms >= 5 * 2.0 for step in steps)
    run.coordinator.result()


def test_signals_are_left_alone_outside_the_main_thread():
    """Python allows handlers there only; a session in a thread neither fails nor takes them over."""

    def body() -> bool:
        signals = LeaveSignals()
        signals.restore()
        return signals.asked

    assert Thread(body).result() is False


# --- data --------------------------------------------------------------------------------------------------------


class Doubling(TensorDataset):
    """A TensorDataset with a __getitem__ of its own."""

    def __getitem__(self, index: Any) -> Any:
        inputs, target = super().__getitem__(index)
        return inputs * 2, target


class Several(Dataset[Any]):
    """Items with any parts."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.item


def test_a_data_set_is_read_through_its_own_getitem():
    """A subclass of TensorDataset is more than its tensors."""
    plain, doubled = dataset(), Doubling(*dataset().tensors)
    samples = [3, 0, 5]
    assert torch.equal(Collator(doubled, None)(samples)[0], 2 * Collator(plain, None)(samples)[0])
    assert torch.equal(Collator(plain, None)(samples)[1], plain.tensors[1][samples])


def test_parts_of_a_sample_keep_their_shape():
    """Tuples become parts; anything else is one part; nested tensors move to the device too."""
    assert len(Collator(Several((1.0, 2, "text")), None)([0, 1])) == 3
    (only,) = Collator(Several({"a": torch.zeros(2)}), "meta")([0, 1])
    assert only["a"].shape == (2, 2) and only["a"].device.type == "meta"
    with pytest.raises(ConfigError, match="empty"):
        Collator(Several(()), None)([0, 1])


@pytest.mark.parametrize(
    ("data", "batch_size", "text"),
    [(iter([]), 4, "no len"), (dataset(0), None, "empty"), (dataset(3), 4, "batch_size = 4")],
    ids=["stream", "empty", "small"],
)
def test_data_that_nobody_can_train_on_is_refused_here(data: Any, batch_size: int | None, text: str):
    """D-2, D-17: before a connection is made."""
    with pytest.raises(ConfigError, match=text):
        dataset_identity(data, batch_size)


def test_the_identity_of_a_data_set_is_its_length_and_content():
    """M-5: the same twice, another for another length or other plain values."""
    assert dataset_identity(dataset(), 4) == dataset_identity(dataset(), None)
    assert dataset_identity(dataset(47), 4) != dataset_identity(dataset(48), 4)
    assert dataset_identity(Several((1, "a")), 4) != dataset_identity(Several((2, "a")), 4)
