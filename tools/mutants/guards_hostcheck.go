package main

// hostCheckGuards: the preparation of a host changes what it showed, and nothing that is in order.
var hostCheckGuards = []Mutant{
	{
		Guard:   "only root changes a host",
		File:    "internal/hostcheck/apply.go",
		Find:    "if len(changes) > 0 && !f.Root {",
		Replace: "if false {",
		Test:    "./internal/hostcheck TestAChangeThatFailsEndsThePreparation",
	},
	{
		Guard:   "installed packages start no services on a host",
		File:    "internal/hostcheck/apply.go",
		Find:    "if !h.has(policyFile) {",
		Replace: "if false {",
		Test:    "./internal/hostcheck TestAHostIsPreparedAsShownAndOnce",
	},
	{
		Guard:   "what keeps services from starting is removed",
		File:    "internal/hostcheck/apply.go",
		Find:    "errors.Join(err, os.Remove(h.path(policyFile)))",
		Replace: "errors.Join(err)",
		Test:    "./internal/hostcheck TestAHostIsPreparedAsShownAndOnce",
	},
	{
		Guard:   "huge pages that are reserved already stay",
		File:    "internal/hostcheck/plan.go",
		Find:    "if f.HugePages < pages {",
		Replace: "if f.HugePages != pages {",
		Test:    "./internal/hostcheck TestOnlyWhatIsNotInOrderIsChanged",
	},
	{
		Guard:   "modules that the kernel loads by itself are left to it",
		File:    "internal/hostcheck/plan.go",
		Find:    "f.Modules[m.Name] == ModuleLoadable && m.OnDemand:",
		Replace: "f.Modules[m.Name] == ModuleLoadable && false:",
		Test:    "./internal/hostcheck TestOnlyWhatIsNotInOrderIsChanged",
	},
	{
		Guard:   "a setting that the kernel did not take is an error",
		File:    "internal/hostcheck/apply.go",
		Find:    "if got := h.text(at); got != value {",
		Replace: "if got := h.text(at); got == \"-\" {",
		Test:    "./internal/hostcheck TestASettingIsReadBack",
	},
}
