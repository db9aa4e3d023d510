"""Records classified per second on one core: 95 % benign lines, 5 % lines of real faults. Prints JSON.

The benign lines are boot and driver chatter, dynamic debug of mlx5 and network noise, in the proportions of a
busy host, each with other numbers whenever it comes again; the faults are the corpus in tests/data/kmsg, in
order, so reports stay whole.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import string
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gdrstorm.kmsg.faults import Classifier, classify
from gdrstorm.kmsg.record import Record, parse_kmsg_record, parse_lines

BLOCK = 1000
DATA = Path(__file__).resolve().parents[1] / "data" / "kmsg"
ROUNDS = 9
BENIGN = (
    "infiniband mlx5_0: mlx5_ib_reg_user_mr:1310:(pid 202927): start 0x7f8523813000, length 0x85000, access_flags 0xf",
    "infiniband mlx5_0: alloc_cached_mr:506:(pid 202927): order 8, cache index 6",
    "mlx5_core 0000:63:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build",
    "pci 0000:00:1c.0: PTM enabled (root), 4ns granularity",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "usb 1-1: new high-speed USB device number 2 using xhci_hcd",
    "EXT4-fs (md127p3): re-mounted 00000000-0000-0000-0000-000000000000 r/w. Quota mode: none.",
    "audit: type=1400 audit(1677160985.530:1): apparmor=\"STATUS\" operation=\"profile_load\" profile=\"unconfined\"",
    "systemd[1]: Started Session 1 of User root.",
    "gdrstorm: run 4f1c phase reg-storm 17 begin",
    "TCP: request_sock_TCP: Possible SYN flooding on port 8080. Sending cookies.",
    "clocksource: Long readout interval, skipping watchdog check: cs_nsec: 1584036171 wd_nsec: 1584036160",
    "docker0: port 3(veth1a2b3c) entered forwarding state",
    "nvme nvme0: 8/0/0 default/read/poll queues",
    "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
)  # fmt: skip
# Not the digit of a driver (mlx5), of an interface (eth0) or of 0x.
_NUMBER = re.compile(r"\d{2,}|(?<![a-z])\d(?!x)")


def load_faults() -> list[str]:
    """Texts of all corpus lines, without their prefixes."""
    texts = []
    for line in (DATA / "corpus.jsonl").read_text().splitlines():
        case = json.loads(line)
        if case["events"]:
            texts += [record.text for record in parse_lines(case["lines"])]
    return texts


def benign_lines() -> Iterator[str]:
    """The benign lines for ever, each time with other numbers: what is remembered of a line is no use."""
    chance = random.Random(1)

    def other(number: re.Match[str]) -> str:
        return "".join(chance.choices(string.digits, k=len(number[0])))

    for text in itertools.cycle(BENIGN):
        yield _NUMBER.sub(other, text)


def build(total: int) -> Iterator[Record]:
    """The mix: blocks of 20 fault lines every 400 records, 1000 records a second of log time."""
    faults = itertools.cycle(load_faults())
    benign = benign_lines()
    for seq in range(total):
        text = next(faults) if seq % 400 < 20 else next(benign)
        yield Record(seq, text, seq * 1_000_000, 6)


def rate(total: int, feed: Callable[[Classifier, list[Record]], float]) -> float:
    """Best of ROUNDS, in items a second of CPU time: a busy machine must not look like slow code.

    Records are built a block at a time, and not timed: new ones, as they come from the kernel.
    """
    best = 0.0
    for _ in range(ROUNDS):
        classifier = Classifier()
        records = build(total)
        spent = 0.0
        while block := list(itertools.islice(records, BLOCK)):
            spent += feed(classifier, block)
        begin = time.process_time()
        classifier.flush()
        best = max(best, total / (spent + time.process_time() - begin))
    return best


def feed_records(classifier: Classifier, records: list[Record]) -> float:
    begin = time.process_time()
    for record in records:
        classifier.feed(record)
    return time.process_time() - begin


def feed_raw(classifier: Classifier, records: list[Record]) -> float:
    raw = [b"6,%d,%d,-;%s\n" % (r.seq, r.time_ns // 1000, r.text.encode()) for r in records]
    begin = time.process_time()
    for data in raw:
        classifier.feed(parse_kmsg_record(data))
    return time.process_time() - begin


def measure() -> list[dict[str, Any]]:
    """Measure the classifier alone, and the parser with it."""
    total = 200_000
    assert not classify(Record(0, text) for text in itertools.islice(benign_lines(), 10_000))
    how = f"{total} records, 95 % benign, one core, CPU time, best of {ROUNDS}, CPython {sys.version.split()[0]}"
    results = [
        ("kmsg_classify", rate(total, feed_records), "feed() of parsed records"),
        ("kmsg_parse_and_classify", rate(total, feed_raw), "parse_kmsg_record() and feed()"),
    ]
    return [
        {"name": name, "value": round(value), "unit": "records/s", "how": f"{what}; {how}"}
        for name, value, what in results
    ]


def main() -> None:
    json.dump(measure(), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
