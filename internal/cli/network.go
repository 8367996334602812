package cli

import (
	"context"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) networkCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "network", Short: "Show networks and their ports", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.Long = cmd.Short + `. Every placed cluster has a private network of its own, named like the cluster, and the further ones
that its groups name: CLUSTER:NETWORK, one of another project than the token's PROJECT.CLUSTER:NETWORK.`
	cmd.AddCommand(a.networkList(), a.networkShow())
	return a.connects(cmd)
}

func (a *app) networkList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List networks", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Networks(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			projects := severalProjects(all, func(n api.NetworkStatus) string { return n.Project })
			t := newTable(w, projects.row("NAME", "PROJECT", "CLUSTER", "TECHNOLOGY", "ID", "SUBNET", "EGRESS", "PORTS")...)
			for i := range all {
				n := &all[i]
				t.row(projects.row(n.Name, n.Project, n.Cluster, string(n.Technology), strconv.Itoa(n.Index), n.Prefix.String(), yesNo(n.Egress),
					portsText(n.Ports))...)
			}
			t.flush()
		})
	}
	return cmd
}

// portState is whether a port is in use, and why it still exists where it is not.
func portState(p *api.NetworkPort) string {
	switch {
	case p.Quarantined:
		return "quarantined"
	case p.Releasing:
		return "releasing"
	default:
		return "in use"
	}
}

// portsText counts the ports in use, and apart from them those that still exist.
func portsText(ports []api.NetworkPort) string {
	of := map[string]int{}
	for i := range ports {
		of[portState(&ports[i])]++
	}
	text := strconv.Itoa(of["in use"])
	for _, state := range []string{"releasing", "quarantined"} {
		if of[state] > 0 {
			text += ", " + strconv.Itoa(of[state]) + " " + state
		}
	}
	return text
}

func (a *app) networkShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show a network and its ports", Args: oneArg("network"), ValidArgsFunction: a.completeNetworks,
		Long:    "Show a network, by its name or UID, and its ports.",
		Example: "  nearmetal network show c1\n  nearmetal network show c1:storage -o json",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		n, err := c.Network(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, n, func(w io.Writer) { printNetwork(w, &n) })
	}
	return cmd
}

func printNetwork(w io.Writer, n *api.NetworkStatus) {
	fields(w, "Name", n.Name, "UID", n.UID, "Project", otherProject(n.Project), "Cluster", n.Cluster, "Technology", string(n.Technology),
		"ID", strconv.Itoa(n.Index), "Subnet", n.Prefix.String(), "Gateway", n.Gateway.String(), "Egress", yesNo(n.Egress), "Ports", portsText(n.Ports))
	if len(n.Ports) == 0 {
		return
	}
	_, _ = io.WriteString(w, "\n")
	t := newTable(w, "MEMBER", "NODE", "KIND", "ADDRESS", "MAC", "STATE")
	for i := range n.Ports {
		p := &n.Ports[i]
		t.row(p.Member, p.Node, string(p.Kind), p.Address.String(), p.MAC, portState(p))
	}
	t.flush()
}

// completeNetworks completes the name of one network, a short one where it is of the user's own project.
func (a *app) completeNetworks(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Networks(ctx)
		if err != nil {
			return nil, err
		}
		own := ""
		if who, err := c.Whoami(ctx); err == nil {
			own = who.Project
		}
		var names []string
		for i := range all {
			name := all[i].Name
			if all[i].Project != own {
				name = fullName(all[i].Project, name)
			}
			names = append(names, name)
		}
		return names, nil
	})
}
