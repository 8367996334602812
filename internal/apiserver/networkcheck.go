package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// networkReports is what the agents of a network's nodes found.
type networkReports struct {
	reports map[string]agentstream.NetworkReport
	// silent are the nodes without a report, with the reason.
	silent map[string]error
	// nodes are the names of nodes by their tunnel end points, and members the names of members by the IDs of their ports.
	nodes   map[netip.Addr]string
	members map[string]string
}

// checkNetwork has the agents of all nodes of a network check it at once.
func (s *Server) checkNetwork(ctx context.Context, in *networkInput) (*body[api.NetworkCheck], error) {
	view := s.cfg.Reader.View()
	n, err := s.requestedNetwork(who(ctx), view, in.Name)
	if err != nil {
		return nil, err
	}
	found := networkReports{map[string]agentstream.NetworkReport{}, map[string]error{}, map[netip.Addr]string{}, map[string]string{}}
	asked := map[string]bool{}
	for p := range portsOnNetwork(view, n) {
		found.members[p.port.ID] = p.assignment.Member
		asked[p.assignment.Node] = true
	}
	mark := rand.Uint64()
	var mu sync.Mutex
	var all sync.WaitGroup
	for node := range asked {
		if _, wanted, err := s.cfg.Networks.DesiredNetwork(node, n.Index); err != nil {
			return nil, err
		} else if !wanted { // all that it has of the network is let go, or is to be proved clean
			continue
		}
		found.nodes[underlayOf(view, node)] = node
		all.Go(func() {
			report, err := s.cfg.Networks.CheckNetwork(ctx, node, n.Index, mark)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				found.silent[node] = err
				return
			}
			found.reports[node] = report
		})
	}
	all.Wait()
	return &body[api.NetworkCheck]{api.NetworkCheck{Findings: found.findings()}}, nil
}

// findings are what the reports say, in the order of the nodes.
func (r networkReports) findings() []api.NetworkFinding {
	findings := []api.NetworkFinding{}
	for node, err := range r.silent {
		findings = append(findings, api.NetworkFinding{Node: node, Check: "in force", Detail: fmt.Sprintf("the node can't be checked: %v", err)})
	}
	for node, report := range r.reports {
		findings = append(findings, r.inForce(node, report)...)
		findings = append(findings, r.ports(node, report)...)
		for _, m := range report.Meetings {
			findings = append(findings, r.hearing(node, m)...)
		}
	}
	slices.SortStableFunc(findings, func(a, b api.NetworkFinding) int { return cmp.Compare(a.Node, b.Node) })
	return findings
}

// inForce is what a node has otherwise than it should.
func (r networkReports) inForce(node string, report agentstream.NetworkReport) []api.NetworkFinding {
	var wrong []api.NetworkFinding
	add := func(detail string) {
		wrong = append(wrong, api.NetworkFinding{Node: node, Check: "in force", Detail: detail})
	}
	if report.Pending != "" {
		add(report.Pending)
	}
	for _, d := range report.Drift {
		add(r.withMember(fmt.Sprintf("%s: want %s, got %s", d.Object, d.Want, d.Got)))
	}
	if len(wrong) == 0 {
		return []api.NetworkFinding{{Node: node, Check: "in force", OK: true, Detail: "links, rules and peers are as they should be"}}
	}
	return wrong
}

// withMember adds the member's name to a text about the device of its port.
func (r networkReports) withMember(text string) string {
	for id, member := range r.members {
		if device := fabric.DeviceName(id); strings.Contains(text, device) {
			return fmt.Sprintf("%s (%s is the port of %s)", text, device, member)
		}
	}
	return text
}

// ports is what is wrong with ports of members.
func (r networkReports) ports(node string, report agentstream.NetworkReport) []api.NetworkFinding {
	var wrong []api.NetworkFinding
	for id, problem := range report.Wrong {
		wrong = append(wrong, api.NetworkFinding{Node: node, Check: "ports", Detail: fmt.Sprintf("%s: %s", cmp.Or(r.members[id], id), problem)})
	}
	if len(wrong) == 0 {
		return []api.NetworkFinding{{Node: node, Check: "ports", OK: true, Detail: fmt.Sprintf("%d attached", report.Ports)}}
	}
	slices.SortFunc(wrong, func(a, b api.NetworkFinding) int { return cmp.Compare(a.Detail, b.Detail) })
	return wrong
}

// hearing is what a node heard of a peer. A peer without a report may have sent nothing, and its own line says why.
func (r networkReports) hearing(node string, m fabric.Meeting) []api.NetworkFinding {
	peer, known := r.nodes[m.Peer]
	if !known {
		peer = m.Peer.String()
	}
	var all []api.NetworkFinding
	if m.Problem != "" {
		all = append(all, api.NetworkFinding{Node: node, Check: "sends to " + peer, Detail: m.Problem})
	}
	heard := api.NetworkFinding{Node: node, Check: "hears " + peer}
	switch _, silent := r.silent[peer]; {
	case m.Full:
		heard.OK, heard.Detail = true, fmt.Sprintf("packets of %d bytes, unfragmented", m.FullBytes)
	case m.Small:
		heard.Detail = fmt.Sprintf("small packets arrive, those of %d bytes don't: an MTU between the nodes is too small", m.FullBytes)
	case silent:
		return all
	case !known:
		heard.Detail = "the peer is not among the nodes of the network; try again in a few seconds"
	default:
		heard.Detail = fmt.Sprintf("nothing arrives from %v: check links, routes and firewalls between the nodes for UDP port 4789", m.Peer)
	}
	return append(all, heard)
}
