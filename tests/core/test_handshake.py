"""Preludes: protocol N-20, N-21, N-22, N-29."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.core.errors import LocalProtocolError, RefusedError, RemoteProtocolError
from paceline.core.messages import RejectCode
from paceline.core.wire import (
    PRELUDE_1,
    PRELUDE_2,
    PRELUDE_3,
    DialHandshake,
    Lane,
    ListenHandshake,
    check_magic,
    refusal_prelude,
)

RUN = bytes(range(16))
TOKEN = bytes(range(32))
NONCE_1 = b"\x11" * 32
NONCE_2 = b"\x22" * 32


def dialler(**changes: object) -> DialHandshake:
    return DialHandshake(**{"run_id": RUN, "token": TOKEN, "lane": Lane.CONTROL, "nonce": NONCE_1, **changes})  # type: ignore[arg-type]


def listener(**changes: object) -> ListenHandshake:
    return ListenHandshake(**{"run_id": RUN, "token": TOKEN, "nonce": NONCE_2, **changes})  # type: ignore[arg-type]


def patched(prelude: bytes, position: int, value: int) -> bytes:
    return prelude[:position] + bytes([value]) + prelude[position + 1 :]


# --- the good case ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", Lane)
def test_both_ends_agree_on_lane_and_keys(lane: Lane) -> None:
    """N-21, N-22: three preludes of fixed size, then the same pair of different keys on both ends."""
    rank, coordinator = dialler(lane=lane), listener()
    second = coordinator.receive_first(rank.first)
    third = rank.receive(second)
    coordinator.receive_proof(third)

    assert (len(rank.first), len(second), len(third)) == (PRELUDE_1, PRELUDE_2, PRELUDE_3)
    assert rank.keys == coordinator.keys
    assert rank.keys.up != rank.keys.down
    assert lane is coordinator.lane
    assert not coordinator.refused


def test_golden_handshake() -> None:
    """F67, N-20: format 1 is fixed for ever, byte by byte; computed here from the text of N-21 and N-22, and pinned."""
    first = b"PCLN" + bytes([1, 1, 1, 1, 0]) + bytes(7) + RUN + NONCE_1
    said = b"PCLN" + bytes([1, 2, 1, 0, 1, 1]) + bytes(6) + NONCE_2

    def keyed(text: bytes) -> bytes:
        return hmac.new(TOKEN, text, hashlib.sha256).digest()

    second = said + keyed(b"paceline/1 coordinator" + first + said)[:16]
    third = b"PCLN" + bytes([1, 3]) + bytes(10) + keyed(b"paceline/1 rank" + first + second)[:16]
    rank, coordinator = dialler(), listener()

    assert first == rank.first
    assert second == coordinator.receive_first(first)
    assert third == rank.receive(second)
    assert keyed(b"paceline/1 up" + first + second) == rank.keys.up
    assert keyed(b"paceline/1 down" + first + second) == rank.keys.down
    assert second[48:].hex() == "efe50157ca2b95ca927a1d75a112794b"
    assert third[16:].hex() == "15596296e8e6bc1f166b3665d1438534"
    assert rank.keys.up.hex() == "cb7d4d078098525d3021dd67f57c36c83e89d43a7f30124aeecd9bf8d24eb06c"
    assert rank.keys.down.hex() == "40d93cac78ba83ccdc982c93d72bfeab8f64514243b35a9b01e3f73751fed9d9"


def test_every_handshake_has_its_own_keys() -> None:
    """N-22: another lane, another nonce on either side, another token: other keys."""
    seen = set()
    for changes in ({}, {"lane": Lane.BULK}, {"nonce": b"\x12" * 32}, {"token": b"t" * 32}):
        for nonce in (NONCE_2, b"\x23" * 32):
            rank = dialler(**changes)
            rank.receive(listener(token=changes.get("token", TOKEN), nonce=nonce).receive_first(rank.first))
            seen |= {rank.keys.up, rank.keys.down}

    assert len(seen) == 16


# --- refusals --------------------------------------------------------------------------------------------------


def test_wrong_token_shows_at_the_dialler_in_one_line() -> None:
    """N-22: the rank learns of a wrong token from P2.proof, which it checks itself."""
    rank = dialler(token=b"x" * 32)
    second = listener().receive_first(rank.first)

    with pytest.raises(RefusedError, match=r"^wrong token: .*$") as caught:
        rank.receive(second)
    assert caught.value.code == RejectCode.OTHER_RUN
    with pytest.raises(LocalProtocolError):
        _ = rank.keys


@pytest.mark.parametrize("ours", [(2, 3), (9, 255)])
def test_no_common_protocol_is_refused_with_both_ranges(ours: tuple[int, int]) -> None:
    """N-22, N-29 code 1: P2 with protocol 0, the range and no proof; the rank names both."""
    coordinator = listener()
    second = coordinator.receive_first(patched(patched(dialler().first, 6, ours[0]), 7, ours[1]))

    assert coordinator.refused
    assert second == b"PCLN" + bytes([1, 2, 0, 1, 1, 1]) + bytes(54)
    with pytest.raises(LocalProtocolError):
        coordinator.receive_proof(bytes(32))
    with pytest.raises(RefusedError, match="protocols 4 to 7, this rank protocol 1") as caught:
        dialler().receive(patched(patched(second, 8, 4), 9, 7))
    assert caught.value.code == RejectCode.PROTOCOL


def test_a_range_that_reaches_ours_is_accepted() -> None:
    """N-20: a dialler that also speaks later protocols gets ours."""
    assert listener().receive_first(patched(dialler().first, 7, 200))[6] == 1


@pytest.mark.parametrize(("low", "high", "chosen"), [(1, 2, 0), (1, 3, 3), (1, 4, 4), (4, 4, 4), (4, 9, 5), (6, 9, 0)])
def test_the_highest_common_protocol_is_chosen(
    monkeypatch: pytest.MonkeyPatch, low: int, high: int, chosen: int
) -> None:
    """N-20: for a coordinator that speaks 3 to 5; 0 is a refusal."""
    monkeypatch.setattr("paceline.core.handshake.PROTOCOL_MIN", 3)
    monkeypatch.setattr("paceline.core.handshake.PROTOCOL_MAX", 5)

    assert listener().receive_first(patched(patched(dialler().first, 6, low), 7, high))[6] == chosen


def test_another_run_is_refused_without_proof() -> None:
    """M-5, N-29 code 2: P2 says so, and gives nothing away that depends on the token."""
    coordinator = listener()
    second = coordinator.receive_first(dialler(run_id=b"o" * 16).first)

    assert coordinator.refused
    assert second == refusal_prelude(RejectCode.OTHER_RUN) and not any(second[10:])
    with pytest.raises(RefusedError, match="another run") as caught:
        dialler().receive(second)
    assert caught.value.code == RejectCode.OTHER_RUN and not caught.value.retry


@pytest.mark.parametrize(("code", "retry"), [
    (RejectCode.BUSY, True), (RejectCode.FULL, True), (RejectCode.SIZE, False), (200, False),
])  # fmt: skip
def test_any_other_refusal_names_its_number(code: int, retry: bool) -> None:
    """N-29: also of a later protocol; only closing, full and busy may be tried again."""
    with pytest.raises(RefusedError, match=str(int(code))) as caught:
        dialler().receive(patched(refusal_prelude(RejectCode.PROTOCOL), 7, code))
    assert (code, retry) == (caught.value.code, caught.value.retry)


# --- attacks and noise -----------------------------------------------------------------------------------------


def test_a_replayed_prelude_meets_a_fresh_nonce() -> None:
    """N-22: what was recorded of one handshake opens no second one, on either end."""
    rank, coordinator = dialler(), listener()
    second = coordinator.receive_first(rank.first)
    third = rank.receive(second)
    again, victim = listener(nonce=b"\x33" * 32), dialler(nonce=b"\x44" * 32)
    again.receive_first(rank.first)

    with pytest.raises(RemoteProtocolError, match="does not know the token"):
        again.receive_proof(third)
    with pytest.raises(RefusedError, match="wrong token"):
        victim.receive(second)


def test_a_proof_can_not_be_mirrored() -> None:
    """N-22: whose proof it is stands under the hash, so the coordinator's is none of a rank."""
    coordinator = listener()
    second = coordinator.receive_first(dialler().first)

    with pytest.raises(RemoteProtocolError, match="does not know the token"):
        coordinator.receive_proof(b"PCLN" + bytes([1, 3]) + bytes(10) + second[48:])


