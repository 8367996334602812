package main

// simFloatingGuards are about floating addresses, inside the components that the simulator runs as they are.
var simFloatingGuards = []Mutant{
	{
		Guard:   "simulated: an address that is unassigned is in force nowhere",
		File:    "internal/controller/floating.go",
		Find:    "				note([]*api.FloatingAddress{was})\n",
		Replace: "				_ = was\n",
		Test:    simulated,
	},
	{
		Guard:   "simulated: an address leads to no member that is let go",
		File:    "internal/controller/render.go",
		Find:    "			if !m.Release {\n				r.addCarrier(&a)\n			}\n",
		Replace: "			r.addCarrier(&a)\n",
		Test:    simulated,
	},
	{
		Guard:   "simulated: an address leads to a member, not to what is to succeed it",
		File:    "internal/controller/floating.go",
		Find:    "	if !a.IsMember() {\n",
		Replace: "	if a.Spare {\n",
		Test:    simulated,
	},
	{
		Guard:   "simulated: an address leads to the port with the default route",
		File:    "internal/floating/floating.go",
		Find:    "	return api.WayOut(networks)\n",
		Replace: "	return slices.IndexFunc(networks, func(n api.Network) bool { return n.Egress })\n",
		Test:    simulated,
	},
}
