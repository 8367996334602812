package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) nodeDrain() *cobra.Command {
	var reason string
	var wait bool
	cmd := &cobra.Command{
		Use: "drain NAME...", Short: "Place no new members on nodes",
		Long: `Place no new members on nodes. Virtual machines that can move while they run do so as soon as other nodes have room.
So do servers of remote GPUs whose members are on other nodes: programs that use such a GPU get an error, and later ones use the other server.
Other members stay until their clusters end; nothing else is stopped. --wait waits until no member is left, and shows the clusters that are still
there. Ctrl-C ends only the wait.`,
		Example: `  nearmetal node drain n3 --reason "replace a DIMM" --wait`,
		Args:    someArgs("nodes to drain"), ValidArgsFunction: a.completeNodes(0),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, shown to other users")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until no member is left on them")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		return a.drain(cmd.Context(), c, unique(args), reason, wait)
	}
	return cmd
}

// drain drains all that can be, and waits until they are empty.
func (a *app) drain(ctx context.Context, c *client.Client, names []string, reason string, wait bool) error {
	var waiting []string
	var failed []error
	for _, name := range names {
		n, err := c.DrainNode(ctx, name, reason)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if !wait {
			fmt.Fprintf(a.Streams.Out, "node %s is drained, %s\n", n.Name, leftText(n.Members))
			continue
		}
		waiting = append(waiting, n.Name)
	}
	if len(waiting) > 0 {
		if err := a.awaitEmpty(ctx, c, waiting); err != nil {
			failed = append(failed, err)
		}
	}
	return joined(failed)
}

// leftText says what is still on a drained node.
func leftText(members []string) string {
	if len(members) == 0 {
		return "and no member is left on it"
	}
	return "members left: " + clustersOf(members)
}

func interruptedDrain(names []string) error {
	verb := "stays"
	if len(names) > 1 {
		verb = "stay"
	}
	return fmt.Errorf("interrupted; %s %s drained, see 'nearmetal node list'", strings.Join(names, ", "), verb)
}

// awaitEmpty waits until no member is left on any of the nodes. A node's members come and go with changes of clusters.
func (a *app) awaitEmpty(ctx context.Context, c *client.Client, names []string) error {
	p := a.progress()
	defer p.stop()
	there := map[string]bool{} // by UID: clusters that were last seen on one of the nodes
	for change, err := range c.WatchClusters(ctx) {
		if errors.Is(err, context.Canceled) {
			return interruptedDrain(names)
		}
		if err != nil {
			return err
		}
		before := there[change.Cluster.UID]
		there[change.Cluster.UID] = !change.Synced && !change.Deleted && touches(change.Cluster, names)
		if !change.Synced && !before && !there[change.Cluster.UID] {
			continue
		}
		var left []string
		var lines []string
		for _, name := range names {
			n, err := c.Node(ctx, name)
			switch {
			case client.HasCode(err, "node_not_found"):
				continue // forgotten meanwhile
			case errors.Is(err, context.Canceled):
				return interruptedDrain(names)
			case err != nil:
				return err
			case n.Control == nil || !n.Control.Drained:
				return &exitError{ExitConflict, fmt.Errorf("node %q was undrained by somebody else", name)}
			case len(n.Members) > 0:
				left = append(left, name)
				lines = append(lines, fmt.Sprintf("node %s waits for %s", name, clustersOf(n.Members)))
			default:
				fmt.Fprintf(a.Streams.Out, "node %s is drained, %s\n", name, leftText(nil))
			}
		}
		if names = left; len(names) == 0 {
			return nil
		}
		p.say(strings.Join(lines, "; "))
	}
	return ctx.Err()
}

// touches tells whether a cluster has members on one of the nodes.
func touches(cl api.Cluster, nodes []string) bool {
	return slices.ContainsFunc(cl.Status.Members, func(m api.MemberStatus) bool { return slices.Contains(nodes, m.Node) })
}

// clustersOf counts members (CLUSTER/MEMBER) by their cluster: "c1 (2 members), c2 (1 member)".
func clustersOf(members []string) string {
	var names []string
	count := map[string]int{}
	for _, m := range members {
		cluster, _, _ := strings.Cut(m, "/")
		if count[cluster]++; count[cluster] == 1 {
			names = append(names, cluster)
		}
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%s (%s)", name, plural(count[name], "member"))
	}
	return strings.Join(names, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (a *app) nodeUndrain() *cobra.Command {
	cmd := &cobra.Command{
		Use: "undrain NAME...", Short: "Allow members on drained nodes again", Args: someArgs("nodes to undrain"), ValidArgsFunction: a.completeNodes(0),
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		_, err := c.UndrainNode(ctx, name)
		return "node " + name + " may have members again", err
	})
}

func (a *app) nodeForget() *cobra.Command {
	cmd := &cobra.Command{
		Use: "forget NAME...", Short: "Remove nodes from the inventory", Args: someArgs("nodes to forget"), ValidArgsFunction: a.completeNodes(0),
		Long: `Remove nodes from the inventory, with their identities: their agents are cut off at once and can't come back until they enroll again. A
node that members are still on is refused; to cut off one of these, use 'node revoke'. A machine is removed, as by 'node remove'.`,
	}
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		if err := c.ForgetNode(ctx, name); err != nil {
			return "", err
		}
		if n, err := c.Node(ctx, name); err == nil && n.Machine != nil {
			return "node " + name + " is being removed: its machine is powered off first", nil
		}
		return "node " + name + " is forgotten", nil
	})
}

// drainText is what a list says of a drained node.
func drainText(n api.Node) string {
	switch {
	case n.Control == nil || !n.Control.Drained:
		return ""
	case len(n.Members) == 0:
		return "drained"
	default:
		return "draining, " + plural(len(n.Members), "member") + " left"
	}
}

// drainFields are the fields of a drained node: since when, by whom and why.
func (a *app) drainFields(n api.Node) []string {
	if n.Control == nil || !n.Control.Drained {
		return nil
	}
	said := a.age(n.Control.Since) + " ago"
	if n.Control.By != "" {
		said += " by " + n.Control.By
	}
	left := ""
	if len(n.Members) > 0 {
		left = clustersOf(n.Members)
	}
	return []string{"Drained", said, "Reason", n.Control.Reason, "Waits for", left}
}
