package main

// simulated is the test that lives through whole sites.
const simulated = "./internal/sim TestRandomLivesKeepEveryInvariant"

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
}
