package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/portgroups"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// maxSecurityGroups is how many security groups a project may have: nodes hold the rules of those that ports have.
const maxSecurityGroups = 32

// securityGroupInput names a security group.
type securityGroupInput struct {
	Name string `path:"name" doc:"NAME or a UID; of another project PROJECT.NAME"`
}

func (s *Server) registerSecurityGroups() {
	operation(s, "GET /v1/security-groups", AccessRead, "list-security-groups", "List security groups",
		"Security groups by name, with the ports that have them: those of the token's project; for an administrator those of all projects.",
		http.StatusOK, s.listSecurityGroups)
	operation(s, "POST /v1/security-groups", AccessChange, "create-security-group", "Create a security group of a project",
		"Ports of clusters whose groups name it receive what its rules allow, and replies. A rule is a text such as `in tcp 22 from 10.0.0.0/8`, "+
			"`in any from group web` or `out udp 53 to 10.1.0.2/32`. Rules that nodes can't enforce are refused.",
		http.StatusCreated, s.createSecurityGroup,
		bodyCodes(codeInvalidRequest, codeSecurityGroupExists, codeTooManySecurityGroups, codeUnknownSecurityGroup, codeNoProject)...)
	operation(s, "GET /v1/security-groups/{name}", AccessRead, "get-security-group", "Show a security group", "", http.StatusOK, s.getSecurityGroup,
		codeNoSecurityGroup)
	operation(s, "POST /v1/security-groups/{name}/rules", AccessChange, "change-security-group-rules", "Change the rules of a security group",
		"`rules` replaces all rules; `remove` and `add` change some. The change reaches the ports of running members at once. Connections that are open "+
			"stay open while the member sends.",
		http.StatusOK, s.changeSecurityGroupRules, bodyCodes(codeInvalidRequest, codeUnknownSecurityGroup, codeNoSecurityGroup)...)
	operation(s, "DELETE /v1/security-groups/{name}", AccessChange, "delete-security-group", "Delete a security group",
		"Refused while a cluster or a rule of another security group names it.", http.StatusNoContent, s.deleteSecurityGroup,
		codeNoSecurityGroup, codeSecurityGroupInUse)
}

func noSecurityGroup(name string) *failure {
	return fail(codeNoSecurityGroup, "security group %q does not exist; 'nearmetal security-group list' lists the security groups", name)
}

func (s *Server) listSecurityGroups(ctx context.Context, _ *struct{}) (*body[api.List[api.SecurityGroupStatus]], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	list := api.List[api.SecurityGroupStatus]{Items: []api.SecurityGroupStatus{}}
	for _, g := range view.SecurityGroups {
		if seesProject(p, g.Project) {
			list.Items = append(list.Items, joinSecurityGroup(p, view, g))
		}
	}
	slices.SortStableFunc(list.Items, func(a, b api.SecurityGroupStatus) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Name, b.Name))
	})
	return &body[api.List[api.SecurityGroupStatus]]{list}, nil
}

func (s *Server) getSecurityGroup(ctx context.Context, in *securityGroupInput) (*body[api.SecurityGroupStatus], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	g := findSecurityGroup(p, view, in.Name)
	if g == nil {
		return nil, noSecurityGroup(in.Name)
	}
	return &body[api.SecurityGroupStatus]{joinSecurityGroup(p, view, g)}, nil
}

// findSecurityGroup returns the security group that a principal means by a name or a UID, and may know of, or nil.
func findSecurityGroup(p tenancy.Principal, view *state.View, name string) *api.SecurityGroup {
	var g *api.SecurityGroup
	if full, err := tenancy.Resolve(p, "", name); err == nil {
		g = view.SecurityGroup(full)
	}
	if g == nil {
		if i := slices.IndexFunc(view.SecurityGroups, func(g *api.SecurityGroup) bool { return g.UID == name }); i >= 0 {
			g = view.SecurityGroups[i]
		}
	}
	if g == nil || !seesProject(p, g.Project) {
		return nil
	}
	return g
}

// joinSecurityGroup makes what users see of a security group: as it is stored, with the rules, clusters and ports that use it.
func joinSecurityGroup(p tenancy.Principal, view *state.View, g *api.SecurityGroup) api.SecurityGroupStatus {
	_, own := tenancy.Split(g.Name)
	out := api.SecurityGroupStatus{
		Name: own, UID: g.UID, Project: projectOr(g.Project), User: g.User, Rules: append([]string{}, g.Rules...), CreatedAt: g.CreatedAt, UpdatedAt: g.UpdatedAt,
		NamedBy: []string{}, Clusters: []string{}, Ports: []api.SecurityGroupPort{},
	}
	for _, other := range view.SecurityGroups {
		_, name := tenancy.Split(other.Name)
		if other.Name != g.Name && projectOr(other.Project) == out.Project && slices.Contains(portgroups.Named(other.Rules), own) {
			out.NamedBy = append(out.NamedBy, name)
		}
	}
	var holders []*state.Cluster
	networks := map[string]bool{}
	for _, c := range view.Clusters {
		if projectOr(c.Intent.Project) != out.Project || !seesCluster(p, c.Name()) {
			continue
		}
		if slices.Contains(api.SecurityGroupsOf(c.Intent.Spec.Groups), own) {
			_, name := tenancy.Split(c.Name())
			out.Clusters = append(out.Clusters, name)
		}
		if uids := networksWithGroup(c, own); len(uids) > 0 {
			holders = append(holders, c)
			maps.Copy(networks, uids)
		}
	}
	for uid := range networks {
		for _, port := range portsOf(uid, holders, nil) {
			if slices.Contains(port.SecurityGroups, own) {
				out.Ports = append(out.Ports, api.SecurityGroupPort{Network: networkShown(view, uid), NetworkPort: port})
			}
		}
	}
	slices.SortFunc(out.Ports, func(a, b api.SecurityGroupPort) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), a.Address.Compare(b.Address), cmp.Compare(a.Member, b.Member))
	})
	return out
}

