"""Connections from rank 0 to every other rank: what to do next goes down, an error comes up.

A process that dies closes its connection, so that the others hear of it at once, in whatever call
they wait. Then every one ends: nobody waits for a rank that has gone.
"""

import json
import logging
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import HashStore
from torch.distributed.rendezvous import rendezvous

from components.ranks.place import Place, set_meeting_point

_LOG = logging.getLogger(__name__)
_MEET = timedelta(minutes=10)
_COLLECTIVE = timedelta(hours=24)  # a rank that has gone is heard of here, not by this
_GRACE_SECONDS = 12.0  # for rank 0 to end by itself once a rank has gone
_LEAVE_SECONDS = 10.0
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_KEY = "rethink/links"

Message = dict[str, Any]


class Links:
    """This process's connections, and the process group of all ranks."""

    def __init__(self, place: Place, group_backend: str) -> None:
        """Meet the other ranks; returns when all are there.

        Args:
            place: this process.
            group_backend: of torch.distributed, such as `gloo` or `cpu:gloo,cuda:nccl`.
        """
        self.place = place
        self.on_lost: Callable[[str], None] | None = None  # rank 0: hears that a rank has gone
        self.lost: str | None = None
        self._sockets: dict[int, socket.socket] = {}
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._left = threading.Event()
        self._readers: list[threading.Thread] = []
        self._lock = threading.Lock()
        for name, number in (
            ("RANK", place.rank),
            ("WORLD_SIZE", place.world),
            ("LOCAL_RANK", place.local_rank),
        ):
            os.environ[name] = str(number)  # where libraries look
        if place.world == 1:
            store: Any = HashStore()
        else:
            set_meeting_point()
            met = rendezvous("env://", place.rank, place.world, timeout=_MEET)
            store = next(iter(met))[0]
        try:
            if place.world > 1:
                self._connect(store)
            dist.init_process_group(
                group_backend,
                store=c10d.PrefixStore("rethink/group", store),
                rank=place.rank,
                world_size=place.world,
                timeout=_COLLECTIVE,
            )
        except BaseException:
            self.close()
            raise

    def send(self, message: Message) -> None:
        """Rank 0: tell every other rank. Others: tell rank 0."""
        line = json.dumps(message).encode() + b"\n"
        for connection in self._sockets.values():
            try:
                with self._lock:
                    connection.sendall(line)
            except OSError:  # its reader has heard why
                _LOG.debug("a rank has gone", exc_info=True)

    def receive(self) -> Message:
        """Ranks above 0: the next message of rank 0. Waits as long as it takes."""
        return self._inbox.get()

    def leave(self) -> None:
        """Rank 0: let the others go, and wait for them for some seconds."""
        if self._left.is_set():
            return
        self._left.set()
        self.send({"kind": "leave"})
        end = time.monotonic() + _LEAVE_SECONDS
        for reader in self._readers:
            reader.join(max(0.0, end - time.monotonic()))

    def close(self) -> None:
        """Close the connections, in good order: the other side takes this rank for done."""
        self._left.set()
        for connection in self._sockets.values():
            connection.close()

    def _connect(self, store: Any) -> None:
        token = secrets.token_hex(16)
        if self.place.rank == 0:
            listener = socket.create_server(("", 0), backlog=self.place.world)
            store.set(_KEY, json.dumps([listener.getsockname()[1], token]))
            while len(self._sockets) < self.place.world - 1:
                self._accept(listener, token)
            listener.close()
        else:
            port, token = json.loads(store.get(_KEY))
            address = (os.environ["MASTER_ADDR"], port)
            connection = socket.create_connection(address, _MEET.total_seconds())
            connection.sendall(json.dumps([token, self.place.rank]).encode() + b"\n")
            self._sockets[0] = connection
        for rank, connection in self._sockets.items():
            connection.settimeout(None)
            _keep_alive(connection)
            reader = threading.Thread(
                target=self._read, args=(rank, connection), name=f"rank-{rank}", daemon=True
            )
            self._readers.append(reader)
            reader.start()

    def _accept(self, listener: socket.socket, token: str) -> None:
        listener.settimeout(_MEET.total_seconds())
        connection, _ = listener.accept()
        connection.settimeout(10)
        try:
            said, rank = json.loads(connection.makefile("r").readline(200))
        except (OSError, ValueError, TypeError):
            said, rank = None, None
        if said == token and isinstance(rank, int):
            self._sockets[rank] = connection
        else:  # somebody else's program
            connection.close()

    def _read(self, rank: int, connection: socket.socket) -> None:
        """Hear one rank until it is gone; in a thread of its own."""
        try:
            for line in connection.makefile("r", encoding="utf-8"):
                message: Message = json.loads(line)
                if message["kind"] == "error":
                    return self._lose(f"rank {rank} failed:\n{message['text']}")
                if message["kind"] == "leave":
                    self._left.set()
                self._inbox.put(message)
        except (OSError, ValueError):
            _LOG.debug("the connection to rank %d broke", rank, exc_info=True)
        if not self._left.is_set():
            self._lose(f"rank {rank} has gone without a word (killed, or see its own output)")

    def _lose(self, why: str) -> None:
        with self._lock:
            first = self.lost is None
            self.lost = self.lost or why
        if not first:
            return
        _LOG.error("rank %d ends, since %s", self.place.rank, why)
        if self.on_lost is not None:
            self.on_lost(why)
            time.sleep(_GRACE_SECONDS)  # a collective call may wait for ever
        os._exit(1)


def _keep_alive(connection: socket.socket) -> None:
    """Let the system notice within some 20 s that another node is down."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
