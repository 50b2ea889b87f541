"""Finding a transport by scheme, among the shipped ones and plug-ins that are right, broken, or in each other's way."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from paceline.core.errors import ConfigError
from paceline.transports import registry
from paceline.transports.memory import MemoryTransport
from paceline.transports.registry import GROUP, find_transport, known_schemes
from paceline.transports.tcp import TcpTransport


class PigeonTransport(MemoryTransport):
    """A plug-in of somebody else."""

    scheme = "pigeon"


def raising() -> PigeonTransport:
    raise RuntimeError("no pigeons today")


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=GROUP)


def installed(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """Pretend that these entry points, and no others, are installed."""

    def entry_points(*, group: str) -> tuple[EntryPoint, ...]:
        assert group == GROUP
        return points

    monkeypatch.setattr(registry, "entry_points", entry_points)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points name modules; this one gets a name under which it is found."""
    monkeypatch.setitem(sys.modules, "pigeon_plugin", sys.modules[__name__])


def test_shipped_transports_are_found_without_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source checkout works."""
    installed(monkeypatch)
    assert isinstance(find_transport("tcp://127.0.0.1:1"), TcpTransport)
    assert isinstance(find_transport("memory://name"), MemoryTransport)
    assert known_schemes() == ["memory", "tcp"]


def test_an_installed_checkout_is_no_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same value found twice is one claim."""
    declared = point("tcp", "paceline.transports.tcp:TcpTransport")
    installed(monkeypatch, declared, declared)
    assert isinstance(find_transport("tcp://127.0.0.1:1"), TcpTransport)


def test_a_plug_in_is_found_by_its_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry point group paceline.transports; the name is the scheme, the value a factory without arguments."""
    installed(monkeypatch, point("pigeon", "pigeon_plugin:PigeonTransport"))
    assert isinstance(find_transport("pigeon://loft"), PigeonTransport)
    assert known_schemes() == ["memory", "pigeon", "tcp"]


@pytest.mark.parametrize("url", ["carrier://loft", "carrier", "", "://loft", "tcp:127.0.0.1:1"])
def test_an_unknown_scheme_is_told_the_known_ones(url: str) -> None:
    """ConfigError lists them."""
    with pytest.raises(ConfigError, match=r"memory://.*tcp://"):
        find_transport(url)


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("no_such_module:Transport", "No module named 'no_such_module'"),
        ("pigeon_plugin:NoSuchName", "NoSuchName"),
        ("pigeon_plugin:raising", "no pigeons today"),
    ],
    ids=["module", "attribute", "factory"],
)
def test_a_broken_plug_in_is_named(monkeypatch: pytest.MonkeyPatch, value: str, cause: str) -> None:
    """ConfigError says which plug-in, and why; it breaks no other scheme."""
    installed(monkeypatch, point("pigeon", value))
    with pytest.raises(ConfigError, match=value) as error:
        find_transport("pigeon://loft")
    assert cause in str(error.value)
    assert isinstance(find_transport("tcp://127.0.0.1:1"), TcpTransport)


def test_two_claims_on_a_scheme_are_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a race by the order of a path. Other schemes are not touched by the quarrel."""
    installed(monkeypatch, point("tcp", "pigeon_plugin:PigeonTransport"))
    with pytest.raises(ConfigError) as error:
        find_transport("tcp://127.0.0.1:1")
    assert "paceline.transports.tcp:TcpTransport and pigeon_plugin:PigeonTransport" in str(error.value)
    assert isinstance(find_transport("memory://name"), MemoryTransport)


def test_a_transport_must_be_of_the_scheme_it_is_declared_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its own URLs would not lead back to it."""
    installed(monkeypatch, point("dove", "pigeon_plugin:PigeonTransport"))
    with pytest.raises(ConfigError, match="declared for 'dove' and says 'pigeon'"):
        find_transport("dove://loft")
