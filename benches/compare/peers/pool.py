"""Measures ferry's pool beside Mooncake Store, and beside ferry's own transfers of the same bytes: over TCP on this
host, in turn, with every byte checked. `make compare` runs it; docs/bench.md has the method.

This process is a client of both pools, and lends nothing. A node that lends memory is a process of its own, and so is
the client whose puts keep a pool full while eviction is measured: pool.py OPTIONS, as JSON, whose "role" says which."""

import argparse
import ctypes
import gc
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial

from memory import OwnMemory

KIB, MIB = 1 << 10, 1 << 20
LENT, AREA, PRESS_AREA = 2 << 30, 256 * MIB, 64 * MIB
#: Keys of a call that keeps a pool full, bytes of a value, seconds between two: 105 MB a second.
PRESS = (16, 64 * KIB, 0.01)
START_SECONDS = 20
SHAPES = [(1, 64 * KIB), (1, MIB), (1, 16 * MIB), (64, 64 * KIB), (64, MIB)]
#: What is timed, keys of a call, bytes of a value, whether eviction runs.
ROWS = [(verb, *shape, False) for verb in ("put", "get") for shape in SHAPES]
ROWS += [("exists", 1, 4 * KIB, False), ("exists", 1000, 4 * KIB, False)]
ROWS += [("exists", 1000, 4 * KIB, True), ("get", 1, 64 * KIB, True)]


