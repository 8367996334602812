package apiserver

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// Access is who may call an operation. Whose things they may touch is looked at where the thing is found.
type Access string

// The accesses. An operation without one is refused to everybody.
const (
	AccessOpen   Access = "open"   // needs no token, tells nothing about clusters
	AccessRead   Access = "read"   // everybody but agents
	AccessChange Access = "change" // members in their project, administrators
	AccessAdmin  Access = "admin"  // administrators
	AccessAgent  Access = "agent"  // node agents
)

// Operation is something the API can be asked for.
type Operation struct {
	Method, Path string
	Access       Access
}

// Operations lists all there are, by path and method.
func (s *Server) Operations() []Operation {
	var all []Operation
	for pattern, access := range s.access {
		method, path := splitPattern(pattern)
		all = append(all, Operation{method, path, access})
	}
	slices.SortFunc(all, func(a, b Operation) int {
		return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method)
	})
	return all
}

// allow refuses what the role of a principal may not do at all; nil when it may, or when that depends on whose thing it is.
func allow(p tenancy.Principal, access Access) *failure {
	if access == AccessAgent {
		if p.Role != api.RoleAgent {
			return fail(codeForbidden, "this path is for node agents; use a token of role %q (DIR/agent-token)", api.RoleAgent)
		}
		return nil
	}
	verb, project := tenancy.Read, tenancy.Site
	switch access {
	case AccessOpen:
		return nil
	case AccessRead:
	case AccessChange:
		verb, project = tenancy.Change, p.Project
	default:
		verb = tenancy.Administer
	}
	if project == tenancy.Site && access == AccessChange {
		project = api.DefaultProject
	}
	if err := tenancy.May(p, verb, project); err != nil {
		return fail(codeForbidden, "%v", err)
	}
	return nil
}

// who makes a request.
func who(ctx context.Context) tenancy.Principal { return sessionOf(ctx).principal }

func isAdmin(ctx context.Context) bool { return who(ctx).Role == api.RoleAdmin }

// sees tells whether a principal may know of what belongs to a project.
func sees(p tenancy.Principal, project string) bool {
	return tenancy.May(p, tenancy.Read, projectOr(project)) == nil
}

// projectOr is the project that things belong to which name none.
func projectOr(project string) string {
	if project == "" {
		return api.DefaultProject
	}
	return project
}

// shownName is a cluster's name as a principal would write it: short in their own project, full elsewhere.
func shownName(p tenancy.Principal, full string) string {
	if project, name := tenancy.Split(full); project == projectOr(p.Project) {
		return name
	}
	return full
}

// resolve finds the full name of the cluster that a request means, and refuses what the principal may not know of as if it did not exist.
func resolve(ctx context.Context, name string) (string, error) {
	full, err := tenancy.Resolve(who(ctx), "", name)
	if err != nil {
		return "", noCluster(name)
	}
	if project, _ := tenancy.Split(full); !sees(who(ctx), project) {
		return "", noCluster(name)
	}
	return full, nil
}

// findCluster returns the cluster that a request means, or an error when there is none for who asks.
func (s *Server) findCluster(ctx context.Context, name string) (*state.Cluster, error) {
	full, err := resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	c := s.cfg.Reader.View().Cluster(full)
	if c == nil {
		return nil, noCluster(name)
	}
	return c, nil
}

// failureOf is the failure in an error of this package.
func failureOf(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return fail(codeInternal, "the server failed")
}
