"""Writes the corpora of the fuzz targets: messages as they are meant to be, from which fuzzers start.

    tests/fuzz/make_corpus.py        # writes tests/fuzz/corpus/TARGET/NAME

Run it again when core/wire/wire.h or core/worker/collectives/peer_records.h changes; tests/fuzz/corpus_test.cc fails
where the latter has. A corpus file is a row of commands, as tests/fuzz/input.h reads them: a byte that says what (a
record type, whom it is from), two bytes of length, the body.
"""

from __future__ import annotations

import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
HELLO, PUSH, RESULT, ERROR, CANCEL, SEND_AGAIN, LEASE, RETURN, REVOKE, HAVE, ALL_HAVE, PING, CREDIT = range(1, 14)
OFFER, DONE, GIVE_UP, PROBE, REACH = range(32, 37)
ANNOUNCE, READY, DATA, ABORT = range(48, 52)
JOINED, SEEN, ALL_JOINED, TAKE_PART = range(56, 60)
# As abi/byteps.h numbers them.
ALL_REDUCE, BROADCAST, ALL_GATHER, ALL_TO_ALL, BARRIER = 0, 1, 2, 4, 10
INLINE, LANDED, IN_PLACE = 1, 2, 3
UINT8 = 1 | 8 << 8 | 1 << 16
FLOAT32 = 2 | 32 << 8 | 1 << 16


def command(what: int, body: bytes) -> bytes:
    return struct.pack("<BH", what, len(body)) + body


def hello(member: int, to: int, pool: int = 64) -> bytes:
    return struct.pack("<6IQ32s", member, 0, to, 0, 1, pool, 7, b"")


def lease(first: int, slots: int, slot_bytes: int = 4096, offset: int = 0, key: bytes = b"k" * 24) -> bytes:
    return struct.pack("<QQIIII64s", slot_bytes, offset, first, slots, len(key), 0, key)


def give_back(*immediates: int) -> bytes:
    return struct.pack(f"<II{len(immediates)}I", len(immediates), 0, *immediates)


def memory_ref(key: bytes = b"") -> bytes:
    return struct.pack("<QIHH64s", 0, 5, len(key), 0, key)


def data(
    way: int,
    elements: int,
    *,
    key: int = 1 << 16,
    fingerprint: int = 77,
    round_: int = 1,
    part: int = 0,
    parts: int = 1,
    rank: int = 0,
    operation: int = 0,
    immediate: int = 0,
    memory: bytes = b"",
    shape: tuple[int, ...] = (),
    payload: bytes = b"",
) -> bytes:
    head = struct.pack(
        "<6Q4IQ2IiI4B3I", key, fingerprint, round_, 0, elements, 4 * elements, part, parts, 0, rank, 0,
        FLOAT32, FLOAT32, 0, 1000, way, operation, 0, 0, immediate, 0, 0,
    )  # fmt: skip
    head += memory_ref(memory) + struct.pack("<IIq", len(shape) + 1, 0, 0)
    assert len(head) == 200
    return head + struct.pack(f"<{len(shape)}q", *shape) + payload


def about_round(code: int = 10, text: bytes = b"because", flags: int = 0, **of: int) -> bytes:
    return (
        struct.pack(
            "<3Q3IiII", of.get("key", 1 << 16), of.get("fingerprint", 77), of.get("round", 1), of.get("part", 0), 0,
            of.get("rank", 0), code, len(text), flags,
        )
        + text
    )  # fmt: skip


def offer(elements: int, payload: bytes = b"", keys: bytes = b"", rank: int = 1) -> bytes:
    memory = 3 if keys else 0
    return (
        struct.pack(
            "<6QIIiI4BI", 1 << 16, 77, 1, elements, 0, 0, rank, FLOAT32, 0, len(keys) // 2,
            IN_PLACE if keys else INLINE, 0, 0, memory, 2,
        )
        + struct.pack("<q", elements)
        + keys
        + payload
    )  # fmt: skip


def probe(key: bytes = b"k" * 24) -> bytes:
    return struct.pack("<QII64s", 9, len(key), 0, key)


