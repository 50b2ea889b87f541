"""Which check of the kits for policies catches which of these."""

from __future__ import annotations

import functools

from paceline.core.conformance.policies import KITS, claims_of

from conformance.broken_policies import cadences, detectors, guards, metas
from conformance.caught import Folder

__all__ = ["CADENCES", "DETECTORS", "FOLDERS", "GUARDS", "METAS"]

GUARDS = Folder(
    kit=KITS["guard"],
    modules=(guards,),
    claims=functools.partial(claims_of, "guard"),
    caught={
        "P101": [guards.TelemetryByName, guards.ClaimsANameOfItsOwn, guards.ClaimsInWords, guards.HasNoMemory,
                 guards.IsNeverMade, guards.IsOneForAll],
        "P111": [guards.DividesByTheNorm, guards.NudgesByTheSignal, guards.AnswersInWords, guards.EmptiesWhatItIsTold,
                 guards.EndsTheProgram, guards.LoopsInObserve, guards.NudgesInDecimals],
        "P112": [guards.CountsItsCalls, guards.ComparesWithNaN, guards.HasOneMemory],
        "P113": [guards.ForgetsAtRestart, guards.SavesObjects, guards.WillNotBeStopped, guards.LendsItsMemory,
                 guards.KeepsTheRecord],
        "P114": [guards.TakesAnyRecord, guards.ForgetsWhatItRefuses, guards.TrustsItsRecord, guards.CannotGoOn],
        "P115": [guards.RemembersEverything],
        "P121": [guards.NeverSatisfied],
        "P122": [guards.ClaimsToNudge, guards.NudgesInSecret],
        "P123": [guards.CountsRanks, guards.FreeInSecret, guards.FearsCrowds],
        "P131": [guards.CannotSayWhatItSaw, guards.LoopsInARun],
    },
    both_ways={
        "nudges": ("P122", guards.ClaimsToNudge, guards.NudgesInSecret),
        "free_of_world": ("P123", guards.CountsRanks, guards.FreeInSecret),
    },
)
CADENCES = Folder(
    kit=KITS["cadence"],
    modules=(cadences,),
    claims=functools.partial(claims_of, "cadence"),
    caught={
        "P201": [cadences.WantsFewArguments, cadences.ClaimsToShrink],
        "P211": [
            cadences.DividesByCost, cadences.CountsInFractions, cadences.StarvesTheSlow, cadences.LongerThanAnEpoch,
            cadences.LoopsWithoutACost, cadences.EmptiesTheReport,
        ],
        "P212": [cadences.DriftsByItself, cadences.FollowsTheFirst, cadences.HasOneMemory],
        "P213": [cadences.GrowsUnasked, cadences.GrowsWhenSuppressed, cadences.StretchesWhenSuppressed],
        "P214": [cadences.TakesTheNudgeBack],
        "P215": [
            cadences.ForgetsItsCounts, cadences.GoesOnOtherwise, cadences.WaitsToRestore, cadences.LendsItsCounts,
        ],
        "P216": [cadences.TakesOtherRanks, cadences.ForgetsWhatItRefuses, cadences.TrustsItsRecord],
        "P217": [cadences.KnowsNoNewcomers],
        "P218": [cadences.RunsAway],
        "P219": [cadences.ComparesWithTheOthers, cadences.HasSeatsFor64],
        "P221": [cadences.Equalizes, cadences.BalancesInSecret, cadences.KnowsSpeedsUpToFour],
        "P222": [cadences.NeverGrows, cadences.GrowsInSecret],
        "P223": [cadences.FreesForGood],
        "P231": [cadences.StopsInARun],
    },
    both_ways={
        "balances": ("P221", cadences.Equalizes, cadences.BalancesInSecret),
        "grows": ("P222", cadences.NeverGrows, cadences.GrowsInSecret),
    },
)
DETECTORS = Folder(
    kit=KITS["detector"],
    modules=(detectors,),
    claims=functools.partial(claims_of, "detector"),
    caught={
        "P301": [detectors.AnswersInSeconds, detectors.ClaimsToForget],
        "P311": [
            detectors.MeanOfNothing, detectors.KnowsNoLimits, detectors.LoopsOverNothing,
            detectors.TellsTheMedianInWords, detectors.SaysWhetherThereWereAny, detectors.HasRoomForTwenty,
        ],
        "P312": [detectors.RemembersOthers, detectors.KnowsItAgain],
        "P313": [detectors.SuspectsHabits],
        "P321": [detectors.LearnsBackwards, detectors.LearnsInSecret, detectors.OneForAll],
        "P331": [detectors.AlwaysHasty],
    },
    both_ways={"learns": ("P321", detectors.OneForAll, detectors.LearnsInSecret)},
)
METAS = Folder(
    kit=KITS["meta"],
    modules=(metas,),
    claims=functools.partial(claims_of, "meta"),
    caught={
        "P401": [metas.ClaimsByHalves, metas.HasNoMemory, metas.CannotBeMade],
        "P411": [metas.DividesByTheRate, metas.NudgesByTheFall, metas.AnswersInNumbers, metas.LoopsDownTheRate,
                 metas.NudgesInTruths],
        "P412": [metas.CountsItsCalls],
        "P413": [metas.HasOneMemory, metas.IsOneForAll],
        "P414": [metas.ForgetsItsRates, metas.SavesObjects, metas.LendsItsMemory],
        "P415": [metas.TakesAnyRecord, metas.ForgetsWhatItRefuses, metas.TrustsItsRecord],
        "P416": [metas.RemembersEverything],
        "P421": [metas.NudgesARise],
        "P422": [metas.SeesNoCliff, metas.CliffsInSecret, metas.WakesUpLate, metas.LooksForALargeFall],
        "P423": [metas.HearsNoComplaint, metas.HearsInSecret, metas.HearsOneKindOfComplaint],
        "P431": [metas.StopsInARun],
    },
    both_ways={
        "cliffs": ("P422", metas.SeesNoCliff, metas.CliffsInSecret),
        "sustained": ("P423", metas.HearsNoComplaint, metas.HearsInSecret),
    },
)
FOLDERS = {"cadence": CADENCES, "guard": GUARDS, "detector": DETECTORS, "meta": METAS}
"""By the name of what they are for, in the order of `KITS`."""
