"""Tests of the agents without any peer: test_peers.py LIBFERRY.so, run by scripts/test.sh. Standard library
only, as agent.py and the ferry engine are. With a second argument, the folder of ferry's plugin for NIXL, only
the engine of NIXL over ferry is tested, which needs the wheel: bindings/nixl/test.sh runs that."""

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import ferry_c
import pool
from memory import OwnMemory

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.join(HERE, "..", "..", "..", "include")
LIBRARY = None
PLUGINS = None
BLOCK, BLOCKS, SLOTS = 4096, 8, 4
BYTES = BLOCK * BLOCKS * SLOTS


class Agent:
    def __init__(self, engine, options):
        command = [sys.executable, os.path.join(HERE, "agent.py"), engine, json.dumps(options)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, universal_newlines=True)
        self.hello = json.loads(self.process.stdout.readline())

    def ask(self, **message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(timeout=20)


class Pair:
    """An initiator connected to a target."""

    def __init__(self, engine, options):
        self.target, self.initiator = Agent(engine, options), Agent(engine, options)
        self.areas = [agent.ask(do="memory", bytes=BYTES)["ok"] for agent in (self.target, self.initiator)]
        introductions = [self.areas[0]["introduction"]]
        self.connected = self.initiator.ask(do="connect", introductions=introductions)

    def write(self, agent, address, bytes):
        with open("/proc/%d/mem" % agent.process.pid, "r+b", buffering=0) as memory:
            memory.seek(address)
            memory.write(bytes)

    def read(self, agent, address):
        with open("/proc/%d/mem" % agent.process.pid, "rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(BYTES)

    def end(self):
        return [agent.end() for agent in (self.initiator, self.target)]


class PairTests:
    """Duties of every engine. Blocks go to their mirror image, so that a misplaced block shows."""

    def move(self, operation):
        pair = Pair(*self.engine())
        self.addCleanup(pair.end)
        self.assertIn("ok", pair.connected)
        count = BLOCKS * SLOTS
        local, remote = list(range(count)), list(range(count))[::-1]
        message = dict(operation=operation, block_bytes=BLOCK, blocks=BLOCKS, local=local, remote=remote)
        self.assertEqual(pair.initiator.ask(do="prepare", area_bytes=BYTES, **message), {"ok": {}})
        places = [(pair.initiator, pair.areas[1]["address"]), (pair.target, pair.areas[0]["address"])]
        origin, there = places if operation == "WRITE" else reversed(places)
        data = os.urandom(BYTES)
        pair.write(*origin, data)
        run = pair.initiator.ask(do="throughput", seconds=0.05)["ok"]
        self.assertGreaterEqual(run["transfers"], SLOTS)
        mirrored = b"".join(data[at * BLOCK : (at + 1) * BLOCK] for at in reversed(range(count)))
        self.assertEqual(pair.read(*there), mirrored)

    def test_write(self):
        self.move("WRITE")

    def test_read(self):
        self.move("READ")

    def test_latency_of_each_call(self):
        pair = Pair(*self.engine())
        self.addCleanup(pair.end)
        one = dict(operation="WRITE", block_bytes=64, blocks=1, local=[0, 1, 2], remote=[2, 0, 1])
        pair.initiator.ask(do="prepare", area_bytes=BYTES, **one)
        data = os.urandom(192)
        pair.write(pair.initiator, pair.areas[1]["address"], data)
        times = pair.initiator.ask(do="latency", samples=10)["ok"]["nanoseconds"]
        self.assertEqual((len(times), min(times) > 0), (10, True))
        found = pair.read(pair.target, pair.areas[0]["address"])[:192]
        self.assertEqual(found, data[64:128] + data[128:] + data[:64])

    def test_what_fails_is_told_and_the_agent_lives_on(self):
        pair = Pair(*self.engine())
        self.addCleanup(pair.end)
        self.assertIn("error", pair.initiator.ask(do="prepare", operation="WRITE"))
        self.assertIn("error", pair.initiator.ask(do="latency", samples=1))
        self.assertIn("ok", pair.initiator.ask(do="register", bytes=BYTES))

    def test_connect_and_first_transfer(self):
        target, initiator = Agent(*self.engine()), Agent(*self.engine())
        self.addCleanup(target.end)
        self.addCleanup(initiator.end)
        introduction = target.ask(do="memory", bytes=BYTES)["ok"]["introduction"]
        initiator.ask(do="memory", bytes=BYTES)
        self.assertGreater(initiator.ask(do="first", introduction=introduction, bytes=64)["ok"]["seconds"], 0)


class SystemCallTests(PairTests, unittest.TestCase):
    def engine(self):
        return "vm", {"threads": 2}


class FerryTests(PairTests, unittest.TestCase):
    allocated = False

    @classmethod
    def setUpClass(cls):
        descriptor, cls.secret = tempfile.mkstemp()  # mode 0600
        with os.fdopen(descriptor, "w") as file:
            file.write(os.urandom(32).hex())

    @classmethod
    def tearDownClass(cls):
        os.unlink(cls.secret)

    def engine(self):
        settings = {"transports": "tcp", "secret_file": self.secret}
        return "ferry", {"library": LIBRARY, "settings": settings, "allocated": self.allocated}

    def test_a_bad_setting_is_refused_in_words(self):
        name, options = self.engine()
        agent = Agent(name, dict(options, settings={"lanes": "many"}))
        self.assertIn("INVALID: ", agent.hello["error"])
        self.assertFalse(agent.hello["unavailable"])
        agent.end()

    def test_a_transport_that_is_not_there_is_unavailable(self):
        name, options = self.engine()
        pair = Pair(name, dict(options, settings=dict(options["settings"], transports="rdma")))
        self.addCleanup(pair.end)
        one = dict(operation="WRITE", block_bytes=64, blocks=1, local=[0], remote=[0])
        pair.initiator.ask(do="prepare", area_bytes=BYTES, **one)
        for message in (dict(do="latency", samples=1), dict(do="throughput", seconds=0.01)):
            answer = pair.initiator.ask(**message)
            self.assertIn("UNAVAILABLE: ", answer["error"])
            self.assertTrue(answer["unavailable"])


class FerryAllocatedTests(FerryTests):
    allocated = True


class NixlOverFerryTests(PairTests, unittest.TestCase):
    def engine(self):
        return "nixl", {"plugins": PLUGINS, "parameters": {"transports": "tcp"}}

    def test_it_is_ferrys_plugin(self):
        agent = Agent(*self.engine())
        self.addCleanup(agent.end)
        self.assertNotIn("error", agent.hello)
        with open("/proc/%d/maps" % agent.process.pid) as maps:
            files = maps.read()
        self.assertIn(os.path.join(PLUGINS, "libplugin_FERRY.so"), files)
        self.assertNotIn("libplugin_UCX", files)


class PoolTests(unittest.TestCase):
    def test_bytes_that_do_not_arrive_are_told(self):
        class Deaf(pool.Side):
            memory = OwnMemory(pool.AREA)
            verbs = dict.fromkeys(("put", "get", "exists", "remove"), lambda *_: (lambda: None, lambda _: None))

        args = type("Args", (), {"samples": 2, "seconds": 0, "random": os.urandom(2 * pool.MIB)})
        with self.assertRaisesRegex(RuntimeError, "wrong data"):
            pool.run(Deaf(), ("put", 1, 64 * pool.KIB, False), args)

    def test_values_arrive_and_an_absent_pool_is_told(self):
        folder = os.path.dirname(LIBRARY)
        package = os.path.join(HERE, "..", "..", "..", "bindings", "python", "src")
        variables = dict(os.environ, PYTHONPATH=package, FERRY_LIBRARY=LIBRARY)
        little = ["--rounds", "1", "--samples", "5", "--seconds", "0.1", "--rows", "64 KiB$|of 1$|exists.*eviction"]
        with tempfile.NamedTemporaryFile() as file:
            command = [sys.executable, os.path.join(HERE, "pool.py"), "--json", file.name] + little
            told = subprocess.check_output(command + ["--program", folder + "/ferry-pool"], env=variables, text=True)
            rows = json.load(file)["rows"]
        found = [[len(row.get(side, "")) for side in ("ferry pool", "ferry's own transfer")] for row in rows]
        self.assertEqual(found, [[1, 1]] * 5 + [[1, 0]], told)
        if importlib.util.find_spec("mooncake") is None:
            self.assertIn("Mooncake Store failed: ModuleNotFoundError", told)


class DeclarationTests(unittest.TestCase):
    def test_structs_are_the_headers(self):
        compiler = shutil.which("cc")
        if not compiler:
            self.skipTest("there is no C compiler")
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
            with open(source, "w") as file:
                file.write(layout_source())
            subprocess.check_call([compiler, "-I", INCLUDE, source, "-o", program])
            found = subprocess.check_output([program], universal_newlines=True).split()
        self.assertEqual(list(map(int, found)), layout_declared())

    def test_an_engine_that_is_not_there_is_unavailable(self):
        agent = Agent("of_nobody", {})
        self.assertTrue(agent.hello["unavailable"])
        self.assertIn("ModuleNotFoundError", agent.hello["error"])
        agent.end()


def layout_source():
    """Returns a C program that prints the size of each struct, and the place and size of each field."""
    lines = ["#include <ferry.h>", "#include <stdio.h>", "int main(void) {"]
    show = lambda value: lines.append('printf("%%zu\\n", %s);' % value)
    for name, struct in ferry_c.STRUCTS.items():
        show("sizeof(%s)" % name)
        for field, _ in struct._fields_:
            show("offsetof(%s, %s)" % (name, field))
            show("sizeof((({0} *)0)->{1})".format(name, field))
    return "\n".join(lines + ["return 0; }"])


def layout_declared():
    numbers = []
    for struct in ferry_c.STRUCTS.values():
        numbers.append(ctypes.sizeof(struct))
        for field, _ in struct._fields_:
            place = getattr(struct, field)
            numbers += [place.offset, place.size]
    return numbers


if __name__ == "__main__":
    LIBRARY = os.path.abspath(sys.argv.pop(1))
    if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]):
        PLUGINS = os.path.realpath(sys.argv.pop(1))  # as the kernel names mapped files
        unittest.main(defaultTest="NixlOverFerryTests")
    del NixlOverFerryTests
    unittest.main()
