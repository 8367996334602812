package main

// auditGuards are about the audit log.
var auditGuards = []Mutant{
	{
		Guard:   "an audit record is bound to the one before",
		File:    "internal/audit/audit.go",
		Find:    "h.Write([]byte(before))\n",
		Replace: "",
		Test:    "./internal/audit TestARecordOfAnotherPastIsFound",
	},
	{
		Guard:   "a changed audit record is found",
		File:    "internal/audit/read.go",
		Find:    "case r.MAC != v.macOf(v.last.MAC, r):",
		Replace: "case false:",
		Test:    "./internal/audit TestWhatIsChangedRemovedOrInsertedIsFound",
	},
	{
		Guard:   "a first audit record that was changed is found",
		File:    "internal/audit/read.go",
		Find:    "case v.first.MAC != v.macOf(before, v.first):",
		Replace: "case v.first.MAC != v.macOf(before, v.first) && false:",
		Test:    "./internal/audit TestWhatIsChangedRemovedOrInsertedIsFound",
	},
	{
		Guard:   "the oldest audit records are not removed without a record",
		File:    "internal/audit/read.go",
		Find:    "case v.first.Seq > 1 && !removed:",
		Replace: "case false && !removed:",
		Test:    "./internal/audit TestFilesAreBoundedAndTheirRemovalIsRecorded",
	},
	{
		Guard:   "an audit log that was cut off while it is open is found",
		File:    "internal/audit/read.go",
		Find:    "if report.Last < head.Seq {",
		Replace: "if false {",
		Test:    "./internal/audit TestWhatIsChangedRemovedOrInsertedIsFound",
	},
	{
		Guard:   "an unfinished audit record does not become a part of the next",
		File:    "internal/audit/audit.go",
		Find:    "if err == nil && torn > 0 {\n\t\terr = file.Truncate(l.size)",
		Replace: "if false {\n\t\terr = file.Truncate(l.size)",
		Test:    "./internal/audit TestARecordThatWasNotWrittenToItsEndIsRemovedAndThatIsRecorded",
	},
	{
		Guard:   "audit records that could not be written are counted",
		File:    "internal/audit/audit.go",
		Find:    "l.lost++",
		Replace: "",
		Test:    "./internal/audit TestWhatCanNotBeWrittenIsCounted",
	},
	{
		Guard:   "changes and refusals are in the audit log",
		File:    "internal/apiserver/audit.go",
		Find:    "case refused:",
		Replace: "case false && refused:",
		Test:    "./internal/apiserver TestChangesAndRefusalsAreInTheAuditLogAndReadingIsNot",
	},
	{
		Guard:   "connections to members are in the audit log",
		File:    "internal/apiserver/middleware.go",
		Find:    "r.begin(http.StatusSwitchingProtocols)",
		Replace: "",
		Test:    "./internal/apiserver TestChangesAndRefusalsAreInTheAuditLogAndReadingIsNot",
	},
	{
		Guard:   "strangers can't fill the audit log",
		File:    "internal/apiserver/audit.go",
		Find:    "!e.known && !s.strangers.record(time.Now())",
		Replace: "false",
		Test:    "./internal/apiserver TestStrangersCanNotFillTheAuditLog",
	},
}
