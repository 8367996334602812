package apiserver

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// What members without an agent of the product in them can't do is refused where it is asked for, with the reason.

// checkForeign refuses groups whose environment is the disk of another system and that ask for what such members have not.
func checkForeign(spec api.ClusterSpec, view *state.View) *failure {
	var problems []api.FieldProblem
	for i, g := range spec.Groups {
		if img := view.ImageOf(g.Environment); img == nil || img.Disk == nil {
			continue
		}
		if g.Stack != api.StackVM {
			problems = append(problems, api.FieldProblem{
				Location: groupField(spec, i, "stack"), Value: string(g.Stack),
				Message: fmt.Sprintf("must be %q: environment %q is the disk of another system, which boots in virtual machines only", api.StackVM, g.Environment),
			})
		}
		if len(g.Checks) > 0 {
			problems = append(problems, api.FieldProblem{
				Location: groupField(spec, i, "checks"),
				Message: fmt.Sprintf("can't be run: environment %q is the disk of another system, without an agent to run commands; the environment's probe tells when "+
					"members are ready", g.Environment),
			})
		}
	}
	if len(problems) > 0 {
		return failFields(codeInvalidCluster, problems...)
	}
	return nil
}

// foreignMember returns a member of a cluster that has no agent; nil for none.
func foreignMember(c *state.Cluster, view *state.View) *api.Assignment {
	for a := range c.Held() {
		if img := view.Image(a.EnvironmentDigest); img != nil && img.Disk != nil {
			return a
		}
	}
	return nil
}

// checkAgents refuses jobs on a cluster that has members without an agent.
func checkAgents(name string, c *state.Cluster, view *state.View) error {
	if a := foreignMember(c, view); a != nil {
		return fail(codeNoAgent, "jobs can't run on cluster %q: environment %q of member %q is the disk of another system, without an agent to start them; use SSH: "+
			"nearmetal cluster ssh %s", name, a.Environment, a.Member, name)
	}
	return nil
}