@given(position=st.integers(0, PRELUDE_1 - 1), bit=st.integers(0, 7))
def test_a_changed_p1_never_ends_in_a_link(position: int, bit: int) -> None:
    """N-22: P1 is under both proofs; changed on the way it is garbage, refused, or a wrong proof at the dialler."""
    rank, coordinator = dialler(), listener()
    changed = patched(rank.first, position, rank.first[position] ^ 1 << bit)
    with pytest.raises((RemoteProtocolError, RefusedError)):
        rank.receive(coordinator.receive_first(changed))


@given(position=st.integers(0, PRELUDE_2 - 1), bit=st.integers(0, 7))
def test_a_changed_p2_never_ends_in_a_link(position: int, bit: int) -> None:
    """N-22: likewise for P2."""
    rank = dialler()
    second = listener().receive_first(rank.first)
    with pytest.raises((RemoteProtocolError, RefusedError)):
        rank.receive(patched(second, position, second[position] ^ 1 << bit))


@given(position=st.integers(0, PRELUDE_3 - 1), bit=st.integers(0, 7))
def test_a_changed_p3_never_ends_in_a_link(position: int, bit: int) -> None:
    """N-22: likewise for P3; the listener closes silently, and stays closed."""
    rank, coordinator = dialler(), listener()
    third = rank.receive(coordinator.receive_first(rank.first))
    with pytest.raises(RemoteProtocolError):
        coordinator.receive_proof(patched(third, position, third[position] ^ 1 << bit))
    with pytest.raises(LocalProtocolError):
        coordinator.receive_proof(third)
    with pytest.raises(LocalProtocolError):
        _ = coordinator.keys


