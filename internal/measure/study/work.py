"""What a job of the study does in a member: it waits until all jobs are ready, copies the file first if it should, and reads it by the program that
follows. Prints objects of JSON, one a line."""

import json
import os
import subprocess
import sys
import tempfile
import time

import awkward
import fsspec_xrootd
import uproot
import XRootD

COUNTER = "/sys/class/net/eth0/statistics/rx_bytes"


def received():
    """Bytes that this member has received by its network."""
    with open(COUNTER, encoding="ascii") as counter:
        return int(counter.read())


def resolved(name):
    """A path or URL. FILE.urls:N is line N of the file in which a member finds the URLs of a dataset."""
    path, _, line = name.rpartition(":")
    if not path.endswith(".urls"):
        return name
    with open(path, encoding="utf-8") as urls:
        return urls.read().splitlines()[int(line)]


sys.argv[1] = resolved(sys.argv[1])
before = received()
print("ready", flush=True)
if sys.stdin.readline() == "":
    sys.exit("the other jobs never were ready")
copies = tempfile.TemporaryDirectory()
if sys.argv[2] == "copied":
    began = time.perf_counter()
    copy = os.path.join(copies.name, "copy.root")
    subprocess.run(["xrdcp", "--nopbar", "--silent", sys.argv[1], copy], check=True)
    print(json.dumps({"copying": time.perf_counter() - began}))
    sys.argv[1] = copy
import atexit

atexit.register(lambda: print(json.dumps({"received": received() - before}), flush=True))