def name_of(verb, batch, bytes, evicting):
    size = "%d MiB" % (bytes // MIB) if bytes >= MIB else "%d KiB" % (bytes // KIB)
    what = "of {:,}".format(batch) if verb == "exists" else size if batch == 1 else "%d × %s" % (batch, size)
    return "%s %s%s" % (verb, what, " during eviction" if evicting else "")


class Side:
    """A value has a number: its key is made of the number, and its bytes are at that slot, modulo the number of
    slots, in the client's memory. `verbs` make a call of numbers and the bytes of each value, and a function that says
    what is wrong with its result."""

    first, pressed, children, verbs = 0, False, (), {}

    def places(self, numbers, bytes):
        slots = self.memory.bytes // bytes
        return [self.memory.address + number % slots * bytes for number in numbers]

    def start(self, command, **more):
        """Starts a program that ends when this process does."""
        prctl = ctypes.CDLL(None).prctl
        die, pipe = lambda: prctl(1, signal.SIGKILL), subprocess.PIPE  # PR_SET_PDEATHSIG
        child = subprocess.Popen(command, preexec_fn=die, stdin=pipe, stdout=pipe, text=True, **more)
        self.children = [child, *self.children]
        return child

    def other(self, role, **more):
        """Starts a process of this program, and returns it when it is ready, with what it said."""
        options = dict(self.options, role=role, side=type(self).__name__, **more)
        child = self.start([sys.executable, os.path.abspath(__file__), json.dumps(options)])
        return child, child.stdout.readline().strip()

    def run(self, verb, batch, bytes, calls, samples, seconds=0):
        """Makes the calls in turn, so many and for so many seconds; returns the nanoseconds of each."""
        firsts = range(self.first, self.first + calls * batch, batch)
        made = [self.verbs[verb](range(first, first + batch), bytes) for first in firsts]
        taken, clock = [], time.perf_counter_ns
        gc.disable()
        start = clock()
        until = start + seconds * 1e9
        while len(taken) < samples or start < until:
            call, wrong = made[len(taken) % calls]
            start = clock()
            result = call()
            taken.append(clock() - start)
            if verb != "remove" and wrong(result):
                raise RuntimeError("%s, call %d: %s" % (verb, len(taken), wrong(result)))
        gc.enable()
        return taken

    def resident(self):
        """The private memory of the process that has the metadata."""
        with open("/proc/%d/status" % self.node.pid) as status:
            return int(re.search(r"RssAnon:\s+(\d+) kB", status.read())[1]) << 10

    def close(self):
        for child in self.children:
            child.kill()
            child.wait()


class Ferry(Side):
    def __init__(self, options, memory):
        import ferry.pool

        self.options, self.memory, secret = options, memory, options["secret"]
        if "address" not in options:
            flags = ["--memory", str(LENT), "--listen", "127.0.0.1:0", "--secret-file", secret]
            tcp = dict(os.environ, FERRY_TRANSPORTS="tcp")
            self.node = self.start([options["program"], "serve", *flags], env=tcp)
            options["address"] = self.node.stdout.readline().split()[-1]
        self.engine = ferry.Engine(transports="tcp", secret_file=secret, listen_address="127.0.0.1:0")
        self.engine.register(memory.map)
        self.pool = ferry.pool.Pool(self.engine, nodes=[options["address"]])
        self.pool.wait_nodes(2, START_SECONDS)
        self.view, self.keyspace = memoryview(memory.map), ferry.pool.Keyspace("compare", "compare")
        self.verbs = {verb: partial(self.call, getattr(self.pool, verb)) for verb in ("put", "get", "exists", "remove")}

    def call(self, method, numbers, bytes):
        keys = [self.keyspace.key(b"%d" % number) for number in numbers]
        if method in (self.pool.put, self.pool.get):
            places = [place - self.memory.address for place in self.places(numbers, bytes)]
            keys = [(key, self.view[place : place + bytes]) for key, place in zip(keys, places)]
        return partial(method, keys), lambda results: next((it.outcome.name for it in results if not it.ok), None)


class Own(Side):
    """ferry's own transfers, which a process of this program answers; its smallest one beside a question."""

    def __init__(self, options, memory):
        import ferry

        self.options, self.memory = options, memory
        self.engine = ferry.Engine(transports="tcp", secret_file=options["secret"], listen_address="127.0.0.1:0")
        if memory is None:
            self.memory = self.engine.alloc(AREA, name="lent")
            return
        self.engine.register(memory.map)
        self.node, address = self.other("lend")
        self.peer = self.engine.connect(address, START_SECONDS)
        self.region = self.peer.region("lent")
        self.verbs = {"put": partial(self.call, self.peer.write), "get": partial(self.call, self.peer.read)}
        self.verbs["exists"] = lambda numbers, _: self.call(self.peer.write, numbers[:1], 64)
        self.verbs["remove"] = lambda *_: (lambda: None, None)

    def call(self, method, numbers, bytes):
        there = self.region.address - self.memory.address
        rows = [(place, place + there, bytes, self.region) for place in self.places(numbers, bytes)]
        return partial(method, rows), lambda _: None


class Mooncake(Side):
    """Its node is two processes: the master, and one of this program, which lends the memory."""

    def __init__(self, options, memory):
        import mooncake
        from mooncake.store import MooncakeDistributedStore

        self.options, self.memory, self.store = options, memory, MooncakeDistributedStore()
        if "address" not in options:
            master = os.path.join(os.path.dirname(mooncake.__file__), "mooncake_master")
            port, metrics = free_port(), free_port()
            flags = ["-rpc_address=127.0.0.1", "-rpc_port=%d" % port]
            flags += ["-metrics_host=127.0.0.1", "-metrics_port=%d" % metrics]
            self.node, options["address"] = self.start([master, *flags]), "127.0.0.1:%d" % port
            until = time.monotonic() + START_SECONDS
            while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
                time.sleep(0.01)
            self.other("lend")
        lent = 0 if memory else LENT
        codes = [self.store.setup("127.0.0.1", "P2PHANDSHAKE", lent, 16 * MIB, "tcp", "", options["address"])]
        codes += [self.store.register_buffer(memory.address, memory.bytes)] if memory else []
        if any(codes):
            raise RuntimeError("setup and register_buffer: %s" % codes)

        store, call = self.store, self.call
        self.verbs = {
            "put": lambda numbers, bytes: call(store.put_from, store.batch_put_from, 0, numbers, bytes),
            "get": lambda numbers, bytes: call(store.get_into, store.batch_get_into, bytes, numbers, bytes),
            "exists": lambda numbers, _: call(store.is_exist, store.batch_is_exist, 1, numbers),
            # With `force`, because what was got is leased.
            "remove": lambda numbers, _: (partial(store.batch_remove, self.keys(numbers), True), None),
        }

    def keys(self, numbers):
        return ["%064x" % number for number in numbers]

    def call(self, one, several, good, numbers, bytes=0):
        keys = self.keys(numbers)
        columns = [keys, self.places(numbers, bytes), [bytes] * len(keys)] if bytes else [keys]
        if len(keys) == 1:
            return partial(one, *(column[0] for column in columns)), lambda code: str(code) * (code != good)
        return partial(several, *columns), lambda codes: next((str(code) for code in codes if code != good), None)


SIDES = {"ferry pool": Ferry, "Mooncake Store": Mooncake, "ferry's own transfer": Own}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def lend_or_press(options):
    """The other roles of this program, until the standard input ends."""
    out, kind = os.fdopen(os.dup(1), "w"), globals()[options["side"]]
    os.dup2(2, 1)  # engines print
    memory = OwnMemory(PRESS_AREA) if options["role"] == "press" else None
    side, (batch, bytes, pause), put, ended = kind(options, memory), PRESS, 0, threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    tell = partial(print, file=out, flush=True)
    if not memory:
        tell(side.engine.address if options["side"] == "Own" else "ready")
        ended.wait()
    number, full = options.get("first", 0), options.get("first", 0) + options.get("fill", 0)
    while not ended.wait(pause if number > full else 0):
        if number == full:
            tell("full")
        call, wrong = side.verbs["put"](range(number, number + batch), bytes)
        put, number = put + batch * (not wrong(call())), number + batch
    tell(put)
    if memory and options["side"] == "Ferry":
        side.pool.close(START_SECONDS)
    os._exit(0)  # some destructors wait for threads that wait for the peer


def opened(name, options, memory):
    """Returns a side, or the reason why there is none."""
    try:
        side = SIDES[name](options, memory)
        # So that no page of the lent memory is new to the kernel.
        for verb in ("put", "remove"):
            side.run(verb, 64, MIB, 24, 24)
        return side
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)


