package main

// infiniBandGuards: what keeps the executor on an InfiniBand fabric from taking its own words for the fabric.
var infiniBandGuards = []Mutant{
	{
		Guard:   "a desired state is in force when its marker was read on the subnet manager's port",
		File:    "internal/fabric/site/infiniband/opensm/opensm.go",
		Find:    "if s.seen != 0 && s.seen == s.written.Marker {",
		Replace: "if s.written.Marker != 0 {",
		Test:    "./internal/fabric/site/infiniband/opensm TestAPortIsNeverPresentWhileOpenSMIsNotTold",
	},
	{
		Guard:   "each content has a marker of its own",
		File:    "internal/fabric/site/infiniband/opensm/record.go",
		Find:    "marker = partitions.FirstMarker + (r.Marker-partitions.FirstMarker+1)%markers",
		Replace: "marker = r.Marker",
		Test:    "./internal/fabric/site/infiniband/opensm TestEachContentHasAMarkerThatNoOtherMayHave",
	},
	{
		Guard:   "an executor of an earlier epoch is refused",
		File:    "internal/fabric/site/infiniband/opensm/opensm.go",
		Find:    "if err := had.Epoch.Accept(epoch); err != nil {",
		Replace: "if err := had.Epoch.Accept(had.Epoch); err != nil {",
		Test:    "./internal/fabric/site/infiniband/opensm TestSiteConformance",
	},
	{
		Guard:   "a port that answers under another GUID is not the one that was meant",
		File:    "internal/fabric/site/infiniband/opensm/fabric.go",
		Find:    "if err == nil && info.PortGUID != p.port.GUID {",
		Replace: "if err == nil && info.PortGUID == 0 {",
		Test:    "./internal/fabric/site/infiniband/opensm TestAPlaceIsReadFromBothEndsAndByItsName",
	},
	{
		Guard:   "the switch port has the key as well",
		File:    "internal/fabric/site/infiniband/opensm/fabric.go",
		Find:    "\tp.problem = p.differ(where)\n",
		Replace: "\t_ = p.differ(where)\n",
		Test:    "./internal/fabric/site/infiniband/opensm TestAPlaceIsReadFromBothEndsAndByItsName",
	},
	{
		Guard:   "a port is in no more partitions than its table has room for",
		File:    "internal/fabric/site/infiniband/partitions/room.go",
		Find:    "\t\tif needed > room {\n",
		Replace: "\t\tif needed > 1<<15 {\n",
		Test:    "./internal/fabric/site/infiniband/partitions TestRoomCountsTheOperatorsPartitionsAndTheMarker",
	},
}
