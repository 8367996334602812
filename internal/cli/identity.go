package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) nodeApprove() *cobra.Command {
	cmd := &cobra.Command{
		Use: "approve NAME...", Short: "Approve enrolled nodes", Args: someArgs("nodes to approve"), ValidArgsFunction: a.completeNodes(0),
		Long: `Approve nodes that enrolled with a token that does not approve. Compare fingerprints first: 'node show' prints that of the node's key, and
the agent's log has the same.`,
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		_, err := c.ApproveNode(ctx, name)
		return "node " + name + " is approved", err
	})
}

func (a *app) nodeRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke NAME...", Short: "Revoke the identities of nodes", Args: someArgs("nodes to revoke"), ValidArgsFunction: a.completeNodes(0),
		Long: `Revoke the identities of nodes: their agents are disconnected at once and can't reconnect. Members on them are lost after the death timer and
replaced elsewhere. To let a node in again, start its agent with a new enrollment token.

A node that was enrolled by a token with uses left may have a copy of that token: 'node show' names it. Delete it with
'node enroll-token delete'.`,
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		return "node " + name + " is revoked", c.RevokeNode(ctx, name)
	})
}

// identityFields are who may speak for a node; none for those who are not to know.
func (a *app) identityFields(in *api.NodeIdentity) []string {
	if in == nil {
		return nil
	}
	approved := "no; run: nearmetal node approve " + in.Node
	if in.ApprovedAt != nil {
		approved = a.age(*in.ApprovedAt) + " ago by " + in.ApprovedBy
	}
	return []string{
		"Enrolled", a.age(in.EnrolledAt) + " ago by " + in.EnrolledBy, "Approved", approved, "Key", "SHA256:" + in.Key,
		"Certificate", "renewed " + a.age(in.RenewedAt) + " ago, ends " + a.until(&in.EndsAt),
	}
}
