package state

import (
	"fmt"
	"net"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Machine is everything stored about a machine, as of one revision. It is immutable and shared.
type Machine struct {
	Intent api.MachineIntent
	// Record is nil before the first decision.
	Record *api.MachineRecord
	// Hardware is nil as long as nobody has looked. A machine that was a candidate has it before its first decision.
	Hardware *api.Hardware
	// LogMark is how far the event log of its BMC was read.
	LogMark api.BMCLogMark
	// Revision is that of the newest commit that touched any of these.
	Revision int64

	intentRevision, recordRevision, logRevision int64
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

// NormalMAC returns the spelling of a MAC address in stored state: six pairs of lower-case digits with colons (IEEE 802). It accepts the
// spellings that people use: colons, hyphens, dots, capitals.
func NormalMAC(text string) (string, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return "", fmt.Errorf("%q is not a MAC address; write it like 52:54:00:12:34:56", text)
	}
	return mac.String(), nil
}

// macKey is a MAC as part of a key.
func macKey(mac string) string { return strings.ReplaceAll(mac, ":", "-") }

// MachineByUID returns the machine of that UID, or nil.
func (v *View) MachineByUID(uid string) *Machine {
	return machineOf(first(nodes.by(v, machineByUID, uid)))
}

// MachineByMAC returns the machine that has a provisioning NIC with that MAC, or nil.
func (v *View) MachineByMAC(mac string) *Machine {
	return machineOf(first(nodes.by(v, machineByMAC, mac)))
}

// MachineByBMC returns the machine whose power is controlled there, or nil; Wake-on-LAN and people have no place.
func (v *View) MachineByBMC(control api.PowerControl) *Machine {
	return machineOf(first(nodes.by(v, machineByBMC, bmcPlace(control))))
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
func (v *View) Candidate(mac string) *api.Candidate { return candidates.find(v, mac) }

// EnrollToken returns the enrollment token of that ID, or nil.
func (v *View) EnrollToken(id string) *api.EnrollmentToken { return enrollTokens.find(v, id) }

// Build returns the build of that ID, or nil.
func (v *View) Build(id string) *api.Build { return builds.find(v, id) }

// Image returns the image of that digest, or nil.
func (v *View) Image(digest string) *api.Image { return images.find(v, digest) }

// Environment returns what the name of a built environment stands for, or nil.
func (v *View) Environment(name string) *api.EnvironmentRecord { return environments.find(v, name) }

// ImageOf returns the image that an environment's name stands for now, or nil.
func (v *View) ImageOf(environment string) *api.Image {
	record := v.Environment(environment)
	if record == nil {
		return nil
	}
	return v.Image(record.Digest)
}
