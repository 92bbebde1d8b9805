"""The soak: processes in all languages of ferry exchange bytes for hours under faults, and must not grow.

    soak.py --minutes 10 --seed 7 --out FOLDER c=NODE-C python="python3 node.py" ...

One resident of each language lives for the whole run; visitors come, exchange and go. In a cycle a storm comes first:
residents and visitors exchange bytes of mixed sizes while processes are stopped, visitors are killed, and proxies delay
and cut connections. A calm follows: the visitors are gone, no exchange may fail, the residents exchange 4 KiB in a
ring, and memory, descriptors, threads and latency are recorded. judge.py says what a series may do. Each byte is checked
twice: by its initiator, who reads it back, and by its target (node.c). ferry prints nothing, so a node's standard error
must stay empty."""

import argparse
import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path

import plot
from judge import Growth, judge
from nodes import Ended, Node, Proxy

HERE = Path(__file__).resolve().parent
SIZES = [64, 512, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
PROBE = "{} {} 4096 1 {} {}"
PROBES = 400
# The quietest batch of probes counts. What else the machine's host runs makes a batch up to ten times slower; what
# grows in a process slows all of them.
BATCHES = 5
SLOTS = 16
VISITORS = 3
MINUTES_MIN = 3
# Of the engines: short enough that a storm's traces are gone before the figures of its calm are taken, and a table of
# peers that the lost ones, whose handles are known for a while, fill within minutes.
SETTINGS = {
    "FERRY_DEADLINE_MS": "3000",
    "FERRY_RECONNECT_TIMEOUT_MS": "2000",
    "FERRY_LEASE_MS": "1500",
    "FERRY_PEERS_MAX": "64",
}
SETTLE_S = 4.0
# A thread that copies for a peer of the same host ends half a second after its last piece.
REST_S = 1.0
# A killed process's slot is not used again before its data can land no more.
SLOT_REST_S = 4.0
GROWTH = {
    "memory": Growth(0.05, 2048),
    "descriptors": Growth(0, 0),
    "threads": Growth(0, 0),
    "p50": Growth(0.5, 20),
    "p99": Growth(1.0, 200),
}
# Go's runtime starts threads when it wants to. Where Python's threads wake is worth 40 us, and stays so for a calm.
UNITS = {("threads", "go"): Growth(0, 3), ("p50", "python"): Growth(0.5, 40)}


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Keeps processors from halting: to wake a halted processor of a virtual machine takes its host 10 to 200 us."""
    spinners = []
    try:
        for processor in os.sched_getaffinity(0):
            spinner = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
            spinners.append(spinner)
            # In nobody's way.
            os.sched_setscheduler(spinner.pid, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(spinner.pid, {processor})
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


class Soak:
    def __init__(self, options: argparse.Namespace) -> None:
        self.random = random.Random(options.seed)
        self.out: Path = options.out
        self.programs = dict(program.split("=", 1) for program in options.programs)
        self.seconds = options.minutes * 60
        self.tally: Counter[str] = Counter()
        self.faults: list[str] = []
        self._lock = threading.Lock()
        self._serials = 0
        self.storming = threading.Event()
        self.visitors: list[Node] = []
        secret = self.out / "secret"
        secret.unlink(missing_ok=True)
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        self.environment = SETTINGS | {"FERRY_SECRET_FILE": str(secret)}
        self.residents = [self.start(language, language, slot) for slot, language in enumerate(self.programs)]
        self.slots = deque((slot, 0.0) for slot in range(len(self.residents), SLOTS))
        self.proxies = [Proxy(node.address, self.random.getrandbits(32)) for node in self.residents]
        self.samples: list[dict[str, float | str]] = []
        self.last: dict[tuple[str, str], Counter[str]] = {}

    def start(self, name: str, language: str, slot: int) -> Node:
        transports = {"FERRY_TRANSPORTS": "tcp" if self.random.random() < 0.4 else "local,tcp"}
        errors = self.out / f"{name}.err"
        errors.unlink(missing_ok=True)
        return Node(name, self.programs[language], slot, self.environment | transports, errors)

    def serials(self, count: int) -> int:
        """The first of `count` numbers that no exchange of this run has had."""
        with self._lock:
            self._serials += count
            return self._serials - count + 1

    def fail(self, what: str) -> None:
        print(f"FAULT {what}", flush=True)
        with self._lock:
            self.faults.append(what)

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.tally[what] += number

    def exchange(
        self, node: Node, address: str, random_: random.Random, may_fail: bool, size: int | None = None
    ) -> None:
        size, pieces, count = size or random_.choice(SIZES), random_.choice([1, 1, 8]), random_.choice([1, 4, 16])
        answer = node.ask(f"exchange {address} {node.slot} {size} {pieces} {count} {self.serials(count)}")
        if answer.startswith("OK"):
            self.count("exchanges", count)
            self.count("bytes", count * size)
        elif answer.startswith("FAILED") and may_fail:
            self.count("failed by a fault")
            self.count(f"why: {node.name.split('-')[0]}: {answer[7:90]}")
        else:
            self.fail(f"{node.name} to {address}: {answer}")

    def storm(self, node: Node, seed: int, going_on: Callable[[], bool], proxied: bool) -> None:
        """Exchanges with the others, one exchange after another, while `going_on`."""
        random_ = random.Random(seed)
        while going_on():
            with self._lock:
                others = [it.address for it in self.residents + self.visitors if it is not node]
            proxies = [proxy.address for proxy, it in zip(self.proxies, self.residents) if it is not node]
            try:
                self.exchange(node, random_.choice(proxies if proxied else others), random_, True)
            except Ended:
                if not node.killed:
                    self.fail(f"{node.name} ended by itself with {node.process.wait()}")
                return

    def visit(self, number: int, seed: int) -> None:
        """Starts visitors one after another, while the storm lasts; each ends by itself or is killed."""
        random_ = random.Random(seed)
        while self.storming.is_set():
            with self._lock:
                slot, free_at = self.slots.popleft()
            time.sleep(max(0.0, free_at - time.monotonic()))
            node = self.start(f"visitor-{number}", random_.choice(list(self.programs)), slot)
            end = time.monotonic() + random_.uniform(0.5, 8)
            with self._lock:
                self.visitors.append(node)
            exchanging = threading.Thread(
                target=self.storm,
                args=(node, random_.getrandbits(32), lambda: time.monotonic() < end, random_.random() < 0.5),
            )
            exchanging.start()
            if random_.random() < 0.5:
                time.sleep(max(0.0, end - time.monotonic()) * random_.random())
                node.kill()
                self.count("kills")
            exchanging.join()
            with self._lock:
                self.visitors.remove(node)
                self.slots.append((slot, time.monotonic() + SLOT_REST_S))
            if not node.killed and (status := node.finish()) != 0:
                self.fail(f"{node.name} ended with {status}")
            self.count("visitors")
            self.silent(node)

    def silent(self, node: Node) -> None:
        if text := node.errors.read_text(errors="replace"):
            self.fail(f"{node.name} printed: {text[:400]!r}")

    def disturb(self, seed: int) -> None:
        """Stops processes and cuts connections, while the storm lasts."""
        random_ = random.Random(seed)
        while self.storming.is_set():
            time.sleep(random_.uniform(0.1, 2))
            if random_.random() < 0.3:
                random_.choice(self.proxies).cut()
                self.count("cuts")
                continue
            with self._lock:
                node = random_.choice(self.residents + self.visitors)
            # Longer than the lease, now and then.
            node.stop_for(random_.choice([0.05, 0.3, 1.0, 2.5]))
            self.count("stops")

    def cycle(self, storm_s: float) -> None:
        self.storming.set()
        threads = [
            threading.Thread(target=self.storm, args=(node, self.random.getrandbits(32), self.storming.is_set, False))
            for node in self.residents
        ]
        seeds = [self.random.getrandbits(32) for _ in range(VISITORS + 1)]
        threads += [threading.Thread(target=self.visit, args=it) for it in enumerate(seeds[1:])]
        threads.append(threading.Thread(target=self.disturb, args=(seeds[0],)))
        for thread in threads:
            thread.start()
        time.sleep(storm_s)
        self.storming.clear()
        for thread in threads:
            thread.join(180)
            if thread.is_alive():
                raise AssertionError(f"a storm does not end: {thread}")
        # Sessions with the dead are given up meanwhile.
        time.sleep(SETTLE_S)
        self.calm()

    def probe(self, near: Node, far: Node) -> tuple[float, float] | None:
        """Returns the median and the 99th percentile of a WRITE of 4 KiB, in microseconds."""
        batches = []
        for _ in range(BATCHES):
            command = PROBE.format(far.address, near.slot, PROBES, self.serials(PROBES))
            answer = near.ask("exchange " + command)
            if not answer.startswith("OK"):
                self.fail(f"{near.name} to {far.name} in the calm: {answer}")
                return None
            took = sorted(float(it) for it in answer.split()[1:])
            batches.append((took[len(took) // 2], took[len(took) * 99 // 100]))
        p50s, p99s = zip(*batches)
        return min(p50s), min(p99s)

    def calm(self) -> None:
        """Exchanges that must not fail, and the figures."""
        hours = (time.monotonic() - self.began) / 3600
        # A peer's memory counts as resident here once it was touched: all of it is, before anything is measured.
        for near in self.residents:
            for far in self.residents:
                if near is not far:
                    self.exchange(near, far.address, self.random, False, SIZES[-1])
        time.sleep(REST_S)
        for near, far in zip(self.residents, self.residents[1:] + self.residents[:1]):
            with awake():
                latency = self.probe(near, far)
            if latency is None:
                continue
            p50, p99 = latency
            memory, descriptors, threads = near.figures()
            row = (near.name, memory, descriptors.total(), threads.total(), p50, p99)
            self.samples.append(dict(zip(plot.COLUMNS, (hours, *row))))
            print("  %-7s %6d KiB %3d descriptors %2d threads  p50 %6.1f us  p99 %7.1f us" % row, flush=True)
            for what, now in (("descriptors", descriptors), ("threads", threads)):
                before = self.last.get((near.name, what), now)
                if now != before:
                    more, fewer = dict(now - before), dict(before - now)
                    print(f"          {what}: more {more}, fewer {fewer}", flush=True)
                self.last[near.name, what] = now
            self.silent(near)

    def run(self) -> None:
        self.began = time.monotonic()
        length = min(60.0, max(10.0, self.seconds / 14))
        while (left := self.began + self.seconds - time.monotonic()) > 0 and not self.faults:
            print(f"cycle: {left:.0f} s left, {self.tally['exchanges']} exchanges", flush=True)
            self.cycle(max(3.0, length - SETTLE_S - 4))
        for node in self.residents:
            if (status := node.finish()) != 0:
                self.fail(f"{node.name} ended with {status}")
            self.silent(node)

    def end_all(self) -> None:
        for node in self.residents + self.visitors:
            with contextlib.suppress(OSError):
                node.signal(signal.SIGCONT)
                node.kill()

    def verdicts(self) -> Iterator[str]:
        for node in self.residents:
            rows = [row for row in self.samples if row["node"] == node.name]
            for column, growth in GROWTH.items():
                growth = UNITS.get((column, node.name), growth)
                verdict = judge([row["hours"] for row in rows], [row[column] for row in rows], growth)
                if not verdict.good:
                    self.fail(f"{node.name}: {column}: {verdict.text}")
                yield f"{'ok    ' if verdict.good else 'FAILED'} {node.name:7} {column:11} {verdict.text}"


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    return found.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args()
    if options.minutes < MINUTES_MIN:
        parser.error(f"less than {MINUTES_MIN} minutes give too few figures to judge")
    print(f"soak: {options.minutes:g} minutes, seed {options.seed}", flush=True)
    built = commit()  # before somebody commits what did not run
    soak = Soak(options)
    try:
        soak.run()
    finally:
        soak.end_all()
    if not soak.faults:
        for line in soak.verdicts():
            print(line)
    tally = soak.tally
    for what, number in sorted(tally.items()):
        if what.startswith("why: "):
            print(f"    {number} exchanges of a storm: {what[5:]}")
    plot.write_samples(options.out / "samples.tsv", soak.samples)
    (options.out / "soak.svg").write_text(plot.drawn(soak.samples, f"{options.minutes:g} minutes, seed {options.seed}"))
    cuts = tally["cuts"] + sum(proxy.cuts for proxy in soak.proxies)
    figures = [
        time.strftime("%Y-%m-%d"), built, f"{options.minutes:g}", options.seed, tally["exchanges"],
        f"{tally['bytes'] / 2**30:.2f}", tally["visitors"], tally["kills"], tally["stops"], cuts,
        tally["failed by a fault"], len(soak.faults),
    ]  # fmt: skip
    print("soak:", ", ".join(f"{head} {it}" for head, it in zip(plot.RUNS, figures)))
    if options.record:
        plot.record(figures, options.out / "soak.svg")
    if soak.faults:
        sys.exit(f"soak: {len(soak.faults)} faults, the first: {soak.faults[0]}; SEED={options.seed} draws the same storms")


if __name__ == "__main__":
    main()
