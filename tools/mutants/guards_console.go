package main

// consoleGuards: consoles of members, which their users share.
var consoleGuards = []Mutant{
	{
		Guard:   "a probe does not find on the console what an earlier boot printed",
		File:    "internal/serialconsole/log.go",
		Find:    "return kept[at+len(again()):]",
		Replace: "return kept",
		Test:    "./internal/serialconsole TestWhatAMachinePrintedBeforeItsLastStartIsToldApart",
	},
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
	{
		Guard:   "no link in a directory of QEMU's leads the agent to another socket",
		File:    "internal/driver/vm/display.go",
		Find:    "unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC",
		Replace: "unix.O_PATH|unix.O_CLOEXEC",
		Test:    "./internal/driver/vm TestADisplayIsReachedAtItsOwnersSocketOnly",
	},
	{
		Guard:   "the agent connects to the display of the cluster's own QEMU only",
		File:    "internal/driver/vm/display.go",
		Find:    "if peer.Uid != user {",
		Replace: "if false {",
		Test:    "./internal/driver/vm TestADisplayIsReachedAtItsOwnersSocketOnly",
	},
	{
		Guard:   "a token that may only read reaches no display",
		File:    "internal/apiserver/operations.go",
		Find:    "members/{member}/display\", AccessRun, s.connectMemberDisplay)",
		Replace: "members/{member}/display\", AccessRead, s.connectMemberDisplay)",
		Test:    "./internal/apiserver TestAMembersConsoleIsReachedThroughItsNode",
	},
	{
		Guard:   "a screen at a path is its owner's only",
		File:    "internal/cli/cluster_display.go",
		Find:    "syscall.Umask(0o077)",
		Replace: "syscall.Umask(0)",
		Test:    "./internal/cli TestADisplayIsPassedToViewersOnThisMachine",
	},
}
