package main

// measureGuards keep reports from claiming what was not measured.
var measureGuards = []Mutant{
	{
		Guard:   "sides whose messages were carried differently are not judged",
		File:    "internal/measure/decide.go",
		Find:    `case a.Unlike != "":`,
		Replace: `case a.Unlike != "" && false:`,
		Test:    "./internal/measure TestSidesThatWereCarriedDifferentlyAreNotJudged",
	},
	{
		Guard:   "a goal that the interval holds is not called reached",
		File:    "internal/measure/stats.go",
		Find:    `case e.Low > bound:`,
		Replace: `case e.High > bound:`,
		Test:    "./internal/measure TestEveryReportSaysHowManyPairsWouldDecide",
	},
	{
		Guard:   "no number of pairs is named that is too large to be known",
		File:    "internal/measure/decide.go",
		Find:    `if !(n <= mostPairs) {`,
		Replace: `if !(n <= mostPairs) && false {`,
		Test:    "./internal/measure TestNoNumberOfPairsIsNamedThatCannotBeKnown",
	},
}
