package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

func noProject(name string) *failure {
	return fail(codeNoProject, "project %q does not exist; 'nearmetal project list' lists the projects", name)
}

func (s *Server) whoami(ctx context.Context, _ *struct{}) (*body[api.Identity], error) {
	p := who(ctx)
	me := api.Identity{User: userOf(ctx), Project: p.Project, Role: p.Role, Limits: p.Limits}
	if !p.Ends.IsZero() {
		me.ExpiresAt = &p.Ends
	}
	return &body[api.Identity]{me}, nil
}

// projectStatus is a project as it is shown.
func (s *Server) projectStatus(ctx context.Context, view *state.View, p *api.Project) (out api.ProjectStatus, err error) {
	all, err := s.projectStatuses(ctx, view, []*api.Project{p})
	if err != nil {
		return out, err
	}
	return all[0], nil
}

// projectStatuses are projects as they are shown, in their order.
func (s *Server) projectStatuses(ctx context.Context, view *state.View, projects []*api.Project) ([]api.ProjectStatus, error) {
	used, energy := s.used(view), map[string]int64{}
	if slices.ContainsFunc(projects, func(p *api.Project) bool { return p.Quota.EnergyJoules > 0 }) {
		var err error
		if energy, err = s.cfg.Reader.EnergyUsed(ctx, s.cfg.Now()); err != nil {
			return nil, err
		}
	}
	all, data := []api.ProjectStatus{}, s.dataHeld(view)
	for _, p := range projects {
		out := api.ProjectStatus{Project: *p, Used: usedBy(view, p.Name, used)}
		out.Used.Datasets = api.Bytes(data[p.Name])
		out.Shares = max(out.Shares, 1)
		if p.Quota.EnergyJoules > 0 {
			out.Used.EnergyJoules = energy[p.Name]
		}
		all = append(all, out)
	}
	return all, nil
}

// used is what counts against the quota of each project, what the snapshots of its volumes hold included.
func (s *Server) used(view *state.View) map[string]resource.Amounts {
	all, found := tenancy.Used(view), s.found(view)
	for _, v := range view.Volumes {
		project := projectOr(v.Intent.Project)
		amounts := all[project]
		amounts.Vector[resource.Storage] += situation.UsedStorage([]api.VolumeIntent{v.Intent}, found) - v.Intent.SizeBytes
		all[project] = amounts
	}
	return all
}

// usedBy is what a project holds of its quota: what its clusters do, and its floating addresses.
func usedBy(view *state.View, project string, clusters map[string]resource.Amounts) api.Quota {
	used := clusters[project].Quota()
	for _, a := range view.Addresses {
		if projectOr(a.Project) == project {
			used.Addresses++
		}
	}
	return used
}

func (s *Server) listProjects(ctx context.Context, _ *struct{}) (*body[api.List[api.ProjectStatus]], error) {
	view := s.cfg.Reader.View()
	var seen []*api.Project
	for _, p := range view.Projects {
		if seesProject(who(ctx), p.Name) {
			seen = append(seen, p)
		}
	}
	all, err := s.projectStatuses(ctx, view, seen)
	if err != nil {
		return nil, err
	}
	return &body[api.List[api.ProjectStatus]]{api.List[api.ProjectStatus]{Items: all}}, nil
}

func (s *Server) getProject(ctx context.Context, in *byName) (*body[api.ProjectStatus], error) {
	view := s.cfg.Reader.View()
	p := view.Project(in.Name)
	if p == nil || !seesProject(who(ctx), in.Name) {
		return nil, noProject(in.Name)
	}
	status, err := s.projectStatus(ctx, view, p)
	if err != nil {
		return nil, err
	}
	return &body[api.ProjectStatus]{status}, nil
}

// Limits of a project.
const (
	maxDescription = 1000
	maxShares      = 1_000_000
	maxQuota       = 1 << 30
	// maxDeviceQuotas is how many counters of devices a quota may bound, maxDeviceQuota the highest bound: numbers of JSON are exact up to there.
	maxDeviceQuotas = 256
	maxDeviceQuota  = 1 << 53
	// maxEnergyQuota is what a gigawatt comes to in 30 days.
	maxEnergyQuota = 1e9 * 30 * 24 * 3600
)

