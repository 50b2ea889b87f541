"""Which check of the kit for averagers catches which of these."""

from __future__ import annotations

from paceline.backends.conformance import KIT, claims_of

from conformance.broken_averagers import hangs, in_place, lanes, lately, members, rounds, sums, values
from conformance.caught import Folder

__all__ = ["FOLDER"]

FOLDER = Folder(
    kit=KIT,
    modules=(hangs, in_place, lanes, lately, members, rounds, sums, values),
    claims=claims_of,
    caught={
        "A001": [rounds.KnowsNoGamma, hangs.IsNeverMade],
        "A002": [
            rounds.CapableInWords, rounds.WantsItsOwnMemory, rounds.NamesOneDevice, in_place.NeedsASessionToReceive,
        ],
        "A003": [in_place.HidesThatItIsInPlace, in_place.LiesThatItIsInPlace, in_place.IsOfBothKinds],
        "A101": [rounds.SendsBeforeTheEnd],
        "A102": [rounds.HearsOtherRounds],
        "A103": [rounds.TakesBlocksInAnyOrder],
        "A104": [
            rounds.TellsAllTheSame, rounds.ForgetsObservers, lanes.CountsInNumpy, hangs.ReducesForEver,
            members.ObserversComeLast,
        ],
        "A105": [
            rounds.ForgetsTheLastBlock, rounds.StampsOneForAll, rounds.ScattersAView, members.KnowsFirstLives,
        ],
        "A106": [sums.DigestsAndMore, sums.DigestsTheSum, lately.DigestsOnce],
        "A107": [rounds.NeverComplete],
        "A108": [rounds.NeverTired, rounds.AbortsInSilence],
        "A109": [members.ReducesAgain, members.SendsAfterTheClose],
        "A110": [members.LandsAllInOnePlace],
        "A111": [members.HasOneMemory],
        "A121": [in_place.CountsItsSessions, hangs.LooksForAnId],
        "A122": [hangs.RunsForEver, in_place.ForgetsTheAttempt, in_place.CountsInFloat32],
        "A123": [in_place.LetsObserversVote],
        "A201": [
            sums.IgnoresGamma, sums.ScalesEachContribution, rounds.PlacesShort, rounds.PlacesAView, values.TellsTheMass,
        ],
        "A202": [sums.DividesByTheWorld],
        "A203": [sums.WeighsBuffers],
        "A204": [sums.AveragesEverything],
        "A205": [
            sums.SumsInTheWireType, sums.NarrowsDoubles, values.FlushesSubnormals, values.LooksAtTheSum,
        ],
        "A206": [sums.SumsAsTheyCome, members.RefusesAsTheyCome],
        "A207": [sums.GoesTooFar],
        "A208": [rounds.RealizesNothing, values.DigestsWhatStays],
        "A209": [sums.RealizesOverflow, values.LooksAtParameters],
        "A210": [rounds.StateIsAContribution],
        "A211": [rounds.HasRoomForOne],
        "A212": [sums.WeighsTiedTwice],
        "A213": [sums.KeepsTheOldSum],
        "A221": [in_place.WeighsBySteps],
        "A222": [in_place.WeighsBuffers],
        "A223": [in_place.AveragesAllItFinds],
        "A224": [in_place.SumsFromItself],
        "A225": [in_place.DividesByNothing],
        "A226": [in_place.SharesWhatRides, in_place.SharesByPlace],
        "A214": [rounds.KeepsWhatItWasLent],
        "A215": [values.SumsInATree, values.SumsASet, values.HasRoomFor64, values.CountsInFloat32],
        "A301": [rounds.TakesAnySchema, rounds.BelievesEverySteps],
        "A302": [rounds.ReadsWhatItRefused],
        "A303": [rounds.TrustsFinite, values.LooksForNaN, values.LooksAtFloat32],
        "A304": [rounds.OverwritesDeposits],
        "A305": [
            rounds.TakesAnyAttempt, rounds.ShoutsAtLateFrames, lately.TakesOlderGenerations, lately.TakesOlderAttempts,
            members.TakesOlderLives, members.TakesAnyKind,
        ],
        "A306": [rounds.WaitsForTheDead, rounds.CountsTheDead],
        "A307": [rounds.NeedsNoAdmission],
        "A308": [sums.KeepsThePartialSum],
        "A309": [rounds.WritesOverReaders],
        "A310": [rounds.KeepsTheUnfinished],
        "A311": [rounds.ReusesPlacedMemory],
        "A312": [members.BeginsAgain],
        "A313": [members.ObserversNeverGo, members.LooksForTheMember, members.DeafAfterTheReduce],
        "A314": [members.SendsHalfAState],
        "A315": [members.NeverForgives, members.BuriesForEver],
        "A321": [
            in_place.TrustsItsValues, in_place.LooksForNaN, in_place.LooksAtParameters, in_place.TrustsTheIdle,
        ],
        "A322": [in_place.WaitsForNobody, in_place.HidesItsSession],
        "A323": [in_place.TakesAnySession],
        "A324": [in_place.MatchesByPosition],
        "A325": [in_place.TakesNothingBack],
        "A326": [in_place.LeavesHalfASum, in_place.GivesUpForGood, in_place.HidesItsAbort],
        "A327": [in_place.HearsOnlyInside],
        "A328": [in_place.AddsWhoHasLeft],
        "A329": [lanes.GoesOnAlone],
    },
    both_ways={
        "ships": ("A003", in_place.HidesThatItIsInPlace, in_place.IsOfBothKinds),
        "in_place": ("A003", in_place.LiesThatItIsInPlace, in_place.HidesThatItIsInPlace),
        "abortable": ("A326", in_place.GivesUpForGood, in_place.HidesItsAbort),
        "needs_session": ("A322", in_place.WaitsForNobody, in_place.HidesItsSession),
    },
)
