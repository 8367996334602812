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
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (a *app) networkCreate() *cobra.Command {
	var req api.NetworkRequest
	var noWait bool
	var pkey string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a network of a project, which outlives clusters", Args: oneArg("network"),
		Long: `Create a network of a project, and wait until clusters can use it. Its subnet is a free one, unless --prefix gives another part of the
site's pool for networks. Clusters join it when they are created: 'nearmetal cluster create --network project/NAME', or
"networks: [project/NAME]" in a group of a file.

With --ipv6, the network has an IPv6 subnet beside its IPv4 subnet, and each member an address in both. IPv6 stays within the network.

With --egress, members open connections to the outside by this network, whether or not their cluster has egress. With --routed, members reach
those on all networks of the project that were created with --routed. A group can be on one network with --egress or --routed only.

With --mtu, members' packets have up to that many bytes, on every node. A network without it carries what the nodes' underlay leaves.

With --technology vlan, nodes exchange its frames with a VLAN tag, on their trunk interfaces, instead of by tunnels. Members on it are placed on
nodes whose agents have a --trunk-interface. The site's servers name the VLANs that networks can have by --vlan-pool.

With --technology infiniband, the network is a partition of an InfiniBand fabric, which the fabric's subnet manager enforces. Members have ports
on it by functions of adapters: 'nearmetal cluster create --network project/NAME --interface project/NAME:vf'. With --ipoib, the partition
carries IP as well. The site's servers name the partition keys that networks can have by --pkey-pool. With --share-with, clusters of other projects
join it as project/PROJECT.NAME, with limited members: they reach the members of its own project and not each other, as shared storage wants it.`,
		Example: "  nearmetal network create lab\n  nearmetal network create dual --ipv6\n  nearmetal network create out --egress\n  nearmetal network create storage --routed\n  nearmetal network create bulk --mtu 8950\n  nearmetal network create wire --technology vlan --vlan 120\n  nearmetal network create ib --technology infiniband --ipoib --ib-mtu 4096\n  nearmetal network create storage --technology infiniband --share-with '*'\n  nearmetal cluster create db --network project/lab\n  nearmetal cluster create web --network project/lab",
	}
	flags := cmd.Flags()
	flags.StringVar(&req.Prefix, "prefix", "", "subnet, an IPv4 prefix of length 16 to 28 within the site's pool (default: a free one)")
	flags.BoolVar(&req.IPv6, "ipv6", false, "give members IPv6 addresses as well, for traffic within the network")
	flags.StringVar(&req.Prefix6, "prefix6", "", "IPv6 subnet of length 64 within fd00::/8 or the site's IPv6 pool (default with --ipv6: a free one)")
	flags.BoolVar(&req.Egress, "egress", false, "let members open connections to the outside (NAT), with their default route by this network")
	flags.BoolVar(&req.Routed, "routed", false, "let members reach those on other networks of the project that are routed, too")
	flags.IntVar(&req.MTU, "mtu", 0, "bytes of the largest packet of a member, at least 576 (default: what the nodes' underlay leaves)")
	flags.StringVar((*string)(&req.Technology), "technology", "", "what carries it between nodes: vxlan, vlan on the nodes' trunk interfaces, or infiniband (default: vxlan)")
	flags.IntVar(&req.VLAN, "vlan", 0, "VLAN ID of the site's pool, for --technology vlan (default: a free one)")
	addPartitionFlags(cmd, &req, &pkey)
	flags.StringSliceVar(&req.SharedWith, "share-with", nil, "projects whose clusters may join it as limited members, '*' for all, for --technology infiniband")
	flags.StringVar(&req.Project, "project", "", "project that owns it (default: the token's)")
	flags.BoolVar(&noWait, "no-wait", false, "do not wait until clusters can use it")
	_ = cmd.RegisterFlagCompletionFunc("project", a.completeProjects)
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		req.Name = strings.TrimPrefix(args[0], api.ProjectNetwork(""))
		if flags.Changed("prefix") && req.Prefix == "" {
			return usage("--prefix is empty; give a prefix such as 10.64.128.0/24, or omit it")
		}
		if flags.Changed("prefix6") && (req.Prefix6 == "" || flags.Changed("ipv6") && !req.IPv6) {
			return usage("--prefix6 needs a prefix such as fd12:3456:789a:1::/64, and no --ipv6=false")
		}
		if flags.Changed("mtu") {
			if problem := (&api.Network{}).MTUProblem(req.MTU); problem != "" {
				return usage("--mtu: %s", problem)
			}
		}
		if flags.Changed("pkey") {
			if req.PKey, err = api.ParsePKey(pkey); err != nil {
				return usage("--pkey: %v", err)
			}
		}
		if err := manifest.CheckNetwork(req, manifest.Flags("name")); err != nil {
			return usage("%v", partitionFlags(err))
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		n, err := c.CreateNetwork(cmd.Context(), req)
		if err == nil && !noWait {
			n, err = a.awaitNetwork(cmd.Context(), c, n)
		}
		if err != nil {
			return inFlags(partitionFlags(err))
		}
		return out.print(a.Streams.Out, n, func(w io.Writer) { printNetwork(w, &n) })
	}
	return cmd
}

