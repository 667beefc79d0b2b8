"""What a run does, as data: options and a list of steps, both from one seed.

Each kind of fault draws from a stream of its own, and a step that needs chance while it runs carries a seed of its own:
taking one step out shifts none of the others.
"""

from __future__ import annotations

import errno
from random import Random
from typing import Any

from tests.store.simulation import spoil
from tests.store.simulation.aio import FAULTS as FAULTS_OF_AIO
from tests.store.simulation.hostile import HONEST, KINDS

Step = list[Any]
Options = dict[str, Any]

#: Kinds of messages.
PLAIN, IPV6, HALF, COMMIT, ROLLBACK, DELAYED, KEYLESS = range(7)
#: What a message may name in INNER_MULTI_DISPATCH; a row of a batch has a bit for each.
NAMES = ("%LMQ%x", "%LMQ%y", "B", "C")
#: Faults that a step each is made of.
FAULTS = ("kill", "power", "end_in", "eio", "full", "rot", "jump", "slow", "lose")
#: What else a run may have; each is on in a share of the runs.
EXTRAS = {
    "hostile": 0.3,
    "short": 0.3,
    "parts": 0.3,
    "goes on": 0.8,
    "removal": 0.3,
    "lost queues": 0.15,
    "garbled queues": 0.15,
    "spoilt extensions": 0.5,
    "spoilt index": 0.15,
    "cold": 0.25,
    "table": 0.3,
    "switches": 0.3,
    "kernel queue": 0.4,
    "short turns": 0.3,
}
#: All descriptors but these few are open from now on.
FEW = "descriptors but a few"
#: What may run short, and the calls that are refused then.
SHORTAGES = {
    "descriptors": {"open": errno.EMFILE, "mmap": errno.EMFILE},
    "files of all": {"open": errno.ENFILE},
    "memory": {"mmap": errno.ENOMEM},
    "names": {"create": errno.ENOSPC, "mkdir": errno.ENOSPC},
    FEW: {},
}
STEPS_MIN, STEPS_MAX = 15, 50


def options_of(seed: int) -> Options:
    rng = Random(f"{seed} options")
    ext = Random(f"{seed} extensions")
    has_ext, ext_bytes = ext.random() < 0.3, ext.choice([1024, 4096])
    ages, rules = _retention_of(Random(f"{seed} retention"))
    rules |= _transient_of(Random(f"{seed} transient"))
    names = Random(f"{seed} names").random() < 0.25
    if names:
        rules |= {"enable_lmq": True, "enable_multi_dispatch": True}
    options: dict[str, Any] = {
        "settings": {"enable_consume_queue_ext": has_ext, "mapped_file_size_consume_queue_ext": ext_bytes, **rules},
        "ages": ages,
        "names": names,
        "segment_bytes": rng.choice([4096, 4096 + 512, 8192, 16384]) if not ages else 4096,
        "queue_file_bytes": rng.choice([200, 400, 2000, 20_000]),
        "index": rng.random() < 0.8,
        "slots": rng.choice([1, 7, 100]),
        "index_entries": rng.choice([5, 30, 400]),
        "flush_ms": rng.choice([50, 200, 500]),
        "queue_flush_ms": rng.choice([50, 300, 1000]),
        "flush_timeout_ms": rng.choice([1000, 5000]),
        "ipv6_store": rng.random() < 0.2,
        "waits": rng.choice([0.0, 0.3, 1.0]),
        "large": rng.choice([0.05, 0.3]),
        "worker": rng.choice([0.3, 0.6, 0.9]),
        "faults": [fault for fault in FAULTS if rng.random() < 0.5],
    }
    options["extras"] = [extra for extra, share in EXTRAS.items() if Random(f"{seed} {extra}").random() < share]
    if "switches" in options["extras"]:
        switches = Random(f"{seed} switches between threads")
        options["switches"] = [switches.choice([0.03, 0.1, 0.3]), switches.getrandbits(30)]
    return options


def _retention_of(rng: Random) -> tuple[bool, dict[str, Any]]:
    """Whether messages age in a run, and the settings that let them go."""
    ages = rng.random() < 0.35
    rules = {
        "file_reserved_time_hours": rng.choice([1, 3]),
        "delete_when_hours": list(range(24)),
        "clean_file_forcibly_enable": rng.random() < 0.5,
        "clean_resource_interval_ms": rng.choice([100, 1000]),
        "delete_commit_log_files_interval_ms": rng.choice([0, 50]),
        "delete_consume_queue_files_interval_ms": rng.choice([0, 50]),
        "redelete_hanged_file_interval_ms": 1000,
        "disk_free_bytes_min": 4096,
    }
    return ages, rules if ages else {}


