package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// Bounds of maintenance windows.
const (
	maxWindows     = 32
	maxWindow      = 90 * 24 * time.Hour
	maxWindowAhead = 2 * 365 * 24 * time.Hour
	windowLetters  = 6
)

// registerMaintenance mounts what is asked of maintenance windows.
func (s *Server) registerMaintenance() {
	operation(s, "POST /v1/nodes/{name}/maintenance", AccessAdmin, "announce-maintenance", "Announce a maintenance window of a node",
		"No member is placed on the node whose time limit reaches into the window, and none without a limit. At its beginning the node is drained, at its end undrained, "+
			"unless it was drained before. Members that are still there stay.",
		http.StatusOK, s.announceMaintenance, bodyCodes(codeInvalidRequest, codeNoNode)...)
	operation(s, "DELETE /v1/nodes/{name}/maintenance/{id}", AccessAdmin, "cancel-maintenance", "Cancel a maintenance window of a node",
		"A node that is drained for the window is undrained.", http.StatusOK, s.cancelMaintenance, codeNoNode, codeNoWindow)
}

func (s *Server) announceMaintenance(ctx context.Context, in *namedBody) (*body[api.Node], error) {
	req, src, err := readBody[api.MaintenanceRequest](in.body())
	if err != nil {
		return nil, err
	}
	now := s.cfg.Now().UTC()
	wrong := func(field, format string, args ...any) error {
		return failFields(codeInvalidRequest, api.FieldProblem{Location: field, Line: src.Line(field), Message: fmt.Sprintf(format, args...)})
	}
	to := req.From.Add(req.For.Std())
	switch {
	case req.From.IsZero():
		return nil, wrong("from", "is missing; give the time at which the maintenance begins")
	case req.From.After(now.Add(maxWindowAhead)):
		return nil, wrong("from", "is more than two years ahead")
	case req.For <= 0 || req.For.Std() > maxWindow:
		return nil, wrong("for", "is %s; give how long it lasts, at most %s", req.For, api.Duration(maxWindow))
	case !to.After(now):
		return nil, wrong("from", "and for give a window that ended at %s", to.UTC().Format(time.RFC3339))
	case req.Reason == "" || len(req.Reason) > maxReason:
		return nil, wrong("reason", "has %d bytes; say in 1 to %d bytes what is done", len(req.Reason), maxReason)
	}
	window := api.MaintenanceWindow{ID: newID(windowLetters), From: req.From.UTC(), To: to.UTC(), Reason: req.Reason, By: userOf(ctx)}
	_, revision, err := s.cfg.Writer.ChangeControl(ctx, in.Name, func(c api.NodeControl) (*api.NodeControl, error) {
		if len(c.Windows) >= maxWindows {
			return nil, wrong("from", "would be window %d of node %q; cancel one that is not needed", len(c.Windows)+1, in.Name)
		}
		c.Windows = append(slices.Clone(c.Windows), window)
		lifecycle.SortWindows(c.Windows)
		return &c, nil
	})
	return s.nodeAfter(ctx, in.Name, revision, err)
}

// windowInput names a window of a node.
type windowInput struct {
	Name string `path:"name" doc:"Name of the node"`
	ID   string `path:"id" doc:"ID of the window"`
}

func (s *Server) cancelMaintenance(ctx context.Context, in *windowInput) (*body[api.Node], error) {
	_, revision, err := s.cfg.Writer.ChangeControl(ctx, in.Name, func(c api.NodeControl) (*api.NodeControl, error) {
		next := lifecycle.CancelWindow(c, in.ID)
		if next == nil {
			return nil, fail(codeNoWindow, "node %q has no maintenance window %q; 'nearmetal node maintenance list' lists them", in.Name, in.ID)
		}
		return next, nil
	})
	return s.nodeAfter(ctx, in.Name, revision, err)
}
