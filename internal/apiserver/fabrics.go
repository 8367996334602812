package apiserver

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// cellInput names a fabric.
type cellInput struct {
	Name string `path:"name" doc:"Name of the fabric (cell)"`
}

func (s *Server) registerFabrics() {
	operation(s, "GET /v1/fabrics", AccessRead, "list-fabrics", "List fabrics",
		"The cells of the site by name: the Ethernet of the nodes' data network, and each fabric that the site has an executor for. Each has its nodes, "+
			"subnet managers, partitions and faulty links. Partitions are those of networks that the token may see.",
		http.StatusOK, s.listFabrics)
	operation(s, "GET /v1/fabrics/{name}", AccessRead, "get-fabric", "Show a fabric", "", http.StatusOK, s.getFabric, codeNoFabric)
	operation(s, "GET /v1/fabrics/{name}/topology", AccessRead, "get-fabric-topology", "Show the switches and links of a fabric",
		"What the last survey found: switches by level, hosts, and links with their rates, errors and loads. Of an Ethernet it is what switches told nodes by LLDP when these were inspected.",
		http.StatusOK, s.getFabricTopology, codeNoFabric)
	operation(s, "GET /v1/fabrics/{name}/events", AccessRead, "list-fabric-events", "List the events of a fabric",
		"When alarms and faults of the fabric began and ended. The kept ones, the oldest first.", http.StatusOK, s.fabricEvents, codeNoFabric)
	operation(s, "GET /v1/fabrics/{name}/audit", AccessAdmin, "audit-fabric", "Compare a fabric with what it is to have",
		"Reads the fabric's own tables now, which changes nothing, and lists each port that is in a network where no member holds it, is missing, or has another membership.",
		http.StatusOK, s.auditFabric, codeNoFabric, codeFabricUnaudited)
}

func (s *Server) noFabric(name string) *failure {
	return fail(codeNoFabric, "fabric %q does not exist; the site has: %s", name, strings.Join(s.cfg.Fabrics.Cells(), ", "))
}

// seesNetwork returns whether a principal may know of a network.
func seesNetwork(p tenancy.Principal) func(*api.Network) bool {
	return func(n *api.Network) bool {
		if n.OfProject() {
			return seesProject(p, n.Project)
		}
		return seesCluster(p, n.Cluster)
	}
}

func (s *Server) listFabrics(ctx context.Context, _ *struct{}) (*body[api.List[api.Fabric]], error) {
	view, sees := s.cfg.Reader.View(), seesNetwork(who(ctx))
	list := api.List[api.Fabric]{Items: []api.Fabric{}}
	for _, cell := range s.cfg.Fabrics.Cells() {
		f, err := s.fabric(ctx, view, cell, sees)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, f)
	}
	return &body[api.List[api.Fabric]]{list}, nil
}

func (s *Server) getFabric(ctx context.Context, in *cellInput) (*body[api.Fabric], error) {
	f, err := s.fabric(ctx, s.cfg.Reader.View(), in.Name, seesNetwork(who(ctx)))
	if errors.Is(err, situation.ErrNoFabric) {
		return nil, s.noFabric(in.Name)
	}
	return &body[api.Fabric]{f}, err
}

// fabric is a cell with its alarms. Only the leader's executor reads for alarms, so those that it stored are added.
func (s *Server) fabric(ctx context.Context, view *state.View, cell string, sees func(*api.Network) bool) (api.Fabric, error) {
	f, err := s.cfg.Fabrics.Cell(view, cell, sees)
	if err != nil {
		return f, err
	}
	open, err := s.openAlarms(ctx, cell)
	if err != nil {
		return f, err
	}
	if keeper := s.cfg.Fabrics[cell]; keeper != nil {
		for _, a := range keeper.Alarms().Present { // in its newest words
			delete(open, a.Key())
		}
	}
	for key, e := range open {
		if !strings.HasPrefix(key, string(site.LinkErrors)) {
			f.Alarms = append(f.Alarms, e.Message)
		}
	}
	slices.Sort(f.Alarms)
	return f, nil
}

// openAlarms are the events of alarms and faults that have begun and not ended.
func (s *Server) openAlarms(ctx context.Context, cell string) (map[string]api.Event, error) {
	log := state.FabricLog(cell)
	if _, last := s.cfg.Reader.EventLog(log); last == 0 {
		return nil, nil
	}
	events, err := s.cfg.Reader.Events(ctx, log, 0, state.EventsKept)
	if err != nil {
		return nil, s.asFailure(ctx, err)
	}
	return situation.OpenAlarms(events), nil
}

// fabricEventsInput is which events of a fabric are asked for.
type fabricEventsInput struct {
	Name  string `path:"name" doc:"Name of the fabric (cell)"`
	After int64  `query:"after" minimum:"0" doc:"Only events with a greater seq"`
	Limit int64  `query:"limit" minimum:"0" doc:"At most this many, the oldest of them; 0: all"`
}

func (s *Server) fabricEvents(ctx context.Context, in *fabricEventsInput) (*body[api.List[api.Event]], error) {
	if !slices.Contains(s.cfg.Fabrics.Cells(), in.Name) {
		return nil, s.noFabric(in.Name)
	}
	limit := int(min(cmp.Or(in.Limit, state.EventsKept), state.EventsKept))
	events, err := s.cfg.Reader.Events(ctx, state.FabricLog(in.Name), in.After, limit)
	if err != nil {
		return nil, s.asFailure(ctx, err)
	}
	if events == nil {
		events = []api.Event{}
	}
	return &body[api.List[api.Event]]{api.List[api.Event]{Items: events}}, nil
}

func (s *Server) getFabricTopology(_ context.Context, in *cellInput) (*body[api.FabricTopology], error) {
	t, err := s.cfg.Fabrics.Topology(s.cfg.Reader.View(), in.Name)
	if errors.Is(err, situation.ErrNoFabric) {
		return nil, s.noFabric(in.Name)
	}
	return &body[api.FabricTopology]{t}, err
}

func (s *Server) auditFabric(ctx context.Context, in *cellInput) (*body[api.FabricAudit], error) {
	audit, err := s.cfg.Fabrics.Audit(ctx, s.cfg.Reader.View(), in.Name, s.cfg.Now().UTC())
	switch {
	case errors.Is(err, situation.ErrNoFabric):
		return nil, s.noFabric(in.Name)
	case errors.Is(err, situation.ErrUnaudited):
		return nil, fail(codeFabricUnaudited, "%v", err)
	case err != nil:
		return nil, err
	}
	return &body[api.FabricAudit]{audit}, nil
}
