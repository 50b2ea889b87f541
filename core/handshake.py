"""The handshake: three preludes of fixed size, then both ends know each other and hold the keys of the link.

    dialler (rank)                                    listener (coordinator)
    P1: which run, which lane, my nonce       --->
                                              <---    P2: the protocol we speak, my nonce, my proof
    P3: my proof                              --->

Rules that this file follows:

Rule 1: nothing of variable size is read from somebody who has not proved to know the token (N-21). A browser, a port
scanner or a TLS client fails the first four bytes and costs 64 bytes (N-29).

Rule 2: a proof is a keyed hash over everything said before it, both nonces included. What was recorded once is useless
against a fresh nonce, and a proof of one end can't be given back to it as the proof of the other, because the text in
front of the hash says whose it is (N-22). The keys of the link come from the same bytes, so both lanes of a rank, and
both directions of a lane, have different ones.

Rule 3: the listener says nothing to a wrong proof. A dialler with a wrong token learns of it by itself, from the proof
in P2, and can tell its user (N-22). A refusal carries no proof, so that anybody could have sent it: it is a text for a
human, and no reason to do anything else.

Nothing here draws a random number: nonces are arguments, and must be new for each handshake.
"""

from __future__ import annotations

import hmac
import struct
from enum import IntEnum

from .errors import LocalProtocolError, RefusedError, RemoteProtocolError
from .frame import Buffer, Lane, LinkKeys
from .messages import RejectCode

__all__ = [
    "NONCE_BYTES",
    "PRELUDE_1",
    "PRELUDE_2",
    "PRELUDE_3",
    "PROTOCOL_MAX",
    "PROTOCOL_MIN",
    "RUN_ID_BYTES",
    "TOKEN_BYTES",
    "DialHandshake",
    "ListenHandshake",
    "check_magic",
    "refusal_prelude",
]

PRELUDE_1 = 64
PRELUDE_2 = 64
PRELUDE_3 = 32
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""What a rank and a coordinator agree on; any field that means something else raises it. The shape of preludes and
frames has a version of its own, which never changes, so that any two versions can tell that they differ (N-20)."""
RUN_ID_BYTES = 16
TOKEN_BYTES = 32
NONCE_BYTES = 32

_MAGIC = b"PCLN"
_FORMAT = 1
_PROOF = 16
_P1 = struct.Struct("<4sBBBBB7s16s32s")
_P2 = struct.Struct("<4sBBBBBB6s32s")
_P3 = struct.Struct("<4sBB10s16s")
_SIZES = {1: PRELUDE_1, 2: PRELUDE_2, 3: PRELUDE_3}
_RETRY = (RejectCode.CLOSING, RejectCode.FULL, RejectCode.BUSY)


class _Phase(IntEnum):
    """How far a handshake is; a failed one can't be used again."""

    OPEN = 0
    ANSWERED = 1
    DONE = 2
    FAILED = 3


def check_magic(start: Buffer) -> None:
    """Judge the first bytes of a stranger, as few as there are; `RemoteProtocolError` if no prelude starts so (N-29).

    For readers that get a prelude in pieces: a peer of another kind is turned away at its first bytes instead of
    after the handshake timeout.
    """
    seen = bytes(start[: len(_MAGIC)])
    if not _MAGIC.startswith(seen):
        raise RemoteProtocolError(f"the peer is no paceline process: it starts with {seen!r}")


def refusal_prelude(code: RejectCode) -> bytes:
    """The P2 that turns a dialler away, for the reason `code` (N-22): protocol 0, our range, no nonce, no proof."""
    return _second(0, code, bytes(NONCE_BYTES)) + bytes(_PROOF)