def announce(
    operation: int,
    kind: int,
    elements: int,
    *,
    round_: int = 0,
    rank: int = 1,
    root: int = 0,
    capacity: int = 0,
    dtype: int = FLOAT32,
    name: bytes = b"",
    payload: bytes = b"",
) -> bytes:
    """`operation`: which of those under way, as tests/fuzz/peers_fuzz.cc numbers them."""
    head = struct.pack(
        "<3Q3iI2iqQ2dQ8I", operation, round_, 0, rank, kind, 0, dtype, root, 0, 0, capacity,
        1.0, 1.0, 0, 0, 0, 0, len(name), 1, 0, len(payload), 0,
    )  # fmt: skip
    assert len(head) == 120
    return head + name + struct.pack("<q", elements) + payload


def ready(operation: int, *transfers: int, key: bytes = b"k" * 24) -> bytes:
    entries = b"".join(struct.pack("<Q4I", 64 * n, n, n + 1, 0, 0) for n in transfers)
    return struct.pack("<QQII", operation, 0, len(key), len(transfers)) + 2 * key + entries


def bytes_of(operation: int, transfer: int, payload: bytes) -> bytes:
    return struct.pack("<QQII", operation, 0, transfer, len(payload)) + payload


def abort(operation: int, answer: int = 0, text: bytes = b"because") -> bytes:
    return struct.pack("<QQiiII", operation, 0, 1, 10, len(text), answer) + text


def take_part(operation: int, kind: int, elements: int, ranks: tuple[int, ...] = (0, 1), round_: int = 0) -> bytes:
    tail = struct.pack("<qIIII", 10**9, len(ranks), 0, 0, 0) + struct.pack(f"<{len(ranks)}i", *ranks)
    return announce(operation, kind, elements, name=b"zeros", payload=tail, round_=round_)


def envelope(field: int, body: bytes) -> bytes:
    """A protobuf message with one embedded message."""
    return bytes([field << 3 | 2, len(body)]) + body


def frame(body: bytes) -> bytes:
    return b"BPSC" + struct.pack("<HHI", 1, 0, len(body)) + body


def write(target: str, name: str, contents: bytes) -> None:
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(contents)


def rounds_of_all() -> bytes:
    return b"".join(command(kind, about_round()) for kind in (REVOKE, HAVE, ALL_HAVE))


