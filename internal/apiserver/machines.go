package apiserver

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func notMachine(name string) *failure {
	return fail(codeNotMachine, "node %q joined by itself, so its power and boot can't be controlled. "+
		"Control it by hand, or forget the node and enroll the machine: nearmetal node enroll %s", name, name)
}

// findMachine returns the machine of a node; the error tells whether there is no such node, or its power is not ours.
func (s *Server) findMachine(view *state.View, name string) (*state.Machine, error) {
	if m := view.Machine(name); m != nil {
		return m, nil
	}
	if view.Node(name) != nil {
		return nil, notMachine(name)
	}
	return nil, noNode(name)
}

// enrollNode takes a machine in.
func (s *Server) enrollNode(ctx context.Context, in *rawBody) (*created[api.Node], error) {
	req, src, err := readBody[api.EnrollRequest](*in)
	if err != nil {
		return nil, err
	}
	if req, err = manifest.NormalizeMachine(req, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	if err := s.roomInRange(); err != nil {
		return nil, err
	}
	if err := cmp.Or(s.ownBMC(req, src), s.ownSwitchPorts(req, nil, src)); err != nil {
		return nil, err
	}
	intent := api.MachineIntent{
		Name: req.Name, UID: newID(uidLetters), Spec: req.Spec, CreatedAt: s.cfg.Now().UTC(), By: userOf(ctx),
	}
	if intent.Sealed, err = s.seal(intent.UID, req.Password); err != nil {
		return nil, err
	}
	if req.Inspect {
		intent.Inspect = 1
	}
	revision, err := s.cfg.Writer.CreateMachine(ctx, intent)
	if err != nil {
		return nil, enrollFailure(err, req.Name)
	}
	shown, err := s.nodeAfter(ctx, req.Name, revision, nil)
	if err != nil {
		return nil, err
	}
	return &created[api.Node]{Location: "/v1/nodes/" + req.Name, Body: shown.Body}, nil
}

// ownBMC refuses the BMC of another machine.
func (s *Server) ownBMC(req api.EnrollRequest, src *manifest.Source) error {
	other := s.cfg.Reader.View().MachineByBMC(req.Spec.Power)
	if other == nil || other.Name() == req.Name {
		return nil
	}
	return failFields(codeInvalidRequest, api.FieldProblem{
		Location: "spec.power.address", Line: src.Line("spec.power.address"), Value: req.Spec.Power.Address,
		Message: fmt.Sprintf("is already the BMC of machine %q: power orders for one would reach the other; correct it, or name the system behind it in power.system",
			other.Name()),
	})
}

// updateMachine replaces a machine's power control, console, firmware and labels.
func (s *Server) updateMachine(ctx context.Context, in *namedBody) (*body[api.Node], error) {
	if _, err := s.findMachine(s.cfg.Reader.View(), in.Name); err != nil {
		return nil, err
	}
	req, src, err := readBody[api.EnrollRequest](in.body())
	if err != nil {
		return nil, err
	}
	if req.Name != in.Name {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{
			Location: "name", Line: src.Line("name"), Value: req.Name, Message: fmt.Sprintf("is not %q; a machine can't be renamed", in.Name),
		})
	}
	fields := []string{"spec.power", "spec.console", "spec.firmware", "spec.labels"}
	if req.Spec.Power.Kind == api.PowerRedfish {
		fields = append(fields, "spec.power.system", "spec.power.certificate_sha256")
	}
	if err := complete(src, fields...); err != nil {
		return nil, err
	}
	return s.changeMachine(ctx, in.Name, func(p *api.MachinePatch) (*manifest.Source, error) {
		p.Spec, p.Password = req.Spec, req.Password
		return src, nil
	})
}

// patchMachine changes those of a machine's settings that the body names.
func (s *Server) patchMachine(ctx context.Context, in *namedBody) (*body[api.Node], error) {
	return s.changeMachine(ctx, in.Name, func(p *api.MachinePatch) (*manifest.Source, error) { return readPatch(in.body(), p) })
}