class DialHandshake:
    """The rank's half: send `first`, hand the 64 bytes that come back to `receive`, send what it returns, use `keys`.

    `run_id` has 16 bytes, `token` and `nonce` 32; `LocalProtocolError` otherwise.
    """

    def __init__(self, *, run_id: bytes, token: bytes, lane: Lane, nonce: bytes) -> None:
        _check_sizes(run_id, token, nonce)
        self._token = token
        self._phase = _Phase.OPEN
        self._keys: LinkKeys | None = None
        self.first = _P1.pack(_MAGIC, _FORMAT, 1, PROTOCOL_MIN, PROTOCOL_MAX, lane, bytes(7), run_id, nonce)
        """P1, to be sent before anything else."""

    def receive(self, second: Buffer) -> bytes:
        """Judge P2, return P3.

        Raises:
            RefusedError: the coordinator speaks another protocol or is of another run, or it can't prove the token:
                then this rank has a wrong one, or reached an impostor.
            RemoteProtocolError: what came is no P2.
        """
        _expect(self._phase, _Phase.OPEN)
        self._phase = _Phase.FAILED
        second = _whole(second, 2)
        signed, proof = second[: _P2.size], second[_P2.size :]
        _, _, _, protocol, refusal, low, high, zero, _ = _P2.unpack(signed)
        if any(zero):
            raise RemoteProtocolError("the coordinator's prelude has bytes where zeros are due")
        if protocol == 0:
            raise _refused(refusal, low, high)
        if not hmac.compare_digest(_proof(self._token, b"coordinator", self.first, signed), proof):
            raise RefusedError("wrong token: the coordinator at this address does not know the token of this rank. "
                               "Give both the same one", code=RejectCode.OTHER_RUN)  # fmt: skip
        if refusal or not PROTOCOL_MIN <= protocol <= PROTOCOL_MAX:
            raise RemoteProtocolError(f"the coordinator chose protocol {protocol}, refusal {refusal}, which was not on "
                                      f"offer ({_range(PROTOCOL_MIN, PROTOCOL_MAX)})")  # fmt: skip
        self._keys = _keys(self._token, self.first, second)
        self._phase = _Phase.DONE
        return _P3.pack(_MAGIC, _FORMAT, 3, bytes(10), _proof(self._token, b"rank", self.first, second))

    @property
    def keys(self) -> LinkKeys:
        """The keys of the link; `LocalProtocolError` before `receive` has returned."""
        return _finished(self._keys)


class ListenHandshake:
    """The coordinator's half: hand P1 to `receive_first`, send what it returns; then close if `refused`, else hand P3
    to `receive_proof` and use `keys`. Sizes as in `DialHandshake`."""

    def __init__(self, *, run_id: bytes, token: bytes, nonce: bytes) -> None:
        _check_sizes(run_id, token, nonce)
        self._run_id = run_id
        self._token = token
        self._nonce = nonce
        self._phase = _Phase.OPEN
        self._said = b""
        self._lane = Lane.CONTROL
        self._refused = False
        self._keys: LinkKeys | None = None

    def receive_first(self, first: Buffer) -> bytes:
        """Judge P1, return P2; it may be a refusal, see `refused`. `RemoteProtocolError` if it is no P1: close."""
        _expect(self._phase, _Phase.OPEN)
        self._phase = _Phase.FAILED
        first = _whole(first, 1)
        _, _, _, low, high, lane, zero, run_id, _ = _P1.unpack(first)
        if any(zero) or lane not in (Lane.CONTROL, Lane.BULK) or not 0 < low <= high:
            raise RemoteProtocolError(f"no such prelude: protocols {low} to {high}, lane {lane}, padding {zero.hex()}")
        protocol = min(high, PROTOCOL_MAX)
        if protocol < max(low, PROTOCOL_MIN):
            return self._refuse(RejectCode.PROTOCOL)
        if run_id != self._run_id:
            return self._refuse(RejectCode.OTHER_RUN)
        signed = _second(protocol, 0, self._nonce)
        second = signed + _proof(self._token, b"coordinator", first, signed)
        self._said = first + second
        self._lane = Lane(lane)
        self._phase = _Phase.ANSWERED
        return second

    def receive_proof(self, third: Buffer) -> None:
        """Judge P3. `RemoteProtocolError` if it is none or does not prove the token: close without a word (N-22)."""
        _expect(self._phase, _Phase.ANSWERED)
        self._phase = _Phase.FAILED
        third = _whole(third, 3)
        _, _, _, zero, proof = _P3.unpack(third)
        if any(zero):
            raise RemoteProtocolError("the rank's proof has bytes where zeros are due")
        if not hmac.compare_digest(_proof(self._token, b"rank", self._said), proof):
            raise RemoteProtocolError("the dialler does not know the token of this run")
        self._keys = _keys(self._token, self._said)
        self._phase = _Phase.DONE

    @property
    def refused(self) -> bool:
        """True when `receive_first` returned a refusal: send it, then close."""
        return self._refused

    @property
    def lane(self) -> Lane:
        """Which lane the dialler asked for; `LocalProtocolError` before `receive_first` has accepted."""
        if self._phase not in (_Phase.ANSWERED, _Phase.DONE):
            raise LocalProtocolError("the lane is known only once receive_first has accepted a prelude")
        return self._lane

    @property
    def keys(self) -> LinkKeys:
        """The keys of the link; `LocalProtocolError` before `receive_proof` has returned."""
        return _finished(self._keys)

    def _refuse(self, code: RejectCode) -> bytes:
        self._refused = True
        return refusal_prelude(code)