// checkProject fills in defaults and refuses what no project can be.
func checkProject(p *api.Project, src *manifest.Source) error {
	var problems []api.FieldProblem
	wrong := func(path, value, format string, args ...any) {
		problems = append(problems, api.FieldProblem{Location: path, Line: src.Line(path), Value: value, Message: fmt.Sprintf(format, args...)})
	}
	if problem := manifest.LabelProblem(p.Name, manifest.MaxProjectName); problem != "" {
		wrong("name", p.Name, "%q %s", p.Name, problem)
	}
	if len(p.Description) > maxDescription {
		wrong("description", "", "is %d bytes long; use at most %d", len(p.Description), maxDescription)
	}
	if p.Shares == 0 && !src.Has("shares") {
		p.Shares = 1
	}
	if p.Shares < 1 || p.Shares > maxShares {
		wrong("shares", strconv.Itoa(p.Shares), "%d is not a weight; give 1 to %d", p.Shares, maxShares)
	}
	problems = append(problems, quotaProblems("quota", p.Quota, src)...)
	if len(problems) > 0 {
		return failFields(codeInvalidRequest, problems...)
	}
	p.Quota.Devices = limited(p.Quota.Devices)
	return nil
}

// quotaProblems lists what no quota can be, of the one at path.
func quotaProblems(path string, q api.Quota, src *manifest.Source) []api.FieldProblem {
	var problems []api.FieldProblem
	wrong := func(field, value, format string, args ...any) {
		at := path + "." + field
		problems = append(problems, api.FieldProblem{Location: at, Line: src.Line(at), Value: value, Message: fmt.Sprintf(format, args...)})
	}
	for _, bound := range []struct {
		name  string
		value int
	}{{"cores", q.Cores}, {"members", q.Members}, {"clusters", q.Clusters}, {"addresses", q.Addresses}} {
		if bound.value < 0 || bound.value > maxQuota {
			wrong(bound.name, strconv.Itoa(bound.value), "%d is not a quota; give 1 to %d, or leave it out for no limit", bound.value, maxQuota)
		}
	}
	if q.EnergyJoules < 0 || q.EnergyJoules > maxEnergyQuota {
		wrong("energy_joules", strconv.FormatInt(q.EnergyJoules, 10), "%d is not a quota; give 1 to %d joules, or leave it out for no limit", q.EnergyJoules, int64(maxEnergyQuota))
	}
	if n := len(q.Devices); n > maxDeviceQuotas {
		wrong("devices", strconv.Itoa(n), "has %d counters; at most %d are possible", n, maxDeviceQuotas)
	}
	for _, counter := range slices.Sorted(maps.Keys(q.Devices)) {
		n := q.Devices[counter]
		if problem := manifest.CounterProblem(counter); problem != "" {
			wrong("devices."+counter, counter, "%q %s", counter, problem)
		}
		if n < 0 || n > maxDeviceQuota {
			wrong("devices."+counter, strconv.FormatInt(n, 10), "%d is not a quota; give 1 to %d, or leave it out for no limit", n, int64(maxDeviceQuota))
		}
	}
	return problems
}

// limited returns a quota's bounds without those that are no limit.
func limited(bounds map[string]int64) map[string]int64 {
	bounds = maps.Clone(bounds)
	maps.DeleteFunc(bounds, func(_ string, n int64) bool { return n == 0 })
	if len(bounds) == 0 {
		return nil
	}
	return bounds
}

func (s *Server) createProject(ctx context.Context, in *rawBody) (*created[api.ProjectStatus], error) {
	req, src, err := readBody[api.ProjectRequest](*in)
	if err != nil {
		return nil, err
	}
	p := api.Project{Name: req.Name, Description: req.Description, Quota: req.Quota, Shares: req.Shares}
	if err := checkProject(&p, src); err != nil {
		return nil, err
	}
	p.CreatedAt = s.cfg.Now().UTC()
	revision, err := s.cfg.Writer.CreateProject(ctx, p)
	if errors.Is(err, state.ErrNameUsed) {
		return nil, fail(codeProjectExists, "a project %q was deleted, and its jobs and usage are still kept under that name; choose another name", p.Name)
	}
	if errors.Is(err, state.ErrExists) {
		return nil, fail(codeProjectExists, "project %q already exists; choose another name, or change it: nearmetal project set %s", p.Name, p.Name)
	}
	if err != nil {
		return nil, err
	}
	view, _ := s.readOwnWrite(ctx, revision)
	status, err := s.projectStatus(ctx, view, &p)
	if err != nil {
		return nil, err
	}
	return &created[api.ProjectStatus]{Location: "/v1/projects/" + p.Name, Body: status}, nil
}

