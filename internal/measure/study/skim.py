"""Reads some branches of all events and keeps those with two muons of opposite charge. Prints how many, the sum of their transverse momenta, and
how long it took in seconds, from opening the file to the result."""

import json
import sys
import time

import awkward
import uproot

url = sys.argv[1]
began = time.perf_counter()
kept, total = 0, 0.0
with uproot.open(url) as file:
    names = ["Muon_pt", "Muon_eta", "Muon_charge", "MET_pt"]
    for events in file["Events"].iterate(names, step_size=50_000):
        two = events[awkward.num(events["Muon_pt"]) == 2]
        two = two[(two["Muon_charge"][:, 0] != two["Muon_charge"][:, 1]) & awkward.all(abs(two["Muon_eta"]) < 2.4, axis=1)]
        kept += len(two)
        total += float(awkward.sum(two["Muon_pt"], axis=None, mask_identity=False))
print(json.dumps({"kept": kept, "sum_pt": round(total, 1), "seconds": time.perf_counter() - began}))