// changeMachine stores a change of a machine's settings. The change may be called again when another one came in between.
func (s *Server) changeMachine(ctx context.Context, name string, change func(*api.MachinePatch) (*manifest.Source, error)) (*body[api.Node], error) {
	m, err := s.findMachine(s.cfg.Reader.View(), name)
	if err != nil {
		return nil, err
	}
	_, revision, err := s.cfg.Writer.UpdateMachineIntent(ctx, m.Name(), m.UID(), func(intent *api.MachineIntent) error {
		patch := api.MachinePatch{Spec: intent.Spec}
		src, err := change(&patch)
		if err != nil {
			return err
		}
		req, err := manifest.NormalizeMachine(api.EnrollRequest{Name: name, Spec: patch.Spec, Password: patch.Password}, src)
		if err != nil {
			return failInvalid(err, codeInvalidRequest)
		}
		if !slices.Equal(req.Spec.MACs, intent.Spec.MACs) {
			return failFields(codeInvalidRequest, api.FieldProblem{
				Location: "spec.macs", Line: src.Line("spec.macs"), Value: strings.Join(req.Spec.MACs, ","),
				Message: "can't be changed: they identify the machine; remove it and enroll it again",
			})
		}
		if err := cmp.Or(s.ownBMC(req, src), s.ownSwitchPorts(req, intent.Spec.SwitchPorts, src)); err != nil {
			return err
		}
		sealed, err := s.seal(m.UID(), req.Password)
		if err != nil {
			return err
		}
		if sealed != nil || src.Resets("password") {
			intent.Sealed = sealed
		}
		intent.Spec = req.Spec
		return nil
	})
	if errors.Is(err, state.ErrNotFound) {
		return nil, noNode(m.Name())
	}
	return s.nodeAfter(ctx, m.Name(), revision, err)
}

// enrollFailure tells what is taken.
func enrollFailure(err error, name string) error {
	var duplicate *state.DuplicateMACError
	switch {
	case errors.As(err, &duplicate):
		return fail(codeDuplicateMAC, "MAC %s already belongs to machine %q; correct it, or remove that machine first: nearmetal node remove %s",
			duplicate.MAC, duplicate.Machine, duplicate.Machine)
	case errors.Is(err, state.ErrExists):
		return fail(codeMachineExists, "node %q already exists; choose another name, or remove the node first: nearmetal node remove %s", name, name)
	}
	return err
}

// roomInRange refuses one machine more than the provisioning range has addresses for.
func (s *Server) roomInRange() error {
	if s.cfg.Provisioning == nil {
		return fail(codeNoProvisioning, "this server has no provisioning network, so no machine can boot from it; "+
			"start it with --provision INTERFACE, see 'nearmetal server --help'")
	}
	machines, capacity := s.cfg.Reader.View().CountMachines(), s.cfg.Provisioning.Capacity()
	if machines >= capacity {
		return fail(codeRangeFull, "the provisioning range %s has %d addresses, and %d machines are enrolled; "+
			"start the server with a larger range, or remove machines that are gone: nearmetal node remove NAME",
			s.cfg.Provisioning.Range(), capacity, machines)
	}
	return nil
}

// seal encrypts a BMC's password; there may be none.
func (s *Server) seal(id, password string) ([]byte, error) {
	if password == "" {
		return nil, nil
	}
	if s.cfg.Sealer == nil {
		return nil, fail(codeUnavailable, "this server can't keep passwords: it was started without the site's secret")
	}
	return s.cfg.Sealer.Seal(id, []byte(password)), nil
}

// forceInput names a node, and whether what runs there is to be lost.
type forceInput struct {
	Name  string `path:"name" doc:"Name of the node"`
	Force bool   `query:"force" doc:"Proceed even if members run on it"`
}

func (s *Server) inspectNode(ctx context.Context, in *forceInput) (*body[api.Node], error) {
	view := s.cfg.Reader.View()
	m, err := s.findMachine(view, in.Name)
	if err != nil {
		return nil, err
	}
	if err := s.idle(view, m, in.Force, "inspect it"); err != nil {
		return nil, err
	}
	_, revision, err := s.cfg.Writer.UpdateMachineIntent(ctx, m.Name(), m.UID(), func(intent *api.MachineIntent) error {
		if intent.RemoveRequestedAt != nil {
			return removing(in.Name)
		}
		if done := doneInspect(m); intent.Inspect <= done { // one that is asked for already is as good
			intent.Inspect = done + 1
		}
		return nil
	})
	return s.nodeAfter(ctx, in.Name, revision, err)
}

