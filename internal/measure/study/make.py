"""Writes a file of events like NanoAOD's: nested branches of muons and jets, and single numbers. The same seed gives the same events."""

import sys

import awkward
import numpy
import uproot

path, megabytes, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
random = numpy.random.default_rng(seed)
PARTICLES = {"Muon": 1.5, "Jet": 4.0, "Electron": 1.0}
BYTES_PER_EVENT = 137  # as compressed, seen
CHUNK = 10_000


def chunk():
    """CHUNK events."""
    events = {}
    for particle, mean in PARTICLES.items():
        counts = random.poisson(mean, CHUNK)
        total = int(counts.sum())
        events[particle] = awkward.zip(
            {
                name: awkward.unflatten(values.astype("float32"), counts)
                for name, values in {
                    "pt": random.exponential(30, total),
                    "eta": random.normal(0, 1.5, total),
                    "phi": random.uniform(-numpy.pi, numpy.pi, total),
                    "mass": random.exponential(5, total),
                    "charge": random.choice([-1.0, 1.0], total),
                }.items()
            }
        )
    events["MET_pt"] = random.exponential(40, CHUNK).astype("float32")
    return events


with uproot.recreate(path, compression=uproot.ZSTD(1)) as out:
    for i in range(max(1, round(megabytes * 1e6 / BYTES_PER_EVENT / CHUNK))):
        events = chunk()
        if i == 0:
            out.mktree("Events", {name: values.type if name in PARTICLES else values.dtype for name, values in events.items()})
        out["Events"].extend(events)
