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

// Access is the right to call an operation, and the verb that a limited token needs for it. The right to an object is checked where the object is
// found.
type Access string

// The accesses. An operation without one is refused to everybody.
const (
	AccessOpen   Access = "open"                     // needs no token, tells nothing about clusters
	AccessRead          = Access(api.VerbRead)       // everybody but agents
	AccessRun           = Access(api.VerbRun)        // members in their project, administrators
	AccessChange        = Access(api.VerbChange)     // members in their project, administrators
	AccessAdmin         = Access(api.VerbAdminister) // administrators
	AccessAgent  Access = "agent"                    // node agents
	AccessEnroll Access = "enroll"                   // whoever has an enrollment token, or a certificate to renew; the operation looks itself
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
			return fail(codeForbidden, "this path is for node agents, which show a certificate of this site")
		}
		return nil
	}
	verb, project := tenancy.Verb(access), tenancy.Site
	switch access {
	case AccessOpen, AccessEnroll:
		return nil
	case AccessRead:
	case AccessRun, AccessChange:
		project = projectOr(p.Project)
	default:
		verb = tenancy.Administer
	}
	if err := tenancy.May(p, verb, project); err != nil {
		return fail(codeForbidden, "%v", err)
	}
	return nil
}

// who makes a request.
func who(ctx context.Context) tenancy.Principal { return sessionOf(ctx).principal }

func isAdmin(ctx context.Context) bool { return administers(who(ctx)) }

// administers reports whether a principal may do and see what is the site's.
func administers(p tenancy.Principal) bool {
	return tenancy.May(p, tenancy.Administer, tenancy.Site) == nil
}

// seesProject reports whether a principal may know of what belongs to a project. What belongs to a cluster is for seesCluster.
func seesProject(p tenancy.Principal, project string) bool {
	return tenancy.May(p, tenancy.Read, projectOr(project)) == nil
}

// seesCluster reports whether a principal may know of a cluster, by its full name, and of what belongs to it.
func seesCluster(p tenancy.Principal, full string) bool {
	project, _ := tenancy.Split(full)
	return seesProject(p, project) && tenancy.Covers(p, full)
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
	if !seesCluster(who(ctx), full) {
		return "", noCluster(name)
	}
	return full, nil
}

// resolveNew is resolve for a cluster that the request may make: one that the limits of the token leave out is refused with the reason, whether it
// exists or not.
func resolveNew(ctx context.Context, name string) (string, error) {
	p := who(ctx)
	full, err := tenancy.Resolve(p, "", name)
	if err != nil {
		return "", noCluster(name)
	}
	if project, _ := tenancy.Split(full); !seesProject(p, project) {
		return "", noCluster(name)
	}
	return full, covered(p, full)
}

// covered refuses a new cluster whose name the limits of a principal's token leave out.
func covered(p tenancy.Principal, full string) error {
	if tenancy.Covers(p, full) {
		return nil
	}
	return fail(codeForbidden, "%v", tenancy.NotCovered(p, full))
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
