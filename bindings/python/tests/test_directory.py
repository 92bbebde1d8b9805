"""Directories: lists and files. Rust tests cover those in etcd; here, Python calls must reach them."""

from __future__ import annotations

import os
import pickle
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferry


def test_a_list_and_a_file_name_peers(tmp_path: Path) -> None:
    with ferry.Engine() as own, ferry.Engine() as peer:
        file = tmp_path / "peers"
        file.write_text(f"# peers\na = {peer.address}\n")
        for url in (f"static:a={peer.address}", f"static:{file}"):
            with ferry.Directory(own, url) as directory:
                expected = ferry.DirectoryEntry("a", peer.address, None, None)
                assert directory.lookup("a") == expected
                assert directory.entries() == directory.entries("a") == [expected]
                assert directory.entries("b") == []
                assert directory.connect("a", timeout=20).info().address == peer.address
                assert directory.poll() is None
                directory.register("a")
                status = directory.info()
                assert status.is_connected and status.entries == 1 and status.why == ""
                with pytest.raises(ferry.UnreachableError, match="no b"):
                    directory.connect("b")
                with pytest.raises(ferry.InvalidError, match="has no b"):
                    directory.register("b")
            with pytest.raises(ferry.ClosedError):
                directory.lookup("a")
        many = ",".join(f"n{number:03}=h:1" for number in range(100))
        with ferry.Directory(own, f"static:{many}") as directory:
            assert [entry.name for entry in directory.entries("n")] == [
                f"n{number:03}" for number in range(100)
            ]


def test_wrong_arguments_are_named() -> None:
    with ferry.Engine() as own:
        for url, words in {
            "consul:": "url begins neither",
            "etcd:http://u:p@h": "options",
            "etcd:https://h": "ca",
        }.items():
            with pytest.raises(ferry.InvalidError, match=words):
                ferry.Directory(own, url)
        with pytest.raises(ferry.InvalidError, match="ttl"):
            ferry.Directory(own, "static:", ttl=0)
        with pytest.raises(ferry.InvalidError, match="timeout"):
            ferry.Directory(own, "static:", timeout=-1)
        with pytest.raises(ferry.InvalidError, match=r"options\.password"):
            ferry.Directory(own, "static:", user="u")
        with pytest.raises(ferry.InvalidError, match=r"options\.ca_file"):
            ferry.Directory(own, "static:", ca_file="/nonexistent")
        began = time.monotonic()
        with pytest.raises(ferry.UnreachableError, match="etcd does not answer"):
            ferry.Directory(own, "etcd:http://127.0.0.1:1", timeout=0.2)
        assert time.monotonic() - began >= 0.2
        with ferry.Directory(own, "etcd:http://127.0.0.1:1", wait=False) as directory:
            assert not directory.info().is_connected
            with pytest.raises(TypeError):
                pickle.dumps(directory)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[str]:
    program = os.environ.get("FERRY_TEST_ETCD") or shutil.which("etcd")
    if not program:
        pytest.skip("SKIPPED: there is no etcd (Debian's package etcd-server)")
    own, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    running = subprocess.Popen(
        [program, "--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", own]
        + ["--advertise-client-urls", own, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        + ["--initial-cluster", f"default={peer}"],
        stderr=subprocess.DEVNULL,
    )
    yield own
    running.kill()
    running.wait()


def test_names_in_etcd_come_and_go(etcd: str) -> None:
    url = f"etcd:{etcd}/test"
    with ferry.Engine() as own, ferry.Engine() as peer:
        with ferry.Directory(peer, url, timeout=30) as names, ferry.Directory(own, url, timeout=30) as finder:
            names.register("prefill/0", timeout=30)
            assert select.select([finder], [], [], 30)[0]
            change = finder.poll()
            assert change is not None and change.kind == ferry.ChangeKind.ADDED
            info = finder.connect("prefill/0", timeout=30).info()
            entry = finder.lookup("prefill/0")
            assert change.entry == entry
            assert (entry.engine_id, entry.incarnation) == (info.engine_id, info.incarnation)
            assert (names.info().names, names.info().names_published) == (1, 1)
            names.unregister("prefill/0", timeout=30)
            assert select.select([finder], [], [], 30)[0]
            assert finder.poll() == ferry.DirectoryChange(ferry.ChangeKind.REMOVED, entry)
