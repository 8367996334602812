package apiserver

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/situation"
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
		f, err := s.cfg.Fabrics.Cell(view, cell, sees)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, f)
	}
	return &body[api.List[api.Fabric]]{list}, nil
}

func (s *Server) getFabric(ctx context.Context, in *cellInput) (*body[api.Fabric], error) {
	f, err := s.cfg.Fabrics.Cell(s.cfg.Reader.View(), in.Name, seesNetwork(who(ctx)))
	if errors.Is(err, situation.ErrNoFabric) {
		return nil, s.noFabric(in.Name)
	}
	return &body[api.Fabric]{f}, err
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
