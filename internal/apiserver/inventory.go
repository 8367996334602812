package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

func (s *Server) listNodes(ctx context.Context, _ *struct{}) (*body[api.List[api.Node]], error) {
	return &body[api.List[api.Node]]{api.List[api.Node]{Items: s.listedNodes(ctx)}}, nil
}

// listedNodes are all nodes, with how large their machines are, but not the details of their hardware, which would be most of the answer.
func (s *Server) listedNodes(ctx context.Context) []api.Node {
	nodes := s.joinNodes(ctx, s.cfg.Reader.View())
	for i := range nodes {
		if m := nodes[i].Machine; m != nil && m.Hardware != nil {
			m.Hardware = inShort(m.Hardware)
		}
		if m := nodes[i].Machine; m != nil && m.Sensors != nil {
			short := *m.Sensors
			short.Sensors = []api.Sensor{}
			m.Sensors = &short
		}
	}
	return nodes
}

// inShort is hardware as a list tells it.
func inShort(hw *api.Hardware) *api.Hardware {
	return &api.Hardware{
		Architecture: hw.Architecture, Firmware: hw.Firmware, MemoryBytes: hw.MemoryBytes,
		CPU:       api.CPU{Model: hw.CPU.Model, Sockets: hw.CPU.Sockets, Cores: hw.CPU.Cores, Threads: hw.CPU.Threads},
		NUMANodes: []api.NUMANode{}, Disks: []api.Disk{}, NICs: []api.NIC{}, HCAs: []api.HCA{}, GPUs: []api.GPU{}, PCI: []api.PCI{},
	}
}

func noNode(name string) *failure {
	return fail(codeNoNode, "node %q does not exist; 'nearmetal node list' lists the nodes", name)
}

func (s *Server) getNode(ctx context.Context, in *byName) (*body[api.Node], error) {
	return s.showNode(ctx, in.Name)
}

// showNode joins what there is of this one only: who enrols a thousand machines is shown each.
func (s *Server) showNode(ctx context.Context, name string) (*body[api.Node], error) {
	all := s.cfg.Reader.View()
	view := *all
	view.Nodes, view.Clusters = nil, all.ClustersOnNode(name)
	if n := all.Node(name); n != nil {
		view.Nodes = []*state.Node{n}
	}
	nodes := s.joinNodes(ctx, &view)
	if len(nodes) == 0 {
		return nil, noNode(name)
	}
	return &body[api.Node]{nodes[0]}, nil
}

// maxReason is how long the reason of a drain may be.
const maxReason = 1000

func (s *Server) drainNode(ctx context.Context, in *namedBody) (*body[api.Node], error) {
	var req api.DrainRequest
	if len(bytes.TrimSpace(in.RawBody)) > 0 { // a reason is no must
		var err error
		if req, _, err = readBody[api.DrainRequest](in.body()); err != nil {
			return nil, err
		}
	}
	if len(req.Reason) > maxReason {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{
			Location: "reason", Message: fmt.Sprintf("is %d bytes long; use at most %d", len(req.Reason), maxReason),
		})
	}
	_, revision, err := s.cfg.Writer.SetDrain(ctx, in.Name, req.Reason, userOf(ctx), s.cfg.Now().UTC())
	return s.nodeAfter(ctx, in.Name, revision, err)
}

func (s *Server) undrainNode(ctx context.Context, in *byName) (*body[api.Node], error) {
	revision, err := s.cfg.Writer.Undrain(ctx, in.Name)
	return s.nodeAfter(ctx, in.Name, revision, err)
}

func (s *Server) trustNode(ctx context.Context, in *byName) (*body[api.Node], error) {
	revision, err := s.cfg.Writer.TrustBuilder(ctx, in.Name, userOf(ctx), s.cfg.Now().UTC())
	return s.nodeAfter(ctx, in.Name, revision, err)
}

