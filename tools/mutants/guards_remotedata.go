package main

// remoteDataGuards: conditions of a network are what they say, and studies don't count what is wrong.
var remoteDataGuards = []Mutant{
	{
		Guard:   "a packet that waits leaves after the one before it",
		File:    "internal/measure/condition/fate.go",
		Find:    "f.at = max(m.last, sent+wait)",
		Replace: "f.at = sent + wait",
		Test:    "./internal/measure/condition TestJitterKeepsOrderAndBounds",
	},
	{
		Guard:   "packets that come twice take the line twice",
		File:    "internal/measure/condition/fate.go",
		Find:    "sentAgain, f.duplicated = m.send(now, bytes)",
		Replace: "sentAgain, f.duplicated = sent, true",
		Test:    "./internal/measure/condition TestARateSendsNoFasterAndLosesWhatDoesNotFit",
	},
	{
		Guard:   "a queue holds no more than its bytes",
		File:    "internal/measure/condition/fate.go",
		Find:    "waiting > 0 && waiting+int64(bytes) > m.queue()",
		Replace: "waiting > 0 && waiting+int64(bytes) > m.queue() && false",
		Test:    "./internal/measure/condition TestARateSendsNoFasterAndLosesWhatDoesNotFit",
	},
	{
		Guard:   "one chance does not change the draws of another",
		File:    "internal/measure/condition/fate.go",
		Find:    "\tif lose < m.c.Loss {",
		Replace: "\tif m.c.Jitter > 0 {\n\t\tm.random.Uint64()\n\t}\n\tif lose < m.c.Loss {",
		Test:    "./internal/measure/condition TestLossIsTheSameWhateverElseHappens",
	},
	{
		Guard:   "the far side can see that a bit was turned over",
		File:    "internal/measure/condition/tun.go",
		Find:    "if c.Corrupt == 0 {",
		Replace: "if c.Corrupt >= 0 {",
		Test:    "./internal/measure/condition TestChancesHoldOnTheWire",
	},
	{
		Guard:   "a link that can't be opened leaves no device",
		File:    "internal/measure/condition/link.go",
		Find:    "return nil, errors.Join(err, unix.Close(near))",
		Replace: "return nil, err",
		Test:    "./internal/measure/condition TestNothingIsLeftOfALink",
	},
	{
		Guard:   "a link that is faster than its condition is not verified",
		File:    "internal/measure/condition/verify.go",
		Find:    "if trip < least {",
		Replace: "if trip < least && false {",
		Test:    "./internal/measure/condition TestALinkIsVerified",
	},
	{
		Guard:   "a link that is slower than its condition is not verified",
		File:    "internal/measure/condition/verify.go",
		Find:    "answered >= 3 && shortest <= most",
		Replace: "answered >= 3",
		Test:    "./internal/measure/condition TestALinkIsVerified",
	},
	{
		Guard:   "what is configured adds no line to XRootD's configuration",
		File:    "internal/data/xrootd/config.go",
		Find:    `c.Origin == "" || strings.ContainsAny(c.Origin, " \t\n#")`,
		Replace: `c.Origin == ""`,
		Test:    "./internal/data/xrootd TestBadConfigurationsAreRefused",
	},
	{
		Guard:   "a run that was cut off is done again",
		File:    "internal/measure/study/record.go",
		Find:    "err = r.file.Truncate(whole); err == nil",
		Replace: "err == nil",
		Test:    "./internal/measure/study TestAStudyGoesOnWhereItWasStopped",
	},
	{
		Guard:   "runs of another study don't count",
		File:    "internal/measure/study/record.go",
		Find:    `if n == 0 && line != want+"\n" {`,
		Replace: `if n == 0 && line != want+"\n" && false {`,
		Test:    "./internal/measure/study TestRunsOfAnotherStudyDoNotCount",
	},
	{
		Guard:   "an analysis that finds something else is an error",
		File:    "internal/measure/study/world.go",
		Find:    "if result != w.result {",
		Replace: "if result != w.result && false {",
		Test:    "./internal/measure/study TestAnAnalysisMustFindTheSameHoweverItReads",
	},
}
