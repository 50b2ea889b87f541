"""Which check of the kit for transports catches which of these."""

from __future__ import annotations

import attrs

from paceline.transports.conformance import KIT

from conformance.broken_transports import (
    cancelled,
    careless,
    claims,
    deaths,
    doors,
    ends,
    hangs,
    leaks,
    load,
    misuse,
    one_way,
    order,
)
from conformance.caught import Folder

__all__ = ["FOLDER"]

FOLDER = Folder(
    kit=KIT,
    modules=(cancelled, careless, claims, deaths, doors, ends, hangs, leaks, load, misuse, one_way, order),
    claims=lambda broken: attrs.asdict(broken.capabilities),
    caught={
        "T001": [doors.SaysAnotherScheme],
        "T002": [claims.ClaimsInWords, hangs.IsNeverMade],
        "T003": [doors.TakesAnyAddress],
        "T101": [doors.NamesNoPeer, hangs.DialsOnTheSpot, hangs.WillNotBeCancelled],
        "T102": [ends.SecondChoice],
        "T103": [doors.KeepsItsAddress],
        "T104": [doors.ServesOn],
        "T105": [doors.ClosesItsChannelsToo],
        "T106": [ends.HandlerEndsServe],
        "T107": [doors.TakesAnyCredentials],
        "T111": [ends.ClosesOnce, cancelled.SendsIntoNothing],
        "T112": [ends.ForgetsToNoticeDeath],
        "T113": [misuse.CutsWhatIsTooLong],
        "T114": [misuse.SaysLostForRefused, misuse.SkipsRefusedBlocks],
        "T115": [misuse.SpeaksAsciiOnly, careless.SpeaksSinglePrecision],
        "T201": [order.Reorders, order.DeliversTwice, careless.SmallOnesOvertake],
        "T202": [order.SwapsBlocks, careless.SmallBlocksOvertake],
        "T203": [order.Interleaves],
        "T211": [order.CutsLargeBlocks, careless.KnowsOneAttempt],
        "T212": [order.TakesFramesAboveTheCap],
        "T221": [order.SpillsOverThePlace, one_way.SpillsAtTheRank],
        "T222": [misuse.FillsShortMemory],
        "T223": [load.SendsFromReusedMemory, one_way.SendsAConsensusThatChanges],
        "T231": [order.DropsTheLastFrame, one_way.LosesTheLastOrder],
        "T232": [order.OneHeaderForAll],
        "T241": [load.UnboundedBuffering, one_way.HeapsUpBlocksForRanks],
        "T242": [load.UnboundedMessages, one_way.HeapsUpOrders],
        "T251": [load.BlocksFirst, one_way.OrdersWhenNothingMoves],
        "T252": [load.ControlBehindBulk, claims.HidesASeparateBulkLane, one_way.BeaconsBehindBlocks],
        "T301": [order.TearsAFrameOnCancellation],
        "T302": [cancelled.SendsIntoNothing, one_way.ForgetsOrdersInVain],
        "T303": [cancelled.TearsAMessageOnCancellation],
        "T304": [cancelled.ReadsOnWhenCancelled, one_way.ReadsOnAtTheRank],
        "T305": [cancelled.ClosesWhenCancelled],
        "T306": [
            order.LosesAMessageWhenCancelled, careless.LosesLongMessagesWhenCancelled, one_way.LosesOrdersWhenCancelled,
        ],
        "T311": [ends.ForgetsToNoticeDeath, ends.NamesNobody, careless.SendsToTheDead, one_way.LeavesTheRankInTheDark],
        "T312": [ends.ForgetsTheBulkLane, one_way.LeavesTheRanksBlocksInTheDark],
        "T313": [ends.TwoLossNotices, careless.HandsBlocksOutAfterTheEnd, one_way.TellsTheRankTwoCauses],
        "T314": [doors.RunsItsHandlerTwice],
        "T315": [order.DeliversAfterClose, one_way.HandsOrdersOutAfterClose],
        "T316": [ends.OneLossEndsAll],
        "T320": [deaths.KeepsTheAddressOfTheDead],
        "T321": [claims.LiesAboutProcesses, claims.HidesItsPort],
        "T322": [deaths.WaitsForTheDead],
        "T323": [deaths.GivesTheLastBlockTwice],
        "T324": [deaths.BuriesNobodyByName],
        "T325": [deaths.BuriesNobodyByName],
        "T326": [deaths.AsksEachInTurn],
        "T331": [ends.WrongException],
        "T332": [doors.IsHurtByCancelledDials],
        "T341": [claims.LiesAboutAuthentication, claims.HidesAuthentication],
        "T342": [doors.ServesWhoeverKnocks, doors.ListensToAllTheWorld],
        "T343": [ends.WaitsForEver],
        "T344": [claims.LiesAboutHosts, doors.ListensToAllTheWorld],
        "T351": [leaks.LeaksADescriptor, careless.KeepsADescriptorOfWhatHadNoPlace],
        "T352": [leaks.LeaksAThread],
        "T353": [leaks.LeaksASegment],
    },
    both_ways={
        "across_processes": ("T321", claims.LiesAboutProcesses, claims.HidesItsPort),
        "across_hosts": ("T344", claims.LiesAboutHosts, doors.ListensToAllTheWorld),
        "authenticated": ("T341", claims.LiesAboutAuthentication, claims.HidesAuthentication),
        "separate_bulk": ("T252", load.ControlBehindBulk, claims.HidesASeparateBulkLane),
    },
)
