package main

// storageGuards are about what volumes held, and how long.
var storageGuards = []Mutant{
	{
		Guard:   "what a volume held is written down when its size changes",
		File:    "internal/decision/storage.go",
		Find:    "\tcase !c.Forget && c.Record.SizeBytes == was.SizeBytes:\n",
		Replace: "\tcase !c.Forget:\n",
		Test:    "./internal/decision TestWhatAVolumeHeldIsWrittenDownWhenItEnds",
	},
	{
		Guard:   "a decision that changes no size does not end what a volume holds",
		File:    "internal/decision/storage.go",
		Find:    "\tcase !c.Forget && c.Record.SizeBytes == was.SizeBytes:\n\t\treturn\n",
		Replace: "",
		Test:    "./internal/decision TestWhatAVolumeHeldIsWrittenDownWhenItEnds",
	},
	{
		Guard:   "use of a volume is not written for another volume",
		File:    "internal/state/volumeleader.go",
		Find:    "used.UID != base.UID() || used.Volume != base.Name() ||",
		Replace: "used.Volume != base.Name() ||",
		Test:    "./internal/state TestWhatAVolumeHeldIsStoredWithTheCommitThatEndsIt",
	},
	{
		Guard:   "a new leader decides about volumes at no time before their sizes were decided",
		File:    "internal/state/clock.go",
		Find:    "\t\t\tsee(vol.Record.HeldSince)\n",
		Replace: "\t\t\t_ = vol\n",
		Test:    "./internal/state TestWhatAVolumeHeldIsStoredWithTheCommitThatEndsIt",
	},
	{
		Guard:   "storage is no part of what is cleaned on a node",
		File:    "internal/usage/timeline.go",
		Find:    "\t\tcase api.SpanStorage:\n\t\t\tst.amounts = storageOnly(s)\n\t\t\tstorage = append(storage, held{st, o})\n",
		Replace: "",
		Test:    "./internal/usage TestStorageIsCountedToTheNanosecond",
	},
	{
		Guard:   "a token for some clusters does not learn what volumes of others hold",
		File:    "internal/usage/usage.go",
		Find:    "(in.Cluster == nil || o.cluster != \"\" && in.Cluster(o.cluster))",
		Replace: "(in.Cluster == nil || o.cluster == \"\" || in.Cluster(o.cluster))",
		Test:    "./internal/usage TestStorageIsCountedToTheNanosecond",
	},
}
