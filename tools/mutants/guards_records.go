package main

// recordGuards: names of a project's own on its networks.
var recordGuards = []Mutant{
	{
		Guard:   "names of members win over records",
		File:    "internal/contextualization/files.go",
		Find:    "taken[record.Name]",
		Replace: "false",
		Test:    "./internal/contextualization TestFilesAreAsTheGoldenOnes",
	},
	{
		Guard:   "a change of records reaches running members",
		File:    "internal/controller/desired.go",
		Find:    "\taddRecorded(d.last, view, names)\n",
		Replace: "",
		Test:    "./internal/controller TestClustersOnANetworkOfTheirProjectHaveAddressesOfTheirOwnAndNameEachOther",
	},
	{
		Guard:   "a record is no member of a cluster",
		File:    "internal/responder/names.go",
		Find:    "strings.HasSuffix(string(bytes.TrimSpace(line)), api.RecordMark)",
		Replace: "false",
		Test:    "./internal/responder TestNamesAreAnsweredFromTheHostsFile",
	},
	{
		Guard:   "an address leads to its member before a record",
		File:    "internal/responder/names.go",
		Find:    "!known && full != \"\"",
		Replace: "full != \"\"",
		Test:    "./internal/responder TestNamesAreAnsweredFromTheHostsFile",
	},
	{
		Guard:   "no record is in the domain of members",
		File:    "internal/manifest/networkrecord.go",
		Find:    "plain == api.Domain || strings.HasSuffix(plain, \".\"+api.Domain)",
		Replace: "false",
		Test:    "./internal/apiserver TestRecordsOfANetworkAreSetAndRemovedByNameOrNothingChanges",
	},
	{
		Guard:   "a network has a bounded number of records",
		File:    "internal/apiserver/networkrecords.go",
		Find:    "len(records) > manifest.MaxRecords",
		Replace: "false",
		Test:    "./internal/apiserver TestRecordsOfANetworkAreSetAndRemovedByNameOrNothingChanges",
	},
}
