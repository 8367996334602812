package apiserver

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// What members without an agent of the product in them can't do is refused where it is asked for, with the reason.

// checkForeign refuses groups whose environment is the disk of another system and that ask for what such members have not.
func checkForeign(project string, spec api.ClusterSpec, view *state.View) *failure {
	var problems []api.FieldProblem
	for i, g := range spec.Groups {
		img := view.ImageOf(g.Environment)
		if img == nil || img.Disk == nil {
			problems = append(problems, needForeign(spec, i)...)
			continue
		}
		if g.Disk < img.Disk.Size {
			problems = append(problems, api.FieldProblem{
				Location: groupField(spec, i, "disk"), Value: g.Disk.String(),
				Message: fmt.Sprintf("is smaller than the disk of environment %q, which has %s; give at least %s, or omit it", g.Environment, img.Disk.Size, img.Disk.Size),
			})
		}
		if g.Stack != api.StackVM {
			problems = append(problems, api.FieldProblem{
				Location: groupField(spec, i, "stack"), Value: string(g.Stack),
				Message: fmt.Sprintf("must be %q: environment %q is the disk of another system, which boots in virtual machines only", api.StackVM, g.Environment),
			})
		}
		if g.Interface.OnFunction() && img.Disk.Probe.Console == "" {
			problems = append(problems, api.FieldProblem{
				Location: groupField(spec, i, "interface"), Value: string(g.Interface),
				Message: fmt.Sprintf("is not possible with environment %q, the disk of another system: its probe goes by the cluster's own network, and no node sees the traffic of a "+
					"function; use an environment whose probe is a text on the console", g.Environment),
			})
		}
		if has := func(on api.GroupNetwork) bool { return on.Standby }; slices.ContainsFunc(g.Functions(), has) {
			problems = append(problems, api.FieldProblem{
				Location: groupField(spec, i, "standby"), Value: "true",
				Message: fmt.Sprintf("is not possible with environment %q, the disk of another system: nobody tells that system which of two interfaces with one address to use", g.Environment),
			})
		}
		problems = append(problems, foreignVolumes(project, spec, view, i)...)
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

// foreignVolumes refuses volumes but disks to a group whose environment is the disk of another system. A volume as the home is that of the other groups.
func foreignVolumes(project string, spec api.ClusterSpec, view *state.View, i int) []api.FieldProblem {
	further := slices.IndexFunc(spec.Volumes, func(v api.VolumeAttachment) bool { return v.MountPath() != "/home" && !isDisk(view, project, v.Name) })
	if further < 0 {
		return nil
	}
	return []api.FieldProblem{{
		Location: groupField(spec, i, "environment"), Value: spec.Groups[i].Environment,
		Message: fmt.Sprintf("is the disk of another system, without an agent to mount volume %q; omit the volume, or have that group in a cluster of its own", spec.Volumes[further].Name),
	}}
}

// needForeign refuses what only members with the disk of another system have.
func needForeign(spec api.ClusterSpec, i int) []api.FieldProblem {
	g := &spec.Groups[i]
	var problems []api.FieldProblem
	if g.Disk != 0 {
		problems = append(problems, api.FieldProblem{
			Location: groupField(spec, i, "disk"), Value: g.Disk.String(),
			Message: fmt.Sprintf("is for environments that were imported: members of environment %q have a shared root and keep what they change in memory; omit it", g.Environment),
		})
	}
	if g.UserData != "" {
		problems = append(problems, api.FieldProblem{
			Location: groupField(spec, i, "user_data"),
			Message: fmt.Sprintf("is for cloud-init, which environment %q does not have: its recipe says what is in it, and jobs run what is to be done; omit it, or use an imported environment",
				g.Environment),
		})
	}
	return problems
}

// withDisks gives the groups whose environment is the disk of another system, and that ask for no size, the disk of their shape or that size. made is the
// spec of the cluster that it is for, empty for a new one: its groups keep the disks that they have.
func withDisks(spec, made api.ClusterSpec, view *state.View) {
	for i := range spec.Groups {
		g := &spec.Groups[i]
		img := view.ImageOf(g.Environment)
		if g.Disk != 0 || g.Stack != api.StackVM || img == nil || img.Disk == nil {
			continue
		}
		g.Disk = img.Disk.Size
		if shape := view.Shape(g.ShapeName); shape != nil {
			g.Disk = max(g.Disk, shape.Disk)
		}
		for j := range made.Groups {
			if made.Groups[j].Name == g.Name {
				g.Disk = made.Groups[j].Disk
			}
		}
	}
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