def _transient_of(rng: Random) -> dict[str, Any]:
    """Settings that have messages wait in memory before they are written to the log, in a share of the runs."""
    is_on = rng.random() < 0.25
    rules = {
        "transient_store_pool_enable": True,
        "transient_store_pool_size": rng.choice([1, 2, 5]),
        "fast_fail_if_no_buffer_in_store_pool": rng.random() < 0.3,
        "commit_interval_commit_log_ms": rng.choice([20, 200]),
        "commit_commit_log_thorough_interval_ms": rng.choice([20, 200, 600]),
        "commit_commit_log_least_pages": rng.choice([0, 1, 4]),
    }
    return rules if is_on else {}


def steps_of(seed: int, options: Options) -> list[Step]:
    rng = Random(f"{seed} steps")
    steps = [_plain_step(rng, options) for _ in range(rng.randint(STEPS_MIN, STEPS_MAX))]
    result: list[Step] = []
    streams = {fault: Random(f"{seed} {fault}") for fault in FAULTS}
    ages, names = Random(f"{seed} ages"), Random(f"{seed} names of messages")
    hostile, edges = Random(f"{seed} hostile messages"), Random(f"{seed} ends of segments")
    others = {extra: Random(f"{seed} {name}") for extra, (name, _) in _EXTRA_STEPS.items()}
    spoils = {extra: Random(f"{seed} steps of {extra}") for extra in spoil.EXTRAS}
    for step in steps:
        for fault in FAULTS:
            stream = streams[fault]
            share, draw = stream.random(), stream.getrandbits(30)
            if fault in options["faults"] and share < _SHARES[fault]:
                result.append(_fault_step(fault, Random(draw)))
        if options["ages"]:
            result += _age_steps(ages)
        if options["names"] and step[0] == "append":
            step[2] = [[*row, names.choice([0, 0, 0, 0, 1, 1, 2, 3, 4, 8, 15])] for row in step[2]]
        for extra, stream in others.items():
            if extra in options["extras"]:
                result += _EXTRA_STEPS[extra][1](stream)
        for extra, stream in spoils.items():
            if extra in options["extras"]:
                result += _spoil_steps(extra, stream)
        if "hostile" in options["extras"] and step[0] == "append":
            rows = [[*row, 0][:5] for row in step[2]]
            step[2] = [[*row, hostile.choice([HONEST, HONEST, HONEST, *KINDS])] for row in rows]
        if step[0] == "append":
            _put_at_an_end(edges, step[2])
        result.append(step)
    return result


def _put_at_an_end(rng: Random, rows: list[list[int]]) -> None:
    """Sometimes have one message of a batch end where its segment does."""
    share, row, size = rng.random(), rng.choice(rows), rng.choice(EDGES)
    if share < 0.15 and not any(row[4:]):  # names of queues, and what is hostile, make a record longer
        row[2] = size


def _age_steps(rng: Random) -> list[Step]:
    """Time passes, so that messages may go; at times the process or the machine ends while they do."""
    share, ends, hours, ms = rng.random(), rng.random(), rng.choice([0.5, 1, 4, 4]), rng.choice([300, 2000, 2000])
    how, at = rng.choice(["end_in", "end_deleting", "end_deleting"]), rng.choice([1, 1, 2, 3, 8, 20])
    end = [how, at, rng.choice(["kill", "power"]), rng.getrandbits(30)]
    age = ["age", hours, ms, rng.choice([0.5, 0.9]), rng.getrandbits(30)]
    if share >= 0.35:
        return []
    fails = [["fail_deleting"]] if rng.random() < 0.1 else []
    return [*fails, end, age] if ends < 0.4 else [*fails, age]


def _short_steps(rng: Random) -> list[Step]:
    """Calls are refused for a while."""
    share, is_over = rng.random(), rng.random() < 0.5
    step = ["short", rng.choice(list(SHORTAGES)), rng.choice([0.3, 1.0, 1.0]), rng.getrandbits(30)]
    if share >= 0.2:
        return []
    return [["lift_short"]] if is_over else [step]


def _removal_steps(rng: Random) -> list[Step]:
    share, topic, end = rng.random(), rng.choice(["A", "A", "B", "C"]), rng.choice(["kill", "power"])
    step = ["remove", topic, rng.choice([0, 0, 0, rng.randint(1, 40)]), end, rng.getrandbits(30)]
    return [step] if share < 0.12 else []


def _unread_steps(rng: Random) -> list[Step]:
    """Pages leave memory, and a read of one fails, or all reads of one at a start."""
    share, reads, seed = rng.random(), rng.choice([1, 1, 2, 3, 8, 20]), rng.getrandbits(30)
    part = rng.choice(["commitlog", "commitlog", "consumequeue", "index", "consumequeue_ext"])
    end, times, has_bad = rng.choice(["kill", "power"]), rng.choice([1, 2, 3]), rng.random() < 0.3
    if share < 0.2:
        return [["fail_read", reads, times]]
    if share < 0.3:
        return [["drop", times, has_bad, seed]]
    return [["bad_page", part, end, seed]] if share < 0.35 else []


