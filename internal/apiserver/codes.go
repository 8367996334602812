package apiserver

import "net/http"

// Code is one kind of error the API answers with. Codes are stable: programs test them.
type Code struct {
	Code   string
	Status int
	// Title is the meaning in a few words.
	Title string
	// Meaning and Remedy are for docs/api-errors.md.
	Meaning string
	Remedy  string
}

// The codes. Every one stands in codeTable, and a test makes every one occur.
var (
	codeMalformed = Code{
		"malformed_request", http.StatusBadRequest, "The request's body can't be read",
		"The body is empty or no well-formed JSON or YAML; `errors[].line` tells where.", "Correct the syntax at that line.",
	}
	codeParameter = Code{
		"invalid_parameter", http.StatusBadRequest, "A parameter is wrong",
		"A parameter of the path, the query or a header has a value it can't have.", "Correct the parameter named in `errors`.",
	}
	codeUnauthorized = Code{
		"unauthorized", http.StatusUnauthorized, "No valid token",
		"The request carries no bearer token, or one this server does not know.",
		"Use the token file of this server (DIR/token), or the Unix socket on its machine.",
	}
	codeForbidden = Code{
		"forbidden", http.StatusForbidden, "Not allowed",
		"The token is valid, but its role may not do this: viewers only read, members act in their project only, some things are for " +
			"administrators, and agents may open their streams only.",
		"Use a token of the role that `detail` names.",
	}
	codeNoPath = Code{
		"no_such_path", http.StatusNotFound, "There is nothing at this path",
		"The API has no such path.", "See /openapi.json for those it has.",
	}
	codeNoCluster = Code{
		"cluster_not_found", http.StatusNotFound, "There is no such cluster",
		"No cluster that the token may see has this name: it was never created, is deleted altogether, or belongs to another project.",
		"List the clusters and correct the name.",
	}
	codeNoMember = Code{
		"member_not_found", http.StatusNotFound, "There is no such member",
		"No member of the cluster has this name and a place on a node.", "Show the cluster and correct the name.",
	}
	codeNoProject = Code{
		"project_not_found", http.StatusNotFound, "There is no such project",
		"No project that the token may see has this name.", "List the projects and correct the name.",
	}
	codeNoToken = Code{
		"token_not_found", http.StatusNotFound, "There is no such token",
		"No token that was made has this ID; those in DIR/token and DIR/agent-token are not among them.", "List the tokens and correct the ID.",
	}
	codeNoJob = Code{
		"job_not_found", http.StatusNotFound, "There is no such job",
		"No job has this ID.", "List the jobs and correct the ID.",
	}
	codeNoNode = Code{
		"node_not_found", http.StatusNotFound, "There is no such node",
		"No node of this name has ever connected, and no machine of this name was enrolled.", "List the nodes and correct the name.",
	}
	codeNoEnvironment = Code{
		"environment_not_found", http.StatusNotFound, "There is no such environment",
		"No node has an environment of this name, and none was built.", "List the environments and correct the name.",
	}
	codeMethod = Code{
		"method_not_allowed", http.StatusMethodNotAllowed, "This path has no such method",
		"The path exists, but not with this HTTP method; the `Allow` header lists those it has.", "Use one of those.",
	}
	codeTimeout = Code{
		"request_timeout", http.StatusRequestTimeout, "The request's body came too slowly",
		"The body was not complete in time.", "Send it again.",
	}
	codeClusterExists = Code{
		"cluster_exists", http.StatusConflict, "The name is taken",
		"A cluster of this name exists, perhaps being deleted still. Of two creates at once exactly one wins.",
		"Choose another name, or delete the cluster and wait until it is gone.",
	}
	codeWrongPhase = Code{
		"wrong_phase", http.StatusConflict, "The cluster's phase does not allow it",
		"What was asked for is not possible in the phase the cluster is in; `detail` tells the phase and what to do.",
		"Do what `detail` says, then try again.",
	}
	codeNoRoom = Code{
		"no_room", http.StatusConflict, "There is no room now",
		"The new members don't fit now, and the request may not wait; `detail` names what is short.",
		"Ask for less, wait, or let it wait for room with `queue`.",
	}
	codeOverQuota = Code{
		"over_quota", http.StatusConflict, "More than the project may hold",
		"The cluster would be larger than its project's quota, or the quota is used up and the request may not wait.",
		"Ask for less, free something, or have an administrator raise the quota.",
	}
	codeCantExtend = Code{
		"cant_extend", http.StatusConflict, "The time limit can't be changed so",
		"The cluster has no time limit, the new one is not longer or already over, the limit has passed, or others wait for the room.",
		"See `detail`; an administrator may extend while others wait.",
	}
	codeProjectExists = Code{
		"project_exists", http.StatusConflict, "The project exists",
		"A project of this name exists.", "Choose another name, or change the project.",
	}
	codeProjectInUse = Code{
		"project_in_use", http.StatusConflict, "The project is in use",
		"The project owns clusters, or is the default project, which always exists.", "Delete its clusters first.",
	}
	codeQuotaInUse = Code{
		"quota_in_use", http.StatusConflict, "More than the quota is in use",
		"The quota is below what the project's clusters hold now; `errors` names both numbers.", "Free something first, or give a higher quota.",
	}
	codeNodeInUse = Code{
		"node_in_use", http.StatusConflict, "The node is in use",
		"The node's agent is connected, or members or quarantined resources are on it; `detail` names them.",
		"Drain the node, wait until it is empty, and stop its agent.",
	}
	codeNotReady = Code{
		"cluster_not_ready", http.StatusConflict, "The cluster is not ready",
		"Jobs run on ready clusters only; `detail` tells the phase the cluster is in.", "Wait until it is ready, or see its events.",
	}
	codeHistoryGone = Code{
		"history_gone", http.StatusGone, "The history asked for is gone",
		"A watch can't be resumed after this `Last-Event-ID`: what followed is no longer kept, or was never here.",
		"Watch again without `Last-Event-ID`: everything that exists is sent first.",
	}
	codeLogRemoved = Code{
		"log_removed", http.StatusGone, "The output was removed",
		"The server removed the stored output of this ended run to keep within the limits of stored output: the oldest goes first.",
		"Redirect output that has to be kept to a file; an administrator may raise the limits (`--log-limit`, `--project-log-limit`).",
	}
	codeTooLarge = Code{
		"body_too_large", http.StatusRequestEntityTooLarge, "The request's body is too large",
		"The body is longer than any request that means something.", "Send less.",
	}
	codeMediaType = Code{
		"unsupported_media_type", http.StatusUnsupportedMediaType, "The body's type is not supported",
		"The `Content-Type` is neither application/json nor application/yaml.", "Send one of these.",
	}
	codeInvalidCluster = Code{
		"invalid_cluster", http.StatusUnprocessableEntity, "The cluster asked for is invalid",
		"Fields are unknown, of a wrong type or out of range; `errors` lists every one with its location and line.",
		"Correct the fields.",
	}
	codeInvalidJob = Code{
		"invalid_job", http.StatusUnprocessableEntity, "The job asked for is invalid",
		"Fields are unknown, of a wrong type or out of range; `errors` lists every one with its location and line.",
		"Correct the fields.",
	}
	codeInvalidRequest = Code{
		"invalid_request", http.StatusUnprocessableEntity, "The request is invalid",
		"Fields are unknown, of a wrong type or out of range; `errors` lists every one with its location and line.",
		"Correct the fields.",
	}
	codeOtherCluster = Code{
		"other_cluster", http.StatusUnprocessableEntity, "The file is of another cluster",
		"The name in the body is not the name in the path; `detail` names both.", "Apply the file under its own name.",
	}
	codeUnchangeable = Code{
		"unchangeable", http.StatusUnprocessableEntity, "Some fields can't be changed",
		"The cluster exists, and fields differ that are fixed for its life; `errors` lists every one.",
		"Put the fields back, or make another cluster.",
	}
	codeUnknownEnvironment = Code{
		"unknown_environment", http.StatusUnprocessableEntity, "No node knows the environment",
		"A group asks for an environment that no node reports; `detail` lists the known ones.", "Choose one of those.",
	}
	codeUnknownStack = Code{
		"stack_unavailable", http.StatusUnprocessableEntity, "No node offers the stack",
		"A group asks for a stack that no node's host checks passed for; `detail` lists those offered.",
		"Choose one of those, or correct what `nearmetal node show` tells about a node.",
	}
	codeTooManyRanks = Code{
		"too_many_ranks", http.StatusUnprocessableEntity, "More ranks than cores",
		"The job asks for more MPI ranks than the cluster has cores.", "Ask for at most as many, or for a larger cluster.",
	}
	codeTooManyJobs = Code{
		"too_many_jobs", http.StatusConflict, "Too many jobs wait",
		"The cluster or its project has as many jobs that have not ended as it may have; `detail` tells how many.",
		"Wait until some have ended, or cancel some.",
	}
	codeUpgrade = Code{
		"upgrade_required", http.StatusUpgradeRequired, "The connection has to be upgraded",
		"A tunnel is opened by HTTP/1.1 with `Connection: Upgrade` and `Upgrade: nearmetal-tunnel`.", "Send these headers, by HTTP/1.1.",
	}
	codeInternal = Code{
		"internal_error", http.StatusInternalServerError, "The server failed",
		"Something went wrong in the server that the request is not to blame for; its log tells what, by the ID in `detail`.",
		"Try again; if it happens again, report it with the log.",
	}
	codeUnreachable = Code{
		"member_unreachable", http.StatusBadGateway, "The member can't be reached",
		"The agent of the member's node is not connected, or the member does not accept the connection; `detail` tells.",
		"See the cluster's members, then try again.",
	}
	codeHomeUnknown = Code{
		"home_unknown", http.StatusBadGateway, "The shared home can't be counted",
		"The agents of the cluster's nodes are not connected, or can't read its home; `detail` tells.",
		"Try again when the nodes are back. Treat the home as holding files.",
	}
	codeUnavailable = Code{
		"unavailable", http.StatusServiceUnavailable, "The server can't serve now",
		"The server is starting, stopping, or its state store does not answer. Whether a change was stored is not known.",
		"Look whether the change was made, then try again.",
	}
)

// codeTable lists every code in the order of the documentation.
func codeTable() []Code {
	return append([]Code{
		codeMalformed, codeParameter, codeUnauthorized, codeForbidden, codeNoPath, codeNoCluster, codeNoMember, codeNoJob, codeNoNode,
		codeNoEnvironment, codeNoProject, codeNoToken, codeMethod, codeTimeout, codeClusterExists, codeWrongPhase, codeNoRoom, codeOverQuota,
		codeCantExtend, codeProjectExists, codeProjectInUse, codeQuotaInUse, codeNodeInUse, codeNotReady, codeHistoryGone, codeLogRemoved, codeTooLarge,
		codeMediaType, codeInvalidCluster, codeInvalidJob, codeInvalidRequest, codeOtherCluster, codeUnchangeable, codeUnknownEnvironment,
		codeUnknownStack, codeTooManyRanks, codeTooManyJobs, codeUpgrade, codeInternal, codeUnreachable, codeHomeUnknown, codeUnavailable,
	}, machineCodes()...)
}
