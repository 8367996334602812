package main

// clusterHomeGuards are about homes of clusters that are volumes.
var clusterHomeGuards = []Mutant{
	{
		Guard:   "a home is attached to a cluster without other volumes",
		File:    "internal/controller/claimants.go",
		Find:    "if c.Record == nil {",
		Replace: "if c.Record == nil || len(c.Intent.Spec.Volumes) == 0 {",
		Test:    "./internal/controller TestAHomeIsAttachedToAClusterWithoutOtherVolumes",
	},
	{
		Guard:   "the home of a cluster goes only with its own cluster",
		File:    "internal/decision/volume.go",
		Find:    "op.Cluster != \"\" && op.Cluster == intent.ClusterUID",
		Replace: "op.Cluster != \"\"",
		Test:    "./internal/decision TestAVolumesRecordChangesByItsOperationsOnly",
	},
	{
		Guard:   "the home of a cluster is not wiped while a member has it",
		File:    "internal/volume/plan/owned.go",
		Find:    "\tcase s.needed(v):\n\t\treturn nil\n",
		Replace: "",
		Test:    "./internal/volume/plan TestVolumesArePlannedFromTheSituation",
	},
	{
		Guard:   "the home of a cluster that is there stays",
		File:    "internal/state/clusterhome.go",
		Find:    "\treturn c == nil || c.UID() != in.ClusterUID ||",
		Replace: "\treturn c == nil || c.UID() == in.ClusterUID ||",
		Test:    "./internal/state TestAHomeEndsWithItsClusterOnly",
	},
	{
		Guard:   "another cluster of the name does not keep a home",
		File:    "internal/state/clusterhome.go",
		Find:    "c == nil || c.UID() != in.ClusterUID || c.Intent",
		Replace: "c == nil || c.Intent",
		Test:    "./internal/state TestAHomeEndsWithItsClusterOnly",
	},
	{
		Guard:   "assignments are looked through before the home of a cluster is wiped",
		File:    "internal/situation/volumes.go",
		Find:    "if len(s.Ended) > 0 || slices",
		Replace: "if slices",
		Test:    "./internal/situation TestTheSituationOfVolumesIsWhatIsStoredAndFound",
	},
	{
		Guard:   "no other cluster has the home of a cluster attached",
		File:    "internal/state/clusterhome.go",
		Find:    "if v.ClusterUID == \"\" || v.ClusterUID == in.UID {",
		Replace: "if v.ClusterUID == \"\" || v.ClusterUID != \"\" {",
		Test:    "./internal/state TestAClusterAndItsHomeAreStoredTogether",
	},
	{
		Guard:   "a home stays with its cluster when it is changed",
		File:    "internal/state/volumes.go",
		Find:    " || v.Cluster != was.Cluster || v.ClusterUID != was.ClusterUID ||",
		Replace: " ||",
		Test:    "./internal/state TestAClusterAndItsHomeAreStoredTogether",
	},
	{
		Guard:   "a home counts against the quota when its cluster is created",
		File:    "internal/apiserver/clusterhome.go",
		Find:    "\t\treturn s.storageFits(view, &home, others, 0, size)\n",
		Replace: "\t\treturn nil\n",
		Test:    "./internal/apiserver TestAHomeWithASizeIsAVolumeOfItsCluster",
	},
	{
		Guard:   "a token for other clusters does not learn whose home a volume is",
		File:    "internal/apiserver/clusterhome.go",
		Find:    "if in.Cluster == \"\" || !seesCluster(p, in.Cluster) {",
		Replace: "if in.Cluster == \"\" {",
		Test:    "./internal/apiserver TestAHomeWithASizeIsAVolumeOfItsCluster",
	},
}