// networksWithGroup returns the UIDs of the networks on which ports of a cluster have a security group.
func networksWithGroup(c *state.Cluster, group string) map[string]bool {
	uids := map[string]bool{}
	for a := range c.All() {
		for i := range a.Ports {
			if slices.Contains(a.Ports[i].SecurityGroups, group) {
				uids[a.Ports[i].Network] = true
			}
		}
	}
	return uids
}

// networkShown returns the name of a network within its project: that of its cluster, CLUSTER:NETWORK or project/NETWORK.
func networkShown(view *state.View, uid string) string {
	n := view.Network(uid)
	if n == nil {
		return uid
	}
	if n.OfProject() {
		return n.Name
	}
	_, cluster := tenancy.Split(n.Cluster)
	return api.NetworkName(cluster, n.OwnName())
}

func (s *Server) createSecurityGroup(ctx context.Context, in *rawBody) (*created[api.SecurityGroupStatus], error) {
	req, src, err := readBody[api.SecurityGroupRequest](*in)
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckSecurityGroup(req, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	p, view := who(ctx), s.cfg.Reader.View()
	project := cmp.Or(req.Project, projectOr(p.Project))
	if err := mayChangeShared(p, view, project, "security groups"); err != nil {
		return nil, err
	}
	rules, err := normalRules(req.Name, req.Rules)
	if err != nil {
		return nil, err
	}
	if err := securityGroupIsNew(view, project, req.Name); err != nil {
		return nil, err
	}
	if err := knownNames(req.Name, rules, project, view); err != nil {
		return nil, err
	}
	now := s.cfg.Now().UTC()
	g := api.SecurityGroup{
		Name: tenancy.FullName(project, req.Name), UID: newID(uidLetters), Project: project, User: userOf(ctx), Rules: rules, CreatedAt: now, UpdatedAt: now,
	}
	revision, err := s.cfg.Writer.CreateSecurityGroup(ctx, g)
	switch {
	case errors.Is(err, state.ErrExists):
		return nil, securityGroupExists(req.Name)
	case errors.Is(err, state.ErrNoProject):
		return nil, noProject(project)
	case errors.Is(err, state.ErrNoSecurityGroup):
		return nil, fail(codeUnknownSecurityGroup, "%v; it was deleted meanwhile", err)
	case err != nil:
		return nil, err
	}
	view, _ = s.readOwnWrite(ctx, revision)
	return &created[api.SecurityGroupStatus]{Location: "/v1/security-groups/" + g.UID, Body: joinSecurityGroup(p, view, &g)}, nil
}

// normalRules returns rules as they are stored. It refuses rules that nodes can't enforce.
func normalRules(name string, rules []string) ([]string, error) {
	normal, err := portgroups.Normal(name, rules)
	if err != nil {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "rules", Message: err.Error()})
	}
	return normal, nil
}

// securityGroupIsNew refuses a security group whose name is taken, or that would be one too many.
func securityGroupIsNew(view *state.View, project, name string) error {
	if view.SecurityGroup(tenancy.FullName(project, name)) != nil {
		return securityGroupExists(name)
	}
	if count := len(securityGroupNames(project, view)); count >= maxSecurityGroups {
		return fail(codeTooManySecurityGroups, "project %q has %d security groups, the most that a project may have; delete one first", project, count)
	}
	return nil
}

func securityGroupExists(name string) *failure {
	return fail(codeSecurityGroupExists, "security group %q already exists; choose another name, or change its rules: nearmetal security-group set %s", name, name)
}

// securityGroupNames returns the names of a project's security groups, in order.
func securityGroupNames(project string, view *state.View) []string {
	var names []string
	for _, g := range view.SecurityGroups {
		if projectOr(g.Project) == project {
			_, own := tenancy.Split(g.Name)
			names = append(names, own)
		}
	}
	return names
}