def test_proofs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-22: how long a wrong proof takes tells nothing of the right one."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append((bytes(one), bytes(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    rank, coordinator = dialler(), listener()
    second = coordinator.receive_first(rank.first)
    third = rank.receive(second)
    coordinator.receive_proof(third)

    assert compared == [(second[48:], second[48:]), (third[16:], third[16:])]


@pytest.mark.parametrize("position", range(9, 16))
def test_a_zero_of_p1_that_is_none_is_garbage(position: int) -> None:
    """N-21: the seven bytes are kept for later formats, so nobody may fill them today."""
    with pytest.raises(RemoteProtocolError, match="padding"):
        listener().receive_first(patched(dialler().first, position, 1))


def proven(second: bytes, rank: DialHandshake) -> bytes:
    """A P2 under a right proof."""
    proof = hmac.digest(TOKEN, b"paceline/1 coordinator" + rank.first + second[:48], "sha256")
    return second[:48] + proof[:16]


@pytest.mark.parametrize("position", range(10, 16))
def test_a_zero_of_p2_that_is_none_is_garbage(position: int) -> None:
    """N-21: under a right proof too."""
    rank = dialler()
    second = patched(listener().receive_first(rank.first), position, 1)
    with pytest.raises(RemoteProtocolError, match="where zeros are due"):
        rank.receive(proven(second, rank))


