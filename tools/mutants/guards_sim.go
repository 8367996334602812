package main

// simulated is the test that lives through whole sites.
const simulated = "./internal/sim TestRandomLivesKeepEveryInvariant"

// simulatedQueue lives through sites where nothing goes wrong: there forecasts hold.
const simulatedQueue = "./internal/sim TestTheQueueKeepsItsPromisesWhereNothingGoesWrong"

// simGuards are inside the components that the simulator runs as they are: with one of them removed, some site must fail a check.
var simGuards = []Mutant{
	{
		Guard:   "simulated: nodes drop the node of a lost member from their peers",
		File:    "internal/controller/render.go",
		Find:    "if deleting && (ref.ReleasedAt == nil",
		Replace: "if (deleting || !deleting) && (ref.ReleasedAt == nil",
		Test:    simulated,
	},
	{
		Guard:   "simulated: an address is not given out again before its last holder is clean",
		File:    "internal/controller/admit.go",
		Find:    `TakenAt: p.now, Held: base.Unclean()}`,
		Replace: `TakenAt: p.now, Held: base.Unclean()[:0]}`,
		Test:    simulated,
	},
	{
		Guard:   "simulated: an agent that hears nothing is not alive though its words arrive",
		File:    "internal/monitor/monitor.go",
		Find:    "\tn.observed, n.reported = o, true\n",
		Replace: "\tn.observed, n.reported, n.lastSeen = o, true, m.cfg.Now()\n",
		Test:    simulated,
	},
	{
		Guard:   "simulated: a leader's time never starts before the newest time stored",
		File:    "internal/controller/clock.go",
		Find:    `if newest.After(floor) {`,
		Replace: `if newest.After(floor) && false {`,
		Test:    simulated,
	},
	{
		Guard:   "simulated: nothing is carried out for a spare",
		File:    "internal/controller/render.go",
		Find:    "\t\tif a.Spare {\n\t\t\tcontinue",
		Replace: "\t\tif a.Spare && false {\n\t\t\tcontinue",
		Test:    simulated,
	},
	{
		Guard:   "simulated: what the head needs to start is kept for it",
		File:    "internal/admission/planner.go",
		Find:    "\tp.head = a\n\tp.hold(a)\n",
		Replace: "\tp.head = a\n",
		Test:    simulatedQueue,
	},
	{
		Guard:   "simulated: among equals the older goes first",
		File:    "internal/admission/order.go",
		Find:    `cmp.Compare(a.since, b.since)`,
		Replace: `cmp.Compare(b.since, a.since)`,
		Test:    simulatedQueue,
	},
	{
		Guard:   "simulated: what one pass gives a project counts against its quota in the same pass",
		File:    "internal/admission/planner.go",
		Find:    `a.account.used = a.account.used.Plus(a.wants)`,
		Replace: `_ = a.account.used.Plus(a.wants)`,
		Test:    simulated,
	},
	{
		Guard:   "simulated: the numbers of a network are nobody else's while it has a quarantined port",
		File:    "internal/lifecycle/network.go",
		Find:    `hasPort(quarantined, n.UID) {`,
		Replace: `hasPort(quarantined, n.UID) && false {`,
		Test:    simulated,
	},
	{
		Guard:   "simulated: a stream ends when its agent begins another",
		File:    "internal/monitor/monitor.go",
		Find:    `n.stream.end(errors.New("the agent has reconnected"))`,
		Replace: `_ = errors.New("the agent has reconnected")`,
		Test:    simulated,
	},
	{
		Guard:   "simulated: the end of a former stream does not disconnect a node",
		File:    "internal/monitor/monitor.go",
		Find:    "n != nil && n.stream == s {\n\t\tn.stream = nil",
		Replace: "n != nil {\n\t\tn.stream = nil",
		Test:    simulated,
	},
	{
		Guard:   "simulated: a member whose part is on a node that is down is lost",
		File:    "internal/lifecycle/parts.go",
		Find:    `case in.Nodes[p.Node].Phase == api.NodeDown:`,
		Replace: `case false:`,
		Test:    simulated,
	},
	{
		Guard:   "simulated: a member is not ready before its parts are",
		File:    "internal/lifecycle/parts.go",
		Find:    `case phase == api.MemberReady || m.phase != api.MemberReady:`,
		Replace: `case true:`,
		Test:    simulated,
	},
	{
		Guard:   "simulated: parts are released with their member",
		File:    "internal/decision/apply.go",
		Find:    "\t\ta.releaseParts(id)\n",
		Replace: "",
		Test:    simulated,
	},
	{
		Guard:   "simulated: a part of a device is given once in a plan",
		File:    "internal/placement/devices.go",
		Find:    "s.claims[id] = append(s.claims[id], on.Claims...)",
		Replace: "_ = append(s.claims[id], on.Claims...)",
		Test:    simulated,
	},
	{
		Guard:   "simulated: all who must prove an assignment clean have to",
		File:    "api/claim.go",
		Find:    `!slices.ContainsFunc(a.CleanBy, func(p Prover) bool { return !proved(p) })`,
		Replace: `slices.ContainsFunc(a.CleanBy, proved)`,
		Test:    simulated,
	},
	{
		Guard:   "simulated: a machine that is off is clean only where all was in its memory",
		File:    "internal/situation/situation.go",
		Find:    `p.At == a.Node && a.RAMBoot > 0 && `,
		Replace: `p.At == a.Node && `,
		Test:    simulated,
	},
	{
		Guard:   "simulated: a fabric proves what was read after its orders came into force",
		File:    "internal/fabric/site/site.go",
		Find:    `epoch.Accept(o.Epoch) != nil {`,
		Replace: `epoch.Accept(o.Epoch) != nil && false {`,
		Test:    simulated,
	},
}
