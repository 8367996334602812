package cli

import (
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) securityGroupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "security-group", Aliases: []string{"sg"}, Short: "Create, show, change and delete security groups", Args: cobra.ArbitraryArgs, RunE: needCommand,
	}
	cmd.Long = cmd.Short + `. A security group restricts the ports of members on further networks. It belongs to a project.
The ports of members get security groups when the cluster is created:
'nearmetal cluster create --network project/lab --security-group project/lab=web'. In a file, a network of a group is then
"{name: project/lab, security_groups: [web]}".

A port with security groups receives what a rule of one of them allows, and replies to what it sent. It sends everything, unless one of them
has rules for "out". A port without security groups is not restricted.

  in tcp 22 from 10.0.0.0/8         TCP connections to port 22 from a prefix
  in udp 5000-5100 from group web   UDP to a range of ports from all ports of group web
  in icmp 8 from 0.0.0.0/0          echo requests (ICMP type 8)
  in icmp6 128 from fd00::/8        echo requests by IPv6 (ICMPv6 type 128)
  in any from group web             everything, also other protocols and fragments
  out tcp 443 to 10.1.0.2/32        the member may send this and nothing else

A rule with a prefix is about IPv4 or IPv6. A rule with a group is about both, but for icmp and icmp6. Rules only allow. They name groups of the same project. A rule that another rule of its group covers is refused.`
	cmd.AddCommand(a.securityGroupCreate(), a.securityGroupList(), a.securityGroupShow(), a.securityGroupSet(), a.securityGroupDelete())
	return a.connects(cmd)
}

func (a *app) securityGroupList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List security groups", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.SecurityGroups(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			projects := severalProjects(all, func(g api.SecurityGroupStatus) string { return g.Project })
			t := newTable(w, projects.row("NAME", "PROJECT", "RULES", "PORTS", "CLUSTERS", "NAMED BY")...)
			for i := range all {
				g := &all[i]
				t.row(projects.row(g.Name, g.Project, strconv.Itoa(len(g.Rules)), strconv.Itoa(len(g.Ports)), strings.Join(g.Clusters, ","),
					strings.Join(g.NamedBy, ","))...)
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) securityGroupShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show the rules of a security group and the ports that have it", Args: oneArg("security group"),
		ValidArgsFunction: a.completeSecurityGroups,
		Example:           "  nearmetal security-group show web",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		g, err := c.SecurityGroup(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, g, func(w io.Writer) { a.printSecurityGroup(w, &g) })
	}
	return cmd
}

func (a *app) printSecurityGroup(w io.Writer, g *api.SecurityGroupStatus) {
	fields(w, "Name", g.Name, "UID", g.UID, "Project", otherProject(g.Project), "Clusters", strings.Join(g.Clusters, ", "),
		"Named by", strings.Join(g.NamedBy, ", "), "Changed", a.age(g.UpdatedAt)+" ago", "Rules", strconv.Itoa(len(g.Rules)))
	for _, rule := range g.Rules {
		_, _ = io.WriteString(w, "  "+rule+"\n")
	}
	if len(g.Ports) == 0 {
		return
	}
	_, _ = io.WriteString(w, "\n")
	t := newTable(w, "NETWORK", "CLUSTER", "MEMBER", "NODE", "ADDRESS", "STATE")
	for i := range g.Ports {
		p := &g.Ports[i]
		t.row(p.Network, p.Cluster, p.Member, p.Node, p.Address.String(), portState(&p.NetworkPort))
	}
	t.flush()
}

// completeSecurityGroups completes names of security groups, short ones where they are of the user's own project.
func (a *app) completeSecurityGroups(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.SecurityGroups(ctx)
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
