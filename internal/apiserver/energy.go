package apiserver

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/energy"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// energyQuery is what a report of energy is asked for by.
type energyQuery struct {
	Hours int `query:"hours" minimum:"1" maximum:"1440" default:"24" doc:"How many hours up to now are added up"`
}

// energyReport answers with what nodes consume now, and with the energy of the last hours: of clusters that the principal may see, and for an
// administrator of nodes.
func (s *Server) energyReport(ctx context.Context, in *energyQuery) (*body[api.EnergyReport], error) {
	now, p := s.cfg.Now().UTC(), who(ctx)
	select { // as reports of usage, one after the other
	case s.reporting <- struct{}{}:
		defer func() { <-s.reporting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	report := api.EnergyReport{From: now.Add(-time.Duration(in.Hours) * time.Hour), To: now}
	nodes, clusters, err := usage.EnergyOf(s.usageInput(ctx, now, p), report.From, report.To)
	if err != nil {
		return nil, s.asFailure(ctx, err)
	}
	report.Clusters = append([]api.ClusterEnergy{}, clusters...)
	for i := range report.Clusters {
		report.Clusters[i].Cluster = shownName(p, report.Clusters[i].Cluster)
	}
	if p.Role == api.RoleAdmin {
		report.Nodes = s.nodesEnergy(nodes)
	}
	return &body[api.EnergyReport]{report}, nil
}

// together is how far apart a member's use and its power may have come: both are of one reading, and the next is seconds away.
const together = time.Second

// withPower adds power to the points of a member's use that came with it. Both are in the order of time.
func withPower(points []api.UsePoint, powers []energy.MemberPower) {
	next := 0
	for i := range points {
		p := &points[i]
		for next < len(powers) && powers[next].At.Before(p.At.Add(-together)) {
			next++
		}
		if next < len(powers) && powers[next].At.Before(p.At.Add(together)) {
			watts := powers[next].Watts
			p.PowerWatts, p.PowerTag = &watts, powers[next].Tag
		}
	}
}

// nodesEnergy joins the energy of nodes with what they consume now.
func (s *Server) nodesEnergy(sums map[string]api.NodeEnergy) []api.NodeEnergy {
	var all []api.NodeEnergy
	for n := range s.cfg.Reader.View().Agents() {
		out := api.NodeEnergy{Node: n.Name, EnergyReading: api.EnergyReading{Tag: api.EnergyUnavailable, Reason: "its agent has reported nothing to this server's leader yet"}}
		if s.cfg.Energy != nil {
			if now, heard := s.cfg.Energy.Node(n.Name); heard {
				out = now
			}
		}
		if phase, _, message := s.cfg.Live.Node(n.Name); phase != api.NodeReady {
			out.EnergyReading = api.EnergyReading{Tag: api.EnergyUnavailable, Reason: message}
		}
		sum := sums[n.Name]
		out.Counter, out.Clusters, out.Idle, out.Unattributed, out.UnknownNodeSeconds = sum.Counter, sum.Clusters, sum.Idle, sum.Unattributed, sum.UnknownNodeSeconds
		if out.Readings == nil {
			out.Readings = []api.EnergyReading{}
		}
		if out.Points == nil {
			out.Points = []api.EnergyPoint{}
		}
		all = append(all, out)
	}
	return all
}
