package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) nodeApprove() *cobra.Command {
	cmd := &cobra.Command{
		Use: "approve NAME...", Short: "Let nodes in that have enrolled", Args: someArgs("nodes to approve"), ValidArgsFunction: a.completeNodes(0),
		Long: `Let nodes in that have enrolled with a token that does not approve. 'node show' prints the fingerprint of a node's key; the log of its
agent has the same.`,
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		_, err := c.ApproveNode(ctx, name)
		return "node " + name + " is approved", err
	})
}

func (a *app) nodeRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke NAME...", Short: "Cut nodes off at once", Args: someArgs("nodes to revoke"), ValidArgsFunction: a.completeNodes(0),
		Long: `Revoke the identities of nodes: their agents are cut off at once and can't come back. What runs there is lost after the death timer and
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
