package main

// ufmGuards: of the executor that speaks with UFM.
var ufmGuards = []Mutant{
	{
		Guard:   "a request whose answer was lost keeps UFM's state from being in force",
		File:    "internal/fabric/site/infiniband/ufm/ufm.go",
		Find:    `errors.As(err, &lost) {`,
		Replace: `errors.As(err, &lost) && false {`,
		Test:    "./internal/fabric/site/infiniband/ufm TestAPortIsNotCleanBeforeUFMHasRemovedIt",
	},
	{
		Guard:   "a state is in force once UFM's list is equal to it",
		File:    "internal/fabric/site/infiniband/ufm/ufm.go",
		Find:    `maps.Equal(s.own(before), s.wanted)`,
		Replace: `before != nil`,
		Test:    "./internal/fabric/site/infiniband/ufm TestWhatUFMAcceptedAndDoesNotShowMayComeLater",
	},
	{
		Guard:   "a list of UFM's without its own key is not whole",
		File:    "internal/fabric/site/infiniband/ufm/answer.go",
		Find:    `if _, is := all[partitions.DefaultPKey]; !is {`,
		Replace: `if false {`,
		Test:    "./internal/fabric/site/infiniband/ufm TestAnAnswerThatIsNotWholeProvesNothing",
	},
	{
		Guard:   "partitions of others in UFM are left alone",
		File:    "internal/fabric/site/infiniband/ufm/plan.go",
		Find:    `if key < first || key > last {`,
		Replace: `if key == 0x7fff {`,
		Test:    "./internal/fabric/site/infiniband/ufm TestPartitionsOfOthersAreLeftAlone",
	},
	{
		Guard:   "a former leader's state does not reach UFM",
		File:    "internal/fabric/site/infiniband/ufm/ufm.go",
		Find:    `if err := had.Epoch.Accept(epoch); err != nil {`,
		Replace: `if err := had.Epoch.Accept(epoch); err != nil && false {`,
		Test:    "./internal/fabric/site/infiniband/ufm TestSiteConformance",
	},
	{
		Guard:   "a port whose table lacks what UFM says is unknown",
		File:    "internal/fabric/site/infiniband/ufm/ufm.go",
		Find:    `e.at == at && !is {`,
		Replace: `e.at == at && !is && false {`,
		Test:    "./internal/fabric/site/infiniband/ufm TestWhatAPortsTableSaysOtherwiseIsUnknown",
	},
	{
		Guard:   "a key that only the port has still counts as there",
		File:    "internal/fabric/site/infiniband/ufm/ufm.go",
		Find:    `seen[entry{key, at}] = limited`,
		Replace: `_ = limited`,
		Test:    "./internal/fabric/site/infiniband/ufm TestWhatAPortsTableSaysOtherwiseIsUnknown",
	},
	{
		Guard:   "parts that need more in all than is free are refused without a search",
		File:    "internal/resource/device/bound.go",
		Find:    `if missing > 0 {`,
		Replace: `if false {`,
		Test:    "./internal/resource/device TestPartsThatTogetherNeedMoreThanIsFreeAreRefusedWithoutASearch",
	},
	{
		Guard:   "what UFM accepted and does not show may come later",
		File:    "internal/fabric/site/infiniband/ufm/ufm.go",
		Find:    `err != nil || !maps.Equal(s.own(present), s.wanted) {`,
		Replace: `err != nil || present == nil {`,
		Test:    "./internal/fabric/site/infiniband/ufm TestWhatUFMAcceptedAndDoesNotShowMayComeLater",
	},
}