def _table_steps(rng: Random) -> list[Step]:
    share, size, end = rng.random(), rng.choice([10, 500, 6000]), rng.choice(["kill", "power"])
    seed = rng.getrandbits(30)
    if share < 0.3:
        return [["save", size]]
    return [["rot_table", end, seed]] if share < 0.33 else []


def _kernel_steps(rng: Random) -> list[Step]:
    """A call of the kernel's queue goes wrong, or its syncs do not end for a while."""
    share, what, hangs = rng.random(), rng.choice(sorted(FAULTS_OF_AIO)), rng.random() < 0.5
    if share < 0.15:
        return [["queue", what]]
    return [["hang", hangs]] if share < 0.21 else []


def _spoil_steps(extra: str, rng: Random) -> list[Step]:
    part, kinds = spoil.EXTRAS[extra]
    share, end = rng.random(), rng.choice(["kill", "power", "stop"])
    step = ["spoil", part, rng.choice(kinds), end, rng.getrandbits(30)]
    return [step] if share < 0.08 else []


#: Extras that are steps of their own: the stream they draw from, and what they draw before each other step.
_EXTRA_STEPS = {
    "short": ("what runs short", _short_steps),
    "removal": ("what is removed", _removal_steps),
    "cold": ("what cannot be read", _unread_steps),
    "table": ("what is saved in a table", _table_steps),
    "kernel queue": ("what the kernel's queue does", _kernel_steps),
}
#: How likely a fault comes before a step, in the order of FAULTS.
_SHARES = dict(zip(FAULTS, (0.12, 0.12, 0.12, 0.06, 0.1, 0.06, 0.1, 0.1, 0.04), strict=True))


#: Sizes that stand for where the record ends: one byte more than its segment has room for before the last blank,
#: all of that, and one byte less.
EDGES = (-1, -2, -3)


def _plain_step(rng: Random, options: Options) -> Step:
    draw = rng.random()
    if draw < 0.5:
        return ["append", rng.random() < options["waits"], _batch(rng, options)]
    if draw < 0.75:
        return ["advance", rng.choice([0, 1, 20, 200, 600, 3000]), options["worker"], rng.getrandbits(30)]
    if draw < 0.82:
        return ["work", rng.randint(1, 4), rng.getrandbits(30)]
    if draw < 0.88:
        return ["get", rng.getrandbits(30)]
    if draw < 0.92:
        return ["query", rng.getrandbits(30)]
    if draw < 0.95:
        return ["time", rng.getrandbits(30)]
    return ["stop", rng.random() < 0.3, rng.getrandbits(30)]


def _batch(rng: Random, options: Options) -> list[list[int]]:
    """Messages as topic, queue, size of the body and kind; `steps_of` adds the names, and how hostile they are."""
    count = rng.choice([1, 1, 2, 5, 12])
    large = options["segment_bytes"] - 400
    batch = []
    for _ in range(count):
        size = (
            rng.randint(large // 2, large) if rng.random() < options["large"] / count else rng.choice([0, 5, 60, 300])
        )
        kind = rng.choice([PLAIN, PLAIN, PLAIN, PLAIN, IPV6, HALF, COMMIT, ROLLBACK, DELAYED, KEYLESS])
        batch.append([rng.randint(0, 1), rng.randint(0, 2), size, kind])
    return batch


def _fault_step(fault: str, rng: Random) -> Step:
    seed = rng.getrandbits(30)
    if fault in ("kill", "power"):
        return [fault, seed]
    if fault == "end_in":
        return ["end_in", rng.randint(1, 30), rng.choice(["kill", "power", "power"]), seed]
    if fault == "eio":
        return ["eio", rng.randint(1, 6), rng.random() < 0.7, seed]
    if fault == "full":
        return ["full", rng.choice([0, 0, 4096, 16384])] if rng.random() < 0.6 else ["lift"]
    if fault == "rot":
        return ["rot", seed]
    if fault == "lose":
        return [
            "lose",
            rng.choice([["consumequeue"], ["index"], ["consumequeue", "index"], ["consumequeue_ext"]]),
            seed,
            rng.choice([0, 0, rng.randint(1, 60)]),
            rng.choice(["kill", "power"]),
        ]
    if fault == "jump":
        return ["jump", rng.choice([-86400, -3600, -7, -0.4, 0.7, 60, 86400])]
    return ["advance", 3000, 0.02, seed]
