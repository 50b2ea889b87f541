"""How an averager is found: V-1, V-4."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from paceline.backends import averager as averager_module
from paceline.backends.averager import GROUP, find_averager, known_averagers
from paceline.backends.star import StarAverager
from paceline.core.errors import ConfigError


def test_averagers_are_found_by_name_and_unknown_names_list_the_known_ones() -> None:
    """V-1."""
    assert find_averager("star") is StarAverager and "star" in known_averagers()
    flags = StarAverager.capabilities
    assert (flags.in_place, flags.abortable, flags.needs_session, "cuda" in flags.devices) == (False, True, False, True)
    with pytest.raises(ConfigError, match=r"'stra' is not known.*star"):
        find_averager("stra")


def test_a_plug_in_is_loaded_by_name_and_cannot_replace_the_shipped_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """V-1: what cannot be loaded says why."""
    points = [
        EntryPoint("mine", "paceline.backends.star:StarAverager", GROUP),
        EntryPoint("star", "nowhere:Impostor", GROUP),
        EntryPoint("broken", "nowhere:Averager", GROUP),
    ]
    monkeypatch.setattr(averager_module, "entry_points", lambda group: points if group == GROUP else [])
    assert known_averagers() == ("broken", "mine", "star")
    assert find_averager("mine") is find_averager("star") is StarAverager
    with pytest.raises(ConfigError, match=r"'broken'.*cannot be loaded.*nowhere"):
        find_averager("broken")
