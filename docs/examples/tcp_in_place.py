"""The averager of plain_in_place.py for ranks in processes of their own: they meet over TCP, on this host.

docs/guides/write-an-averager.md explains it. The rank that is asked for the id of a session opens a port, and the id
says where. Behind the port is the room of plain_in_place.py, with one thread for each member; what a member brings and
takes travels as one frame each way. A connection that ends, by a kill too, ends the room, and all are free.

    cd docs/examples && paceline conform averager tcp_in_place:TcpInPlace --processes
"""

import os
import socket
import struct
import threading

import msgspec
from plain_in_place import PlainInPlace, Room

from paceline.core.errors import TransportError

SECRET = 16  # bytes that only the members know
LENGTH = struct.Struct("!Q")
HELLO = struct.Struct(f"!{SECRET}sII")  # the secret, the member's place, how many there are


def send(connected, thing):
    data = msgspec.msgpack.encode(thing)
    connected.sendall(LENGTH.pack(len(data)) + data)


def receive(connected, size):
    data = bytearray()
    while len(data) < size:
        piece = connected.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("the connection has ended")
        data += piece
    return bytes(data)


def frame(connected):
    return msgspec.msgpack.decode(receive(connected, *LENGTH.unpack(receive(connected, LENGTH.size))))


class Hub:
    """The room, and the port before it."""

    def __init__(self):
        self.secret, self.room, self.lock = os.urandom(SECRET), None, threading.Lock()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.uid = LENGTH.pack(self.door.getsockname()[1]) + self.secret
        threading.Thread(target=self.admit, daemon=True).start()

    def admit(self):
        try:
            while True:
                connected, _ = self.door.accept()
                threading.Thread(target=self.serve, args=(connected,), daemon=True).start()
        except OSError:
            return  # the door was shut

    def serve(self, member):
        with member:
            try:
                secret, place, size = HELLO.unpack(receive(member, HELLO.size))
                if secret != self.secret:
                    return
                with self.lock:
                    self.room = self.room or Room(size)
            except OSError:
                return
            try:
                while True:
                    what, given = frame(member)
                    try:
                        found = self.room.meet(place, msgspec.json.encode(what), given)
                    except TransportError as over:
                        found = str(over)
                    send(member, found)
            except OSError:
                self.room.end(f"member {place} is gone")

    def close(self):
        if self.door.fileno() >= 0:
            self.door.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            self.door.close()


class Seat:
    """A member's place in the room: what `Room` is to those who share its memory."""

    def __init__(self, uid, place, size):
        (port,), secret = LENGTH.unpack(uid[: LENGTH.size]), uid[LENGTH.size :]
        try:
            self.connected = socket.create_connection(("127.0.0.1", port))
            self.connected.sendall(HELLO.pack(secret, place, size))
        except OSError as lost:
            raise TransportError(f"nobody is at port {port}, where the session should be: {lost}") from lost
        self.over = None

    def meet(self, place, what, given):
        try:
            send(self.connected, (what, given))
            found = frame(self.connected)
        except OSError as lost:
            raise TransportError(f"the session is over: {self.over or lost}") from lost
        if isinstance(found, str):
            raise TransportError(found)
        return found

    def end(self, cause):
        self.over = self.over or cause
        try:
            self.connected.shutdown(socket.SHUT_RDWR)  # wakes who waits there, and tells the hub
        except OSError:
            return  # it has ended before


class TcpInPlace(PlainInPlace):
    """Finds the room by its port."""

    name = "tcp_in_place"
    hub = None

    def make_id(self, order):
        if self.hub is not None:
            self.hub.close()  # who was to come is there; who is inside stays
        self.hub = Hub()
        return self.hub.uid

    def enter(self, order):
        return Seat(order.uid, order.new_rank, order.new_world_size)

    def leave(self):
        room = self.room
        super().leave()
        if room is not None:
            room.connected.close()

    def close(self):
        super().close()
        if self.hub is not None:
            self.hub.close()
