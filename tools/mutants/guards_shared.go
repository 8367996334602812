package main

// sharedGuards: who joins a network that a project shares, and who learns of whom there.
var sharedGuards = []Mutant{
	{
		Guard:   "a project joins another's network only if that shares it with it",
		File:    "internal/state/networks.go",
		Find:    "\t\tcase !n.IsOpenTo(projectOr(in.Project)):\n",
		Replace: "\t\tcase false:\n",
		Test:    "./internal/controller TestAClusterOfAnotherProjectJoinsASharedNetwork",
	},
	{
		Guard:   "members of other projects are limited members of a shared network",
		File:    "internal/apiserver/functions.go",
		Find:    "!in.IsOwnedBy(project) && !network.Limited",
		Replace: "false",
		Test:    "./internal/apiserver TestANetworkIsSharedWithProjectsAsItsOwnerSays",
	},
	{
		Guard:   "members of a shared network learn no names of third projects' members",
		File:    "internal/controller/networks.go",
		Find:    "\treturn project == others || n != nil && others == cmp.Or(n.Project, api.DefaultProject)\n",
		Replace: "\treturn project != \"\" || others != \"\"\n",
		Test:    "./internal/controller TestMembersOfASharedNetworkLearnNoNamesOfOtherProjects",
	},
	{
		Guard:   "only networks that keep projects apart are shared",
		File:    "internal/manifest/networks.go",
		Find:    "\tcase req.Technology != api.TechnologyInfiniBand:\n",
		Replace: "\tcase false:\n",
		Test:    "./internal/apiserver TestAWrongShareOfANetworkIsRefused",
	},
	{
		Guard:   "a network that another project's cluster is on is not deleted",
		File:    "internal/state/networks.go",
		Find:    "\t\t\tforeign = true\n",
		Replace: "",
		Test:    "./internal/apiserver TestANetworkIsSharedWithProjectsAsItsOwnerSays",
	},
}
