package main

// apiGuards: what the API refuses although it could be carried out.
var apiGuards = []Mutant{
	{
		Guard:   "an incomplete PUT is refused",
		File:    "internal/apiserver/projects.go",
		Find:    "if !src.Has(field) {",
		Replace: "if false {",
		Test:    "./internal/apiserver TestAPutThatOmitsASettingOfAProjectIsRefusedAndResetsNothing",
	},
	{
		Guard:   "a merge patch keeps the entries of a mapping that it does not name",
		File:    "internal/manifest/decode.go",
		Find:    "for entries := into.MapRange(); entries.Next(); {",
		Replace: "for entries := into.MapRange(); false && entries.Next(); {",
		Test:    "./internal/apiserver TestAMergePatchOfAMachineKeepsWhatItDoesNotName",
	},
	{
		Guard:   "an unknown query parameter is refused",
		File:    "internal/apiserver/parameters.go",
		Find:    "case i < 0:",
		Replace: "case i < 0 && false:",
		Test:    "./internal/apiserver TestAQueryThatIsNotDocumentedIsRefused",
	},
	{
		Guard:   "an offset beyond the end of an output reads nothing",
		File:    "internal/monitor/joblog.go",
		Find:    "if offset >= info.Size() {",
		Replace: "if info.Size() < 0 {",
		Test:    "./internal/monitor TestOutputBeyondItsEndIsEmpty",
	},
	{
		Guard:   "a body that is no text is refused",
		File:    "internal/manifest/tree.go",
		Find:    "if err := notText(data); err != nil {",
		Replace: "if err := notText(nil); err != nil {",
		Test:    "./internal/manifest TestTextThatCannotBeReadIsRefusedInPlainWords",
	},
}
