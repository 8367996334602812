"""Runs jobs at once in members of a cluster, and prints what they took as an object of JSON. Its argument says what to run where."""

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time

LOADER = """
import sys, threading, urllib.request
def load():
    told = False
    while True:
        with urllib.request.urlopen(sys.argv[1]) as answer:
            while answer.read(1 << 16):
                if not told:
                    told = True
                    print("began", flush=True)
threading.Thread(target=load, daemon=True).start()
sys.stdin.read()
"""


def start(member, command):
    """Starts a command in a member. Its input and output are pipes."""
    if member != os.environ["NEARMETAL_MEMBER"]:
        command = ["ssh", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", member, shlex.join(command)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def trip(origin):
    """How many seconds a connection to the server takes, which is one round trip."""
    began = time.perf_counter()
    socket.create_connection(origin, timeout=30).close()
    return time.perf_counter() - began


def trips(origin, ended, seen):
    """Measures round trips until jobs have ended."""
    while not ended.wait(0.02):
        seen.append(trip(origin))


def said(line, what):
    """Checks what a process says first."""
    if line != what + "\n":
        sys.exit(f"a process said {line!r} instead of {what!r}")


def main():
    """Runs all that the argument names."""
    ask = json.loads(sys.argv[1])
    origin = tuple(ask["origin"])
    before = sorted(trip(origin) for _ in range(5))[2]
    members = ask["members"]
    jobs = [start(members[i % len(members)], [ask["python"], "-c", ask["program"], ask["url"], ask["way"]]) for i in range(ask["jobs"])]
    for job in jobs:
        said(job.stdout.readline(), "ready")
    loaders = [start(member, ["python3", "-c", LOADER, ask["load"]]) for member in ask["loaders"]]
    for loader in loaders:
        said(loader.stdout.readline(), "began")
    ended, seen = threading.Event(), []
    watch = threading.Thread(target=trips, args=(origin, ended, seen), daemon=True)
    watch.start()
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    results, received = [], {}
    for i, job in enumerate(jobs):
        result = {"copying": 0}
        for line in job.communicate()[0].splitlines():
            result.update(json.loads(line))
        if job.returncode != 0 or "seconds" not in result:
            sys.exit(f"job {i} ended with exit code {job.returncode}")
        member = members[i % len(members)]
        received[member] = max(received.get(member, 0), result.pop("received"))
        results.append(result)
    ended.set()
    watch.join()
    for loader in loaders:
        loader.stdin.close()
        loader.wait()
    print(json.dumps({"jobs": results, "received": sum(received.values()), "before": before, "trips": seen}))


main()
