package main

// metalGuards: a machine that a member has whole is the member's users', and is nobody's before it was cleaned.
var metalGuards = []Mutant{
	{
		Guard:   "a machine that is a member is believed about the member alone",
		File:    "internal/monitor/monitor.go",
		Find:    "if m.cfg.IsMember != nil && m.cfg.IsMember(name) {",
		Replace: "if m.cfg.IsMember != nil && m.cfg.IsMember(name) && false {",
		Test:    "./internal/monitor TestAMachineThatIsAMemberIsBelievedAboutTheMemberAlone",
	},
	{
		Guard:   "what a member's users say of their machine is not stored",
		File:    "internal/server/machines.go",
		Find:    "if !isMember(view, node.Name) {",
		Replace: "if true {",
		Test:    "./internal/server TestWhatIsStoredOfAMachineThatIsAMemberIsWhatWasInspected",
	},
	{
		Guard:   "a machine that is off after a member is not clean by that",
		File:    "internal/situation/whole.go",
		Find:    "m.Record.Tenant.Assignment != assignment",
		Replace: "m.Record.Phase == api.MachineOff",
		Test:    "./internal/situation TestAMachineIsCleanOfAMemberThatItWasNotBootedForOrThatItWasCleanedAfter",
	},
	{
		Guard:   "a machine that was not cleaned is given to nobody",
		File:    "internal/situation/situation.go",
		Find:    "IsOff(m) && atRest(m) && m.Record.Tenant == nil,",
		Replace: "IsOff(m) && atRest(m),",
		Test:    "./internal/situation TestOnlyMachinesThatAreReadyAndStayGetMembers",
	},
	{
		Guard:   "a machine that was not cleaned boots nothing else",
		File:    "internal/lifecycle/machine.go",
		Find:    "if dirty := in.dirty(); dirty != \"\" && purpose != api.BootClean {",
		Replace: "if dirty := in.dirty(); dirty == \"never\" {",
		Test:    "./internal/decision TestAMachineThatIsNotCleanBootsNothingElse",
	},
	{
		Guard:   "a machine that a member has boots nothing that an operator asks for",
		File:    "internal/lifecycle/machinerequest.go",
		Find:    "case (in.InUse != \"\" || in.Tenant.Holds()) && !req.Force:",
		Replace: "case in.InUse != \"\" && !req.Force:",
		Test:    "./internal/decision TestAMachineBootsForTheMemberThatGetsAllOfIt",
	},
	{
		Guard:   "a machine that restarts under its member is not booted for it again",
		File:    "internal/lifecycle/machine.go",
		Find:    "if in.Record.Tenant != nil {\n\t\treturn in.tenantVanished()",
		Replace: "if false {\n\t\treturn in.tenantVanished()",
		Test:    "./internal/decision TestAMemberWhoseMachineRestartsIsLostAndTheMachineIsNotBootedForItAgain",
	},
	{
		Guard:   "the provisioner proves whole machines clean, not their members' users",
		File:    "internal/placement/assign.go",
		Find:    "if placed.By != \"\" {",
		Replace: "if false {",
		Test:    "./internal/placement TestTheProvisionerProvesClean",
	},
	{
		Guard:   "whole machines are not paused",
		File:    "internal/apiserver/life.go",
		Find:    "if s.cfg.Offers.Metal && ",
		Replace: "if false && ",
		Test:    "./internal/apiserver TestWholeMachinesAreNotPaused",
	},
	{
		Guard:   "root logs in to whole machines only",
		File:    "internal/contextualization/files.go",
		Find:    "if m.Stack != api.StackMetal {\n\t\treturn files, nil",
		Replace: "if false {\n\t\treturn files, nil",
		Test:    "./internal/contextualization TestFilesAreAsTheGoldenOnes",
	},
	{
		Guard:   "one machine at a time is woken to prove that it boots",
		File:    "internal/lifecycle/machineverify.go",
		Find:    "case !in.MayVerify:",
		Replace: "case false:",
		Test:    "./internal/decision TestAMachineThatHasBeenOffForLongProvesThatItStillBoots",
	},
	{
		Guard:   "a machine in quarantine is not woken to prove that it boots",
		File:    "internal/lifecycle/machineverify.go",
		Find:    " || r.Quarantine != nil",
		Replace: "",
		Test:    "./internal/decision TestAMachineThatSomebodyHasOrThatIsKeptBackIsNotWoken",
	},
}
