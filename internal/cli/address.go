package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/floating"
)

func (a *app) addressCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "address", Aliases: []string{"addr"}, Short: "Allocate floating addresses and assign them to members", Args: cobra.ArbitraryArgs, RunE: needCommand,
	}
	cmd.Long = cmd.Short + `. A floating address leads from outside to a member of a cluster with egress. It belongs to a
project and stays the project's until it is released. It follows the member: a healed, moved or restored member has it, too.

The member also has the address outside: others see its connections come from there. With --port, only the named ports lead to the member.`
	cmd.AddCommand(a.addressAllocate(), a.addressList(), a.addressShow(), a.addressAssign(), a.addressUnassign(), a.addressRelease())
	return a.connects(cmd)
}

func (a *app) addressAllocate() *cobra.Command {
	var req api.AddressRequest
	cmd := &cobra.Command{
		Use: "allocate [ADDRESS]", Aliases: []string{"create"}, Short: "Allocate a floating address to a project",
		Long: `Allocate a floating address to a project: ADDRESS, or the lowest free address of the site's pool.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && args[0] == "" {
				return usage("give one address, or none for a free one; nothing was allocated")
			}
			return nil
		},
		Example: "  nearmetal address allocate\n  nearmetal address allocate 192.0.2.17",
	}
	cmd.Flags().StringVar(&req.Project, "project", "", "project that holds it (default: the token's)")
	_ = cmd.RegisterFlagCompletionFunc("project", a.completeProjects)
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			req.Address = args[0]
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		made, err := c.AllocateAddress(cmd.Context(), req)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, made, func(w io.Writer) { a.printAddress(w, &made) })
	}
	return cmd
}

func (a *app) addressList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List floating addresses", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Addresses(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			projects := severalProjects(all, func(f api.FloatingAddressStatus) string { return f.Project })
			t := newTable(w, projects.row("ADDRESS", "PROJECT", "STATE", "CLUSTER", "MEMBER", "NODE", "PORTS")...)
			for i := range all {
				f := &all[i]
				t.row(projects.row(f.Address.String(), f.Project, string(f.State), f.Cluster, f.Member, f.Node, forwardedText(f))...)
			}
			t.flush()
		})
	}
	return cmd
}

// forwardedText lists the ports of an address that lead to its member.
func forwardedText(f *api.FloatingAddressStatus) string {
	if len(f.Ports) == 0 && f.Member != "" {
		return "all"
	}
	return strings.Join(f.Ports, ",")
}

func (a *app) addressShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show ADDRESS", Short: "Show a floating address and the member that it leads to", Args: oneArg("address"),
		ValidArgsFunction: a.completeAddresses, Example: "  nearmetal address show 192.0.2.17",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		f, err := c.Address(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, f, func(w io.Writer) { a.printAddress(w, &f) })
	}
	return cmd
}

func (a *app) printAddress(w io.Writer, f *api.FloatingAddressStatus) {
	inner, assigned := "", ""
	if f.MemberAddress.IsValid() {
		inner = f.MemberAddress.String()
	}
	if f.AssignedAt != nil {
		assigned = a.age(*f.AssignedAt) + " ago"
	}
	fields(w, "Address", f.Address.String(), "Project", otherProject(f.Project), "State", string(f.State), "Cluster", f.Cluster, "Member", f.Member,
		"Member address", inner, "Node", f.Node, "Ports", forwardedText(f), "Allocated", a.age(f.AllocatedAt)+" ago", "Assigned", assigned)
}

func (a *app) addressAssign() *cobra.Command {
	var req api.AddressAssignment
	cmd := &cobra.Command{
		Use: "assign ADDRESS CLUSTER/MEMBER", Short: "Assign a floating address to a member",
		Long: `Assign a floating address to a member of a cluster with egress. All packets for the address lead to the member, and the member has the
address outside. With --port, only the named ports lead to the member, each to a port of its own: tcp/2222=22. Repeated for the same member,
the command replaces the ports.`,
		Example: `  nearmetal address assign 192.0.2.17 web/web-0
  nearmetal address assign 192.0.2.17 web/web-0 --port tcp/2222=22 --port tcp/80=8080`,
		ValidArgsFunction: a.completeAddresses,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("give an address and a member, such as 192.0.2.17 web/web-0; nothing was assigned")
			}
			cluster, member, ok := strings.Cut(args[1], "/")
			if !ok || cluster == "" || member == "" {
				return usage("%q is not a member: write CLUSTER/MEMBER, such as web/web-0; nothing was assigned", args[1])
			}
			req.Cluster, req.Member = cluster, member
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&req.Ports, "port", nil, "only port that leads to the member, PROTOCOL/PORT=MEMBERPORT like tcp/2222=22; may be repeated")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := floating.NormalPorts(req.Ports); err != nil {
			return usage("--port: %v", err)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		f, err := c.AssignAddress(cmd.Context(), args[0], req)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, f, func(w io.Writer) { a.printAddress(w, &f) })
	}
	return cmd
}

func (a *app) addressUnassign() *cobra.Command {
	return a.forAddresses(&cobra.Command{
		Use: "unassign ADDRESS...", Short: "Unassign floating addresses from their members",
		Long:    "Unassign floating addresses from their members. Open connections through them end. The addresses stay the project's.",
		Example: "  nearmetal address unassign 192.0.2.17",
	}, "unassigned", func(ctx context.Context, c *client.Client, address string) error {
		_, err := c.UnassignAddress(ctx, address)
		return err
	})
}

func (a *app) addressRelease() *cobra.Command {
	return a.forAddresses(&cobra.Command{
		Use: "release ADDRESS...", Aliases: []string{"delete", "rm"}, Short: "Release floating addresses",
		Long:    "Release floating addresses. Other projects may allocate them then. An address that leads to a member is not released.",
		Example: "  nearmetal address release 192.0.2.17",
	}, "released", func(ctx context.Context, c *client.Client, address string) error {
		return c.ReleaseAddress(ctx, address)
	})
}

// forAddresses completes a command that does something to each of several addresses.
func (a *app) forAddresses(cmd *cobra.Command, done string, do func(ctx context.Context, c *client.Client, address string) error) *cobra.Command {
	cmd.ValidArgsFunction = a.completeAddresses
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 || slices.Contains(args, "") {
			return usage("name the addresses; nothing was %s ('nearmetal address list' lists the addresses)", done)
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		var failed []error
		for _, address := range unique(args) {
			err := do(cmd.Context(), c, address)
			if err == nil {
				fmt.Fprintf(a.Streams.Out, "address %s %s\n", address, done)
			}
			failed = append(failed, err)
		}
		return errors.Join(failed...)
	}
	return cmd
}

// completeAddresses completes floating addresses.
func (a *app) completeAddresses(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Addresses(ctx)
		if err != nil {
			return nil, err
		}
		var addresses []string
		for i := range all {
			addresses = append(addresses, all[i].Address.String())
		}
		return addresses, nil
	})
}
