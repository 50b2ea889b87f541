"""What each channel takes and does not give back. `LEFT` lets the test give it back in the end."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable

from paceline.transports.api import Channel

from .base import SoundChannel, SoundTransport

LEFT: list[Callable[[], object]] = []


class LeaksADescriptor(SoundTransport):
    """A file that stays open."""

    class layer(SoundChannel):
        def __init__(self, inner: Channel) -> None:
            super().__init__(inner)
            taken = os.open(os.devnull, os.O_RDONLY)
            LEFT.append(lambda: os.close(taken))


class LeaksAThread(SoundTransport):
    """A reader that nobody stops."""

    class layer(SoundChannel):
        def __init__(self, inner: Channel) -> None:
            super().__init__(inner)
            stop = threading.Event()
            thread = threading.Thread(target=stop.wait, name="pigeon reader")
            thread.start()
            LEFT.extend([thread.join, stop.set])


class LeaksASegment(SoundTransport):
    """Shared memory that stays mapped."""

    class layer(SoundChannel):
        def __init__(self, inner: Channel) -> None:
            super().__init__(inner)
            LEFT.append(mmap.mmap(-1, mmap.PAGESIZE).close)
