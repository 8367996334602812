package apiserver

import "net/http"

// registerMachines mounts what is asked of machines.
func (s *Server) registerMachines() {
	operation(s, "POST /v1/nodes", AccessAdmin, "enroll-node", "Enroll a machine",
		"Enrolls a machine; the site controls its power and boot from then on. A candidate with one of its MACs becomes it. `inspect` powers it "+
			"on at once and inspects its hardware.",
		http.StatusCreated, s.enrollNode,
		bodyCodes(codeInvalidRequest, codeMachineExists, codeDuplicateMAC, codeRangeFull, codeNoProvisioning)...)
	operation(s, "PUT /v1/nodes/{name}", AccessAdmin, "update-machine", "Replace how a machine is reached",
		"Sets power control, console, firmware and labels from the body; a body that omits one is refused. Without a password, the BMC's "+
			"password stays. Name and MACs can't be changed.",
		http.StatusOK, s.updateMachine, bodyCodes(codeInvalidRequest, codeNoNode, codeNotMachine)...)
	operation(s, "PATCH /v1/nodes/{name}", AccessAdmin, "patch-machine", "Change some of how a machine is reached",
		"The body is a JSON merge patch (RFC 7396): the fields it names change, null resets one, all others stay. A null password removes the "+
			"BMC's. MACs can't be changed.",
		http.StatusOK, s.patchMachine, bodyCodes(codeInvalidRequest, codeNoNode, codeNotMachine)...)
	operation(s, "POST /v1/nodes/{name}/inspect", AccessAdmin, "inspect-node", "Inspect a machine's hardware",
		"Boots it into the environment `inspect`. Refused without `force` while members run on it. Repeating the request is not an error.",
		http.StatusOK, s.inspectNode, codeNoNode, codeNotMachine, codeNodeInUse, codePowerConflict)
	operation(s, "POST /v1/nodes/{name}/power", AccessAdmin, "power-node", "Power a machine on, off, or off and on",
		"Stores the request; the machine's phase shows the result. Of two simultaneous requests one wins. Refused without `force` while members "+
			"run on it, and when its hardware does not suit the environment.",
		http.StatusOK, s.powerNode, bodyCodes(powerCodes()...)...)
	operation(s, "POST /v1/power", AccessAdmin, "power-nodes", "Power several machines",
		"Applies to the named machines, or to all with the labels. Up to 100 machines are handled all together or not at all. An empty selection is an error.",
		http.StatusOK, s.powerNodes, bodyCodes(append(powerCodes(), codeEmptySelection)...)...)
	s.registerCleaning()
	operation(s, "GET /v1/nodes/{name}/events", AccessRead, "list-node-events", "List the events of a machine", "The kept ones, the oldest first.",
		http.StatusOK, s.nodeEvents, codeNoNode)
	operation(s, "GET /v1/nodes/{name}/console-login", AccessAdmin, "get-console-login", "Show the login of a machine's console",
		"User and password of the current boot; each boot has its own.", http.StatusOK, s.consoleLogin, codeNoNode, codeNotMachine, codeNoBoot)
	operation(s, "GET /v1/nodes/{name}/bmc-login", AccessAdmin, "get-bmc-login", "Show the login at a machine's BMC",
		"User and password. Where `rotate-bmc-passwords` is on, the password changes after each member that had the machine.", http.StatusOK, s.bmcLogin,
		codeNoNode, codeNotMachine, codeNoBMCPassword)
	operation(s, "GET /v1/candidates", AccessAdmin, "list-candidates", "List machines that wait for enrollment",
		"Machines that booted on the provisioning network and are not enrolled, by MAC.", http.StatusOK, s.listCandidates)
	operation(s, "GET /v1/enroll-tokens", AccessAdmin, "list-enroll-tokens", "List enrollment tokens", "Without their secrets.",
		http.StatusOK, s.listEnrollTokens)
	operation(s, "POST /v1/enroll-tokens", AccessAdmin, "create-enroll-token", "Create an enrollment token",
		"Nodes whose agents have its secret can enroll, and machines that carry it are enrolled automatically. Only this answer contains the secret.",
		http.StatusCreated, s.createEnrollToken, bodyCodes(codeInvalidRequest)...)
	operation(s, "DELETE /v1/enroll-tokens/{id}", AccessAdmin, "delete-enroll-token", "Delete an enrollment token", "",
		http.StatusNoContent, s.deleteEnrollToken, codeNoEnrollToken)
	s.stream("GET /v1/nodes/{name}/console", AccessAdmin, s.connectConsole)
	s.stream("GET "+agentImagesPath+"{hex}", AccessAgent, s.getBlob)
	s.stream("PUT "+agentImagesPath+"{hex}", AccessAgent, s.putBlob)
}

// powerCodes are the errors of a power request.
func powerCodes() []Code {
	return []Code{
		codeInvalidRequest, codeNoNode, codeNotMachine, codeNodeInUse, codePowerConflict, codeQuarantined, codeNoBoot, codeUnknownEnvironment, codeIncompatible,
	}
}

// registerEnvironments mounts what is asked of environments, builds and recipes.
func (s *Server) registerEnvironments() {
	operation(s, "GET /v1/environments", AccessRead, "list-environments", "List environments",
		"Environments by name: the nodes' own, and those that were built.", http.StatusOK, s.listEnvironments)
	operation(s, "GET /v1/environments/{name}", AccessRead, "get-environment", "Show an environment", "With the recipe it was built from.",
		http.StatusOK, s.getEnvironment, codeNoEnvironment)
	operation(s, "GET /v1/environments/{name}/check", AccessRead, "check-environment", "Show where an environment can run",
		"For every node, or one, why it can't run there, as far as is known.", http.StatusOK, s.checkEnvironment, codeNoEnvironment, codeNoNode)
	operation(s, "DELETE /v1/environments/{name}", AccessChange, "delete-environment", "Delete a built environment",
		"Its image goes with it when nothing else needs that. Refused while it is in use, and `inspect` without `force`.",
		http.StatusNoContent, s.deleteEnvironment, codeNoEnvironment, codeEnvironmentInUse)
	operation(s, "POST /v1/builds", AccessAdmin, "create-build", "Build an environment",
		"Stores the build; a builder node carries it out. An existing image of the same recipe is reused unless `force` is given.",
		http.StatusCreated, s.createBuild, bodyCodes(codeInvalidRequest, codeInvalidRecipe, codeNoRecipe)...)
	operation(s, "GET /v1/builds", AccessRead, "list-builds", "List builds", "The oldest first, without their recipes.",
		http.StatusOK, s.listBuilds)
	operation(s, "GET /v1/builds/{id}", AccessRead, "get-build", "Show a build", "", http.StatusOK, s.getBuild, codeNoBuild)
	operation(s, "POST /v1/builds/{id}/cancel", AccessAdmin, "cancel-build", "Cancel a build",
		"Requests its end; its phase shows when it has ended. Cancelling one that has ended changes nothing.",
		http.StatusAccepted, s.cancelBuild, codeNoBuild)
	operation(s, "GET /v1/recipes", AccessRead, "list-recipes", "List the recipes that come with the product", "Their names, without the texts.",
		http.StatusOK, s.listRecipes)
	operation(s, "GET /v1/recipes/{name}", AccessRead, "get-recipe", "Show a recipe that comes with the product", "",
		http.StatusOK, s.getRecipe, codeNoRecipe)
	s.stream("GET /v1/builds/{id}/log", AccessRead, s.buildLog)
	s.stream("PUT "+uploadsPath+"{hex}", AccessAdmin, s.putUpload)
}
