// Package tenancy tells who may do what, whose a cluster is by its name, and what a project may hold.
//
// A site is shared by projects. Who asks is a Principal: a role, and the project it is for. What belongs to another project looks to them
// as if it did not exist. Everything but Tokens, which knows stored tokens by the newest view of the state, is a function of its
// arguments. The package must never write anything, nor decide what gets room: quotas are checked here when something is asked for, and
// by internal/admission when room is given. Start with May and Resolve.
package tenancy

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Principal is who asks: trust's, since tokens carry it.
type Principal = trust.Principal

// Verb is what is asked for.
type Verb = api.Verb

// The verbs.
const (
	Read       = api.VerbRead
	Run        = api.VerbRun
	Change     = api.VerbChange
	Administer = api.VerbAdminister
)

// Site is the project of what belongs to none: nodes, environments, what is the site's.
const Site = ""

// Denied is the refusal of something that a principal may not do.
type Denied struct {
	// Hidden: the principal may not even know of it; it must be told that there is no such thing, in the words used for what isn't there.
	Hidden  bool
	Message string
}

func (d *Denied) Error() string { return d.Message }

// May tells whether a principal may do something with what belongs to a project (Site: to none). The error is a *Denied, in words for who
// asked.
func May(p Principal, verb Verb, project string) error {
	switch p.Role {
	case api.RoleAdmin:
		return within(p, verb)
	case api.RoleMember, api.RoleViewer:
		if err := mayInProject(p, verb, project); err != nil {
			return err
		}
		return within(p, verb)
	case api.RoleAgent:
		return denied("the certificate of node %q is for its agent only; use a token for people (DIR/token, or one from: nearmetal token create)", p.Node)
	default:
		return denied("the %s has the unknown role %q; use a token of role %s or %s", bearer(p), p.Role, api.RoleMember, api.RoleViewer)
	}
}

// mayInProject is May for roles that are bound to a project.
func mayInProject(p Principal, verb Verb, project string) error {
	own := projectOr(p.Project)
	if project != Site && projectOr(project) != own {
		return &Denied{Hidden: true, Message: fmt.Sprintf("not found in this token's project: the %s is for project %q", bearer(p), own)}
	}
	switch {
	case verb == Read:
		return nil
	case verb != Administer && project != Site && p.Role == api.RoleMember:
		return nil
	case p.Role == api.RoleViewer:
		role := api.RoleMember
		if verb == Administer || project == Site {
			role = api.RoleAdmin
		}
		return denied("the %s is read-only: it has the role %s in project %q; use a token of role %s", bearer(p), p.Role, own, role)
	default:
		return denied("the %s is not allowed to do this: it has the role %s in project %q, and this request requires role %s", bearer(p), p.Role, own, api.RoleAdmin)
	}
}

func denied(format string, args ...any) *Denied {
	return &Denied{Message: fmt.Sprintf(format, args...)}
}

// bearer names who asks.
func bearer(p Principal) string {
	switch {
	case p.User != "":
		return fmt.Sprintf("token of %q", p.User)
	case p.TokenID != "":
		return fmt.Sprintf("token %s", p.TokenID)
	default:
		return "token"
	}
}

func projectOr(project string) string {
	if project == "" {
		return api.DefaultProject
	}
	return project
}
