"""What holds of every kit and its folder of broken plug-ins."""

from __future__ import annotations

import pytest

from paceline.backends.conformance import KIT as AVERAGERS
from paceline.core.conformance.policies import KITS as POLICIES
from paceline.transports.conformance import KIT as TRANSPORTS

from conformance.broken_averagers import table as averagers
from conformance.broken_policies import table as policies
from conformance.broken_transports import table as transports
from conformance.caught import Folder

FOLDERS = (transports.FOLDER, averagers.FOLDER, *policies.FOLDERS.values())
every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.kit.name)


def test_every_kit_has_a_folder() -> None:
    assert [folder.kit for folder in FOLDERS] == [TRANSPORTS, AVERAGERS, *POLICIES.values()]


@every_folder
def test_each_check_catches_something(folder: Folder) -> None:
    """A new check needs a new broken plug-in."""
    folder.ensure_complete()


@every_folder
def test_each_capability_is_looked_at_both_ways(folder: Folder) -> None:
    folder.ensure_both_ways()


@every_folder
def test_the_guide_explains_every_check(folder: Folder) -> None:
    folder.ensure_explained()


def test_no_two_checks_have_one_id() -> None:
    """An id names a check by itself, in a report and in a question to whoever wrote it."""
    ids = [check.id for folder in FOLDERS for check in folder.kit.checks]
    assert len(ids) == len(set(ids))