@pytest.mark.parametrize("position", range(6, 16))
def test_a_zero_of_p3_that_is_none_is_garbage(position: int) -> None:
    """N-21: its proof does not cover them."""
    rank, coordinator = dialler(), listener()
    third = rank.receive(coordinator.receive_first(rank.first))
    with pytest.raises(RemoteProtocolError, match="where zeros are due"):
        coordinator.receive_proof(patched(third, position, 1))


NOISE = [
    b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    bytes(64),
    b"\xff" * 64,
]


@pytest.mark.parametrize("noise", NOISE, ids=lambda noise: repr(noise[:8]))
def test_text_and_noise_fail_the_magic(noise: bytes) -> None:
    """N-29, F76: HTTP, TLS and the like are known by their first bytes, before a whole prelude is there."""
    for size in (1, 4, len(noise), 64):
        with pytest.raises(RemoteProtocolError, match="no paceline process"):
            check_magic(noise[:size])
        with pytest.raises(RemoteProtocolError, match="no paceline process"):
            listener().receive_first(noise[:size].ljust(64, b"."))


@pytest.mark.parametrize("size", range(6))
def test_the_beginning_of_a_prelude_passes(size: int) -> None:
    """N-29: a prelude that arrives byte by byte is not turned away."""
    check_magic(dialler().first[:size])


@given(noise=st.binary(max_size=80))
@example(noise=b"")
@example(noise=b"PCLN")
@example(noise=b"PCLN\x02\x01".ljust(64, b"\0"))
@example(noise=b"PCLN\x01\x01\x00\x01".ljust(64, b"\0"))
@example(noise=b"PCLN\x01\x01\x01\x01\x02".ljust(64, b"\0"))
@example(noise=b"PCLN\x01\x01\x02\x01".ljust(64, b"\0"))
@example(noise=refusal_prelude(RejectCode.PROTOCOL)[:7] + bytes(57))
@example(noise=refusal_prelude(RejectCode.PROTOCOL)[:10] + b"?" + bytes(53))
def test_garbage_raises_remote_errors_only(noise: bytes) -> None:
    """N-7, N-21: any bytes in place of any prelude."""
    coordinator = listener()
    coordinator.receive_first(dialler().first)
    for receive in (listener().receive_first, dialler().receive, coordinator.receive_proof):
        with pytest.raises(RemoteProtocolError):
            receive(noise)


@pytest.mark.parametrize(("protocol", "refusal"), [(7, 0), (1, 3)])
def test_a_proven_prelude_without_sense_is_garbage(protocol: int, refusal: int) -> None:
    """N-20, N-21: a coordinator that knows the token but chooses outside of the offer, or accepts and refuses in one,
    is broken, not of another run."""
    rank = dialler()
    said = b"PCLN" + bytes([1, 2, protocol, refusal, 1, 7]) + bytes(6) + NONCE_2
    proof = hmac.digest(TOKEN, b"paceline/1 coordinator" + rank.first + said, "sha256")[:16]

    with pytest.raises(RemoteProtocolError, match=f"protocol {protocol}, refusal {refusal}"):
        rank.receive(said + proof)


# --- the local caller ------------------------------------------------------------------------------------------


def test_sizes_and_order_of_calls_are_the_callers_fault() -> None:
    """N-7: misuse raises LocalProtocolError."""
    for changes in ({"run_id": b""}, {"token": b"short"}, {"nonce": bytes(33)}):
        with pytest.raises(LocalProtocolError, match="bytes, not"):
            dialler(**changes)
        with pytest.raises(LocalProtocolError, match="bytes, not"):
            listener(**changes)
    rank, coordinator = dialler(), listener()
    with pytest.raises(LocalProtocolError):
        coordinator.receive_proof(bytes(32))
    with pytest.raises(LocalProtocolError):
        _ = coordinator.lane
    with pytest.raises(LocalProtocolError):
        _ = rank.keys
    second = coordinator.receive_first(rank.first)
    with pytest.raises(LocalProtocolError):
        coordinator.receive_first(rank.first)
    rank.receive(second)
    with pytest.raises(LocalProtocolError):
        rank.receive(second)
