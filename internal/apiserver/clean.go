package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// maxReasonBytes bounds the reason of a quarantine.
const maxReasonBytes = 500

// registerCleaning mounts what is asked of machines that a tenant had.
func (s *Server) registerCleaning() {
	operation(s, "POST /v1/clean", AccessAdmin, "clean-nodes", "Clean machines of what a tenant left",
		"Each machine is powered off, boots the environment `inspect`, erases its disks, its firmware's variables and its TPM, reads them back, reports, "+
			"and is powered off. With `dry_run` it only reports what it would do. Refused while members run on one of the machines, and when no node is named. "+
			"A machine whose cleaning fails is quarantined.",
		http.StatusOK, s.cleanNodes, bodyCodes(codeInvalidRequest, codeNoNode, codeNotMachine, codeNodeInUse, codePowerConflict, codeEmptySelection, codeUnknownEnvironment)...)
	operation(s, "POST /v1/nodes/{name}/hold", AccessAdmin, "hold-node", "Quarantine or release a machine",
		"A machine in quarantine boots no environment, so nobody gets it. A quarantine needs a reason, and is refused while members run on the machine. "+
			"A release ends any quarantine, also that of a failed cleaning, whose disks may still hold what a tenant left.",
		http.StatusOK, s.holdNode, bodyCodes(codeInvalidRequest, codeNoNode, codeNotMachine, codeNodeInUse, codePowerConflict, codeNotQuarantined)...)
}

// cleanNodes asks for machines to be cleaned: all are checked before the first one is asked for.
func (s *Server) cleanNodes(ctx context.Context, in *rawBody) (*body[api.List[api.Node]], error) {
	req, _, err := readBody[api.NodesCleanRequest](*in)
	if err != nil {
		return nil, err
	}
	names := slices.Clone(req.Nodes)
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return nil, fail(codeEmptySelection, "the request names no node; name the nodes to clean")
	}
	view := s.cfg.Reader.View()
	machines := make([]*state.Machine, len(names))
	for i, name := range names {
		if machines[i], err = s.findMachine(view, name); err != nil {
			return nil, err
		}
		if err := s.mayClean(view, machines[i]); err != nil {
			return nil, err
		}
	}
	var revision int64
	for _, m := range machines {
		_, revision, err = s.cfg.Writer.UpdateMachineIntent(ctx, m.Name(), m.UID(), func(intent *api.MachineIntent) error {
			switch {
			case intent.RemoveRequestedAt != nil:
				return removing(intent.Name)
			case intent.Clean.Number > doneClean(m):
				return s.cleanConflict(intent)
			}
			intent.Clean = api.CleanRequest{Number: intent.Clean.Number + 1, DryRun: req.DryRun, At: s.cfg.Now().UTC(), By: userOf(ctx)}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	view, _ = s.readOwnWrite(ctx, revision)
	list := api.List[api.Node]{Items: []api.Node{}}
	for _, n := range s.joinNodes(ctx, view) {
		if slices.Contains(names, n.Name) {
			list.Items = append(list.Items, n)
		}
	}
	return &body[api.List[api.Node]]{list}, nil
}

// mayClean refuses what can't be cleaned now.
func (s *Server) mayClean(view *state.View, m *state.Machine) error {
	if m.Intent.RemoveRequestedAt != nil {
		return removing(m.Name())
	}
	if first := m.PowerPending(); first != nil {
		return s.powerConflict(m.Name(), first)
	}
	if m.Intent.Clean.Number > doneClean(m) {
		return s.cleanConflict(&m.Intent)
	}
	if view.ImageOf(lifecycle.CleanEnvironment) == nil {
		return fail(codeUnknownEnvironment, "machines are cleaned by the environment %q, which is not built here; build it first: nearmetal env build %[1]s",
			lifecycle.CleanEnvironment)
	}
	return s.idle(view, m, false, "clean it")
}

func (s *Server) cleanConflict(in *api.MachineIntent) *failure {
	what := "a cleaning"
	if in.Clean.DryRun {
		what = "a dry run of a cleaning"
	}
	ago := max(s.cfg.Now().Sub(in.Clean.At), 0).Seconds()
	return fail(codePowerConflict, "node %q: %s requested %s %.1f s ago, and that request goes first; see what it does: nearmetal node show %s",
		in.Name, in.Clean.By, what, ago, in.Name)
}

func doneClean(m *state.Machine) int64 {
	if m.Record == nil {
		return 0
	}
	return m.Record.DoneClean
}

// holdNode quarantines or releases a machine.
func (s *Server) holdNode(ctx context.Context, in *namedBody) (*body[api.Node], error) {
	req, src, err := readBody[api.NodeHoldRequest](in.body())
	if err != nil {
		return nil, err
	}
	view := s.cfg.Reader.View()
	m, err := s.findMachine(view, in.Name)
	if err != nil {
		return nil, err
	}
	switch {
	case req.Action == api.HoldQuarantine && req.Reason == "":
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "reason", Line: src.Line("reason"), Message: "is missing; say why nobody may get the machine"})
	case len(req.Reason) > maxReasonBytes:
		return nil, failFields(codeInvalidRequest, api.FieldProblem{
			Location: "reason", Line: src.Line("reason"), Message: fmt.Sprintf("has %d bytes; at most %d are possible", len(req.Reason), maxReasonBytes),
		})
	case req.Action == api.HoldQuarantine:
		if err := s.idle(view, m, false, "quarantine it"); err != nil {
			return nil, err
		}
	case req.Action != api.HoldRelease:
		return nil, failFields(codeInvalidRequest, api.FieldProblem{
			Location: "action", Line: src.Line("action"), Value: string(req.Action), Message: "is not an action; use quarantine or release",
		})
	case m.Record == nil || m.Record.Quarantine == nil && m.Intent.Hold.Number <= m.Record.DoneHold:
		return nil, fail(codeNotQuarantined, "node %q is not in quarantine", in.Name)
	}
	_, revision, err := s.cfg.Writer.UpdateMachineIntent(ctx, m.Name(), m.UID(), func(intent *api.MachineIntent) error {
		if intent.RemoveRequestedAt != nil {
			return removing(in.Name)
		}
		intent.Hold = api.HoldRequest{Number: intent.Hold.Number + 1, Action: req.Action, Reason: req.Reason, At: s.cfg.Now().UTC(), By: userOf(ctx)}
		return nil
	})
	return s.nodeAfter(ctx, in.Name, revision, err)
}

// outOfQuarantine refuses to boot a machine that nobody may get.
func outOfQuarantine(m *state.Machine) error {
	if m.Record == nil || m.Record.Quarantine == nil {
		return nil
	}
	q := m.Record.Quarantine
	by := ""
	if q.By != "" {
		by = " by " + q.By
	}
	return fail(codeQuarantined, "node %q is in quarantine%s: %s; clean it (nearmetal node clean %[1]s), or release it (nearmetal node release %[1]s)",
		m.Name(), by, q.Reason)
}
