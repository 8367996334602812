package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cpumodel"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// applyInput is documented with an api.ClusterRequest as its body.
type applyInput struct {
	Name        string `path:"name" doc:"Name; NAME or PROJECT.NAME"`
	DryRun      bool   `query:"dry_run" doc:"Show what would change without changing it"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

func (s *Server) applyCluster(ctx context.Context, in *applyInput) (*body[api.ApplyResult], error) {
	full, err := resolveNew(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	c := s.cfg.Reader.View().Cluster(full)
	want, err := s.readCluster(rawBody{in.ContentType, in.RawBody}, c)
	if err != nil {
		return nil, err
	}
	if err := sameCluster(full, want); err != nil {
		return nil, err
	}
	want.Project, _ = tenancy.Split(full)
	if c != nil {
		withDisks(want.Spec, c.Intent.Spec, s.cfg.Reader.View())
	}
	if c == nil {
		return s.applyNew(ctx, want, in.DryRun)
	}
	var steps []api.PlanStep
	change := func(intent *api.ClusterIntent) error {
		if intent.DeleteRequestedAt != nil {
			return s.clusterExists(ctx, full)
		}
		var err error
		steps, err = s.applyTo(ctx, c, intent, want)
		return err
	}
	if in.DryRun {
		intent := c.Intent
		if err := change(&intent); err != nil {
			return nil, err
		}
		now := joinCluster(c, s.cfg.Live)
		return &body[api.ApplyResult]{api.ApplyResult{Steps: steps, Cluster: &now}}, nil
	}
	intent, revision, err := s.cfg.Writer.UpdateIntent(ctx, full, c.UID(), change)
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, noCluster(in.Name)
	case errors.Is(err, state.ErrNoDataset):
		return nil, fail(codeUnknownDataset, "%v; it was deleted meanwhile", err)
	case errors.Is(err, state.ErrNoSecurityGroup):
		return nil, fail(codeUnknownSecurityGroup, "%v; it was deleted meanwhile", err)
	case err != nil:
		return nil, volumesFailure(err)
	}
	now := joinCluster(s.afterWrite(ctx, intent, revision, c), s.cfg.Live)
	return &body[api.ApplyResult]{api.ApplyResult{Steps: steps, Applied: changes(steps), Cluster: &now}}, nil
}

func changes(steps []api.PlanStep) bool {
	return slices.ContainsFunc(steps, func(p api.PlanStep) bool { return p.Action != "keep" })
}

// sameCluster refuses the file of another cluster than the one it is applied to.
func sameCluster(full string, want manifest.Cluster) error {
	project, name := tenancy.Split(full)
	other := want.Name != name || want.Project != "" && want.Project != project
	if !other {
		return nil
	}
	file := want.Name
	if want.Project != "" {
		file = tenancy.FullName(want.Project, want.Name)
	}
	f := fail(codeOtherCluster, "the body names cluster %q, but the path names cluster %q; apply the body under its own name", file, full)
	f.Errors = []api.FieldProblem{{Location: "name", Value: want.Name, Message: fmt.Sprintf("is not %q", name)}}
	return f
}

// applyNew makes the cluster that there is none of.
func (s *Server) applyNew(ctx context.Context, want manifest.Cluster, dryRun bool) (*body[api.ApplyResult], error) {
	intent, err := s.newIntent(ctx, want)
	if err != nil {
		return nil, err
	}
	var steps []api.PlanStep
	for _, g := range want.Spec.Groups {
		steps = append(steps, api.PlanStep{
			Action: "create", Path: groupPath(g.Name), To: members(g.Size),
			Message: fmt.Sprintf("%s created, with %s and %s each: %s", are(g.Size, "member"), cores(g.Cores), g.Memory,
				memberNames(namesOf(want.Spec, nil, g.Name))),
		})
	}
	if dryRun {
		machines, err := s.cfg.Explainer.Machines(intent)
		if err != nil {
			return nil, err
		}
		return &body[api.ApplyResult]{api.ApplyResult{Steps: steps, Machines: machines}}, nil
	}
	c, err := s.storeCluster(ctx, intent)
	if err != nil {
		return nil, err
	}
	return &body[api.ApplyResult]{api.ApplyResult{Steps: steps, Applied: true, Cluster: &c}}, nil
}

// applyTo makes an intent what a file says and returns the changes in words.
func (s *Server) applyTo(ctx context.Context, c *state.Cluster, intent *api.ClusterIntent, want manifest.Cluster) ([]api.PlanStep, error) {
	if err := unchangeable(intent.Spec, want.Spec); err != nil {
		return nil, err
	}
	if intent.Spec.Priority != want.Spec.Priority {
		if err := mayPrioritize(ctx, want.Spec); err != nil {
			return nil, err
		}
	}
	was := *intent
	intent.Spec.Groups = slices.Clone(intent.Spec.Groups) // a dry run's are those of the shared view
	steps := applyLabels(intent, want.Labels)
	own, err := s.applySpec(ctx, c, intent, want.Spec)
	if err != nil {
		return nil, err
	}
	volumes, err := s.applyVolumes(ctx, c, intent, want.Spec)
	if err != nil {
		return nil, err
	}
	own = append(own, volumes...)
	groups, err := applyGroups(c, intent, want.Spec)
	if err != nil {
		return nil, err
	}
	if len(groups) > 0 {
		if err := canScale(shownName(who(ctx), intent.Name), intent, c); err != nil {
			return nil, err
		}
		view := s.cfg.Reader.View()
		if err := knownHere(intent.Project, want.Spec, view, s.cfg.Offers); err != nil {
			return nil, err
		}
		if err := cmp.Or(s.untunnelled(&intent.Spec), s.sameTunnels(&was.Spec, &intent.Spec)); err != nil {
			return nil, err
		}
		if err := s.interfacesFit(was.Spec, want.Spec, projectOr(intent.Project), view); err != nil {
			return nil, err
		}
		if err := oneGateway(was.Spec, want.Spec, projectOr(intent.Project), view); err != nil {
			return nil, err
		}
		if err := addressesFree(who(ctx), was.Spec, want.Spec, projectOr(intent.Project), view); err != nil {
			return nil, err
		}
		if err := knownSecurityGroups(want.Spec, projectOr(intent.Project), s.cfg.Reader.View()); err != nil {
			return nil, err
		}
		if err := knownDatasets(want.Spec, projectOr(intent.Project), s.cfg.Reader.View()); err != nil {
			return nil, err
		}
		if err := s.canGrow(c, was.Spec, *intent, intent.Spec.Queue); err != nil {
			return nil, err
		}
		now := s.cfg.Now().UTC()
		intent.ScaledAt = &now
	}
	steps = append(append(own, groups...), steps...)
	if len(steps) == 0 {
		steps = []api.PlanStep{{Action: "keep", Path: "", Message: "the cluster already matches the file"}}
	}
	return steps, nil
}

// unchangeable refuses differences in what is fixed for the life of a cluster, each with where it is.
func unchangeable(was, want api.ClusterSpec) error {
	var problems []api.FieldProblem
	differ := func(path string, was, want any) {
		if !reflect.DeepEqual(was, want) {
			problems = append(problems, api.FieldProblem{
				Location: path, Value: fmt.Sprint(want), Message: fmt.Sprintf("is %v and can't become %v", was, want),
			})
		}
	}
	differ("egress", was.Egress, want.Egress)
	differ("home", homeText(was), homeText(want))
	volumesDiffer(&was, &want, differ)
	ownNetworkDiffers(&was, &want, differ)
	for _, w := range want.Groups {
		i, path := groupIndex(was, w.Name), groupPath(w.Name)
		if i < 0 {
			problems = append(problems, newNetworks(was, w)...)
			continue
		}
		g := was.Groups[i]
		differ(path+".cores", g.Cores, w.Cores)
		differ(path+".memory", g.Memory, w.Memory)
		differ(path+".disk", g.Disk, w.Disk)
		differ(path+".huge_pages", g.HugePages, w.HugePages)
		if g.UserData != w.UserData {
			problems = append(problems, api.FieldProblem{Location: path + ".user_data", Message: "is for a member's first start, and can't be changed"})
		}
		differ(path+".stack", g.Stack, w.Stack)
		differ(path+".environment", g.Environment, w.Environment)
		differ(path+".share_memory", g.SharesMemory(), w.SharesMemory())
		differ(path+".display", g.Display, w.Display)
		differ(path+".cpu_model", cmp.Or(g.CPUModel, cpumodel.Host), cmp.Or(w.CPUModel, cpumodel.Host))
		differ(path+".node_selector", selector(g), selector(w))
		differ(path+".networks", networkNames(g), networkNames(w))
		differ(path+".local_disks", g.LocalDisks, w.LocalDisks)
		differ(path+".datasets", datasetsText(g), datasetsText(w))
	}
	if len(problems) == 0 {
		return nil
	}
	f := failFields(codeUnchangeable, problems...)
	f.Detail += "; these are fixed for the life of a cluster: create another cluster to change them"
	return f
}

// newNetworks refuses the networks of a new group that its cluster does not have: networks are made when a cluster is placed.
func newNetworks(was api.ClusterSpec, g api.Group) []api.FieldProblem {
	var problems []api.FieldProblem
	has := slices.Concat(api.FurtherNetworks(was.Groups), api.JoinedNetworks(was.Groups))
	for _, network := range g.Networks {
		if name := network.Name; !slices.Contains(has, name) {
			problems = append(problems, api.FieldProblem{
				Location: groupPath(g.Name) + ".networks", Value: name, Message: fmt.Sprintf("names %q, and a cluster can't get another network", name),
			})
		}
	}
	return problems
}

// networkNames are a group's further networks as text, with the security groups of its ports. Neither order means anything once the cluster
// has them.
func networkNames(g api.Group) string {
	if len(g.Networks) == 0 {
		return "none"
	}
	var names []string
	for _, n := range g.Networks {
		n.SecurityGroups = slices.Sorted(slices.Values(n.SecurityGroups))
		names = append(names, n.String())
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// selector is a group's node selector as text, none for both ways to say so.
func selector(g api.Group) string {
	if len(g.NodeSelector) == 0 {
		return "none"
	}
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(g.NodeSelector)) {
		parts = append(parts, key+"="+g.NodeSelector[key])
	}
	return strings.Join(parts, ",")
}

// applySpec makes what is of the whole cluster what the file says.
func (s *Server) applySpec(ctx context.Context, c *state.Cluster, intent *api.ClusterIntent, want api.ClusterSpec) ([]api.PlanStep, error) {
	spec := &intent.Spec
	var steps []api.PlanStep
	step := func(path, from, to, message string) {
		steps = append(steps, api.PlanStep{Action: "change", Path: path, From: from, To: to, Message: message})
	}
	if spec.TimeLimit != want.TimeLimit {
		if err := s.mayLimit(ctx, c, spec.TimeLimit, want.TimeLimit); err != nil {
			return nil, err
		}
		step("time_limit", limitText(spec.TimeLimit), limitText(want.TimeLimit), limitMessage(c, want.TimeLimit))
		spec.TimeLimit = want.TimeLimit
	}
	if spec.Priority != want.Priority {
		step("priority", strconv.Itoa(spec.Priority), strconv.Itoa(want.Priority), "the position in the queue changes")
		spec.Priority = want.Priority
	}
	if spec.Queue != want.Queue {
		message := "members without room are refused from now on"
		if want.Queue {
			message = "members without room wait from now on"
		}
		step("queue", strconv.FormatBool(spec.Queue), strconv.FormatBool(want.Queue), message)
		spec.Queue = want.Queue
	}
	return steps, nil
}

func limitText(d api.Duration) string {
	if d == 0 {
		return "none"
	}
	return d.String()
}

func limitMessage(c *state.Cluster, limit api.Duration) string {
	switch {
	case limit == 0:
		return "the cluster exists until it is deleted"
	case c.Record != nil && c.Record.PlacedAt != nil:
		return "the cluster ends at " + c.Record.PlacedAt.Add(limit.Std()).UTC().Format(time.RFC3339)
	default:
		return "the cluster ends " + limit.String() + " after it is placed"
	}
}

// applyLabels makes the labels those of the file.
func applyLabels(intent *api.ClusterIntent, want map[string]string) []api.PlanStep {
	var steps []api.PlanStep
	keys := maps.Clone(want)
	if keys == nil {
		keys = map[string]string{}
	}
	maps.Copy(keys, intent.Labels)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		from, had := intent.Labels[key]
		to, has := want[key]
		p := api.PlanStep{Action: "change", Path: "labels." + key, From: from, To: to}
		switch {
		case !had:
			p.Action = "add"
		case !has:
			p.Action = "remove"
		case from == to:
			continue
		}
		steps = append(steps, p)
	}
	if len(steps) > 0 {
		intent.Labels = want
	}
	return steps
}

func groupPath(name string) string { return "groups[" + name + "]" }

func groupIndex(spec api.ClusterSpec, name string) int {
	return slices.IndexFunc(spec.Groups, func(g api.Group) bool { return g.Name == name })
}

// namesOf are the members that a group of a cluster should have.
func namesOf(spec api.ClusterSpec, removed []string, group string) []string {
	var names []string
	for _, m := range lifecycle.DesiredMembers(spec, removed) {
		if m.Group == group {
			names = append(names, m.Member)
		}
	}
	return names
}

func members(n int) string { return counted(n, "member") }

func cores(n int) string { return counted(n, "core") }

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// applyGroups makes the groups those of the file: sizes, spares and checks of those there are, groups that are new, and groups that go.
func applyGroups(c *state.Cluster, intent *api.ClusterIntent, want api.ClusterSpec) ([]api.PlanStep, error) {
	var steps []api.PlanStep
	rank := ranks(c)
	for _, w := range want.Groups {
		i := groupIndex(intent.Spec, w.Name)
		if i < 0 {
			intent.Spec.Groups = append(intent.Spec.Groups, w)
			steps = append(steps, api.PlanStep{
				Action: "add", Path: groupPath(w.Name), To: members(w.Size),
				Message: fmt.Sprintf("%s added, with %s and %s each: %s", are(w.Size, "member"), cores(w.Cores), w.Memory,
					memberNames(namesOf(intent.Spec, intent.Removed, w.Name))),
			})
			continue
		}
		steps = append(steps, applyGroup(intent, i, w, rank)...)
	}
	var gone []string
	for _, g := range intent.Spec.Groups {
		if groupIndex(want, g.Name) < 0 {
			gone = append(gone, g.Name)
		}
	}
	for _, name := range gone {
		step, err := dropGroup(intent, name, rank)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, nil
}

// applyGroup makes group i what the file says.
func applyGroup(intent *api.ClusterIntent, i int, want api.Group, rank map[string]int) []api.PlanStep {
	var steps []api.PlanStep
	g, path := intent.Spec.Groups[i], groupPath(want.Name)
	if g.Size != want.Size {
		before := namesOf(intent.Spec, intent.Removed, g.Name)
		resize(intent, i, want.Size, rank)
		after := namesOf(intent.Spec, intent.Removed, g.Name)
		verb, names := "added", without(after, before)
		if want.Size < g.Size {
			verb, names = "released", without(before, after)
		}
		steps = append(steps, api.PlanStep{
			Action: "change", Path: path + ".size", From: strconv.Itoa(g.Size), To: strconv.Itoa(want.Size),
			Message: fmt.Sprintf("%s %s: %s", are(len(names), "member"), verb, memberNames(names)),
		})
	}
	if g.Spares != want.Spares {
		message := are(want.Spares-g.Spares, "more spare") + " held"
		if want.Spares < g.Spares {
			message = are(g.Spares-want.Spares, "spare") + " given back"
		}
		steps = append(steps, api.PlanStep{
			Action: "change", Path: path + ".spares", From: strconv.Itoa(g.Spares), To: strconv.Itoa(want.Spares), Message: message,
		})
		intent.Spec.Groups[i].Spares = want.Spares
	}
	if (len(g.Checks) > 0 || len(want.Checks) > 0) && !reflect.DeepEqual(g.Checks, want.Checks) {
		steps = append(steps, api.PlanStep{
			Action: "change", Path: path + ".checks", From: checkNames(g.Checks), To: checkNames(want.Checks),
			Message: "members are checked again, nothing is restarted",
		})
		intent.Spec.Groups[i].Checks = want.Checks
	}
	return steps
}

func checkNames(checks []api.Check) string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.Name
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

func without(names, taken []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(taken, n) })
}

// dropGroup takes a whole group out.
func dropGroup(intent *api.ClusterIntent, name string, rank map[string]int) (api.PlanStep, error) {
	i := groupIndex(intent.Spec, name)
	names := namesOf(intent.Spec, intent.Removed, name)
	for _, member := range names {
		if r, ranked := rank[member]; ranked && r == 0 || len(rank) == 0 && i == 0 {
			f := failFields(codeUnchangeable, api.FieldProblem{
				Location: groupPath(name), Message: fmt.Sprintf("holds rank 0 (%s), which runs the cluster's jobs and can't be removed", member),
			})
			return api.PlanStep{}, f
		}
	}
	intent.Removed = slices.DeleteFunc(slices.Clone(intent.Removed), func(member string) bool {
		_, ours := memberNumber(name, member)
		return ours
	})
	if len(intent.Removed) == 0 {
		intent.Removed = nil
	}
	from := members(intent.Spec.Groups[i].Size)
	intent.Spec.Groups = slices.Delete(slices.Clone(intent.Spec.Groups), i, i+1)
	return api.PlanStep{
		Action: "remove", Path: groupPath(name), From: from, Message: fmt.Sprintf("%s released: %s", are(len(names), "member"), memberNames(names)),
	}, nil
}

// are is "1 member is" or "3 members are".
func are(n int, what string) string {
	if n == 1 {
		return counted(n, what) + " is"
	}
	return counted(n, what) + " are"
}