// addPartitionFlags adds the flags of networks on InfiniBand.
func addPartitionFlags(cmd *cobra.Command, req *api.NetworkRequest, pkey *string) {
	flags := cmd.Flags()
	flags.StringVar(&req.Cell, "cell", "", "cell of the fabric, for --technology infiniband (default: the site's only one)")
	flags.StringVar(pkey, "pkey", "", "partition key of the site's pool like 0x112, without the membership bit, for --technology infiniband (default: a free one)")
	flags.BoolVar(&req.Partition.IPoIB, "ipoib", false, "carry IP over InfiniBand (RFC 4391), for --technology infiniband")
	flags.StringVar((*string)(&req.Partition.IPoIBMode), "ipoib-mode", "", "how members carry IP: datagram, or connected for packets of up to 65,520 bytes, with --ipoib (default: datagram)")
	flags.IntVar(&req.Partition.MTUBytes, "ib-mtu", 0, "MTU of IP's broadcast group in bytes: 256, 512, 1024, 2048 or 4096, with --ipoib (default: the subnet manager's)")
	flags.IntVar(&req.Partition.RateGbps, "ib-rate", 0, "least rate of a port that may join IP's broadcast group in Gbit/s, like 100, with --ipoib (default: the subnet manager's)")
	flags.IntVar(&req.Partition.ServiceLevel, "service-level", 0, "service level of the partition, 0 to 15, for --technology infiniband")
}

// partitionFlags names flags of partitions in what is wrong with them.
func partitionFlags(err error) error {
	named := map[string]string{"partition": "ipoib", "partition.ipoib": "ipoib", "partition.ipoib_mode": "ipoib-mode", "partition.mtu_bytes": "ib-mtu", "partition.rate_gbps": "ib-rate", "partition.service_level": "service-level", "shared_with": "share-with"}
	rename := func(problems []api.FieldProblem) {
		for i := range problems {
			if flag := named[problems[i].Location]; flag != "" {
				problems[i].Location = flag
			}
		}
	}
	var invalid *manifest.Invalid
	var refused *client.Error
	switch {
	case errors.As(err, &invalid):
		rename(invalid.Problems)
	case errors.As(err, &refused):
		rename(refused.Errors)
	}
	return err
}

// awaitNetwork waits until a new network is ready.
func (a *app) awaitNetwork(ctx context.Context, c *client.Client, n api.NetworkStatus) (api.NetworkStatus, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	news := watchNews(ctx, c, client.Selection{Kind: api.KindNetwork, Name: n.UID})
	for {
		if err := news.wait(ctx, nil); err != nil {
			return n, unlessInterrupted(err, "network %q is created, and gets its numbers when a server leads", n.Name)
		}
		now, err := c.Network(ctx, n.UID)
		switch {
		case err != nil:
			return n, err
		case now.Phase == api.NetworkRefused:
			return n, fmt.Errorf("network %q was refused: %s; delete it: nearmetal network delete %s", now.Name, now.Refused, now.Name)
		case now.Phase == api.NetworkReady:
			return now, nil
		}
	}
}

func (a *app) networkDelete() *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use: "delete NAME...", Aliases: []string{"rm"}, Short: "Delete networks of projects, and wait until nothing is left of them",
		Long: `Delete networks of projects, by their names or UIDs, and wait until they are gone. A network that a cluster names is not deleted: delete
the cluster first.`,
		Example: "  nearmetal network delete project/lab", ValidArgsFunction: a.completeNetworks,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usage("name the networks to delete; nothing was deleted ('nearmetal network list' lists the networks)")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until they are gone")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		var failed []error
		for _, name := range unique(args) {
			failed = append(failed, a.deleteNetwork(cmd.Context(), c, name, noWait))
		}
		return errors.Join(failed...)
	}
	return cmd
}

func (a *app) deleteNetwork(ctx context.Context, c *client.Client, name string, noWait bool) error {
	n, err := c.DeleteNetwork(ctx, name)
	if err != nil {
		return err
	}
	if noWait {
		fmt.Fprintf(a.Streams.Out, "network %s is being deleted\n", n.Name)
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	news := watchNews(ctx, c, client.Selection{Kind: api.KindNetwork, Name: n.UID})
	for {
		if err := news.wait(ctx, nil); err != nil {
			return unlessInterrupted(err, "network %q is still being deleted", n.Name)
		}
		_, err := c.Network(ctx, n.UID)
		switch {
		case client.HasCode(err, "network_not_found"):
			fmt.Fprintf(a.Streams.Out, "network %s deleted\n", n.Name)
			return nil
		case err != nil:
			return err
		}
	}
}

// unlessInterrupted returns an error, or for one that the user caused by an interrupt what goes on without the command.
func unlessInterrupted(err error, format string, args ...any) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted; "+format+", see 'nearmetal network list'", args...)
	}
	return err
}
