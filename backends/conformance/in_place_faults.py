"""L3 for averagers that average in place: who meets whom, what is given up, what is taken back (R-1, R-13, R-15, R-18,
M-31, W-14, W-20)."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.conformance import Level, accepting, ensure
from ...core.effects import AbortCollective
from .in_place import STEPS, same_bits
from .kit import GUIDE, KIT, Subject
from .together import Crew, Running, crew, ensure_near

__all__: list[str] = []

STILL_S = 0.05
"""How long ranks that wait for others are watched: who does not wait comes out at once."""


def unchanged(made: Crew, before: Mapping[int, bytes], what: str) -> None:
    """Not a bit of any rank differs (R-15)."""
    changed = [rank for rank, now in made.look().items() if now != before[rank]]
    ensure(not changed, f"{what} changed the state of the ranks {changed}")


def _waiting(made: Crew, *runnings: Running) -> None:
    for running in runnings:
        early = running.over.wait(STILL_S)
        ensure(not early, f"{running.what} of rank {running.rank} ended in {running.found or running.raised} while a "
               "member of its session was outside")  # fmt: skip


def _needs_no_session(subject: Subject) -> None:
    """Who does not claim that it needs a session averages without one."""
    with crew(subject, STEPS, session=False) as made:
        before = {rank: made.riding(rank) for rank in STEPS}
        made.call(STEPS, session=1)
        ensure_near(made, before, STEPS, "needs_session is not claimed, and without a session")


@KIT.check("A322", Level.L3, doc=f"{GUIDE}#sessions", within="in_place", needs="needs_session",
           unclaimed=_needs_no_session)  # fmt: skip
def a_call_waits_for_every_member(subject: Subject) -> None:
    """No sum exists before all members of the session are inside, and each member is in it once (R-13, M-31)."""
    with crew(subject, STEPS) as made:
        before = {rank: made.riding(rank) for rank in STEPS}
        first = [made.run(rank, STEPS[rank]) for rank in (0, 1)]
        _waiting(made, *first)
        made.end(*first, made.run(2, STEPS[2]))
        ensure_near(made, before, STEPS, "a call to which the last rank came late")


@KIT.check("A323", Level.L3, doc=f"{GUIDE}#sessions", within="in_place", needs="needs_session")
def another_session_is_refused(subject: Subject) -> None:
    """A call of a session that the rank is not in, older or newer, fails at once and changes nothing (R-1, M-31)."""
    with crew(subject, [0, 1, 2], session=False) as made:
        made.enter([0, 1, 2])
        made.enter([0, 1])
        before = made.look()
        made.failed(*(made.run(rank, 4, session=number) for rank, number in ((0, 1), (1, 3))))
        unchanged(made, before, "a call of another session")


@KIT.check("A324", Level.L3, doc=f"{GUIDE}#a-call", within="in_place")
def ranks_of_different_calls_never_average(subject: Subject) -> None:
    """Ranks that meet in different cycles or attempts all fail, and nothing has changed: a call is known by its key,
    not by its place in the order of calls (R-1)."""
    for cycle, attempt in ((4, 0), (3, 1)):
        with crew(subject, STEPS) as made:
            before = made.look()
            made.failed(made.run(0, 3), made.run(1, 4, cycle=cycle, attempt=attempt), made.run(2, 10))
            unchanged(made, before, f"a call in which one rank was in cycle {cycle}, attempt {attempt}")


@KIT.check("A325", Level.L3, doc=f"{GUIDE}#given-up-and-taken-back", within="in_place")
def an_average_is_taken_back(subject: Subject) -> None:
    """An average that succeeded here and not everywhere is taken back before the call is repeated (W-14)."""
    with crew(subject, STEPS) as made:
        before = {rank: made.riding(rank) for rank in STEPS}
        made.call(STEPS)
        made.enter([0, 1])
        left = {0: 3, 1: 4}
        made.call(left, attempt=1, restore=True)
        ensure_near(made, before, left, "the repetition of a call that had succeeded here")
        same_bits(made, [0, 1], "the repetition of a call that had succeeded here")


def _ends_for_good(subject: Subject) -> None:
    """Who cannot be aborted says that it failed for good; a renewal with the state of another rank makes it well."""
    with crew(subject, STEPS) as made:
        inside = [made.run(0, 3), made.run(1, 4)]
        _waiting(made, *inside)
        with accepting("an abort"):
            made.abort()
        tried_again = [rank for rank, failed in made.failed(*inside).items() if failed.retryable]
        ensure(not tried_again, f"the ranks {tried_again} say that an aborted call may be tried again: claim "
               "abortable, or say retryable=False")  # fmt: skip
        # Their lives are over. New ones, in a new session, get the state of who was not inside.
        made.enter(STEPS)
        made.share(2, {0, 1}, list(STEPS))
        same_bits(made, list(STEPS), "after the renewal that follows an abort")
        before = {rank: made.riding(rank) for rank in STEPS}
        made.call(STEPS, attempt=1)
        ensure_near(made, before, STEPS, "after the renewal that follows an abort")


@KIT.check("A326", Level.L3, doc=f"{GUIDE}#given-up-and-taken-back", within="in_place", needs="abortable",
           unclaimed=_ends_for_good)  # fmt: skip
def an_abort_frees_and_leaves_every_bit(subject: Subject) -> None:
    """An abort frees whoever is inside; the call fails, may be tried again, and no bit of a source has changed; the
    survivors' next session averages without who is gone (R-15, R-18, W-20)."""
    with crew(subject, STEPS) as made:
        before, riding = made.look(), {rank: made.riding(rank) for rank in STEPS}
        inside = [made.run(0, 3), made.run(1, 4)]
        _waiting(made, *inside)
        made.abort()
        final = [rank for rank, failed in made.failed(*inside).items() if not failed.retryable]
        ensure(not final, f"abortable is claimed, and the ranks {final} say that they cannot average any more")
        unchanged(made, before, "an abort")
        made.enter([0, 1])
        left = {0: 3, 1: 4}
        found = made.call(left, attempt=1)
        ensure(all(done.total_steps == 7 for done in found.values()), "the total of the survivors is not 7 steps")
        ensure_near(made, riding, left, "the attempt after an abort")


