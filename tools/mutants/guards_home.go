package main

// homeGuards: what a machine's guest can't do with the home of its cluster.
var homeGuards = []Mutant{
	{
		Guard:   "another user of a guest does not claim to be root",
		File:    "internal/machine/bootagent/guesthome.go",
		Find:    "return ok && tcp.Port < firstFreePort",
		Replace: "return ok && tcp.Port < firstFreePort<<6",
		Test:    "./internal/machine/bootagent TestOnlyTheKernelSpeaksToTheHome",
	},
	{
		Guard:   "a call is served with the caller's rights",
		File:    "internal/nfs/thread.go",
		Find:    "if err := setFileID(unix.SYS_SETFSUID, c.uid); err != nil {",
		Replace: "if err := error(nil); err != nil {",
		Test:    "./internal/nfs TestACallerMayDoWhatItsUserMay",
	},
	{
		Guard:   "an ID that the cluster does not have is nobody's",
		File:    "internal/nfs/thread.go",
		Find:    "if now, _, _ := unix.RawSyscall(number, none, 0, 0); uint32(now) != id {",
		Replace: "if now, _, _ := unix.RawSyscall(number, none, 0, 0); now == none {",
		Test:    "./internal/nfs TestACallerWhoIsNobodyIsNotServed",
	},
	{
		Guard:   "a name is no path",
		File:    "internal/nfs/files.go",
		Find:    "if b == '/' || b == 0 {",
		Replace: "if b == 0 {",
		Test:    "./internal/nfs TestNamesThatAreRemovedAndRenamed",
	},
	{
		Guard:   "the server opens nothing through a link",
		File:    "internal/nfs/files.go",
		Find:    "unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC",
		Replace: "unix.O_PATH|unix.O_CLOEXEC",
		Test:    "./internal/nfs TestLinksAndSpecialFilesAreMade",
	},
	{
		Guard:   "a call that is repeated is done once",
		File:    "internal/nfs/rpc.go",
		Find:    "if !p.once {",
		Replace: "if p.do != nil {",
		Test:    "./internal/nfs TestACallThatIsRepeatedIsDoneOnce",
	},
	{
		Guard:   "a call is no longer than what is kept of it",
		File:    "internal/machine/homelink/serve.go",
		Find:    "if c.left > maxRecord-len(c.record) {",
		Replace: "if c.left > maxRecord {",
		Test:    "./internal/machine/homelink TestACallThatIsTooLongClosesItsConnection",
	},
	{
		Guard:   "a guest has a few connections",
		File:    "internal/machine/homelink/serve.go",
		Find:    "case c == nil && len(l.conns) < MaxConnections:",
		Replace: "case c == nil:",
		Test:    "./internal/machine/homelink TestAGuestHasAFewConnections",
	},
	{
		Guard:   "a guest whose port its hypervisor has lost gets a new connection to its home",
		File:    "internal/machine/homelink/serve.go",
		Find:    "if sent == greetings {",
		Replace: "if sent < 0 {",
		Test:    "./internal/machine/homelink TestAGuestThatIsNotHeardGetsANewConnection",
	},
	{
		Guard:   "a frozen guest keeps the connection to its home",
		File:    "internal/machine/homelink/serve.go",
		Find:    "if l.taken() {",
		Replace: "if l.taken() || sent > 0 {",
		Test:    "./internal/machine/homelink TestAGuestThatIsFrozenKeepsItsConnection",
	},
}
