"""The IPMI BMCs of a virtual data centre: virtualbmc's own, one process each, with a switch for faults around it.

Run as ipmi.py DIR. DIR/bmcs.json lists them; DIR/bmc/NAME.fault holds the fault in force, as JSON, and is read at each packet;
DIR/bmc/NAME.sessions is the number of open sessions.
"""
import json
import os
import struct
import sys
import time
import traceback

import pyghmi.ipmi.private.constants as constants
import pyghmi.ipmi.private.serversession as serversession
import pyghmi.ipmi.private.session as ipmisession
from virtualbmc import vbmc

# RMCP+ status codes, IPMI 2.0 table 13-15.
NO_RESOURCES = 0x01
UNAUTHORIZED_NAME = 0x0D
# Completion code "unspecified error", IPMI 2.0 table 5-2.
UNSPECIFIED = 0xFF
# A session ends after this much silence (IPMI 2.0, section 6.12.15).
IDLE_SECONDS = 60


class Session(serversession.ServerSession):
    """A session that its BMC counts and that may be refused."""

    def _got_rakp1(self, data):
        if self.bmc.fault()["kind"] == "refuse" or self.bmc.unknown_user(data):
            refusal = bytearray([data[0], UNAUTHORIZED_NAME, 0, 0]) + self.clientsessionid
            self.send_payload(refusal, constants.payload_types["rakp2"], retry=False)
            return
        super()._got_rakp1(data)

    def _send_rakp4(self, tagvalue, statuscode):
        super()._send_rakp4(tagvalue, statuscode)
        self.bmc.opened(self)

    def handle_client_request(self, request):
        self.bmc.opened(self)
        super().handle_client_request(request)

    def close_server_session(self):
        self.bmc.closed(self)


serversession.ServerSession = Session


class BMC(vbmc.VirtualBMC):
    """virtualbmc's BMC, behind the faults."""

    def __init__(self, machine, folder, uri):
        self.open_sessions = {}
        self.folder, self.name = folder, machine["name"]
        super().__init__(machine["user"], machine["password"], machine["port"], machine["address"], machine["name"], uri)

    def fault(self):
        try:
            with open(os.path.join(self.folder, self.name + ".fault")) as f:
                return json.load(f)
        except FileNotFoundError:
            return {"kind": ""}

    def unknown_user(self, rakp1):
        return self.authdata.get(bytes(rakp1[28:28 + rakp1[27]]).decode("utf-8", "replace")) is None

    def opened(self, session):
        self.open_sessions[session.managedsessionid] = time.monotonic()
        self.tell_sessions()

    def closed(self, session):
        self.open_sessions.pop(session.managedsessionid, None)
        self.tell_sessions()

    def tell_sessions(self):
        oldest = time.monotonic() - IDLE_SECONDS
        self.open_sessions = {k: at for k, at in self.open_sessions.items() if at > oldest}
        path = os.path.join(self.folder, self.name + ".sessions")
        with open(path + ".new", "w") as f:
            f.write(str(len(self.open_sessions)))
        os.rename(path + ".new", path)

    def packet(self, data, sockaddr):
        """Applies the faults of the wire; tells whether the packet is to be handled."""
        fault = self.fault()
        if fault["kind"] == "silent":
            return False
        if fault["kind"] == "garbage":
            ipmisession._io_sendto(self.serversocket, os.urandom(32), sockaddr)
            return False
        if fault["kind"] == "slow":
            time.sleep(fault["delay_seconds"])
        return True

    def sessionless_data(self, data, sockaddr):
        data = bytearray(data)
        opening = len(data) > 23 and data[4] == 6 and data[5] == 0x10
        fault = self.fault()
        if opening and fault["kind"] == "sessions":
            self.tell_sessions()
            if len(self.open_sessions) >= fault["limit"]:
                # Only the first eight bytes are sent with an error (IPMI 2.0 table 13-10).
                payload = bytearray([data[16], NO_RESOURCES, 0, 0]) + data[20:24]
                header = bytearray(b"\x06\x00\xff\x07\x06\x11") + bytes(8) + struct.pack("<H", len(payload))
                ipmisession._io_sendto(self.serversocket, header + payload, sockaddr)
                return
        super().sessionless_data(data, sockaddr)

    def get_chassis_status(self, session):
        kind = self.fault()["kind"]
        if kind == "unknown":
            return session.send_ipmi_response(code=UNSPECIFIED)
        if kind in ("says-on", "says-off"):
            return session.send_ipmi_response(data=[int(kind == "says-on"), 0, 0])
        return super().get_chassis_status(session)


def listen(bmc):
    """Serves for ever, with the faults of the wire before pyghmi's own reading of packets."""
    receive = ipmisession._io_recvfrom

    def faulty(mysocket, size):
        while True:
            received = receive(mysocket, size)
            if received is None or mysocket is not bmc.serversocket or bmc.packet(*received[:2]):
                return received

    ipmisession._io_recvfrom = faulty
    while True:
        try:
            bmc.listen(timeout=1)
        except Exception:
            traceback.print_exc()


def main(folder):
    with open(os.path.join(folder, "bmcs.json")) as f:
        bmcs = json.load(f)
    for machine in bmcs["machines"]:
        if os.fork() == 0:
            bmc = BMC(machine, os.path.join(folder, "bmc"), bmcs["uri"])
            bmc.tell_sessions()
            listen(bmc)
    while True:
        os.wait()


main(sys.argv[1])
