package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) nodeTrust() *cobra.Command {
	cmd := &cobra.Command{
		Use: "trust NAME...", Short: "Make nodes trusted builders", Args: someArgs("nodes to trust"), ValidArgsFunction: a.completeNodes(0),
		Long: `Make nodes trusted builders: environments are built on them, and the site signs what they build, for every machine and cluster. An agent
offers to build with --builder auto; that alone gives a node no build. Trust ends with 'node untrust', and when the node is revoked or forgotten.
Where no node is trusted, 'env build --verify' has two nodes build the same.`,
		Example: "  nearmetal node trust n1",
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		n, err := c.TrustNode(ctx, name)
		text := "node " + name + " is a trusted builder"
		if err == nil && (n.Agent == nil || n.Agent.Builder == nil) {
			text += "; it does not accept builds yet, start its agent with --builder auto"
		}
		return text, err
	})
}

func (a *app) nodeUntrust() *cobra.Command {
	cmd := &cobra.Command{
		Use: "untrust NAME...", Short: "Stop trusting builders", Args: someArgs("nodes to trust no longer"), ValidArgsFunction: a.completeNodes(0),
		Long: `Stop trusting builders. A running build starts again on another trusted builder. Environments that the node has built stay in use: list
them with 'env list --built-by NAME', and rebuild them with 'env build --force'.`,
		Example: "  nearmetal node untrust n1\n  nearmetal env list --built-by n1",
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		_, err := c.UntrustNode(ctx, name)
		return "node " + name + " is no longer a trusted builder; what it has built is shown by: nearmetal env list --built-by " + name, err
	})
}

// builderText says whether a node builds environments; empty when it neither offers to nor is trusted to.
func (a *app) builderText(n api.Node) string {
	offers := n.Agent != nil && n.Agent.Builder != nil
	var parts []string
	switch {
	case offers && n.Agent.Builder.OK:
		parts = append(parts, "accepts builds")
	case offers:
		parts = append(parts, "can't build: "+strings.Join(n.Agent.Builder.Problems, "; "))
	}
	switch {
	case n.Control != nil && n.Control.Builder != nil:
		text := "trusted since " + a.age(n.Control.Builder.Since) + " ago"
		if by := n.Control.Builder.By; by != "" {
			text += " by " + by
		}
		parts = append(parts, text)
	case offers:
		parts = append(parts, "not trusted")
	}
	return strings.Join(parts, ", ")
}
