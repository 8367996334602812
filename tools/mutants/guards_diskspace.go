package main

// diskspaceGuards keep the last room of the state's disk for the store.
var diskspaceGuards = []Mutant{
	{
		Guard:   "output of jobs waits while the disk is full",
		File:    "internal/monitor/logroom.go",
		Find:    `if r.full() != nil {`,
		Replace: `if r.full() != nil && false {`,
		Test:    "./internal/monitor TestOutputWaitsWhileTheDiskIsFullAndEndsWhereItsLimitIs",
	},
	{
		Guard:   "requests that make the state grow are refused on a full disk",
		File:    "internal/apiserver/operations.go",
		Find:    `grows := makesTheStateGrow(method, id)`,
		Replace: `grows := makesTheStateGrow(method, id) && false`,
		Test:    "./internal/apiserver TestAFullDiskRefusesWhatGrowsAndServesReadsAndDeletes",
	},
	{
		Guard:   "a cluster gets no more members on a full disk",
		File:    "internal/apiserver/life.go",
		Find:    `if err := s.hasRoom(); err != nil {`,
		Replace: `if err := s.hasRoom(); err != nil && false {`,
		Test:    "./internal/apiserver TestAFullDiskRefusesWhatGrowsAndServesReadsAndDeletes",
	},
	{
		Guard:   "room that the reserve gave back is the store's alone",
		File:    "internal/diskspace/levels.go",
		Find:    `return floor + max(0, l.held-held)`,
		Replace: `return floor + 0*held`,
		Test:    "./internal/diskspace TestOutputIsRefusedBeforeRequestsAndRequestsBeforeTheStoreSuffers",
	},
	{
		Guard:   "a reserve that gave room back does not take it again at once",
		File:    "internal/diskspace/levels.go",
		Find:    `spare := d.free - roomToStart - 2*l.low`,
		Replace: `spare := d.free`,
		Test:    "./internal/diskspace TestTheReserveGivesWhatIsNeededAndTakesWhatIsPlentiful",
	},
	{
		Guard:   "a server gets room of the reserve before it opens the store",
		File:    "internal/diskspace/diskspace.go",
		Find:    `s.balance(roomToStart, false)`,
		Replace: `s.balance(0, false)`,
		Test:    "./internal/diskspace TestARealDiskIsKeptFromFillingUp",
	},
	{
		Guard:   "the database has room on the disk for all of its size",
		File:    "internal/store/etcd/room.go",
		Find:    `return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, st.Size)`,
		Replace: `return nil`,
		Test:    "./internal/store/etcd TestADiskThatFillsUpUnderTheStoreStopsNoDelete",
	},
}