@KIT.check("A327", Level.L3, doc=f"{GUIDE}#given-up-and-taken-back", within="in_place", needs="abortable")
def an_abort_is_heard_before_the_call(subject: Subject) -> None:
    """Who is about to enter a call of an aborted session is freed too; an abort of another session changes nothing, and
    aborts may be repeated (W-20)."""
    with crew(subject, STEPS) as made:
        before = made.look()
        for number in (made.session + 1, 99):
            made.abort(number)
        made.call(dict.fromkeys(STEPS, 0))
        for _ in range(2):
            with accepting("an abort that is repeated"):
                made.averagers[0].abort(AbortCollective(made.session))
        made.failed(made.run(0, 3, cycle=4))
        unchanged(made, before, "a call of an aborted session")


@KIT.check("A329", Level.L3, doc=f"{GUIDE}#given-up-and-taken-back", within="in_place", needs="abortable")
def a_member_that_is_killed_frees_the_others(subject: Subject) -> None:
    """`kill -9` of a member, whichever, while the others are inside: told of it they come out, with not a bit changed,
    and average without it in their next session (M-17, M-31, R-15, W-20)."""
    for victim in (max(STEPS), min(STEPS)):
        with crew(subject, STEPS) as made:
            left = {rank: steps for rank, steps in STEPS.items() if rank != victim}
            inside = [made.run(rank, steps) for rank, steps in left.items()]
            _waiting(made, *inside)
            made.kill(victim)
            before, riding = made.look(), {rank: made.riding(rank) for rank in left}
            made.abort()
            final = [rank for rank, failed in made.failed(*inside).items() if not failed.retryable]
            ensure(not final, f"rank {victim} was killed, and the ranks {final} say that they cannot average any more")
            unchanged(made, before, f"the death of rank {victim}")
            made.enter(left)
            made.call(left, attempt=1)
            ensure_near(made, riding, left, f"the attempt after the death of rank {victim}")


@KIT.check("A328", Level.L3, doc=f"{GUIDE}#sessions", within="in_place", needs="needs_session")
def a_session_is_left_for_the_next(subject: Subject) -> None:
    """Sessions follow each other with more and fewer ranks: each averages its own members and nobody else (M-31)."""
    with crew(subject, [0, 1, 2, 5]) as made:
        for cycle, members in enumerate(([0, 1], [0, 1, 2, 5], [1, 2, 5]), start=3):
            made.enter(members)
            before, outside = {rank: made.riding(rank) for rank in members}, made.look()
            steps = {rank: 2 * rank + 1 for rank in members}
            totals = {done.total_steps for done in made.call(steps, cycle=cycle).values()}
            ensure(totals == {sum(steps.values())}, f"a session of {members} has the totals {totals}")
            ensure_near(made, before, steps, f"a session of {members}")
            strangers = [rank for rank in made.memory if rank not in members and made.look()[rank] != outside[rank]]
            ensure(not strangers, f"a session of {members} changed the ranks {strangers}")
