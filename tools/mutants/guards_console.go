package main

// consoleGuards: consoles of members, which their users share.
var consoleGuards = []Mutant{
	{
		Guard:   "one user at a time types on a console",
		File:    "internal/serialconsole/serialconsole.go",
		Find:    "if r.Write && c.writer != nil {",
		Replace: "if false {",
		Test:    "./internal/serialconsole TestOneTypesAtATime",
	},
	{
		Guard:   "a user who only watches a console can't type there",
		File:    "internal/serialconsole/serialconsole.go",
		Find:    "case !may:",
		Replace: "case !may && false:",
		Test:    "./internal/serialconsole TestAConsoleBeginsWithWhatWasPrintedAndGoesOn",
	},
	{
		Guard:   "what a machine prints does not fill its node's disk",
		File:    "internal/serialconsole/log.go",
		Find:    "info.Size()+int64(len(p)) > KeptBytes/2",
		Replace: "info.Size() < 0",
		Test:    "./internal/serialconsole TestAWatcherThatDoesNotReadHoldsUpNobody",
	},
	{
		Guard:   "what a watcher does not read does not fill the agent's memory",
		File:    "internal/serialconsole/serialconsole.go",
		Find:    "if len(w.waiting)+len(p) > waitingBytes {",
		Replace: "if false {",
		Test:    "./internal/serialconsole TestAWatcherThatDoesNotReadHoldsUpNobody",
	},
	{
		Guard:   "whoever types on a console is known by the token, not by what the request says",
		File:    "internal/apiserver/memberconsole.go",
		Find:    "By: userOf(r.Context())}",
		Replace: "By: r.URL.Query().Get(\"by\")}",
		Test:    "./internal/apiserver TestAMembersConsoleIsReachedThroughItsNode",
	},
	{
		Guard:   "a token that may only read reaches no console",
		File:    "internal/apiserver/operations.go",
		Find:    "members/{member}/console\", AccessRun, s.connectMemberConsole)",
		Replace: "members/{member}/console\", AccessRead, s.connectMemberConsole)",
		Test:    "./internal/apiserver TestAMembersConsoleIsReachedThroughItsNode",
	},
}
