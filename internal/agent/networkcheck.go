package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

const (
	// networkCheckTime bounds a check of a network; the server's patience is longer.
	networkCheckTime = 12 * time.Second
	// settleTime is how long a check waits for a change of networks that is under way, and settlePace is how often it looks.
	settleTime = 2 * time.Second
	settlePace = 50 * time.Millisecond
	// maxNetworkChecks is how many checks of networks are under way at once.
	maxNetworkChecks = 8
)

// checkNetwork answers the server's question about a network.
func (a *Agent) checkNetwork(ctx context.Context, stream *agentstream.ClientConn, asked agentstream.CheckNetwork) {
	answer := agentstream.NetworkChecked{}
	err := errors.New("its agent is already checking several networks; try again in a few seconds")
	select {
	case a.networkChecks <- struct{}{}:
		answer.NetworkReport, err = a.reportNetwork(ctx, asked)
		<-a.networkChecks
	default:
	}
	answer.Answer = agentstream.AnswerTo(asked.ID, err)
	_ = stream.Send(agentstream.Up{NetworkChecked: &answer}) // as in countHome
}

// reportNetwork audits a network and has it meet its peers, at once: the peers don't wait for the audit.
func (a *Agent) reportNetwork(ctx context.Context, asked agentstream.CheckNetwork) (agentstream.NetworkReport, error) {
	ctx, cancel := context.WithTimeout(ctx, networkCheckTime)
	defer cancel()
	var report agentstream.NetworkReport
	var meetErr error
	var met sync.WaitGroup
	met.Go(func() { report.Meetings, meetErr = a.cfg.Fabric.Meet(ctx, asked.Network, asked.Mark) })
	var ports map[string]bool
	report.Pending, ports = a.settled(ctx, asked.Network)
	drift, auditErr := a.cfg.Fabric.Audit(ctx)
	wrong, probeErr := a.cfg.Fabric.Probe(ctx)
	met.Wait()
	if err := errors.Join(meetErr, auditErr, probeErr); err != nil {
		return report, err
	}
	maps.DeleteFunc(wrong, func(id, _ string) bool { return !ports[id] })
	report.Drift, report.Wrong, report.Ports = driftOf(drift, asked.Network), wrong, len(ports)
	return report, nil
}

// driftOf is what concerns a network: its own drift, and that of rules which all networks share.
func driftOf(all []fabric.Drift, network int) []fabric.Drift {
	some := slices.DeleteFunc(all, func(d fabric.Drift) bool {
		return d.Network != network && (d.Network != 0 || !strings.HasPrefix(d.Object, "nftables"))
	})
	return some[:min(len(some), agentstream.MaxReported)]
}

// settled waits a little until the newest desired networks are in force, and returns why they are not, and the ports of a network.
func (a *Agent) settled(ctx context.Context, network int) (pending string, ports map[string]bool) {
	type state struct {
		pending string
		ports   map[string]bool
	}
	look := time.NewTicker(settlePace)
	defer look.Stop()
	until := time.Now().Add(settleTime)
	for {
		found := make(chan state, 1)
		a.post(ctx, func() {
			s := state{a.pendingNetworks(), map[string]bool{}}
			for _, n := range a.networks.applied {
				for _, p := range n.Ports {
					s.ports[p.ID] = n.Index == network || s.ports[p.ID]
				}
			}
			maps.DeleteFunc(s.ports, func(_ string, of bool) bool { return !of })
			found <- s
		})
		var s state
		select {
		case s = <-found:
		case <-ctx.Done():
			return "its agent is busy", nil
		}
		if s.pending == "" || time.Now().After(until) {
			return s.pending, s.ports
		}
		select {
		case <-look.C:
		case <-ctx.Done():
		}
	}
}

// pendingNetworks returns why the newest desired networks are not in force, "" if they are.
func (a *Agent) pendingNetworks() string {
	n := &a.networks
	switch {
	case a.desired == nil:
		return "the agent has not heard from the leader since it started"
	case n.problem != "":
		return fmt.Sprintf("the networks can't be made: %s", n.problem)
	case !n.ok || n.busy || !reflect.DeepEqual(a.wantedNetworks(), n.applied):
		return "changes are being applied; try again in a few seconds"
	}
	return ""
}
