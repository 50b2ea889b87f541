"""Which transport serves a URL: by its scheme, through the entry point group `paceline.transports`.

A plug-in declares one entry point per scheme; its name is the scheme, its value a factory without arguments that
returns a `Transport`:

    [project.entry-points."paceline.transports"]
    pigeon = "pigeon_transport:PigeonTransport"

The transports of this package are declared in the same way, and known here besides, so that a checkout that was never
installed finds them too. Two packages that claim one scheme are an error and never a race: which one was meant can't
be told from the order of a path.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from ..core.errors import ConfigError
from .api import Transport

__all__ = ["GROUP", "find_transport", "known_schemes"]

GROUP = "paceline.transports"

_SHIPPED = (
    EntryPoint(name="memory", value="paceline.transports.memory:MemoryTransport", group=GROUP),
    EntryPoint(name="tcp", value="paceline.transports.tcp:TcpTransport", group=GROUP),
)


def find_transport(url: str, time_scale: float = 1.0) -> Transport:
    """A new transport for the scheme of `url`, such as `tcp` in `tcp://host:port`. One that has times of its own is
    told the `time_scale` of the run (M-3).

    Raises:
        ConfigError: the URL has no scheme, nobody or more than one package provides it, or its plug-in is broken.
    """
    scheme, separator, _ = url.partition("://")
    known = _declared()
    if not separator or scheme not in known:
        what = f"no transport for the scheme {scheme!r} of {url!r}" if separator else f"{url!r} has no scheme"
        raise ConfigError(f"{what}; known are {', '.join(f'{each}://' for each in known_schemes())}")
    claims = known[scheme]
    if len(claims) > 1:
        names = " and ".join(_describe(claim) for claim in claims)
        raise ConfigError(f"the scheme {scheme!r} is provided twice, by {names}: uninstall one of them")
    transport = _make(claims[0])
    if hasattr(transport, "time_scale"):
        transport.time_scale = time_scale
    return transport


def known_schemes() -> list[str]:
    """Every scheme that is declared, in alphabetical order; whether its plug-in works shows when it is used."""
    return sorted(_declared())


def _declared() -> dict[str, list[EntryPoint]]:
    """Claims on each scheme. The same value found twice (a checkout that is installed as well) is one claim."""
    known: dict[str, list[EntryPoint]] = {}
    for point in (*_SHIPPED, *entry_points(group=GROUP)):
        claims = known.setdefault(point.name, [])
        if all(point.value != claim.value for claim in claims):
            claims.append(point)
    return known


def _make(point: EntryPoint) -> Transport:
    try:
        transport: Transport = point.load()()
    except Exception as error:
        # A plug-in may fail in any way at all; the user needs to know which one it was.
        raise ConfigError(f"the transport {_describe(point)} could not be loaded: {error!r}") from error
    scheme = getattr(transport, "scheme", None)
    if scheme != point.name:
        raise ConfigError(f"the transport {_describe(point)} is declared for {point.name!r} and says {scheme!r}")
    return transport


def _describe(point: EntryPoint) -> str:
    owner = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"{point.value}{owner}"