func (s *Server) untrustNode(ctx context.Context, in *byName) (*body[api.Node], error) {
	revision, err := s.cfg.Writer.DistrustBuilder(ctx, in.Name)
	return s.nodeAfter(ctx, in.Name, revision, err)
}

// nodeAfter is a node as it is after a write.
func (s *Server) nodeAfter(ctx context.Context, name string, revision int64, err error) (*body[api.Node], error) {
	if errors.Is(err, state.ErrNotFound) {
		return nil, noNode(name)
	}
	if err != nil {
		return nil, err
	}
	s.readOwnWrite(ctx, revision)
	return s.showNode(ctx, name)
}

func (s *Server) forgetNode(ctx context.Context, in *forceInput) (*struct{}, error) {
	view := s.cfg.Reader.View()
	if m := view.Machine(in.Name); m != nil {
		return nil, s.removeMachine(ctx, view, m, in.Force)
	}
	revision, err := s.cfg.Writer.ForgetNode(ctx, view, in.Name)
	switch {
	case errors.Is(err, state.ErrNotFound):
		return nil, noNode(in.Name)
	case errors.Is(err, state.ErrInUse):
		return nil, fail(codeNodeInUse, "%v", err)
	case err != nil:
		return nil, err
	}
	s.readOwnWrite(ctx, revision)
	return nil, nil
}

// joinNodes makes what a principal sees of all nodes. It is pure.
func joinNodes(v *state.View, seen Observed, p tenancy.Principal) []api.Node {
	nodes := make([]api.Node, 0, len(v.Nodes))
	index := map[string]int{}
	for i, stored := range v.Nodes {
		nodes, index[stored.Name] = append(nodes, joinNode(stored, seen, p.Role == api.RoleAdmin)), i
	}
	for _, c := range v.Clusters {
		visible, name := seesCluster(p, c.Name()), shownName(p, c.Name())
		for a := range c.All() {
			i, ok := index[a.Node]
			if !ok {
				continue // the node was taken out of the inventory while it held members
			}
			nodes[i].AllocatedCores += len(a.Slots)
			nodes[i].AllocatedMemoryBytes += a.NodeMemoryBytes()
			nodes[i].AllocatedDiskBytes += a.DiskBytes
			holder := ""
			if visible {
				holder = name + "/" + a.Member
			}
			nodes[i].GPUUses = append(nodes[i].GPUUses, gpuUses(v, a, holder)...)
			if visible && !a.IsSnapshot() { // servers of members' GPUs included: a drained node is not empty before they are gone
				nodes[i].Members = append(nodes[i].Members, name+"/"+a.Member)
			}
		}
	}
	for _, vol := range v.Volumes {
		if i, ok := index[vol.Node()]; ok && nodes[i].Agent != nil {
			nodes[i].Agent.VolumeBytes += vol.Record.SizeBytes
		}
	}
	for _, q := range v.Quarantines {
		if i, ok := index[q.Assignment.Node]; ok {
			nodes[i].QuarantinedCores += len(q.Assignment.Slots)
		}
	}
	return nodes
}

// gpuUses are the GPUs of its node that an assignment holds, with what its server did. holder is its member, "" for one that the reader does not see: of
// that they see what it holds, and not what it does.
func gpuUses(v *state.View, a *api.Assignment, holder string) (uses []api.DeviceUse) {
	for _, d := range devicesOf(a) {
		if d.Class != api.ClassGPU {
			continue
		}
		n := v.Node(a.Node)
		d.Gone = isGone(n, &d)
		if holder != "" && n != nil && n.Measures != nil {
			if s, ok := n.Measures.Served[a.ID]; ok {
				d.Service, d.Observed = &s, s.Cost()
			}
		}
		if holder == "" {
			d.Figures = ""
		}
		uses = append(uses, api.DeviceUse{MemberDevice: d, Member: holder})
	}
	return uses
}

