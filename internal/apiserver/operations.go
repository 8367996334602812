package apiserver

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/diskspace"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// byName and byID are the inputs of operations on one thing. Whatever is no name of a thing is not found.
type (
	byName struct {
		Name string `path:"name" doc:"Name; of a cluster NAME or PROJECT.NAME"`
	}
	byID struct {
		ID string `path:"id" doc:"ID"`
	}
	body[T any] struct{ Body T }
)

// rawBody is a request's body, which package manifest reads: it knows the lines of what is wrong.
type rawBody struct {
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

// namedBody is a body that is about something with a name. (Package huma looks into exported fields only, so nothing is embedded.)
type namedBody struct {
	Name        string `path:"name" doc:"Name; of a cluster NAME or PROJECT.NAME"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

func (b *namedBody) body() rawBody { return rawBody{b.ContentType, b.RawBody} }

// created is the answer to what made something, with its address (RFC 9110, section 15.3.2).
type created[T any] struct {
	Location string `header:"Location"`
	Body     T
}

// register mounts every operation. Streams are plain handlers, documented by openapi_streams.go.
func (s *Server) register() {
	s.registerClusters()
	s.registerLife()
	s.registerSnapshots()
	s.registerJobs()
	s.registerNetworks()
	s.registerFabrics()
	s.registerSecurityGroups()
	s.registerDatasets()
	s.registerVolumes()
	s.registerVolumeAttachments()
	s.registerLayers()
	s.registerConditions()
	s.registerAddresses()
	s.registerNodes()
	s.registerMachines()
	s.registerEnvironments()
	s.registerTenants()
	s.registerShapes()
	operation(s, "GET /v1/energy", AccessRead, "get-energy", "Report energy",
		"Energy of clusters and jobs in the last hours: those of the token's project. For an administrator those of all projects, with each node's power now, "+
			"its source, and where its energy went: counter = clusters + idle + unattributed. What is not known is omitted, with the reason.",
		http.StatusOK, s.energyReport)
	operation(s, "GET /v1/version", AccessRead, "get-version", "Show the server's version", "", http.StatusOK, s.version)
	operation(s, "GET /healthz", AccessOpen, "healthz", "Report that the server runs", "Needs no token.", http.StatusOK, s.healthz)
	operation(s, "GET /readyz", AccessOpen, "readyz", "Report whether the server can serve", "Needs no token.", http.StatusOK, s.readyz)

	s.stream("GET /v1/changes", AccessRead, s.watchChanges)
	s.stream("GET /v1/watch", AccessRead, s.watchClusters)
	s.stream("GET /v1/clusters/{name}/watch", AccessRead, s.watchClusters)
	s.stream("GET /v1/clusters/{name}/events", AccessRead, s.clusterEvents)
	s.stream("GET /v1/clusters/{name}/members/{member}/connect", AccessRun, s.connectMember)
	s.stream("GET /v1/clusters/{name}/members/{member}/console", AccessRun, s.connectMemberConsole)
	s.stream("GET /v1/clusters/{name}/members/{member}/display", AccessRun, s.connectMemberDisplay)
	s.stream("GET /v1/volumes/{name}/backup", AccessRun, s.backUpVolume)
	s.stream("POST /v1/volumes/{name}/content", AccessChange, s.sendVolumeContent)
	s.stream("GET /v1/jobs/{id}/log", AccessRead, s.jobLog)
	s.stream("GET /v1/usage", AccessRead, s.usageReport)
	s.stream("GET /v1/metrics", AccessRead, s.metrics)
	if s.cfg.Nodes != nil {
		s.stream("POST "+agentEnrollPath, AccessEnroll, s.enrollNodeAgent)
		s.stream("POST "+agentRenewPath, AccessEnroll, s.renewNodeAgent)
	}
	if s.cfg.AgentStream != nil {
		s.stream("POST "+agentStreamPath, AccessAgent, s.whileValid(s.cfg.AgentStream))
	}
	if s.cfg.AgentTunnel != nil {
		s.stream("POST "+agentTunnelPath+"{id}", AccessAgent, s.whileValid(s.cfg.AgentTunnel))
	}
	if s.cfg.AgentCarry != nil {
		s.stream("POST "+agentCarryPath+"{target}/{id}", AccessAgent, s.whileValid(s.cfg.AgentCarry))
	}
	s.documentStreams()
	s.documentUpload()
	s.bound()
	s.queries = queries(s.api.OpenAPI())
	// Errors are api.Problem; huma lists its own, which no answer holds.
	for _, unused := range []string{"ErrorModel", "ErrorDetail"} {
		delete(s.api.OpenAPI().Components.Schemas.Map(), unused)
	}
}

// bodyCodes are the errors of an operation with a body, those that any such may have among them.
func bodyCodes(more ...Code) []Code {
	return append([]Code{codeMalformed, codeTooLarge, codeTimeout, codeMediaType}, more...)
}

func (s *Server) registerClusters() {
	operation(s, "GET /v1/clusters", AccessRead, "list-clusters", "List clusters",
		"Clusters by name, with their members: those of the token's project; for an administrator those of all projects.",
		http.StatusOK, s.listClusters)
	operation(s, "POST /v1/clusters", AccessChange, "create-cluster", "Create a cluster",
		"Stores the request and returns at once, phase `pending`; watch the cluster to see it placed and its members come up. "+
			"Give either `groups`, or the fields of one group at the top level.",
		http.StatusCreated, s.createCluster,
		bodyCodes(codeInvalidCluster, codeNoVLANs, codeNoInfiniBand, codeUnknownEnvironment, codeUnknownShape, codeUnknownNetwork, codeAddressTaken, codeUnknownSecurityGroup, codeUnknownDataset, codeUnfitDataset, codeUnknownVolume, codeVolumeInUse, codeCantAttach, codeVolumeDeleted, codeTooManyVolumes, codeUnknownStack, codeClusterExists, codeNoProject,
			codeOverQuota)...)
	operation(s, "GET /v1/clusters/{name}", AccessRead, "get-cluster", "Show a cluster",
		"The intent, joined with what the leader decided and what members report.", http.StatusOK, s.getCluster, codeNoCluster)
	operation(s, "GET /v1/clusters/{name}/top", AccessRead, "get-cluster-top", "Show what a cluster's members use",
		"Processors, memory, network and disk of each member over the last minutes, as the members' nodes report them, and the sensors of machines that members have whole. "+
			"What is not known is omitted.",
		http.StatusOK, s.clusterTop, codeNoCluster)
	if s.cfg.Traces != nil {
		operation(s, "GET /v1/clusters/{name}/trace", AccessRead, "get-trace", "Show where the time went",
			"The stages of the making of the newest cluster of this name and, once it is deleted, of its end. Traces are kept in memory, for recent clusters.",
			http.StatusOK, s.clusterTrace, codeNoCluster, codeNoTrace)
	}
	operation(s, "PUT /v1/clusters/{name}", AccessChange, "apply-cluster", "Apply a cluster definition",
		"Creates the cluster if the name is new; otherwise sets sizes, spares, checks, labels, volumes, time limit, priority and queue to the values of "+
			"the body, and to their defaults if omitted. The answer lists the changes in words; with `dry_run` nothing is changed.",
		http.StatusOK, s.applyCluster,
		bodyCodes(codeInvalidCluster, codeNoVLANs, codeNoInfiniBand, codeOtherCluster, codeUnchangeable, codeUnknownEnvironment, codeUnknownShape, codeUnknownNetwork, codeAddressTaken, codeUnknownSecurityGroup, codeUnknownDataset, codeUnfitDataset, codeUnknownVolume, codeVolumeInUse, codeCantAttach, codeVolumeDeleted, codeTooManyVolumes, codeUnknownStack, codeClusterExists,
			codeNoProject, codeNoCluster, codeWrongPhase, codeNoRoom, codeOverQuota, codeCantExtend)...)
	operation(s, "DELETE /v1/clusters/{name}", AccessChange, "delete-cluster", "Delete a cluster",
		"Marks the cluster as to be deleted and returns at once; it is gone when every member is confirmed clean. Its shared home and all files there "+
			"are deleted with it. Repeating the request is not an error.",
		http.StatusAccepted, s.deleteCluster, codeNoCluster)
	operation(s, "GET /v1/clusters/{name}/explain", AccessRead, "explain-cluster", "Explain the state of a cluster",
		"Which members wait for room, the binding constraint, the position in the queue and the earliest known start.",
		http.StatusOK, s.explainCluster, codeNoCluster)
	operation(s, "GET /v1/clusters/{name}/home", AccessRead, "get-cluster-home", "Measure a cluster's shared home",
		"An agent counts the files now, up to a limit: `at_least` says that there may be more. The home is deleted with the cluster.",
		http.StatusOK, s.clusterHome, codeNoCluster, codeHomeUnknown)
	operation(s, "GET /v1/queue", AccessRead, "list-queue", "List the requests that wait for room",
		"In the order of the queue. Requests of other projects appear without their clusters and users.", http.StatusOK, s.listQueue)
}

func (s *Server) registerLife() {
	operation(s, "POST /v1/clusters/{name}/scale", AccessChange, "scale-cluster", "Add or remove members",
		"Gives a group a size, or removes members by name. The remaining members keep name, rank and address, and keep running. The same size again "+
			"changes nothing.",
		http.StatusOK, s.scaleCluster,
		bodyCodes(codeInvalidRequest, codeNoCluster, codeWrongPhase, codeNoRoom, codeOverQuota, codeNoSpace, codeCantAttach)...)
	longOperation(s, "POST /v1/clusters/{name}/pause", AccessChange, "pause-cluster", "Freeze a cluster's members",
		"Members keep their resources; usage and time limit keep counting. Whole machines are powered off, and their programs end. The answer comes once all files that their "+
			"members changed in their roots are saved. If one can't be saved, nothing is changed. Repeating the request is not an error.",
		http.StatusOK, s.pauseCluster, codeNoCluster, codeWrongPhase, codeNotReady, codeCantPause, codeKeysFound, codeNoSpace, codeUnreachable, codeUnavailable)
	operation(s, "POST /v1/clusters/{name}/resume", AccessChange, "resume-cluster", "Wake a cluster's members",
		"Whole machines boot again, with the files that were saved. Those that were lost meanwhile are replaced.",
		http.StatusOK, s.resumeCluster, codeNoCluster, codeWrongPhase)
	operation(s, "POST /v1/clusters/{name}/save", AccessChange, "save-cluster", "Save a cluster with its memory",
		"Members are written to their nodes' disks with their memory. They keep their addresses, and hold neither cores nor memory once all are "+
			"saved; the time limit keeps counting. Only virtual machines can be saved, and none "+
			"with a device other than a network adapter's virtual function. Repeating the request is not an error.",
		http.StatusOK, s.saveCluster, codeNoCluster, codeWrongPhase, codeCantSave)
	longOperation(s, "POST /v1/clusters/{name}/save-files", AccessChange, "save-cluster-files", "Make an environment of a member's files",
		"For members that have whole machines. The files that the member changed in its root are read and searched for keys, and a build makes a layer of them, over the environment that the member has. "+
			"The environment belongs to the cluster's project. Its name must be free. What Nearmetal wrote for the member, logs and temporary files are left out. A home that is a volume which outlives the cluster gets a "+
			"snapshot of the environment's name; `saved` of the environment tells what another cluster like this one is made of. The answer comes once all files are read, which takes minutes where there are many. The member goes on.",
		http.StatusCreated, s.saveFiles, bodyCodes(codeInvalidRequest, codeInvalidRecipe, codeNoCluster, codeNoMember, codeCantSave, codeKeysFound, codeEnvironmentExists, codeNotReady, codeUnreachable, codeNoVolume, codeVolumeDeleted, codeVolumeImporting, codeVolumeSnapshotExists, codeTooManyVolumeSnapshots)...)
	operation(s, "POST /v1/clusters/{name}/restore", AccessChange, "restore-cluster", "Restore a saved cluster",
		"Members go on where they were, all together as soon as the nodes they were saved on have room.",
		http.StatusOK, s.restoreCluster, codeNoCluster, codeWrongPhase)
	operation(s, "POST /v1/clusters/{name}/migrate", AccessChange, "migrate-cluster", "Move members to other nodes",
		"Members move with their memory to other nodes, one after the other: while they run, or saved and carried (`offline`). A member that can't "+
			"move stays on its node; `status.move` reports progress, duration and downtime. Only virtual machines can move, "+
			"and none with a device other than a network adapter's virtual function.",
		http.StatusOK, s.migrateCluster, bodyCodes(codeInvalidRequest, codeNoCluster, codeNoMember, codeWrongPhase, codeCantMove, codeNoRoom)...)
	operation(s, "POST /v1/clusters/{name}/reboot", AccessChange, "reboot-cluster", "Reboot members",
		"Members boot again where they are: their systems are asked to shut down, and are reset after 30 seconds, or at once (`hard`). A member keeps "+
			"its name, rank, node and address; its jobs are lost. `status.reboot` shows the progress. Only virtual machines can reboot.",
		http.StatusOK, s.rebootCluster, bodyCodes(codeInvalidRequest, codeNoCluster, codeNoMember, codeWrongPhase, codeCantReboot)...)
	operation(s, "POST /v1/clusters/{name}/resize", AccessChange, "resize-cluster", "Resize members",
		"Gives each member of a group other cores, memory or disk. Growth is claimed at once on the members' nodes; when one has no room, nothing is "+
			"changed. A running member takes what it can; the rest takes effect when it reboots. `status.members[].resizing` shows the progress. "+
			"A disk can only grow. Only virtual machines can be resized, and none with a "+
			"device other than a network adapter's virtual function.",
		http.StatusOK, s.resizeCluster,
		bodyCodes(codeInvalidRequest, codeNoCluster, codeWrongPhase, codeCantResize, codeNoRoom, codeOverQuota, codeNoSpace)...)
	operation(s, "POST /v1/clusters/{name}/extend", AccessChange, "extend-cluster", "Extend a cluster's time limit",
		"While others wait in the queue for room, only administrators may.",
		http.StatusOK, s.extendCluster, bodyCodes(codeInvalidRequest, codeNoCluster, codeWrongPhase, codeCantExtend)...)
	operation(s, "POST /v1/clusters/{name}/labels", AccessChange, "label-cluster", "Change a cluster's labels",
		"Labels with a value are set, those with an empty value are removed; others stay.",
		http.StatusOK, s.labelCluster, bodyCodes(codeInvalidRequest, codeNoCluster, codeWrongPhase)...)
	operation(s, "POST /v1/clusters/{name}/certificate", AccessRun, "certify-key", "Get an SSH certificate for a cluster",
		"Certifies a public key for a few minutes of logins to the cluster's members.",
		http.StatusOK, s.certifyKey, bodyCodes(codeInvalidRequest, codeNoCluster, codeWrongPhase)...)
}

func (s *Server) registerJobs() {
	operation(s, "POST /v1/clusters/{name}/jobs", AccessRun, "create-job", "Run a job on a cluster",
		"Stores the job; it is started on rank 0's member, by mpirun over the cluster's hostfile when `ranks` is given.",
		http.StatusCreated, s.createJob, bodyCodes(codeInvalidJob, codeTooManyRanks, codeTooManyJobs, codeNotReady, codeNoAgent, codeNoCluster)...)
	operation(s, "GET /v1/jobs", AccessRead, "list-jobs", "List jobs", "Jobs, the oldest first.", http.StatusOK, s.listJobs, codeNoCluster)
	operation(s, "GET /v1/jobs/{id}", AccessRead, "get-job", "Show a job", "", http.StatusOK, s.getJob, codeNoJob)
	operation(s, "POST /v1/jobs/{id}/cancel", AccessRun, "cancel-job", "Cancel a job",
		"Requests the end of the job; its phase shows when it has ended. Cancelling one that has ended changes nothing.",
		http.StatusAccepted, s.cancelJob, codeNoJob)
}

func (s *Server) registerNodes() {
	operation(s, "GET /v1/nodes", AccessRead, "list-nodes", "List nodes",
		"Nodes by name: what they offer, what is taken, whether they report. Members of other projects are counted, not named.",
		http.StatusOK, s.listNodes)
	operation(s, "GET /v1/nodes/{name}", AccessRead, "get-node", "Show a node", "", http.StatusOK, s.getNode, codeNoNode)
	operation(s, "GET /v1/nodes/{name}/host-check", AccessAdmin, "check-node-host", "Check the host of a node",
		"The node's agent looks now at what its host lacks for each stack. That starts programs on the host and changes nothing.", http.StatusOK, s.checkHost,
		codeNoNode, codeHostUnchecked)
	operation(s, "POST /v1/nodes/{name}/drain", AccessAdmin, "drain-node", "Give a node no new members",
		"Its members stay until their clusters release them. Repeating the request is not an error.",
		http.StatusOK, s.drainNode, bodyCodes(codeInvalidRequest, codeNoNode)...)
	operation(s, "POST /v1/nodes/{name}/undrain", AccessAdmin, "undrain-node", "Let a node have new members again", "",
		http.StatusOK, s.undrainNode, codeNoNode)
	s.registerMaintenance()
	operation(s, "POST /v1/nodes/{name}/approve", AccessAdmin, "approve-node", "Let a node in that has enrolled",
		"A node that enrolled by a token that does not approve waits for this. Repeating the request is not an error.",
		http.StatusOK, s.approveNode, codeNoNode)
	operation(s, "POST /v1/nodes/{name}/revoke", AccessAdmin, "revoke-node", "Revoke a node's identity",
		"Its agent is cut off at once and can't come back until the node enrolls again. What runs on it is lost after the death timer, and replaced "+
			"elsewhere. Repeating the request is not an error.",
		http.StatusNoContent, s.revokeNode, codeNoNode)
	operation(s, "POST /v1/nodes/{name}/trust", AccessAdmin, "trust-node", "Make a node a trusted builder",
		"Builds go to trusted builders that accept builds, and the site signs what they build. Nothing that a node says of itself makes it one. It ends "+
			"with the node's place in the inventory. Repeating the request is not an error.",
		http.StatusOK, s.trustNode, codeNoNode)
	operation(s, "POST /v1/nodes/{name}/untrust", AccessAdmin, "untrust-node", "Make a node a trusted builder no longer",
		"A build that it carries out starts again on another node. Images that it has built stay, and name it in `built_by`.",
		http.StatusOK, s.untrustNode, codeNoNode)
	operation(s, "DELETE /v1/nodes/{name}", AccessAdmin, "forget-node", "Remove a node from the inventory",
		"A machine is powered off first and is gone once that is done; refused without `force` while members run on it. If its power "+
			"can't be read or cut, its agent powers it off within five minutes; `force` confirms that it is off and ends the wait. A node that is not a "+
			"machine is removed at once, with its identity: its agent is cut off. Refused while it holds anything; to cut off a node that does, revoke it.",
		http.StatusNoContent, s.forgetNode, codeNoNode, codeNodeInUse)
}

func (s *Server) registerTenants() {
	operation(s, "GET /v1/whoami", AccessRead, "whoami", "Show the caller", "The identity that the server sees for this token.",
		http.StatusOK, s.whoami)
	operation(s, "GET /v1/projects", AccessRead, "list-projects", "List projects", "The projects visible to the token, with the resources that their clusters hold.",
		http.StatusOK, s.listProjects)
	operation(s, "GET /v1/projects/{name}", AccessRead, "get-project", "Show a project", "", http.StatusOK, s.getProject, codeNoProject)
	operation(s, "POST /v1/projects", AccessAdmin, "create-project", "Make a project", "",
		http.StatusCreated, s.createProject, bodyCodes(codeInvalidRequest, codeProjectExists)...)
	operation(s, "PUT /v1/projects/{name}", AccessAdmin, "update-project", "Replace a project's settings",
		"Sets description, quota and shares from the body; a body that omits one is refused. The answer of GET can be edited and sent "+
			"back. A quota below what is in use is refused.",
		http.StatusOK, s.updateProject, bodyCodes(codeInvalidRequest, codeNoProject, codeQuotaInUse)...)
	operation(s, "PATCH /v1/projects/{name}", AccessAdmin, "patch-project", "Change some of a project's settings",
		"The body is a JSON merge patch (RFC 7396): the fields it names change, null resets one to its default, all others stay. A quota below "+
			"what is in use is refused.",
		http.StatusOK, s.patchProject, bodyCodes(codeInvalidRequest, codeNoProject, codeQuotaInUse)...)
	operation(s, "DELETE /v1/projects/{name}", AccessAdmin, "delete-project", "Remove a project",
		"Refused while clusters or tokens belong to it.", http.StatusNoContent, s.deleteProject, codeNoProject, codeProjectInUse)
	operation(s, "GET /v1/audit", AccessAdmin, "list-audit", "List the audit log",
		"Changes that somebody asked for and what was refused, newest first. Refusals of strangers that came too fast are counted in the record after them.",
		http.StatusOK, s.listAudit)
	operation(s, "GET /v1/audit/verification", AccessAdmin, "verify-audit", "Verify the audit log",
		"Reads all of it and compares every record with what it was written as.", http.StatusOK, s.verifyAudit)
	operation(s, "GET /v1/tokens", AccessAdmin, "list-tokens", "List tokens", "The tokens created by the API, without their secrets.",
		http.StatusOK, s.listTokens)
	operation(s, "POST /v1/tokens", AccessAdmin, "create-token", "Make a token",
		"Only this answer contains the secret. A token ends after 90 days, or after `valid_for`; there is none without an end. `verbs` and `clusters` limit "+
			"it to less than its role allows. A token whose own verbs are limited makes none with further ones.",
		http.StatusCreated, s.createToken, bodyCodes(codeInvalidRequest, codeNoProject)...)
	operation(s, "DELETE /v1/tokens/{id}", AccessAdmin, "revoke-token", "Revoke a token", "It is void at once, also for open streams.",
		http.StatusNoContent, s.revokeToken, codeNoToken)
}

// stream mounts a handler that answers by itself.
func (s *Server) stream(pattern string, access Access, h http.HandlerFunc) {
	s.access[pattern] = access
	s.mux.Handle(pattern, h)
}

// whileValid ends a node's stream when the server shuts down, or the node's identity ends.
func (s *Server) whileValid(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := s.untilStopped(r.Context())
		defer cancel()
		asker := sessionOf(ctx)
		defer s.agents.add(asker.principal.Node, &nodeStream{asker.valid, cancel})()
		go func() {
			look := time.NewTicker(s.cfg.KeepAlive)
			defer look.Stop()
			for asker.valid() {
				select {
				case <-look.C:
				case <-ctx.Done():
					return
				}
			}
			cancel()
		}()
		next.ServeHTTP(w, r.WithContext(agentstream.ForNode(ctx, asker.principal.Node)))
	}
}

// untilStopped is a context that ends when the server shuts down, too.
func (s *Server) untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// operation mounts one documented operation with the codes of the errors of its own; those that any may have are added.
func operation[I, O any](s *Server, pattern string, access Access, id, summary, description string, status int,
	handle func(context.Context, *I) (*O, error), codes ...Code,
) {
	operationWithin(s, s.cfg.RequestTimeout, pattern, access, id, summary, description, status, handle, codes...)
}

// longOperation is an operation that ends with its request or with the server.
func longOperation[I, O any](s *Server, pattern string, access Access, id, summary, description string, status int,
	handle func(context.Context, *I) (*O, error), codes ...Code,
) {
	operationWithin(s, 0, pattern, access, id, summary, description, status, handle, codes...)
}

// operationWithin is an operation that has so long; 0: until its request or the server ends.
func operationWithin[I, O any](s *Server, limit time.Duration, pattern string, access Access, id, summary, description string, status int,
	handle func(context.Context, *I) (*O, error), codes ...Code,
) {
	method, path := splitPattern(pattern)
	op := huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, Description: description, DefaultStatus: status,
		Tags: []string{tagOf(path)}, MaxBodyBytes: manifest.MaxBytes, BodyReadTimeout: s.cfg.RequestTimeout,
		// Bodies are read by package manifest, which knows their lines.
		SkipValidateBody: true,
		// Parameters are checked before, by checkQuery; whatever is no name of a thing is not found.
		SkipValidateParams: true,
	}
	s.access[pattern] = access
	op.Security = s.security(pattern)
	grows := makesTheStateGrow(method, id)
	if grows {
		codes = append(codes, codeNoSpace)
	}
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		ctx, cancel := s.bounded(ctx, limit)
		defer cancel()
		if grows {
			if err := s.hasRoom(); err != nil {
				return nil, err
			}
		}
		out, err := handle(ctx, in)
		if err != nil {
			return nil, s.asFailure(ctx, err)
		}
		return out, nil
	})
	inDocument := methods(s.api.OpenAPI().Paths[path])[method]
	s.documentBody(inDocument)
	inDocument.Responses = s.responses(inDocument, status, codes)
}

// bounded is the context of a request that has so long; 0: until the server ends.
func (s *Server) bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return s.untilStopped(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// makesTheStateGrow reports whether an operation is refused while the disk of the state is full. All are that write, even if what they write
// replaces something: former values stay in the store's history for minutes, so a loop of such writes fills the disk.
func makesTheStateGrow(method, id string) bool {
	switch id {
	case "cancel-job", "cancel-build", // they end something, once
		"scale-cluster",                                           // asks by itself when members are added
		"drain-node", "undrain-node", "power-node", "power-nodes", // help to empty and stop machines, and are for administrators
		"untrust-node", "approve-node", "revoke-node", // change or remove what is there
		"certify-key": // stores nothing
		return false
	}
	return method != http.MethodGet && method != http.MethodDelete
}

// hasRoom refuses what there is no room for on the disk of the state.
func (s *Server) hasRoom() error {
	if s.cfg.Room == nil {
		return nil
	}
	var full *diskspace.FullError
	err := s.cfg.Room()
	if errors.As(err, &full) {
		return fail(codeNoSpace, "nothing was changed: %v", full)
	}
	return err
}

func (s *Server) version(context.Context, *struct{}) (*body[api.Version], error) {
	return &body[api.Version]{Version()}, nil
}

// health is the body of the health checks.
type health struct {
	Status string `json:"status"`
}

func (s *Server) healthz(context.Context, *struct{}) (*body[health], error) {
	return &body[health]{health{"ok"}}, nil
}

func (s *Server) readyz(context.Context, *struct{}) (*body[health], error) {
	if !s.hub.ready() {
		return nil, fail(codeUnavailable, "the server is starting; try again in a moment")
	}
	if s.cfg.Ready != nil {
		if err := s.cfg.Ready(); err != nil {
			return nil, fail(codeUnavailable, "%v", err)
		}
	}
	return &body[health]{health{"ok"}}, nil
}

// quoteAll lists names for people.
func quoteAll(names []string) string {
	text := ""
	for i, name := range names {
		if i > 0 {
			text += ", "
		}
		text += strconv.Quote(name)
	}
	return text
}