func doneInspect(m *state.Machine) int64 {
	if m.Record == nil {
		return 0
	}
	return m.Record.DoneInspect
}

func removing(name string) *failure {
	return fail(codePowerConflict, "machine %q is being removed; wait until it is gone, then enroll it again", name)
}

// removeMachine marks a machine as to be forgotten; the leader powers it off first.
func (s *Server) removeMachine(ctx context.Context, view *state.View, m *state.Machine, force bool) error {
	if err := s.idle(view, m, force, "remove it"); err != nil {
		return err
	}
	_, revision, err := s.cfg.Writer.RequestMachineRemoval(ctx, m.Name(), force, s.cfg.Now().UTC())
	if errors.Is(err, state.ErrNotFound) {
		return noNode(m.Name())
	}
	if err != nil {
		return err
	}
	s.readOwnWrite(ctx, revision)
	return nil
}

func (s *Server) listCandidates(context.Context, *struct{}) (*body[api.List[api.Candidate]], error) {
	list := api.List[api.Candidate]{Items: []api.Candidate{}}
	for _, c := range s.cfg.Reader.View().Candidates {
		shown := *c
		shown.Hardware = shownHardware(c.Hardware)
		list.Items = append(list.Items, shown)
	}
	return &body[api.List[api.Candidate]]{list}, nil
}

// shownHardware is what inspection found, without the secret that a machine may carry.
func shownHardware(hw *api.Hardware) *api.Hardware {
	if hw == nil {
		return nil
	}
	shown := *hw
	shown.EnrollmentToken = ""
	return &shown
}

func (s *Server) listEnrollTokens(context.Context, *struct{}) (*body[api.List[api.EnrollmentToken]], error) {
	list := api.List[api.EnrollmentToken]{Items: []api.EnrollmentToken{}}
	for _, t := range s.cfg.Reader.View().EnrollTokens {
		list.Items = append(list.Items, shownEnrollToken(*t))
	}
	return &body[api.List[api.EnrollmentToken]]{list}, nil
}

func shownEnrollToken(t api.EnrollmentToken) api.EnrollmentToken {
	t.Hash, t.Sealed, t.Secret = nil, nil, ""
	return t
}

func (s *Server) createEnrollToken(ctx context.Context, in *rawBody) (*created[api.EnrollmentToken], error) {
	req, src, err := readBody[api.EnrollTokenRequest](*in)
	if err != nil {
		return nil, err
	}
	if req, err = manifest.NormalizeEnrollToken(req, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	secret := trust.NewToken(s.cfg.Pin)
	hash, err := hex.DecodeString(secret.SHA256())
	if err != nil {
		return nil, err
	}
	now := s.cfg.Now().UTC()
	token := api.EnrollmentToken{
		ID: secret.ID(), Hash: hash, Prefix: req.Prefix, Uses: req.Uses, Approve: req.Approve, Power: req.Power,
		CreatedAt: now, ExpiresAt: now.Add(req.ValidFor.Std()), By: userOf(ctx),
	}
	if token.Sealed, err = s.seal(token.ID, req.Password); err != nil {
		return nil, err
	}
	revision, err := s.cfg.Writer.CreateEnrollToken(ctx, token)
	if err != nil {
		return nil, err
	}
	// The secret is told when it is good here.
	s.readOwnWrite(ctx, revision)
	shown := shownEnrollToken(token)
	shown.Secret = secret.Line()
	return &created[api.EnrollmentToken]{Location: "/v1/enroll-tokens/" + token.ID, Body: shown}, nil
}

func (s *Server) deleteEnrollToken(ctx context.Context, in *byID) (*struct{}, error) {
	revision, err := s.cfg.Writer.DeleteEnrollToken(ctx, in.ID)
	if errors.Is(err, state.ErrNotFound) {
		return nil, fail(codeNoEnrollToken, "enrollment token %q does not exist; 'nearmetal node enroll-token list' lists the tokens", in.ID)
	}
	if err != nil {
		return nil, err
	}
	s.readOwnWrite(ctx, revision)
	return nil, nil
}
