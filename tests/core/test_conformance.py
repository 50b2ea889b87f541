"""What the conformance kits share: checks, levels, capabilities both ways, outcomes and reports."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest

from paceline.core.conformance import (
    OUTCOME_FIELDS,
    REPORT_FIELDS,
    CheckFailed,
    Kit,
    Level,
    Limit,
    NotChecked,
    Outcome,
    Report,
    Status,
    ensure,
    raising,
    run_check,
    run_kit,
    unlimited,
)
from paceline.core.conformance.blame import place_of, said
from paceline.core.errors import ConfigError, LocalProtocolError, TransportError
from paceline.core.named import named
from paceline.transports.limit import ended

DOC = "guides/page.md#heading"


@attrs.define
class Box:
    """What the checks of these tests look at."""

    value: int = 1
    seen: list[str] = attrs.field(factory=list)


def boxes() -> Kit[Box]:
    return Kit(name="boxes", version=3, capabilities={"large": "holds more than nine", "loud": "speaks"})


def run(main: Callable[[], Awaitable[object]]) -> object:
    async def body() -> object:
        return await main()

    return asyncio.run(body())


def kit_of(body: Callable[[Box], Any], *, level: Level = Level.L1, **options: Any) -> Kit[Box]:
    kit = boxes()
    body.__doc__ = body.__doc__ or "A box is a box."
    kit.check("B101", level, doc=DOC, **options)(body)
    return kit


def only_outcome(kit: Kit[Box], claims: dict[str, bool] | None = None, limit: Limit = unlimited) -> Outcome:
    claims = claims or {"large": False, "loud": False}
    report = run_kit(kit, Box(), target="box", claims=claims, run=run, limit=limit)
    (outcome,) = report.outcomes
    return outcome


# --- how a check ends


def test_a_check_that_returns_has_passed() -> None:
    outcome = only_outcome(kit_of(lambda box: ensure(box.value == 1, "not one")))

    assert (outcome.status, outcome.message, outcome.ok) == (Status.PASSED, "", True)


def test_a_broken_promise_is_a_failure_with_its_text() -> None:
    outcome = only_outcome(kit_of(lambda box: ensure(box.value == 2, "1 where 2 is due")))

    assert (outcome.status, outcome.message, outcome.ok) == (Status.FAILED, "1 where 2 is due", False)


def test_anything_else_that_is_raised_is_an_error_and_ends_nothing() -> None:
    kit = kit_of(lambda box: 1 // 0)
    kit.check("B102", Level.L1, doc=DOC)(later)

    report = run_kit(kit, Box(), target="box", claims={"large": False, "loud": False})

    assert [(each.id, each.status) for each in report.outcomes] == [("B101", Status.ERROR), ("B102", Status.PASSED)]
    text = r"ZeroDivisionError: integer division or modulo by zero, in <lambda> \(test_conformance.py:\d+\)"
    assert re.fullmatch(text, report.outcomes[0].message)


def later(box: Box) -> None:
    """Comes after."""
    box.seen.append("later")


def test_what_cannot_be_looked_at_is_said() -> None:
    def body(box: Box) -> None:
        raise NotChecked("this system lists no descriptors")

    outcome = only_outcome(kit_of(body))

    assert (outcome.status, outcome.message) == (Status.NOT_CHECKED, "this system lists no descriptors")
    assert outcome.ok


@pytest.mark.parametrize("limit", [unlimited, ended])
def test_an_interrupt_is_no_outcome(limit: Limit) -> None:
    """It comes to whoever waits for the check, whatever the plug-in is at."""
    over = threading.Event()

    def body(box: Box) -> None:
        signal.raise_signal(signal.SIGINT)
        while not over.wait(0.01):
            pass

    try:
        with pytest.raises(KeyboardInterrupt):
            only_outcome(kit_of(body), limit=limit)
    finally:
        over.set()


@pytest.mark.parametrize(("kind", "limit"), [
    (KeyboardInterrupt, ended), (SystemExit, ended), (GeneratorExit, ended),
    (SystemExit, unlimited), (GeneratorExit, unlimited),
])  # fmt: skip
def test_what_a_plug_in_raises_to_end_the_program_fails_its_check(kind: type[BaseException], limit: Limit) -> None:
    def body(box: Box) -> None:
        raise kind

    outcome = only_outcome(kit_of(body), limit=limit)

    assert outcome.status is Status.FAILED
    assert f"must not end the program, and this one raised {kind.__name__}" in outcome.message


@pytest.mark.parametrize(
    ("errors", "status", "message"),
    [
        ([ValueError("a"), CheckFailed("broken"), NotChecked("b")], Status.FAILED, "broken"),
        ([ValueError("a"), NotChecked("missing")], Status.NOT_CHECKED, "missing"),
        ([ValueError("a"), TypeError("b")], Status.ERROR, "ValueError: a; TypeError: b"),
    ],
    ids=["failure", "not checked", "error"],
)
def test_of_a_group_the_weightiest_counts(errors: list[Exception], status: Status, message: str) -> None:
    """Tasks of a nursery raise together."""

    def body(box: Box) -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", errors)])

    outcome = only_outcome(kit_of(body))

    assert (outcome.status, outcome.message) == (status, message)


def test_coroutine_functions_run_through_what_was_given() -> None:
    async def body(box: Box) -> None:
        await asyncio.sleep(0)
        ensure(box.value == 2, "seen in a loop")

    kit = kit_of(body)

    assert only_outcome(kit).message == "seen in a loop"
    assert "nothing was given that runs those" in run_check(kit.checks[0], Box()).message


# --- capabilities, both ways


def test_a_claim_is_tested() -> None:
    kit = kit_of(lambda box: ensure(box.value > 9, "claims to be large and is not"), needs="large")

    assert only_outcome(kit, {"large": True, "loud": False}).status is Status.FAILED


def test_what_is_not_claimed_is_said_to_be_so() -> None:
    kit = kit_of(lambda box: ensure(False, "not to be called"), needs="large")

    outcome = only_outcome(kit)

    assert (outcome.status, outcome.message, outcome.ok) == (Status.NOT_CLAIMED, "large is not claimed", True)


def test_what_is_not_claimed_has_to_fail_as_documented() -> None:
    def lacks(box: Box) -> None:
        ensure(box.value < 10, "holds more than nine all the same: claim it")

    kit = kit_of(lambda box: None, needs="large", unclaimed=lacks)

    assert run_check(kit.checks[0], Box(5), claimed=False).status is Status.NOT_CLAIMED
    modest = run_check(kit.checks[0], Box(50), claimed=False)
    assert modest.status is Status.FAILED
    assert modest.message == "large is not claimed: holds more than nine all the same: claim it"


def test_what_there_is_nothing_to_ask_about_is_not_looked_at() -> None:
    """Whatever else the check needs: its `unclaimed` is for those who could have the capability."""
    wrong = {"needs": "loud", "unclaimed": lambda box: ensure(False, "not to be called"), "within": "large"}
    kit = kit_of(lambda box: ensure(box.value > 9, "small"), **wrong)

    for loud in (False, True):
        outcome = only_outcome(kit, {"large": False, "loud": loud})
        assert (outcome.status, outcome.message) == (Status.NOT_CLAIMED, "large is not claimed")
    assert only_outcome(kit, {"large": True, "loud": True}).message == "small"
    assert only_outcome(kit, {"large": True, "loud": False}).message == "loud is not claimed: not to be called"


@pytest.mark.parametrize("claims", [{}, {"large": True}, {"large": True, "loud": False, "small": True}])
def test_every_capability_is_declared_and_no_other(claims: dict[str, bool]) -> None:
    with pytest.raises(ConfigError, match=r"\['large', 'loud'\]"):
        run_kit(boxes(), Box(), target="box", claims=claims)


# --- kits


def three_levels() -> Kit[Box]:
    kit = boxes()

    @kit.check("B201", Level.L2, doc=DOC)
    def second(box: Box) -> None:
        """The third one declared first."""

    @kit.check("B001", Level.L0, doc=DOC)
    def found(box: Box) -> None:
        """It can be found.

        And this is not part of what is asserted.
        """
        ensure(box.value > 0, "there is no box")

    @kit.check("B101", Level.L1, doc=DOC)
    def first(box: Box) -> None:
        """It has
        a first."""

    return kit


def test_checks_go_by_level_and_id_and_tell_what_they_assert() -> None:
    checks = three_levels().checks

    assert [(check.id, check.name) for check in checks] == [("B001", "found"), ("B101", "first"), ("B201", "second")]
    assert [check.asserts for check in checks[:2]] == ["It can be found.", "It has a first."]


@pytest.mark.parametrize(
    ("level", "only", "ids"),
    [
        (Level.L3, (), ["B001", "B101", "B201"]),
        (Level.L1, (), ["B001", "B101"]),
        (Level.L0, ("second", "B101"), ["B101", "B201"]),
    ],
)
def test_a_selection_is_a_level_or_some_names(level: Level, only: tuple[str, ...], ids: list[str]) -> None:
    assert [check.id for check in three_levels().select(level=level, only=only)] == ids


def test_a_name_that_no_check_has_is_told_the_ids() -> None:
    with pytest.raises(ConfigError, match="no check 'B999' in the kit boxes; its checks are B001, B101, B201"):
        three_levels().select(only=["B999"])


def test_what_fails_at_the_door_is_not_judged_further() -> None:
    report = run_kit(three_levels(), Box(0), target="box", claims={"large": False, "loud": False})

    assert [each.status for each in report.outcomes] == [Status.FAILED, Status.NOT_CHECKED, Status.NOT_CHECKED]


def test_a_kit_refuses_what_would_make_it_unclear() -> None:
    kit = kit_of(later)
    with pytest.raises(LocalProtocolError, match="two checks B101"):
        kit.check("B101", Level.L1, doc=DOC)(later)
    with pytest.raises(LocalProtocolError, match="needs 'small'"):
        kit.check("B102", Level.L1, doc=DOC, needs="small")(later)
    with pytest.raises(LocalProtocolError, match="needs 'small'"):
        kit.check("B102", Level.L1, doc=DOC, within="small")(later)
    with pytest.raises(LocalProtocolError, match="docstring"):
        kit.check("B103", Level.L1, doc=DOC)(lambda box: None)


# --- what a check says


def test_raising_takes_the_right_kind_with_the_right_words() -> None:
    with raising(TransportError, "a dial", naming=["box:1"]):
        raise TransportError("nobody at box:1")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, "a dial raised nothing where TransportError is due"),
        (ValueError("x"), r"a dial raised ValueError: x, in \w+ \(\w+\.py:\d+\), where TransportError is due"),
        (TransportError("nobody"), "does not name 'box:1': nobody"),
        (CheckFailed("other"), "^other$"),
    ],
    ids=["nothing", "kind", "words", "failure inside"],
)
def test_raising_says_what_came_in_place_of_it(error: Exception | None, text: str) -> None:
    with pytest.raises(CheckFailed, match=text), raising(TransportError, "a dial", naming=["box:1"]):
        if error is not None:
            raise error


# --- reports


def report() -> Report:
    return run_kit(
        three_levels(),
        Box(0),
        target="box",
        claims={"loud": True, "large": False},
        rerun="conform box --check {}".format,
    )


def test_a_report_is_json_that_says_everything() -> None:
    plain = json.loads(report().to_json())

    assert plain["kit"] == "boxes" and plain["kit_version"] == 3 and plain["level"] == "L3" and plain["ok"] is False
    assert plain["claims"] == {"large": False, "loud": True}
    assert plain["counts"] == {"passed": 0, "failed": 1, "not_claimed": 0, "not_checked": 2, "error": 0}
    assert plain["outcomes"][0] == {
        "id": "B001",
        "name": "found",
        "level": "L0",
        "status": "failed",
        "message": "there is no box",
        "asserts": "It can be found.",
        "doc": DOC,
        "rerun": "conform box --check B001",
    }


def test_the_same_run_gives_the_same_report() -> None:
    """No time, no date, no path."""
    assert report().to_json() == report().to_json()


def test_a_display_hears_of_each_outcome_as_it_comes() -> None:
    heard: list[Outcome] = []
    claims = {"large": False, "loud": False}
    done = run_kit(three_levels(), Box(), target="box", claims=claims, on_outcome=heard.append)

    assert tuple(heard) == done.outcomes and done.ok


# --- what helps the author


def test_the_fields_of_a_report_are_those_that_are_documented() -> None:
    """docs/reference/conformance.md is made from these tables."""
    report = run_kit(kit_of(lambda box: None), Box(), target="box", claims={"large": False, "loud": False})
    plain = report.plain()

    assert list(plain) == list(REPORT_FIELDS) and list(plain["outcomes"][0]) == list(OUTCOME_FIELDS)
    assert set(plain["counts"]) == {status.value for status in Status}
    assert all(status.meaning for status in Status)


def test_a_gate_that_is_shut_leaves_the_rest_unchecked() -> None:
    """A hundred checks that wait for what the first one did not get would say nothing more."""
    kit = boxes()
    kit.check("B101", Level.L1, doc=DOC, gate=True)(passes)
    kit.check("B102", Level.L1, doc=DOC, gate=True)(fails)
    kit.check("B201", Level.L2, doc=DOC)(passes)
    report = run_kit(kit, Box(), target="box", claims={"large": False, "loud": False})

    told = [(each.id, each.status, each.message) for each in report.outcomes]
    assert told[0] == ("B101", Status.PASSED, "") and told[1][:2] == ("B102", Status.FAILED)
    assert told[2] == ("B201", Status.NOT_CHECKED, "B102 failed: repair that first")


def passes(box: Box) -> None:
    """A box is there."""


def fails(box: Box) -> None:
    """A box can be opened."""
    ensure(False, "it cannot")


def test_the_place_is_the_innermost_of_the_plug_in() -> None:
    """What a plug-in calls is its own affair, and the line in it is what its author can change."""
    try:
        json.loads("{")
    except ValueError as error:
        assert place_of(error).startswith("test_the_place_is_the_innermost_of_the_plug_in (test_conformance.py:")
    assert place_of(ValueError("never raised")) == ""


def test_all_that_was_raised_together_is_said() -> None:
    both = ExceptionGroup("two tasks", [ValueError("one"), ExceptionGroup("more", [OSError("two")])])
    assert said(both) == "ValueError: one; OSError: two"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("no_such_module:Box", "there is no module 'no_such_module' here; run from the directory that holds it"),
        ("paceline.nowhere:Box", "there is no module 'paceline.nowhere' here"),
        ("json:loadz", "there is no 'loadz' in json; near to it are load"),
        ("json:zzz", "name a class or function that is there$"),
        ("json:Loads", "near to it are loads, load$"),
        ("paceline.core.guard:level", "near to it are LevelGuard$"),
        ("paceline.core.guard:growth_gard", "near to it are GrowthGuard$"),
        ("paceline.core.guard:Averager", "name a class or function that is there$"),
        ("paceline.core.detector:Detecter", "what it has is FixedDetector, Learned, LearnedDetector, Limits, judged$"),
        ("paceline.core.meta:Controller", "near to it are MetaController$"),
        ("paceline.core.meta:MyMeta", "what it has is MetaController$"),
        ("paceline.backends.star:State", "what it has is StarAverager$"),
        ("math:Detector", "name a class or function that is there$"),
        ("paceline.core.meta:MetaController.observed", "near to it are observe$"),
        ("json:__doc__", "is an object of type str"),
        ("json:", "is not written as module:name"),
        (":loads", "is not written as module:name"),
    ],
)
def test_a_factory_that_cannot_be_had_says_which_part_is_at_fault(target: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^box '{target}'.*{text}"):
        named(target, "box")


@pytest.mark.parametrize(("name", "text"), [
    ("Torn", "'Torn' of lazy raised ImportError: it needs torch$"), ("Born", "what it has is Sound$"),
])  # fmt: skip
def test_a_name_that_is_loaded_when_it_is_asked_for_may_fail_to(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """As `paceline.Session` does without torch: neither when it is meant, nor when another one is looked for."""

    def load(wanted: str) -> object:
        raise ImportError("it needs torch") if wanted == "Torn" else AttributeError(wanted)

    lazy: Any = ModuleType("lazy")
    lazy.Sound = type("Sound", (), {"__module__": "lazy"})
    lazy.__getattr__, lazy.__dir__ = load, lambda: ["Sound", "Torn"]
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    with pytest.raises(ConfigError, match=f"^box 'lazy:{name}' cannot be loaded: .*{text}"):
        named(f"lazy:{name}", "box")


@pytest.mark.parametrize(
    ("source", "text"),
    [("import sys; sys.exit(0)", "SystemExit: 0"), ("def (:", "SyntaxError"), ("1 / 0", "ZeroDivisionError"),
     ("import no_such_dependency", "No module named 'no_such_dependency'")],
)  # fmt: skip
def test_a_module_that_cannot_be_imported_is_a_mistake_of_the_caller(
    source: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that ends the program: that would look like a kit that was passed."""
    (tmp_path / "box_of_somebody.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=f"importing box_of_somebody raised .*{text}"):
        named("box_of_somebody:Box", "box")
