"""How a rank's process behaves on a terminal: one line for an error, and polite ends on signals (W-28)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from ..core.errors import PacelineError

__all__ = ["LeaveSignals", "say_errors_in_one_line"]

NOTICE = "paceline: leaving the run after this step; press Ctrl-C again to end at once"


def say_errors_in_one_line() -> None:
    """From here on an uncaught `PacelineError` ends this process with one line and its exit code, not a traceback.

    PACELINE_DEBUG=1 keeps the traceback. Any other exception is left to the hook that was there.
    """
    if getattr(sys.excepthook, "says_paceline", False) or os.environ.get("PACELINE_DEBUG") == "1":
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, PacelineError):
            before(kind, error, traceback)
            return
        print(f"paceline: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)  # from an excepthook this sets the status, and what others left to atexit still runs

    hook.says_paceline = True  # type: ignore[attr-defined]
    sys.excepthook = hook


class LeaveSignals:
    """SIGTERM, and the first SIGINT, ask the session to leave; a second SIGINT interrupts as Python does.

    Only in the main thread, and only where nobody has installed a handler of their own.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            if signal.getsignal(number) == default:
                self._before[number] = signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            handler: Callable[..., Any] = signal.default_int_handler
            handler(number, frame)
        self.asked = True
        if number == signal.SIGINT:
            os.write(2, f"{NOTICE}\n".encode())

    def restore(self) -> None:
        """Put back the handlers that were there; from another thread nothing can be put back."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
