package state

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// Machine is everything stored about a machine, as of one revision. It is immutable and shared.
type Machine struct {
	Intent api.MachineIntent
	// Record is nil before the first decision.
	Record *api.MachineRecord
	// Hardware is nil as long as nobody has looked. A machine that was a candidate has it before its first decision.
	Hardware *api.Hardware
	// Revision is that of the newest commit that touched any of the three.
	Revision int64

	intentRevision, recordRevision int64
}

// Name is the machine's name, which is its node's.
func (m *Machine) Name() string { return m.Intent.Name }

// UID is the machine's unique ID, which outlives no removal.
func (m *Machine) UID() string { return m.Intent.UID }

// PowerPending is the newest power request while it has not been taken up, nil when there is none.
func (m *Machine) PowerPending() *api.PowerRequest {
	if m.Intent.Request.Number == 0 || m.Record != nil && m.Record.DoneRequest >= m.Intent.Request.Number {
		return nil
	}
	return &m.Intent.Request
}

// BuildRunID names the output of an attempt at a build.
func BuildRunID(b *api.Build) string { return b.RunID() }

// NormalMAC is the one spelling of a MAC address in stored state: six pairs of lower-case digits with colons (IEEE 802). It takes what
// people write: colons, hyphens, dots, capitals.
func NormalMAC(text string) (string, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return "", fmt.Errorf("%q is not a MAC address; write it like 52:54:00:12:34:56", text)
	}
	return mac.String(), nil
}

// macKey is a MAC as part of a key.
func macKey(mac string) string { return strings.ReplaceAll(mac, ":", "-") }

// Machine returns the machine of that name, or nil.
func (v *View) Machine(name string) *Machine { return find(v.Machines, name, (*Machine).Name) }

// MachineByUID returns the machine of that UID, or nil.
func (v *View) MachineByUID(uid string) *Machine {
	return first(v.Machines, func(m *Machine) bool { return m.UID() == uid })
}

// MachineByMAC returns the machine that has a provisioning NIC with that MAC, or nil.
func (v *View) MachineByMAC(mac string) *Machine {
	return first(v.Machines, func(m *Machine) bool { return slices.Contains(m.Intent.Spec.MACs, mac) })
}

// MachineByBMC returns the machine whose power is controlled there, or nil; Wake-on-LAN and people have no place.
func (v *View) MachineByBMC(control api.PowerControl) *Machine {
	place := bmcPlace(control)
	if place == "" {
		return nil
	}
	return first(v.Machines, func(m *Machine) bool { return bmcPlace(m.Intent.Spec.Power) == place })
}

// bmcPlace is one spelling of where a machine's power is controlled.
func bmcPlace(c api.PowerControl) string {
	address := strings.ToLower(strings.TrimSuffix(c.Address, "/"))
	if address == "" {
		return ""
	}
	if _, _, err := net.SplitHostPort(address); err != nil && c.Kind == api.PowerIPMI {
		address = net.JoinHostPort(strings.Trim(address, "[]"), "623")
	}
	return string(c.Kind) + " " + address + " " + strings.ToLower(c.System)
}

// Candidate returns the candidate with that MAC, or nil.
func (v *View) Candidate(mac string) *api.Candidate {
	return find(v.Candidates, mac, func(c *api.Candidate) string { return c.MAC })
}

// EnrollToken returns the enrolment token of that ID, or nil.
func (v *View) EnrollToken(id string) *api.EnrollmentToken {
	return find(v.EnrollTokens, id, func(t *api.EnrollmentToken) string { return t.ID })
}

// Build returns the build of that ID, or nil.
func (v *View) Build(id string) *api.Build {
	return find(v.Builds, id, func(b *api.Build) string { return b.ID })
}

// Image returns the image of that digest, or nil.
func (v *View) Image(digest string) *api.Image {
	return find(v.Images, digest, func(i *api.Image) string { return i.Digest })
}

// Environment returns what the name of a built environment stands for, or nil.
func (v *View) Environment(name string) *api.EnvironmentRecord {
	return find(v.Environments, name, func(e *api.EnvironmentRecord) string { return e.Name })
}

// ImageOf returns the image that an environment's name stands for now, or nil.
func (v *View) ImageOf(environment string) *api.Image {
	record := v.Environment(environment)
	if record == nil {
		return nil
	}
	return v.Image(record.Digest)
}

// first returns the first that fits, or nil.
func first[T any](all []*T, fits func(*T) bool) *T {
	if i := slices.IndexFunc(all, fits); i >= 0 {
		return all[i]
	}
	return nil
}

// machineTables are the decoded contents of what is stored about machines and what they boot.
type machineTables struct {
	machines     sorted[Machine]
	candidates   sorted[api.Candidate]
	leases       sorted[api.Lease]
	enrollTokens sorted[api.EnrollmentToken]
	builds       sorted[api.Build]
	images       sorted[api.Image]
	environments sorted[api.EnvironmentRecord]
}

// put takes in a key as written. The keys that only keep names apart (MACs, places in the range) are nothing to show.
func (t *machineTables) put(kind, rest string, e store.Entry) error {
	switch kind {
	case prefixMachine:
		var in api.MachineIntent
		return t.change(rest, e, &in, func(m *Machine) { m.Intent, m.intentRevision = in, e.Revision })
	case prefixMachineRecord:
		rec := &api.MachineRecord{}
		return t.change(rest, e, rec, func(m *Machine) { m.Record, m.recordRevision = rec, e.Revision })
	case prefixHardware:
		hardware := &api.Hardware{}
		return t.change(rest, e, hardware, func(m *Machine) { m.Hardware = hardware })
	case prefixCandidate:
		return set(&t.candidates, rest, e)
	case prefixLease:
		return set(&t.leases, rest, e)
	case prefixEnrollToken:
		return set(&t.enrollTokens, rest, e)
	case prefixBuild:
		return set(&t.builds, rest, e)
	case prefixImage:
		return set(&t.images, rest, e)
	case prefixEnvironment:
		return set(&t.environments, rest, e)
	}
	return nil
}

// change replaces a machine by a copy with one part of it read anew.
func (t *machineTables) change(name string, e store.Entry, part any, take func(*Machine)) error {
	if err := decode(e, part); err != nil {
		return err
	}
	next := &Machine{}
	if old := t.machines.get(name); old != nil {
		*next = *old
	}
	take(next)
	next.Revision = e.Revision
	t.machines.set(name, next)
	return nil
}

// remove takes in a deleted key. A machine's keys go in one commit (Leader.ForgetMachine).
func (t *machineTables) remove(kind, rest string) {
	switch kind {
	case prefixMachine:
		t.machines.remove(rest)
	case prefixCandidate:
		t.candidates.remove(rest)
	case prefixLease:
		t.leases.remove(rest)
	case prefixEnrollToken:
		t.enrollTokens.remove(rest)
	case prefixBuild:
		t.builds.remove(rest)
	case prefixImage:
		t.images.remove(rest)
	case prefixEnvironment:
		t.environments.remove(rest)
	}
}