def main() -> None:
    ones = struct.pack("<16f", *[1.0] * 16)
    key = b"k" * 24
    ping, yes, no = command(PING, struct.pack("<II", 1, 0)), struct.pack("<II", 1, 0), struct.pack("<II", 0, 0)
    one_lease = command(LEASE, lease(4, 2))
    corpora: dict[str, dict[str, list[bytes]]] = {
        "endpoint": {
            "hello": [command(HELLO, hello(2, 1))],
            "lease_and_return": [one_lease, command(RETURN, give_back(4 | 1 << 14, 5 | 1 << 14))],
            "two_leases": [command(LEASE, lease(0, 4)), command(LEASE, lease(16383, 1)), ping],
            "lease_that_wraps": [command(LEASE, lease(0xFFFFFFFF, 2))],
            "returned_twice": [one_lease, command(RETURN, give_back(4, 4))],
            "others": [rounds_of_all(), command(CREDIT, b""), command(OFFER, offer(16, ones))],
        },
        # Bit 7 of a command: of the second worker.
        "server": {
            "push": [command(PUSH, data(INLINE, 16, shape=(16,), payload=ones))],
            "push_of_both": [
                command(PUSH, data(INLINE, 16, shape=(16,), payload=ones)),
                command(PUSH | 128, data(INLINE, 16, rank=1, shape=(16,), payload=ones)),
            ],
            "landed": [command(PUSH, data(LANDED, 16, immediate=3, memory=key))],
            "in_place": [
                command(PUSH, data(IN_PLACE, 16, memory=key, payload=memory_ref(key))),
                command(PROBE, probe()),
            ],
            "broadcast": [
                command(PUSH, data(INLINE, 16, operation=1, payload=ones)),
                command(PUSH | 128, data(0, 0, rank=1, operation=1)),
            ],
            "cancel": [
                command(PUSH, data(INLINE, 16, payload=ones)),
                command(CANCEL, about_round()),
                command(GIVE_UP, about_round()),
            ],
            "links": [one_lease, command(RETURN, give_back(0)), command(HELLO, hello(2, 1))],
        },
        # The first byte: 0 the server, 1 a neighbour speaks.
        "worker": {
            "result_inline": [b"\0\0", command(RESULT, data(INLINE, 10, key=2 << 16, rank=1, payload=ones[:40]))],
            "result_landed": [
                b"\0\0",
                command(RESULT, data(LANDED, 512, immediate=1, rank=1)),
                command(RESULT, data(IN_PLACE, 512, part=1, parts=4)),
            ],
            "error": [
                b"\0\0",
                command(ERROR, about_round()),
                command(ERROR, about_round(flags=1)),
                command(SEND_AGAIN, about_round(text=b"")),
            ],
            "reach": [b"\0\0", command(REACH, yes), command(REACH, no), one_lease, command(RETURN, give_back(0))],
            "offer_small": [
                b"\1",
                command(REACH, yes),
                command(OFFER, offer(10, ones[:40])),
                command(DONE, about_round(text=b"", rank=1)),
            ],
            "offer_large": [
                b"\1",
                command(PROBE, probe()),
                command(OFFER, offer(5000, keys=2 * key)),
                command(DONE, about_round(text=b"", rank=1)),
            ],
            "give_up": [b"\1", command(OFFER, offer(5000, keys=2 * key)), command(GIVE_UP, about_round(rank=1)), ping],
        },
        # The first byte: 1 if the worker has joined. Operations under way: 0 a small sum, 1 a large one, 2 an
        # all_gather, 3 an all_to_all, 4 a broadcast from here, 5 what it receives, 6 a barrier.
        "peers": {
            "sum": [b"\0", command(ANNOUNCE, announce(0, ALL_REDUCE, 16, capacity=64, name=b"sum0", payload=ones))],
            "large_sum": [
                b"\0",
                command(ANNOUNCE, announce(1, ALL_REDUCE, 5000, capacity=20000, name=b"large0")),
                command(READY, ready(1, 0, 1, 2)),
                command(ABORT, abort(1)),
                command(ABORT, abort(1, answer=1)),
            ],
            "gather": [
                b"\0",
                command(READY, ready(2, 0)),
                command(ANNOUNCE, announce(2, ALL_GATHER, 3000, capacity=24000, name=b"gather0")),
            ],
            "swap": [
                b"\0",
                command(DATA, bytes_of(3, 0, ones[:20])),
                command(ANNOUNCE, announce(3, ALL_TO_ALL, 10, capacity=80, name=b"swap0", payload=ones[:20])),
            ],
            "root": [
                b"\0",
                command(ANNOUNCE, announce(4, BROADCAST, 2000, root=1, capacity=8000, name=b"root0")),
                command(ABORT, abort(4)),
            ],
            "disagreement": [b"\0", command(ANNOUNCE, announce(0, BARRIER, 3, dtype=UINT8, name=b"sum0"))],
            "joined": [b"\0", command(JOINED, struct.pack("<Qq", 1, 0)), command(ALL_JOINED, struct.pack("<Qq", 1, 1))],
            "take_part_of_a_far_round": [b"\1", command(TAKE_PART, take_part(99, ALL_REDUCE, 16, round_=1 << 60))],
            "take_part": [
                b"\1",
                command(SEEN, struct.pack("<Qq", 1, 0)),
                command(TAKE_PART, take_part(99, ALL_REDUCE, 16)),
                command(TAKE_PART, take_part(99, ALL_REDUCE, 16, round_=3)),
                command(JOINED, struct.pack("<Qq", 1, 0)),
            ],
        },
        "control": {},
    }
    for field in range(1, 16):
        said = envelope(field, bytes([1 << 3, 1, 2 << 3 | 2, 3]) + b"job")
        corpora["control"][f"field_{field:02}"] = [command(field % 6, frame(said)), command(128 + field % 6, said)]
    for target, files in corpora.items():
        for name, commands in files.items():
            write(target, name, b"".join(commands))


if __name__ == "__main__":
    main()
