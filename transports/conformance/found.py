"""L0: the transport can be found, made and asked for what it can do."""

from __future__ import annotations

import inspect

from ...core.conformance import Level, NotChecked, ensure, raising
from ...core.errors import ConfigError
from ..api import Capabilities
from ..registry import GROUP, find_transport, known_schemes
from .kit import KIT, PAGE, Bench

__all__: list[str] = []

DOC = f"{PAGE}#registration"


@KIT.check("T001", Level.L0, doc=DOC)
def found_by_its_scheme(bench: Bench) -> None:
    """Its entry point is declared for the scheme of its URLs, can be imported, and gives a transport of that scheme."""
    if not bench.registered:
        raise NotChecked("it was given as a factory, so no entry point was looked for")
    scheme = bench.target.partition("://")[0]
    known = known_schemes()
    ensure(
        scheme in known,
        f"no entry point {scheme!r} in the group {GROUP}: declare it in the pyproject.toml of the plug-in, install it; "
        f"those that are installed are {', '.join(known)}",
    )
    try:
        found = find_transport(bench.target)
    except ConfigError as error:
        ensure(False, str(error))
    else:
        ensure(found.scheme == scheme, f"its scheme is {found.scheme!r}, its entry point's {scheme!r}")


@KIT.check("T002", Level.L0, doc=DOC)
async def has_the_shape_of_a_transport(bench: Bench) -> None:
    """It has `scheme`, `capabilities`, `listen` and `dial` as `transports.api.Transport` says."""
    async with bench.open() as (transport, url):
        for name in ("listen", "dial"):
            call = getattr(transport, name, None)
            ensure(inspect.iscoroutinefunction(call), f"{name} is no coroutine function but {call!r}")
        shown = f"its scheme is {transport.scheme!r} and it was given the URL {url}"
        ensure(url.startswith(f"{transport.scheme}://"), shown)
        claimed = transport.capabilities
        ensure(isinstance(claimed, Capabilities), f"capabilities are {claimed!r}, not transports.api.Capabilities")
        for name in KIT.capabilities:
            value = getattr(claimed, name)
            ensure(isinstance(value, bool), f"the capability {name} is {value!r}: claim it with True or leave it False")


@KIT.check("T003", Level.L0, doc=f"{PAGE}#addresses")
async def addresses_of_others_are_mistakes_of_configuration(bench: Bench) -> None:
    """A URL of another scheme is refused with `ConfigError` by `listen` and `dial`, before anything is tried."""
    async with bench.open() as (transport, url):
        for wrong in (f"not-{url}", url.partition("://")[2]):
            with raising(ConfigError, f"listen({wrong!r})", naming=[wrong]):
                await transport.listen(wrong, bench.credentials)
            with raising(ConfigError, f"dial({wrong!r})", naming=[wrong]):
                await transport.dial(wrong, bench.credentials)