def _second(protocol: int, refusal: int, nonce: bytes) -> bytes:
    """P2 up to its proof, which covers it."""
    return _P2.pack(_MAGIC, _FORMAT, 2, protocol, refusal, PROTOCOL_MIN, PROTOCOL_MAX, bytes(6), nonce)


def _proof(token: bytes, whose: bytes, *said: bytes) -> bytes:
    return _hash(token, whose, *said)[:_PROOF]


def _keys(token: bytes, *said: bytes) -> LinkKeys:
    return LinkKeys(_hash(token, b"up", *said), _hash(token, b"down", *said))


def _hash(token: bytes, label: bytes, *said: bytes) -> bytes:
    return hmac.digest(token, b"paceline/1 " + label + b"".join(said), "sha256")


def _whole(prelude: Buffer, kind: int) -> bytes:
    """The prelude as bytes, if it is one of this kind in magic, format and size."""
    check_magic(prelude)
    if len(prelude) != _SIZES[kind] or prelude[4] != _FORMAT or prelude[5] != kind:
        raise RemoteProtocolError(f"expected prelude {kind} of format {_FORMAT} in {_SIZES[kind]} bytes, got "
                                  f"{bytes(prelude[:6]).hex()} in {len(prelude)}")  # fmt: skip
    return bytes(prelude)


def _refused(refusal: int, low: int, high: int) -> RemoteProtocolError | RefusedError:
    """What a P2 with protocol 0 means, for the user of the rank."""
    ours, theirs = _range(PROTOCOL_MIN, PROTOCOL_MAX), _range(low, high)
    if refusal == RejectCode.PROTOCOL:
        text = f"the coordinator speaks {theirs}, this rank {ours}: install the same paceline on both"
    elif refusal == RejectCode.OTHER_RUN:
        text = "the coordinator at this address serves another run: check address and run id"
    elif refusal == RejectCode.BUSY:
        text = ("the coordinator is there and has as many strangers at its door as it lets in at a time (code 14): try "
                "again, and start fewer ranks at once if it lasts")  # fmt: skip
    elif refusal:
        text = f"the coordinator refused the connection with code {refusal} of protocol N-29"
    else:
        return RemoteProtocolError("the coordinator refused the connection and gave no reason")
    return RefusedError(text, code=refusal, retry=refusal in _RETRY)


def _range(low: int, high: int) -> str:
    return f"protocol {low}" if low == high else f"protocols {low} to {high}"


def _check_sizes(run_id: bytes, token: bytes, nonce: bytes) -> None:
    for name, secret, size in (("run id", run_id, RUN_ID_BYTES), ("token", token, TOKEN_BYTES),
                               ("nonce", nonce, NONCE_BYTES)):  # fmt: skip
        if len(secret) != size:
            raise LocalProtocolError(f"a {name} has {size} bytes, not {len(secret)}")


def _expect(phase: _Phase, due: _Phase) -> None:
    if phase != due:
        raise LocalProtocolError(f"this handshake is {phase.name.lower()}, the call needs it {due.name.lower()}")


def _finished(keys: LinkKeys | None) -> LinkKeys:
    if keys is None:
        raise LocalProtocolError("the handshake is not finished: there are no keys yet")
    return keys
