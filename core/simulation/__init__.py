"""Tools that study the protocol: simulation, model checking, schedules. See docs/guides."""
