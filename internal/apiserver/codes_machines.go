package apiserver

import "net/http"

// The codes about machines, builds and environments.
var (
	codeNoBuild = Code{
		"build_not_found", http.StatusNotFound, "There is no such build",
		"No build has this ID.", "List the builds and correct the ID.",
	}
	codeNoRecipe = Code{
		"recipe_not_found", http.StatusNotFound, "There is no such recipe",
		"No recipe of this name comes with the product.", "Choose one of those that `detail` lists, or send the recipe's text.",
	}
	codeNoEnrollToken = Code{
		"enroll_token_not_found", http.StatusNotFound, "There is no such enrolment token",
		"No enrolment token has this ID: it was never made, is used up, has ended or was deleted.", "List the enrolment tokens and correct the ID.",
	}
	codeNoImage = Code{
		"image_not_found", http.StatusNotFound, "There is no such content",
		"The server holds nothing of this digest.", "For node agents; they fetch what the server names.",
	}
	codeNotMachine = Code{
		"not_a_machine", http.StatusConflict, "The node's power and boot are not ours",
		"The node joined by an agent that somebody started; its power control is not known.",
		"Do it by hand; or forget the node and enrol the machine.",
	}
	codeNoProvisioning = Code{
		"no_provisioning_network", http.StatusConflict, "The site has no provisioning network",
		"Machines boot over a provisioning network, and this server was started without one.",
		"Start the server with `--provision`, the interface on that network.",
	}
	codeMachineExists = Code{
		"machine_exists", http.StatusConflict, "The name is taken",
		"A machine or node of this name exists. Of two enrolments at once exactly one wins.", "Choose another name, or remove the other one.",
	}
	codeDuplicateMAC = Code{
		"duplicate_mac", http.StatusConflict, "The MAC address belongs to another machine",
		"Machines are told apart by the MAC addresses of their provisioning NICs; `detail` names the other one.",
		"Correct the address, or remove the other machine.",
	}
	codeRangeFull = Code{
		"range_too_small", http.StatusConflict, "The provisioning range has no address left",
		"Every machine has an address of its own in the range, and all are given to others; `detail` tells the range.",
		"Start the server with a larger range (`--machine-range`), or remove machines.",
	}
	codePowerConflict = Code{
		"power_conflict", http.StatusConflict, "Another request goes first",
		"Another power request of the machine has not been taken up yet, came at the same moment, or the machine is being removed; " +
			"`detail` tells which, and whose.",
		"See what the machine does, then ask again if that is still wanted.",
	}
	codeNoBoot = Code{
		"no_boot", http.StatusConflict, "The machine runs no boot of ours",
		"There is nothing to log in to, or nothing to boot again.", "Power the machine on with an environment.",
	}
	codeEnvironmentInUse = Code{
		"environment_in_use", http.StatusConflict, "The environment is in use",
		"Members, clusters, machines or power requests use the environment; `detail` names them. The nodes' own can't be deleted at all.",
		"Delete or power off what `detail` names.",
	}
	codeEmptySelection = Code{
		"empty_selection", http.StatusUnprocessableEntity, "Nothing is selected",
		"A power request names no node, or no machine carries the labels.", "Name nodes, or correct the selector.",
	}
	codeIncompatible = Code{
		"incompatible_environment", http.StatusUnprocessableEntity, "The environment can't run there",
		"What is known of the machine's hardware does not meet what the environment needs, or the environment has no kernel for metal; " +
			"`errors` lists every reason.",
		"Choose another environment or machine; `nearmetal env check` tells which go together.",
	}
	codeInvalidRecipe = Code{
		"invalid_recipe", http.StatusUnprocessableEntity, "The recipe is invalid",
		"The recipe can't be read, or asks for what can't be built; `errors` lists every problem with its line in the recipe.",
		"Correct the recipe at these lines.",
	}
	codeDigest = Code{
		"digest_mismatch", http.StatusUnprocessableEntity, "The content is not what its digest says",
		"What was sent has another digest than the path names, or the path names no digest.", "For node agents; they send it again.",
	}
	codeConsole = Code{
		"console_unreachable", http.StatusBadGateway, "The console can't be reached",
		"The machine has no console that is known here, or what stands before it does not answer; `detail` tells.",
		"Correct the machine's console, or look after it.",
	}
	codeNoSpace = Code{
		"no_space", http.StatusInsufficientStorage, "The disk of the server's state is full",
		"The file system of the server's state directory has too little room left. The last of it is kept for deletes, which are accepted. " +
			"`detail` says how much is free and what takes the most room there.",
		"Delete clusters and environments that are not needed, or have an administrator make room.",
	}
)

// machineCodes are the codes of this file in the order of the documentation.
func machineCodes() []Code {
	return []Code{
		codeNoBuild, codeNoRecipe, codeNoEnrollToken, codeNoImage, codeNotMachine, codeNoProvisioning, codeMachineExists, codeDuplicateMAC,
		codeRangeFull, codePowerConflict, codeNoBoot, codeEnvironmentInUse, codeEmptySelection, codeIncompatible, codeInvalidRecipe,
		codeDigest, codeConsole, codeNoSpace,
	}
}