// updateProject replaces all settings of a project.
func (s *Server) updateProject(ctx context.Context, in *namedBody) (*body[api.ProjectStatus], error) {
	req, src, err := readBody[api.ProjectUpdate](in.body())
	if err != nil {
		return nil, err
	}
	if src.Has("name") && req.Name != in.Name {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{
			Location: "name", Line: src.Line("name"), Value: req.Name, Message: fmt.Sprintf("is not %q; a project can't be renamed", in.Name),
		})
	}
	if err := complete(src, "description", "quota", "shares"); err != nil {
		return nil, err
	}
	// What is in use is not changed by this, but a body that no project could have been read as is a mistake.
	if problems := quotaProblems("used", req.Used, src); len(problems) > 0 {
		return nil, failFields(codeInvalidRequest, problems...)
	}
	return s.changeProject(ctx, in.Name, func(p *api.Project) (*manifest.Source, error) {
		p.Description, p.Quota, p.Shares = req.Description, req.Quota, req.Shares
		return src, nil
	})
}

// patchProject changes those settings of a project that the body names.
func (s *Server) patchProject(ctx context.Context, in *namedBody) (*body[api.ProjectStatus], error) {
	return s.changeProject(ctx, in.Name, func(p *api.Project) (*manifest.Source, error) {
		settings := api.ProjectSettings{Description: p.Description, Quota: p.Quota, Shares: p.Shares}
		src, err := readPatch(in.body(), &settings)
		p.Description, p.Quota, p.Shares = settings.Description, settings.Quota, settings.Shares
		return src, err
	})
}

// complete refuses a PUT that omits fields: it would silently reset them.
func complete(src *manifest.Source, fields ...string) error {
	var problems []api.FieldProblem
	for _, field := range fields {
		if !src.Has(field) {
			problems = append(problems, api.FieldProblem{
				Location: field, Message: "is missing; PUT replaces everything, so give it, or send PATCH with only the fields to change",
			})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return failFields(codeInvalidRequest, problems...)
}

// changeProject stores a change of a project's settings. The change may be called again when another one came in between.
func (s *Server) changeProject(ctx context.Context, name string, change func(*api.Project) (*manifest.Source, error)) (*body[api.ProjectStatus], error) {
	p, revision, err := s.cfg.Writer.UpdateProject(ctx, name, func(p *api.Project) error {
		src, err := change(p)
		if err != nil {
			return err
		}
		if err := checkProject(p, src); err != nil {
			return err
		}
		view := s.cfg.Reader.View()
		problems := belowUse(p.Quota, s.used(view)[name], src)
		if used := usedBy(view, name, nil).Addresses; p.Quota.Addresses > 0 && p.Quota.Addresses < used {
			problems = append(problems, api.FieldProblem{
				Location: "quota.addresses", Line: src.Line("quota.addresses"), Value: strconv.Itoa(p.Quota.Addresses),
				Message: fmt.Sprintf("%d is less than the %d in use; release an address first, or give at least that", p.Quota.Addresses, used),
			})
		}
		if len(problems) > 0 {
			return failFields(codeQuotaInUse, problems...)
		}
		return nil
	})
	if errors.Is(err, state.ErrNotFound) {
		return nil, noProject(name)
	}
	if err != nil {
		return nil, err
	}
	view, _ := s.readOwnWrite(ctx, revision)
	status, err := s.projectStatus(ctx, view, &p)
	if err != nil {
		return nil, err
	}
	return &body[api.ProjectStatus]{status}, nil
}

// belowUse lists every bound of a quota that is below what is in use, with both numbers.
func belowUse(quota api.Quota, used resource.Amounts, src *manifest.Source) []api.FieldProblem {
	var problems []api.FieldProblem
	limit := resource.Limit(resource.OfQuota(quota))
	for _, u := range limit.Exceeded(resource.Amounts{}, used) {
		path, asked := "quota."+u.String(), u.Number(resource.Amounts(limit).Of(u))
		if u.IsDevice() {
			path = "quota.devices." + u.String()
		}
		problems = append(problems, api.FieldProblem{
			Location: path, Line: src.Line(path), Value: asked,
			Message: fmt.Sprintf("%s is less than the %s in use; free something first, or give at least that", asked, u.Number(used.Of(u))),
		})
	}
	return problems
}

func (s *Server) deleteProject(ctx context.Context, in *byName) (*struct{}, error) {
	revision, err := s.cfg.Writer.DeleteProject(ctx, in.Name)
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, noProject(in.Name)
	case errors.Is(err, state.ErrInUse):
		return nil, fail(codeProjectInUse, "%v", err)
	case err != nil:
		return nil, err
	}
	s.readOwnWrite(ctx, revision)
	return nil, nil
}