// knownNames refuses rules that name groups which their project does not have. A rule may name its own group.
func knownNames(group string, rules []string, project string, view *state.View) error {
	for _, name := range portgroups.Named(rules) {
		if name != group && view.SecurityGroup(tenancy.FullName(project, name)) == nil {
			f := fail(codeUnknownSecurityGroup, "a rule names security group %q, which is not a security group of project %s; %s", name, project,
				securityGroupsOfProject(project, name, view))
			f.Errors = []api.FieldProblem{{Location: "rules", Value: name, Message: "is not a security group of project " + project}}
			return f
		}
	}
	return nil
}

// securityGroupsOfProject lists the security groups of a project, and the one that was perhaps meant.
func securityGroupsOfProject(project, asked string, view *state.View) string {
	names := securityGroupNames(project, view)
	if len(names) == 0 {
		return "the project has none: nearmetal security-group create " + asked
	}
	text := "its security groups: " + quoteAll(names)
	if near := manifest.Closest(asked, names); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return text
}

// knownSecurityGroups refuses a cluster that names security groups which its project does not have.
func knownSecurityGroups(spec api.ClusterSpec, project string, view *state.View) error {
	for i, g := range spec.Groups {
		for j, network := range g.Networks {
			for k, name := range network.SecurityGroups {
				if view.SecurityGroup(tenancy.FullName(project, name)) != nil {
					continue
				}
				problem := "is not a security group of project " + project
				f := fail(codeUnknownSecurityGroup, "security group %q of group %q on network %q %s; %s", name, g.Name, network.Name, problem,
					securityGroupsOfProject(project, name, view))
				at := fmt.Sprintf("%s[%d].security_groups[%d]", groupField(spec, i, "networks"), j, k)
				f.Errors = []api.FieldProblem{{Location: at, Value: name, Message: problem}}
				return f
			}
		}
	}
	return nil
}

func (s *Server) changeSecurityGroupRules(ctx context.Context, in *securityGroupBody) (*body[api.SecurityGroupStatus], error) {
	change, src, err := readBody[api.SecurityGroupRules](rawBody{in.ContentType, in.RawBody})
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckSecurityGroupRules(change, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	view, p := s.cfg.Reader.View(), who(ctx)
	g := findSecurityGroup(p, view, in.Name)
	if g == nil {
		return nil, noSecurityGroup(in.Name)
	}
	project := projectOr(g.Project)
	if err := mayChangeShared(p, view, project, "security groups"); err != nil {
		return nil, err
	}
	_, own := tenancy.Split(g.Name)
	changed, revision, err := s.cfg.Writer.ChangeSecurityGroup(ctx, g.Name, s.cfg.Now().UTC(), func(rules []string) ([]string, error) {
		next, err := changedRules(own, rules, change)
		if err != nil {
			return nil, err
		}
		return next, knownNames(own, next, project, view)
	})
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, noSecurityGroup(in.Name)
	case errors.Is(err, state.ErrNoSecurityGroup):
		return nil, fail(codeUnknownSecurityGroup, "%v; it was deleted meanwhile", err)
	case err != nil:
		return nil, err
	}
	view, _ = s.readOwnWrite(ctx, revision)
	return &body[api.SecurityGroupStatus]{joinSecurityGroup(p, view, &changed)}, nil
}

// securityGroupBody is a body that is about a security group.
type securityGroupBody struct {
	Name        string `path:"name" doc:"NAME or a UID; of another project PROJECT.NAME"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

// changedRules returns the rules of a group after a change.
func changedRules(group string, rules []string, change api.SecurityGroupRules) ([]string, error) {
	if change.Rules != nil {
		return normalRules(group, *change.Rules)
	}
	for i, text := range change.Remove {
		one, err := normalRules(group, []string{text})
		if err != nil {
			return nil, err
		}
		at := slices.Index(rules, one[0])
		if at < 0 {
			return nil, failFields(codeInvalidRequest, api.FieldProblem{
				Location: fmt.Sprintf("remove[%d]", i), Value: text, Message: fmt.Sprintf("%q is not a rule of security group %s", one[0], group),
			})
		}
		rules = slices.Delete(rules, at, at+1)
	}
	rules = append(rules, change.Add...)
	if len(rules) > manifest.MaxGroupRules {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{
			Location: "add", Message: fmt.Sprintf("makes %d rules; a security group has at most %d", len(rules), manifest.MaxGroupRules),
		})
	}
	return normalRules(group, rules)
}

func (s *Server) deleteSecurityGroup(ctx context.Context, in *securityGroupInput) (*struct{}, error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	g := findSecurityGroup(p, view, in.Name)
	if g == nil {
		return nil, noSecurityGroup(in.Name)
	}
	if err := mayChangeShared(p, view, projectOr(g.Project), "security groups"); err != nil {
		return nil, err
	}
	revision, err := s.cfg.Writer.DeleteSecurityGroup(ctx, g.Name)
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, noSecurityGroup(in.Name)
	case errors.Is(err, state.ErrInUse):
		return nil, fail(codeSecurityGroupInUse, "%v", err)
	case err != nil:
		return nil, err
	}
	_, _ = s.readOwnWrite(ctx, revision)
	return nil, nil //nolint:nilnil // 204
}
