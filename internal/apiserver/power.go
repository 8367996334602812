package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

func (s *Server) powerNode(ctx context.Context, in *namedBody) (*body[api.Node], error) {
	req, src, err := readBody[api.NodePowerRequest](in.body())
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckPower(req, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	revision, err := s.requestPower(ctx, []string{in.Name}, req)
	return s.nodeAfter(ctx, in.Name, revision, err)
}

func (s *Server) powerNodes(ctx context.Context, in *rawBody) (*body[api.List[api.Node]], error) {
	req, src, err := readBody[api.NodesPowerRequest](*in)
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckPower(req.NodePowerRequest, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	if err := manifest.CheckSelector(req.Selector, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	names, err := selected(s.cfg.Reader.View(), req)
	if err != nil {
		return nil, err
	}
	revision, err := s.requestPower(ctx, names, req.NodePowerRequest)
	if err != nil {
		return nil, err
	}
	view, _ := s.readOwnWrite(ctx, revision)
	list := api.List[api.Node]{Items: []api.Node{}}
	for _, n := range s.joinNodes(ctx, view) {
		if slices.Contains(names, n.Name) {
			list.Items = append(list.Items, n)
		}
	}
	return &body[api.List[api.Node]]{list}, nil
}

// selected are the names of the machines that a request means: an empty selection is never all of them.
func selected(view *state.View, req api.NodesPowerRequest) ([]string, error) {
	switch {
	case len(req.Nodes) > 0 && len(req.Selector) > 0:
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "selector", Message: "is given beside nodes; give only one of them"})
	case len(req.Nodes) > 0:
		names := slices.Clone(req.Nodes)
		slices.Sort(names)
		return slices.Compact(names), nil
	case len(req.Selector) == 0:
		return nil, fail(codeEmptySelection, "the request names no node; name nodes, or give a selector of labels")
	case req.Force:
		return nil, failFields(codeInvalidRequest, api.FieldProblem{
			Location: "force", Value: "true", Message: "is given with a selector; name the nodes that members may be lost on",
		})
	}
	var names []string
	for m := range view.Machines() {
		if carries(m.Intent.Spec.Labels, req.Selector) {
			names = append(names, m.Name())
		}
	}
	if len(names) == 0 {
		return nil, fail(codeEmptySelection, "none of the %d machines has the labels %s; 'nearmetal node list' lists the machines",
			view.CountMachines(), labelsText(req.Selector))
	}
	return names, nil
}

func carries(labels, selector map[string]string) bool {
	for k, v := range selector {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return true
}

func labelsText(labels map[string]string) string {
	var all []string
	for k, v := range labels {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// requestPower checks a request for all machines first, and stores it for all of them then.
func (s *Server) requestPower(ctx context.Context, names []string, req api.NodePowerRequest) (int64, error) {
	view := s.cfg.Reader.View()
	asks := make([]state.PowerAsk, len(names))
	for i, name := range names {
		m, err := s.findMachine(view, name)
		if err != nil {
			return 0, err
		}
		if err := s.mayPower(view, m, req); err != nil {
			return 0, err
		}
		asks[i] = state.PowerAsk{Name: name, UID: m.UID(), After: m.Intent.Request.Number, Request: api.PowerRequest{
			Action: req.Action, Environment: req.Environment, Force: req.Force, At: s.cfg.Now().UTC(), By: userOf(ctx),
		}}
	}
	revision, err := s.cfg.Writer.RequestPower(ctx, asks)
	var conflict *state.PowerConflictError
	switch {
	case errors.As(err, &conflict):
		return 0, s.powerConflict(conflict.Machine, &conflict.Request)
	case errors.Is(err, state.ErrRemoving):
		return 0, fail(codePowerConflict, "%v; wait until it is gone, then enroll it again", err)
	case errors.Is(err, state.ErrNotFound):
		return 0, fail(codeNoNode, "%v; 'nearmetal node list' lists the nodes", err)
	}
	return revision, err
}

// powerConflict tells whose request goes first.
func (s *Server) powerConflict(name string, first *api.PowerRequest) *failure {
	what := string(first.Action)
	if first.Environment != "" {
		what += " with " + first.Environment
	}
	ago := max(s.cfg.Now().Sub(first.At), 0).Seconds()
	return fail(codePowerConflict, "node %q: %s requested power %s %.1f s ago, and that request goes first; see what it does (nearmetal node show %s), "+
		"then repeat the request if still needed", name, first.By, what, ago, name)
}

// mayPower refuses what a machine can't do now, or what would be lost by it.
func (s *Server) mayPower(view *state.View, m *state.Machine, req api.NodePowerRequest) error {
	name := m.Name()
	if m.Intent.RemoveRequestedAt != nil {
		return removing(name)
	}
	if first := m.PowerPending(); first != nil {
		return s.powerConflict(name, first)
	}
	if req.Action != api.PowerActionOff {
		if err := outOfQuarantine(m); err != nil {
			return err
		}
	}
	environment := req.Environment
	if req.Action == api.PowerActionCycle && environment == "" {
		if environment = bootedEnvironment(m); environment == "" {
			return fail(codeNoBoot, "node %q has never booted an environment, so it can't boot the same one again; name an environment with --env", name)
		}
	}
	if req.Action != api.PowerActionOff {
		if err := s.canBoot(view, m, environment); err != nil {
			return err
		}
	}
	if req.Action == api.PowerActionOn && sameBoot(m, environment) {
		return nil
	}
	what := "power it " + string(req.Action)
	if req.Action == api.PowerActionCycle {
		what = "power it off and on again"
	}
	// A machine that is off runs nothing, and what is still to be removed from it is removed once it is on again.
	leaving := req.Action != api.PowerActionOn || m.Record == nil || m.Record.Phase != api.MachineOff
	return s.idle(view, m, req.Force || !leaving && !holds(view, name), what)
}

// holds reports whether a node carries members, besides those that are being removed from it, or a build.
func holds(view *state.View, node string) bool {
	for _, c := range view.ClustersOnNode(node) {
		for a := range c.Held() {
			if a.Node == node {
				return true
			}
		}
	}
	return slices.ContainsFunc(view.Builds, func(b *api.Build) bool { return b.Node == node && b.Phase == api.BuildRunning })
}

// bootedEnvironment is what a machine booted last because an operator asked for it, "" for nothing.
func bootedEnvironment(m *state.Machine) string {
	if m.Record == nil || m.Record.Boot == nil || m.Record.Boot.Purpose != api.BootEnvironment {
		return ""
	}
	return m.Record.Boot.Environment
}

// sameBoot tells whether a machine runs, or is on the way to run, this environment already: to ask for that again disturbs nobody.
func sameBoot(m *state.Machine, environment string) bool {
	return bootedEnvironment(m) == environment && (m.Record.Phase == api.MachineReady || m.Record.Phase == api.MachineBooting)
}

// canBoot refuses environments that are not there, or that the machine can't run as far as its hardware is known.
func (s *Server) canBoot(view *state.View, m *state.Machine, environment string) error {
	img := view.ImageOf(environment)
	if img == nil {
		var names []string
		for _, e := range view.Environments {
			names = append(names, e.Name)
		}
		what := fmt.Sprintf("environment %q was not built here", environment)
		if len(names) == 0 {
			return fail(codeUnknownEnvironment, "%s, nor any other; build one first: nearmetal env build debian-mpi", what)
		}
		return fail(codeUnknownEnvironment, "%s, so no machine can boot it; %s", what, known("environments", environment, names))
	}
	problems := s.metalProblems(img, m.Hardware)
	if img.RootBytes == 0 && len(problems) == 0 {
		problems = []string{"it has no root, so it can't run there; to inspect the machine: nearmetal node inspect " + m.Name()}
	}
	if len(problems) == 0 {
		return nil
	}
	f := fail(codeIncompatible, "node %q can't run environment %q: %s", m.Name(), environment, strings.Join(problems, "; "))
	for _, p := range problems {
		f.Errors = append(f.Errors, api.FieldProblem{Location: "environment", Value: environment, Message: p})
	}
	return f
}

// metalProblems tells why a machine can't boot an image, as far as its hardware is known.
func (s *Server) metalProblems(img *api.Image, hw *api.Hardware) []string {
	if !slices.Contains(img.Stacks, api.StackMetal) {
		return []string{"it has no kernel, so no machine can boot it; add a kernel to its recipe and build it again"}
	}
	if hw == nil || s.cfg.Compatible == nil {
		return nil
	}
	return s.cfg.Compatible(hw, *img)
}

// idle refuses to disturb what runs on a machine, unless force says so.
func (s *Server) idle(view *state.View, m *state.Machine, force bool, what string) error {
	if force {
		return nil
	}
	name := m.Name()
	var members []string
	for _, c := range view.ClustersOnNode(name) {
		for a := range c.All() {
			if a.Node == name {
				members = append(members, c.Name()+"/"+a.Member)
			}
		}
	}
	for _, b := range view.Builds {
		if b.Node == name && b.Phase == api.BuildRunning {
			members = append(members, "build "+b.ID+" of "+b.Environment)
		}
	}
	if len(members) == 0 {
		return nil
	}
	return fail(codeNodeInUse, "node %q is in use by %s; drain it and wait (nearmetal node drain %s --wait), or %s even if they are lost: "+
		"--force, with its name", name, memberNames(members), name, what)
}