def run(side, row, args):
    """Puts new values, gets them, checks them, and returns the nanoseconds of what the row is about."""
    verb, batch, bytes, evicting = row
    calls = min(args.samples, 1 if verb == "exists" else AREA // (batch * bytes))
    used, side.first = calls * batch * bytes, side.first + AREA  # a multiple of the slots of any size
    if evicting:
        fill = 0 if side.pressed else LENT // PRESS[1] * 5 // 4
        presser, said = side.other("press", first=side.first << 20, fill=fill)
        side.pressed = said == "full"
    # No other run has these bytes at this place.
    data = args.random[side.first // AREA * 8 % MIB :][:used]
    side.memory.map[:used] = data
    taken = {}
    try:
        for step in ("put", "exists", "get"):
            if step == "get":
                side.memory.map[:used] = args.random[:used]
            again = step == verb and (verb == "exists" or evicting)
            timed = (args.samples, args.seconds * evicting) if again else (calls, 0)
            taken[step] = side.run(step, batch, bytes, calls, *timed)
        if side.memory.map[:used] != data:
            raise RuntimeError("wrong data")
    finally:
        if evicting and not int(presser.communicate(timeout=START_SECONDS)[0]):
            raise RuntimeError("no value was put meanwhile")
    side.run("remove", batch, bytes, calls, calls)
    return taken[verb]


def measure(args, row, live):
    """Returns for each side its [p50, p99] of each round, in µs, and why sides have failed."""
    found, failed = {name: [] for name in SIDES}, {name: why for name, why in live.items() if isinstance(why, str)}
    if row[3] or row[:2] == ("exists", 1000):
        del found["ferry's own transfer"]
    for number in range(args.rounds):
        # Each side is first equally often, and the order turns round.
        order = list(found)[number % len(found) :] + list(found)[: number % len(found)]
        for name in filter(lambda name: name not in failed, order[:: -1 if number % 2 else 1]):
            try:
                taken = sorted(run(live[name], row, args))
                found[name].append([taken[(len(taken) * part + 99) // 100 - 1] / 1e3 for part in (50, 99)])
            except Exception as error:  # whatever an engine raises is told, and the others go on
                found[name], failed[name] = [], "round %d: %s" % (number + 1, error)
    return dict(found, failed=failed, row=name_of(*row))


def bytes_a_key(side):
    before, side.first = side.resident(), side.first + AREA
    grown = [side.run(verb, 1000, 4 * KIB, 100, 100) and side.resident() - before for verb in ("put", "exists", "remove")]
    return grown[1] / 100_000


def cell(row, rounds):
    if not rounds:
        return "–"
    p50, p99 = (statistics.median(column) for column in zip(*rounds))
    return "%.0f/%.0f" % (p50, p99) + ("" if row[0] == "exists" else ", %.2f" % (row[1] * row[2] / p50 / 1e3))


def ratio(found, name, which):
    ratios = [ours[which] / theirs[which] for ours, theirs in zip(found["ferry pool"], found.get(name, []))]
    return "%.2f (%.2f to %.2f)" % (statistics.median(ratios), min(ratios), max(ratios)) if ratios else "–"


def told(rows, results):
    machine = "%d CPUs, Linux %s, load of the last 1 and 5 minutes %.1f and %.1f"
    print(machine % (os.cpu_count(), os.uname().release, *results["load"][:2]))
    what = "p50/p99 in µs, GB/s at the p50; ratios within a round: the median, the least, the greatest"
    print("%d rounds in turn; %s\n" % (results["rounds"], what))
    heads = [*SIDES, "pool : Mooncake", "p99 : Mooncake's", "pool : own"]
    print("| | %s |\n|%s" % (" | ".join(heads), "---|" * (len(heads) + 1)))
    for row, found in zip(rows, results["rows"]):
        ratios = [("Mooncake Store", 0), ("Mooncake Store", 1), ("ferry's own transfer", 0)]
        cells = [cell(row, found.get(name)) for name in SIDES] + [ratio(found, *what) for what in ratios]
        print("| %s | %s |" % (name_of(*row), " | ".join(cells)))
    for name, bytes in results["bytes_a_key"].items():
        print("\n%s: %.0f bytes of private memory a key where the metadata is, with 100,000 keys" % (name, bytes))
    for name, why in {it for found in results["rows"] for it in found["failed"].items()}:
        print("\n%s failed: %s" % (name, why))


def main():
    if "".join(sys.argv[1:2]).startswith("{"):
        return lend_or_press(json.loads(sys.argv[1]))
    parser = argparse.ArgumentParser(description=__doc__)
    defaults = {"rounds": 7, "samples": 1000, "seconds": 1.0, "rows": "", "program": "ferry-pool", "json": os.devnull}
    for option, default in defaults.items():
        parser.add_argument("--" + option, type=type(default), default=default)
    args = parser.parse_args()
    args.random, memory, live, results = os.urandom(AREA + MIB), OwnMemory(AREA), {}, {"bytes_a_key": {}, "rows": []}
    rows = [row for row in ROWS if re.search(args.rows, name_of(*row))]
    with tempfile.NamedTemporaryFile("w") as secret:
        print(os.urandom(32).hex(), file=secret, flush=True)
        try:
            for name in SIDES:
                live[name] = opened(name, {"secret": secret.name, "program": args.program}, memory)
                if isinstance(live[name], (Ferry, Mooncake)) and re.search(args.rows, "memory a key"):
                    results["bytes_a_key"][name] = bytes_a_key(live[name])
            for row in rows:
                print(name_of(*row), file=sys.stderr, flush=True)
                results["rows"].append(measure(args, row, live))
        finally:
            for side in filter(lambda side: isinstance(side, Side), live.values()):
                side.close()
    results.update(rounds=args.rounds, samples=args.samples, seconds=args.seconds, load=os.getloadavg())
    with open(args.json, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
    told(rows, results)
    sys.stdout.flush()
    os._exit(0)  # some destructors wait for threads that wait for the peer


if __name__ == "__main__":
    main()
