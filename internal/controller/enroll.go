package controller

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"net/url"

	"github.com/google/uuid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// enroll takes in a stranger by its enrolment token; problem says in words why the token is of no use.
func (p *pass) enroll(ctx context.Context, s bootapi.Stranger) (problem string, err error) {
	token, err := trust.ParseSecret(s.Token)
	if err != nil {
		return "its enrollment token is malformed", nil //nolint:nilerr // told to operators
	}
	known := p.view.EnrollToken(token.ID())
	if known == nil || !token.Is(hex.EncodeToString(known.Hash)) {
		return "its enrollment token is unknown", nil
	}
	if !p.now.Before(known.ExpiresAt) {
		return "its enrollment token has expired", nil
	}
	uid := uuid.NewString()
	intent := api.MachineIntent{
		UID: uid, Spec: api.MachineSpec{MACs: []string{s.MAC}, Power: known.Power}, Inspect: 1, CreatedAt: p.now, By: "enrollment token " + known.ID,
	}
	if len(known.Sealed) > 0 {
		password, err := p.cfg.Provisioning.Unseal(known.ID, known.Sealed)
		if err != nil {
			return "", err
		}
		if intent.Sealed, err = p.cfg.Provisioning.Seal(uid, password); err != nil {
			return "", err
		}
	}
	if intent.Spec.Power.Kind != api.PowerWakeOnLAN && intent.Spec.Power.Kind != api.PowerManual && intent.Spec.Power.Address == "" {
		if s.Hardware.BMC == nil || s.Hardware.BMC.Address == "" {
			return fmt.Sprintf("its enrollment token requires power control by %s, but its BMC's address could not be read", intent.Spec.Power.Kind), nil
		}
		intent.Spec.Power.Address = s.Hardware.BMC.Address
		if intent.Spec.Power.Kind == api.PowerRedfish { // what the machine tells is an IP address, a service has a URL
			intent.Spec.Power.Address = (&url.URL{Scheme: "https", Host: hostOf(s.Hardware.BMC.Address)}).String()
		}
	}
	if other := p.view.MachineByBMC(intent.Spec.Power); other != nil {
		return fmt.Sprintf("its BMC at %s already belongs to machine %s; power orders for one would reach the other", intent.Spec.Power.Address, other.Name()), nil
	}
	if size := p.cfg.Provisioning.Network.Machines.Size(); p.view.CountMachines() >= size {
		return fmt.Sprintf("all %d addresses of the provisioning range belong to enrolled machines; remove a machine, or restart the server with a larger range", size), nil
	}
	name, revision, err := p.writer.TakeCandidate(ctx, p.view, known.ID, p.now, intent)
	if errors.Is(err, state.ErrTokenSpent) {
		return "its enrollment token is used up", nil
	}
	if err != nil {
		return "", err
	}
	p.committed = max(p.committed, revision)
	return "", p.emit(ctx, []api.Event{{
		Time: p.now, Node: name, Reason: "MachineEnrolled", Message: fmt.Sprintf("machine %s was enrolled by enrollment token %s", name, known.ID),
	}})
}

// hostOf is an address as the host of a URL.
func hostOf(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil && ip.Is6() {
		return "[" + address + "]"
	}
	return address
}
