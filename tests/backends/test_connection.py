"""How a rank gets in: what it tells of itself, how long it waits, what the address of a run says (M-3, M-5, N-29)."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trio

from paceline.backends import connection as connection_module
from paceline.backends import serve as serve_module
from paceline.backends.connection import Connection, Environment, _enter, devices_of
from paceline.backends.flat import FlatModel
from paceline.backends.schema import schema_of
from paceline.backends.serve import _for_diallers
from paceline.backends.session import Session
from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.errors import ConfigError, RefusedError, TransportError
from paceline.transports.api import Channel
from paceline.transports.registry import find_transport

from support.glue import run_in_no_time
from support.patience import PATIENCE_S
from support.small_run import BATCH, SAMPLES, SmallRun, dataset
from support.transports import MEMORY, meeting
from support.words import hello


def test_a_rank_tells_of_the_devices_that_its_model_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """B-6, M-5: of no others, and of each what the prior goes by."""
    assert devices_of(torch.nn.Linear(3, 2)) == devices_of(torch.nn.ReLU()) == ("cpu",)
    card = SimpleNamespace(name="NVIDIA A10", major=8, minor=6, total_memory=23_609_475_072)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    on_card = SimpleNamespace(parameters=lambda: [SimpleNamespace(device=torch.device("cuda", 1))] * 2)
    assert devices_of(on_card) == ("NVIDIA A10, generation 8.6, 22 GB",)  # type: ignore[arg-type]


@pytest.mark.parametrize(("code", "knocks"), [(m.RejectCode.BUSY, 3), (m.RejectCode.FULL, 1)])
def test_a_busy_door_is_knocked_at_again(code: m.RejectCode, knocks: int) -> None:
    """N-29: a cohort that forms, or a crowd, is over soon; what lasts is told at once. Here for a second at most."""
    tried: list[float] = []

    async def main() -> None:
        async with meeting(MEMORY) as met:

            async def dial() -> Channel:
                tried.append(trio.current_time())
                rank, coordinator = await met.join()

                async def answer() -> None:
                    await coordinator.receive()
                    await coordinator.send(m.Reject(code=code, text="not now", retry=True, after_s=0.4))

                met.nursery.start_soon(answer)
                return rank

            with pytest.raises(RefusedError, match="refused this rank: not now") as caught:
                await _enter(dial, hello(60), 0.5, 2.0)
            assert caught.value.retry and caught.value.code == code

    run_in_no_time(main)
    assert [at - tried[0] for at in tried] == pytest.approx([0.4 * knock for knock in range(knocks)])


Turn = Callable[[Channel], Awaitable[None]]


def says(code: m.RejectCode) -> Turn:
    async def answer(coordinator: Channel) -> None:
        await coordinator.receive()
        await coordinator.send(m.Reject(code=code, text="no", retry=False, after_s=0.0))

    return answer


async def resets(coordinator: Channel) -> None:
    assert isinstance(await coordinator.receive(), m.Hello)
    await coordinator.aclose()


async def welcomes(coordinator: Channel) -> None:
    await coordinator.receive()
    await coordinator.send(m.Welcome(rank=1, incarnation=2, generation=1, status=m.WelcomeStatus.FORMING,
                                     control_seq=0, report_seq=0, config={}))  # fmt: skip


STORIES: dict[str, tuple[list[Turn], bool]] = {
    "a reset": ([resets, welcomes], True),
    "its own ghost": ([resets, says(m.RejectCode.SEAT), resets, says(m.RejectCode.FULL), welcomes], True),
    "somebody else": ([says(m.RejectCode.SEAT), welcomes], False),
    "another schema": ([resets, says(m.RejectCode.SCHEMA), welcomes], False),
    "another protocol": ([says(m.RejectCode.PROTOCOL), welcomes], False),
}
"""What becomes of each Hello of a rank, and whether it gets in."""


@pytest.mark.parametrize("story", STORIES)
def test_a_link_that_ends_before_the_welcome_is_made_again(story: str) -> None:
    """Field case F19, M-3, N-29: whatever ends it, not only a limit of time; with growing pauses. A refusal for good
    ends it at once, with the reason."""
    turns, enters = STORIES[story]
    tried: list[float] = []

    async def main() -> None:
        async with meeting(MEMORY) as met:

            async def dial() -> Channel:
                rank, coordinator = await met.join()
                met.nursery.start_soon(turns[len(tried)], coordinator)
                tried.append(trio.current_time())
                return rank

            if enters:
                _, welcome = await _enter(dial, hello(60, wanted_rank=1), 30.0, 1.0)
                assert (welcome.rank, welcome.incarnation) == (1, 2)
            else:
                with pytest.raises(RefusedError, match="refused this rank: no"):
                    await _enter(dial, hello(60, wanted_rank=1), 30.0, 1.0)

    run_in_no_time(main)
    assert len(tried) == (len(turns) if enters else len(turns) - 1)
    pauses = [round(after - before, 6) for before, after in pairwise(tried)]
    assert all(pause >= 0.5 for pause in pauses) and pauses == sorted(pauses)


def test_a_coordinator_that_hangs_up_on_every_hello_is_given_up() -> None:
    """Field case F19, M-3: after the time of a dial, with what went wrong."""
    ended: list[float] = []

    async def main() -> None:
        async with meeting(MEMORY) as met:

            async def dial() -> Channel:
                rank, coordinator = await met.join()
                met.nursery.start_soon(resets, coordinator)
                return rank

            begun = trio.current_time()
            with pytest.raises(TransportError):
                await _enter(dial, hello(60), 30.0, 1.0)
            ended.append(trio.current_time() - begun)

    run_in_no_time(main)
    assert 15.0 <= ended[0] <= 30.0


def test_what_is_waited_for_a_welcome_is_scaled() -> None:
    """M-3: 30 s by the plain scale."""
    waited: list[float] = []

    async def main() -> None:
        async with meeting(MEMORY) as met:

            async def dial() -> Channel:
                return (await met.join())[0]

            begun = trio.current_time()
            with pytest.raises(TransportError, match=r"did not answer within 7\.5 s"):
                await _enter(dial, hello(60), 0.5, 0.25)
            waited.append(trio.current_time() - begun)

    run_in_no_time(main)
    assert waited == pytest.approx([7.5])


def test_the_address_says_how_long_to_wait() -> None:
    """M-3: the time_scale of a run is known to its ranks before they are welcomed, and one that is none is refused."""
    known: dict[str, Any] = dict(token=b"t" * 32, run_id=b"r" * 16)
    fast = Environment(url="tcp://127.0.0.1:1?bulk_auth=header&time_scale=0.1", dial_s=0.1, **known)
    assert (fast.address, fast.bulk_auth, fast.time_scale) == ("tcp://127.0.0.1:1", "header", 0.1)
    assert Environment(url="tcp://127.0.0.1:1", **known).time_scale == 1.0
    model = torch.nn.Linear(3, 2)
    with pytest.raises(TransportError, match=r"tried for 0\.01 s"):
        Session(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset(), batch_size=BATCH, environment=fast)
    for wrong in ("0", "nan", "soon", "inf"):
        with pytest.raises(ConfigError, match=f"time_scale = '{wrong}' in PACELINE_URL"):
            Environment(url=f"tcp://127.0.0.1:1?time_scale={wrong}", **known).time_scale  # noqa: B018


def test_both_ends_of_a_run_take_its_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """M-3: its listener and each dialler, by the address alone."""
    found: list[tuple[str, float]] = []

    def noted(url: str, time_scale: float = 1.0) -> Any:
        found.append((url.partition(":")[0], time_scale))
        return find_transport(url, time_scale)

    monkeypatch.setattr(serve_module, "find_transport", noted)
    monkeypatch.setattr(connection_module, "find_transport", noted)
    run = SmallRun(target_ranks=1, time_scale=0.5)
    assert run.train(0, epochs=1).session.version
    assert run.coordinator.result().status == "ok" and found == [("tcp", 0.5)] * 2


@pytest.mark.parametrize(("knobs", "said"), [
    ({}, ""), ({"time_scale": 2.0}, "?time_scale=2"),
    ({"bulk_auth": "header", "time_scale": 0.5}, "?bulk_auth=header&time_scale=0.5"),
])  # fmt: skip
def test_a_run_says_at_its_address_what_is_not_as_usual(knobs: dict[str, Any], said: str) -> None:
    """M-3, N-26."""
    assert _for_diallers(Config(**knobs)) == said


def test_nobody_to_talk_to_is_one_clear_error():
    """M-3: after the patience of the environment."""
    environment = Environment(url="tcp://127.0.0.1:1", token=b"t" * 32, run_id=b"r" * 16, dial_s=0.0)
    model = torch.nn.Linear(3, 2)
    with pytest.raises(TransportError):
        Session(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset(), batch_size=BATCH,
                environment=environment)  # fmt: skip


def test_a_dial_that_is_interrupted_leaves_no_rank_behind():
    """Ctrl-C while nobody answers yet: the thread ends, or it would take a seat later that nobody trains."""

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    environment = Environment(url="tcp://127.0.0.1:1", token=b"t" * 32, run_id=b"r" * 16, dial_s=600.0)
    connection = Connection()
    connection._answered = Interrupted()
    model = torch.nn.Linear(3, 2)
    with pytest.raises(KeyboardInterrupt):
        connection.start(environment, hello(SAMPLES), FlatModel(model, schema_of(model)))
    thread = connection._thread
    assert thread is not None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