// isGone reports whether a node's agent does not offer what somebody holds.
func isGone(n *state.Node, d *api.MemberDevice) bool {
	return n != nil && n.Agent != nil && !slices.ContainsFunc(n.Agent.Capacity.Devices, func(o api.Device) bool {
		_, offered := o.Ways[d.Way]
		return offered && o.Class == d.Class && o.ID == d.Device
	})
}

// loaded are the GPUs of a node with how busy they were when that was measured last.
func loaded(gpus []api.NodeGPU, measured *api.NodeMeasures) []api.NodeGPU {
	if measured == nil || len(measured.Loads) == 0 {
		return gpus
	}
	gpus = slices.Clone(gpus)
	for i := range gpus {
		if load, ok := measured.Loads[gpus[i].ID]; ok {
			gpus[i].Load = &load
		}
	}
	return gpus
}

// joinNode makes what is seen of one node, without its machine, its offer and what is on it.
func joinNode(stored *state.Node, seen Observed, admin bool) api.Node {
	n := api.Node{Name: stored.Name, Labels: stored.Labels(), Phase: api.NodeUnknown, Members: []string{}, Control: stored.Control}
	if admin {
		n.Identity = stored.Identity
	}
	if stored.Measures != nil {
		n.RoundTrips = stored.Measures.RoundTrips
	}
	agent := stored.Agent
	if agent == nil {
		n.Phase, n.Message = phaseOfIdentity(stored.Identity)
		return n
	}
	n.Agent = &api.AgentPart{
		Version: agent.AgentVersion, Underlay: agent.Underlay, UnderlayMTU: agent.UnderlayMTU, Trunk: agent.Trunk, Adapters: agent.Adapters, GPUs: loaded(agent.GPUs, stored.Measures), GPUProblems: agent.GPUProblems, BootGeneration: agent.BootGeneration, InRAM: agent.InRAM, Images: agent.Images,
		Builder: agent.Builder, VolumePool: agent.VolumePool, VolumeSharing: agent.VolumeSharing, FirstSeenAt: agent.FirstSeenAt,
	}
	phase, lastSeen, message := seen.Node(stored.Name)
	n.Phase, n.Message = phase, message
	switch {
	case phase == api.NodeReady || stored.Machine != nil:
	case stored.Identity == nil:
		n.Message = "its identity was revoked; to let it in again, start its agent with a new enrollment token"
	case stored.Identity.ApprovedAt == nil:
		n.Phase, n.Message = phaseOfIdentity(stored.Identity)
	}
	if !lastSeen.IsZero() {
		n.Agent.LastSeenAt = &lastSeen
	}
	return n
}

// phaseOfIdentity is the phase of a node whose agent has never called.
func phaseOfIdentity(in *api.NodeIdentity) (api.NodePhase, string) {
	switch {
	case in == nil:
		return api.NodeUnknown, ""
	case in.ApprovedAt == nil:
		return api.NodePending, "waits for approval by an administrator: nearmetal node approve " + in.Node
	default:
		return api.NodeUnknown, "enrolled; its agent has not called yet"
	}
}

// joinEnvironments gathers the environments from what the nodes report of them, by name. It is pure.
func joinEnvironments(v *state.View) []api.Environment {
	all := []api.Environment{}
	index := map[string]int{}
	for n := range v.Agents() {
		for _, on := range n.Environments {
			i, ok := index[on.Name]
			if !ok {
				i = len(all)
				index[on.Name] = i
				all = append(all, api.Environment{Name: on.Name, Stacks: []api.Stack{}, Nodes: []api.EnvironmentNode{}})
			}
			e := &all[i]
			if e.Description == "" {
				e.Description = on.Description
			}
			for _, stack := range on.Stacks {
				if !slices.Contains(e.Stacks, stack) {
					e.Stacks = append(e.Stacks, stack)
				}
			}
			e.Nodes = append(e.Nodes, api.EnvironmentNode{Node: n.Name, OK: on.OK, Digest: on.Digest, Problems: on.Problems})
		}
	}
	slices.SortFunc(all, func(a, b api.Environment) int { return strings.Compare(a.Name, b.Name) })
	return all
}
