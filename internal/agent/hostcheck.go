package agent

import (
	"context"
	"errors"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// checkTime bounds a check of the host; the server's patience is longer.
const checkTime = 25 * time.Second

// checkThisHost is the check that 'nearmetal node check' makes on the machine itself.
func checkThisHost(ctx context.Context) ([]api.HostFinding, error) {
	found, err := Host{}.Check(ctx)
	all := make([]api.HostFinding, 0, len(found))
	for _, f := range found {
		all = append(all, api.HostFinding{Area: string(f.Area), Name: f.Name, Status: string(f.Status), Detail: f.Detail, Fix: f.Fix})
	}
	return all, err
}

// checkHost answers the server's question about the host.
func (a *Agent) checkHost(ctx context.Context, stream *agentstream.ClientConn, asked agentstream.CheckHost) {
	found, err := a.checkOnce(ctx)
	answer := agentstream.HostChecked{Answer: agentstream.AnswerTo(asked.ID, err), Findings: found[:min(len(found), agentstream.MaxFindings)]}
	_ = stream.Send(agentstream.Up{HostChecked: &answer}) // as in countHome
}

// checkOnce checks the host unless that is under way: the server that asked before may be gone, and its check not.
func (a *Agent) checkOnce(ctx context.Context) ([]api.HostFinding, error) {
	if a.cfg.CheckHost == nil {
		return nil, errors.New("its agent can't check its host")
	}
	if !a.checking.TryLock() {
		return nil, errors.New("its agent is already checking its host; try again in a few seconds")
	}
	defer a.checking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	return a.cfg.CheckHost(ctx)
}
