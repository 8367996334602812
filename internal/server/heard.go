package server

import (
	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// heard is what executors last said: the nodes' agents, and the fabrics of members' ports.
type heard struct {
	*monitor.Monitor
	fabrics situation.Fabrics
	cache   *state.Cache
}

// Member implements apiserver.Live.
func (h heard) Member(a *api.Assignment) (api.MemberPhase, string, bool) {
	phase, message, ok := h.Monitor.Member(a.Node, a.ID)
	phase, message = h.fabrics.Limit(h.cache.View(), a, phase, message)
	return phase, message, ok
}

// OnMachine implements apiserver.Live.
func (h heard) OnMachine(a *api.Assignment) (api.MemberPhase, string, bool) {
	if !a.ByProvisioner() {
		return "", "", false
	}
	m := h.cache.View().Machine(a.Node)
	if m == nil || m.Record == nil {
		return "", "", false
	}
	told, ok := lifecycle.MemberOnMachine(m.Record, a.ID)
	return told.Phase, told.Message, ok
}

// Arriving implements apiserver.Live.
func (h heard) Arriving(a *api.Assignment) (bytes, ofBytes int64) {
	if seen, ok := h.MemberState(a.Node, a.ID); ok && seen.Arriving != nil {
		return seen.Arriving.Bytes, seen.Arriving.OfBytes
	}
	return 0, 0
}

// Boot implements apiserver.Live.
func (h heard) Boot(a *api.Assignment) string {
	seen, _ := h.MemberState(a.Node, a.ID)
	return seen.Boot
}

// Size implements apiserver.Live.
func (h heard) Size(a *api.Assignment) (number int64, unsized string) {
	seen, _ := h.MemberState(a.Node, a.ID)
	return seen.Size, seen.Unsized
}

// Mounted implements apiserver.Live.
func (h heard) Mounted(a *api.Assignment) (number int64, unmounted string) {
	seen, _ := h.MemberState(a.Node, a.ID)
	return seen.Volumes, seen.Unmounted
}

// Condition implements apiserver.Live.
func (h heard) Condition(a *api.Assignment) (number int64, missing string) {
	seen, _ := h.MemberState(a.Node, a.ID)
	return seen.Condition, seen.Unconditioned
}

// Layers implements apiserver.Live.
func (h heard) Layers(a *api.Assignment) int64 {
	seen, _ := h.MemberState(a.Node, a.ID)
	return seen.Layers
}
