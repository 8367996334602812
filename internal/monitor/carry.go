package monitor

import (
	"context"
	"fmt"
	"net/http"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// Carried is a member that a successor on another node goes on from.
type Carried struct{ Node, ID string }

// ServeCarry handles the requests by which an agent asks for what another node has of a member, at agentstream.CarryPath. find returns that member,
// by the state that was committed, or why the node that asks has no claim to it. The bytes pass through this server, which keeps none of them: a
// receiver that does not read holds the sender up. Whose the requests are is for the caller to tell (agentstream.ForNode).
func (m *Monitor) ServeCarry(find func(agentstream.CarryRequest) (Carried, error)) http.Handler {
	return agentstream.CarryHandler(func(ctx context.Context, request agentstream.CarryRequest, to *agentstream.TunnelConn) error {
		from, err := find(request)
		if err != nil {
			return err
		}
		conn, err := m.openTunnel(ctx, from.Node, agentstream.Tunnel{MemberID: from.ID, Target: request.Target, Successor: request.Successor})
		if err != nil {
			return fmt.Errorf("node %q: %w", from.Node, err)
		}
		go agentstream.Splice(ctx, to, conn)
		return nil
	})
}
