package apiserver

import (
	"context"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// byName and byID are the inputs of operations on one thing. Whatever is no name of a thing is not found.
type (
	byName struct {
		Name string `path:"name" doc:"Name"`
	}
	byID struct {
		ID string `path:"id" doc:"ID of the job"`
	}
	body[T any] struct{ Body T }
)

// created is the answer to what made something, with its address (RFC 9110, section 15.3.2).
type created[T any] struct {
	Location string `header:"Location"`
	Body     T
}

// register mounts every operation. Streams are plain handlers, documented by openapi.go.
func (s *Server) register() {
	operation(s, "GET /v1/clusters", "list-clusters", "List clusters", "Clusters by name, with their members.",
		http.StatusOK, s.listClusters)
	operation(s, "POST /v1/clusters", "create-cluster", "Create a cluster",
		"Stores what is wanted and returns at once, phase `pending`; watch the cluster to see it placed and its members come up. "+
			"Either `groups` is given, or the fields of one group stand at the top.",
		http.StatusCreated, s.createCluster, codeMalformed, codeTooLarge, codeTimeout, codeMediaType, codeInvalidCluster, codeUnknownEnvironment, codeUnknownStack,
		codeClusterExists)
	operation(s, "GET /v1/clusters/{name}", "get-cluster", "Show a cluster", "The intent, joined with what the leader decided and what members report.",
		http.StatusOK, s.getCluster, codeNoCluster)
	operation(s, "DELETE /v1/clusters/{name}", "delete-cluster", "Delete a cluster",
		"Marks the cluster as to be deleted and returns at once; it is gone when every member is confirmed clean. Asking again is no error.",
		http.StatusAccepted, s.deleteCluster, codeNoCluster)
	operation(s, "POST /v1/clusters/{name}/jobs", "create-job", "Run a job on a cluster",
		"Stores the job; it is started on rank 0's member, by mpirun over the cluster's hostfile when `ranks` is given.",
		http.StatusCreated, s.createJob, codeMalformed, codeTooLarge, codeTimeout, codeMediaType, codeInvalidJob, codeTooManyRanks, codeNotReady, codeNoCluster)
	operation(s, "GET /v1/jobs", "list-jobs", "List jobs", "Jobs, the oldest first.", http.StatusOK, s.listJobs)
	operation(s, "GET /v1/jobs/{id}", "get-job", "Show a job", "", http.StatusOK, s.getJob, codeNoJob)
	operation(s, "POST /v1/jobs/{id}/cancel", "cancel-job", "Cancel a job",
		"Asks the job to end; it has ended when its phase says so. Cancelling one that has ended changes nothing.",
		http.StatusAccepted, s.cancelJob, codeNoJob)
	operation(s, "GET /v1/nodes", "list-nodes", "List nodes", "Nodes by name: what they offer, what is taken, whether they are heard of.",
		http.StatusOK, s.listNodes)
	operation(s, "GET /v1/nodes/{name}", "get-node", "Show a node", "", http.StatusOK, s.getNode, codeNoNode)
	operation(s, "GET /v1/environments", "list-environments", "List environments", "Environments by name, gathered from the nodes.",
		http.StatusOK, s.listEnvironments)
	operation(s, "GET /v1/environments/{name}", "get-environment", "Show an environment", "", http.StatusOK, s.getEnvironment, codeNoEnvironment)
	operation(s, "GET /v1/version", "get-version", "Show the server's version", "", http.StatusOK, s.version)
	operation(s, "GET /healthz", "healthz", "Tell that the server lives", "Needs no token.", http.StatusOK, s.healthz)
	operation(s, "GET /readyz", "readyz", "Tell whether the server can serve", "Needs no token.", http.StatusOK, s.readyz)

	s.stream("GET /v1/watch", s.watchClusters)
	s.stream("GET /v1/clusters/{name}/watch", s.watchClusters)
	s.stream("GET /v1/clusters/{name}/events", s.clusterEvents)
	s.stream("GET /v1/jobs/{id}/log", s.jobLog)
	if s.cfg.AgentStream != nil {
		s.mux.Handle("POST "+agentPath, s.untilStopping(s.cfg.AgentStream))
	}
	s.documentStreams()
	// Errors are api.Problem; huma lists its own, which no answer holds.
	for _, unused := range []string{"ErrorModel", "ErrorDetail"} {
		delete(s.api.OpenAPI().Components.Schemas.Map(), unused)
	}
}

// stream mounts a handler that answers for as long as it likes.
func (s *Server) stream(pattern string, h http.HandlerFunc) { s.mux.Handle(pattern, h) }

// untilStopping ends a stream's context when the server shuts down.
func (s *Server) untilStopping(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() {
			select {
			case <-s.stopping:
				cancel()
			case <-ctx.Done():
			}
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// operation mounts one documented operation with the codes of the errors of its own; those that any may have are added.
func operation[I, O any](s *Server, pattern, id, summary, description string, status int,
	handle func(context.Context, *I) (*O, error), codes ...Code,
) {
	method, path := splitPattern(pattern)
	op := huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, Description: description, DefaultStatus: status,
		Tags: []string{tagOf(path)}, MaxBodyBytes: manifest.MaxBytes, BodyReadTimeout: s.cfg.RequestTimeout,
		// Bodies are read by package manifest, which knows their lines.
		SkipValidateBody: true,
	}
	s.document(&op)
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
		defer cancel()
		out, err := handle(ctx, in)
		if err != nil {
			return nil, s.asFailure(ctx, err)
		}
		return out, nil
	})
	inDocument := documented(s.api.OpenAPI(), method, path)
	inDocument.Responses = s.responses(inDocument, status, codes)
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
