package apiserver

import "net/http"

// The codes about machines, builds and environments.
var (
	codeNoBuild = Code{
		"build_not_found", http.StatusNotFound, "The build does not exist",
		"No build has this ID.", "List the builds and correct the ID.",
	}
	codeNoRecipe = Code{
		"recipe_not_found", http.StatusNotFound, "The recipe does not exist",
		"No recipe of this name comes with the product.", "Choose a recipe that `detail` lists, or send the recipe's text.",
	}
	codeNoEnrollToken = Code{
		"enroll_token_not_found", http.StatusNotFound, "The enrollment token does not exist",
		"No enrollment token has this ID: it was never created, is used up, has expired or was deleted.", "List the enrollment tokens and correct the ID.",
	}
	codeNoImage = Code{
		"image_not_found", http.StatusNotFound, "The content does not exist",
		"The server holds nothing of this digest.", "None: only node agents send this request.",
	}
	codeNotMachine = Code{
		"not_a_machine", http.StatusConflict, "The site does not control the node's power and boot",
		"The node joined through an agent that was started by hand; its power control is unknown.",
		"Control the node by hand, or forget the node and enroll the machine.",
	}
	codeNoProvisioning = Code{
		"no_provisioning_network", http.StatusConflict, "The site has no provisioning network",
		"Machines boot over a provisioning network, and this server was started without one.",
		"Start the server with `--provision`, the interface on that network.",
	}
	codeMachineExists = Code{
		"machine_exists", http.StatusConflict, "The name is taken",
		"A machine or node of this name exists. Of two simultaneous enrollments exactly one wins.", "Choose another name, or remove the other machine or node.",
	}
	codeDuplicateMAC = Code{
		"duplicate_mac", http.StatusConflict, "The MAC address belongs to another machine",
		"Machines are identified by the MAC addresses of their provisioning NICs; `detail` names the other machine.",
		"Correct the address, or remove the other machine.",
	}
	codeRangeFull = Code{
		"range_too_small", http.StatusConflict, "The provisioning range has no free address",
		"Every machine has its own address in the range, and all addresses are taken; `detail` names the range.",
		"Start the server with a larger range (`--machine-range`), or remove machines.",
	}
	codePowerConflict = Code{
		"power_conflict", http.StatusConflict, "Another request came first",
		"Another power request for the machine is pending or arrived at the same moment, or the machine is being removed; " +
			"`detail` names the request and its user.",
		"Check what the machine does, then repeat the request if still needed.",
	}
	codeQuarantined = Code{
		"machine_quarantined", http.StatusConflict, "The machine is in quarantine",
		"A cleaning failed, so the machine may hold what a tenant left, or an operator keeps it from everybody; `detail` has the reason.",
		"Clean the machine, or release it if you answer for it.",
	}
	codeNotQuarantined = Code{
		"machine_not_quarantined", http.StatusConflict, "The machine is not in quarantine",
		"There is nothing to release the machine from.", "None is needed.",
	}
	codeNoBMCPassword = Code{
		"no_bmc_password", http.StatusNotFound, "The site has no password of the machine's BMC",
		"The machine has no BMC, or its BMC takes no password.", "Enter one with `nearmetal node set`, if the machine has a BMC.",
	}
	codeNoBoot = Code{
		"no_boot", http.StatusConflict, "The machine did not boot from this site",
		"No boot of this site exists to log in to or to repeat.", "Power the machine on with an environment.",
	}
	codeEnvironmentInUse = Code{
		"environment_in_use", http.StatusConflict, "The environment is in use",
		"Members, clusters, machines or power requests use the environment; `detail` names them. Environments of the nodes' own can't be deleted.",
		"Delete or power off what `detail` names.",
	}
	codeEmptySelection = Code{
		"empty_selection", http.StatusUnprocessableEntity, "Nothing is selected",
		"A power request names no node, or no machine carries the labels.", "Name nodes, or correct the selector.",
	}
	codeIncompatible = Code{
		"incompatible_environment", http.StatusUnprocessableEntity, "The environment can't run there",
		"The known hardware of the machine does not meet the needs of the environment, or the environment has no kernel for metal; " +
			"`errors` lists every reason.",
		"Choose another environment or machine; `nearmetal env check` shows which are compatible.",
	}
	codeInvalidRecipe = Code{
		"invalid_recipe", http.StatusUnprocessableEntity, "The recipe is invalid",
		"The recipe can't be read or built; `errors` lists every problem with its line in the recipe.",
		"Correct the recipe at these lines.",
	}
	codeDigest = Code{
		"digest_mismatch", http.StatusUnprocessableEntity, "The content does not match its digest",
		"The digest of the sent content is not the digest in the path, or the path has no digest.", "None: node agents send the content again. Upload a disk image again.",
	}
	codeConsole = Code{
		"console_unreachable", http.StatusBadGateway, "The console can't be reached",
		"The machine has no configured console, or the console does not answer; `detail` says which.",
		"Correct the console setting of the machine, or repair the console.",
	}
	codeNoMemberConsole = Code{
		"no_console", http.StatusConflict, "The member has no serial console",
		"Only virtual machines have a serial console of their own.", "Use the command that `detail` names.",
	}
	codeNoDisplay = Code{
		"no_display", http.StatusConflict, "The member has no display",
		"Only virtual machines have a display, and only if their group asks for one.", "Create a cluster with `display: true` and the stack `vm`.",
	}
	codeConsoleInUse = Code{
		"console_in_use", http.StatusConflict, "Somebody else types on the console",
		"One client at a time types on a member's serial console; `detail` names its user.", "Attach without `write`, or disconnect that client with `force`.",
	}
	codeNoWindow = Code{
		"maintenance_not_found", http.StatusNotFound, "The node has no such maintenance window", "The window is over, was cancelled, or is another node's.",
		"List the windows with `nearmetal node maintenance list`.",
	}
	codeNoSpace = Code{
		"no_space", http.StatusInsufficientStorage, "The disk of the server's state is full",
		"The file system of the server's state directory has too little room left. The rest is reserved for deletes, which are accepted. " +
			"`detail` names the free room and what uses the most.",
		"Delete clusters and environments that are not needed, or have an administrator make room.",
	}
)

// machineCodes are the codes of this file in the order of the documentation.
func machineCodes() []Code {
	return []Code{
		codeNoBuild, codeNoRecipe, codeNoEnrollToken, codeNoImage, codeNotMachine, codeNoProvisioning, codeMachineExists, codeDuplicateMAC,
		codeRangeFull, codePowerConflict, codeQuarantined, codeNotQuarantined, codeNoBoot, codeNoBMCPassword, codeEnvironmentInUse, codeEmptySelection, codeIncompatible, codeInvalidRecipe,
		codeDigest, codeConsole, codeNoMemberConsole, codeNoDisplay, codeConsoleInUse, codeNoWindow, codeNoSpace,
	}
}
