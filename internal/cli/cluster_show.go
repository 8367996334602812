package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) clusterList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List clusters", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Clusters(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			projects := severalProjects(all, func(cl api.Cluster) string { return cl.Project })
			t := newTable(w, projects.row("NAME", "PROJECT", "PHASE", "READY", "SUBNET", "OVERSUBSCRIBED", "EXPIRES", "AGE", "MESSAGE")...)
			for _, cl := range all {
				st := cl.Status
				t.row(projects.row(cl.Name, cl.Project, string(st.Phase), membersText(st), st.CIDR, yesNo(st.Oversubscribed),
					a.until(st.ExpiresAt), a.age(st.CreatedAt), st.Message)...)
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) clusterShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show a cluster and its members", Args: oneArg("cluster"), ValidArgsFunction: a.completeClusters(1),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		cl, err := c.Cluster(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, cl, func(w io.Writer) { a.printCluster(w, cl) })
	}
	return cmd
}

// printCluster writes a cluster for people.
func (a *app) printCluster(w io.Writer, cl api.Cluster) {
	st := cl.Status
	over := ""
	if st.Oversubscribed {
		over = "yes: members share physical cores, measurements do not count"
	}
	ready := ""
	if st.ReadyAt != nil {
		ready = fmt.Sprintf("%.1fs after it was asked for", max(st.ReadyAt.Sub(st.CreatedAt).Seconds(), 0))
	}
	fields(w, "Name", cl.Name, "Project", otherProject(cl.Project), "User", cl.User, "Phase", string(st.Phase), "Message", st.Message, "Paused", pausedText(st), "Files kept", a.pausedFilesText(st), "Saved", savedText(st),
		"Members", fmt.Sprintf("%d of %d ready%s", st.ReadyMembers, st.TotalMembers, othersText(st.Members)), "Technology", otherTechnology(cl.Spec.Technology), "Data network", sharedText(&cl.Spec), "Subnet", st.CIDR,
		"Egress", yesNo(cl.Spec.Egress), "Home", clusterHomeText(cl.Spec), "Volumes", volumesText(cl.Spec), "Datasets", strings.Join(api.DatasetsOf(cl.Spec.Groups), ", "), "Layers", layersText(cl.Status.Layers), "Condition", conditionLine(cl.Status.Condition), "Oversubscribed", over, "Labels", labels(cl.Labels), "Priority", countText(cl.Spec.Priority),
		"Time limit", a.limitText(cl), "Created", a.age(st.CreatedAt)+" ago", "Ready", ready)
	fmt.Fprintln(w)
	printGroups(w, cl.Spec.Groups)
	if len(st.Members) == 0 {
		return
	}
	fmt.Fprintln(w)
	several := slices.ContainsFunc(st.Members, func(m api.MemberStatus) bool { return len(m.Networks) > 0 })
	devices := slices.ContainsFunc(st.Members, func(m api.MemberStatus) bool { return len(m.Devices) > 0 })
	columns := func(devicesCell, networks string, cells ...string) []string {
		if devices {
			cells = slices.Insert(cells, 5, devicesCell)
		}
		if several {
			cells = slices.Insert(cells, 4, networks)
		}
		return cells
	}
	members := newTable(w, columns("DEVICES", "NETWORKS", "RANK", "MEMBER", "NODE", "ADDRESS", "CPUS", "PHASE", "MESSAGE")...)
	for _, m := range st.Members {
		rank := strconv.Itoa(m.Rank)
		if m.Phase == api.MemberSpare || m.Rank < 0 {
			rank = "" // a spare gets that of the member it replaces, one that waits gets it with its room
		}
		if m.Moving != nil && m.Message == "" {
			m.Message = onItsWay(m.Moving)
		}
		if m.Resizing != nil && m.Message == "" {
			m.Message = resizingText(m.Resizing)
		}
		if len(m.VolumeChanges) > 0 && m.Message == "" {
			m.Message = volumeChangesText(m.VolumeChanges)
		}
		members.row(columns(devicesText(m), networksText(m), rank, m.Name, m.Node, m.Address, ranges(m.CPUs), string(m.Phase), m.Message)...)
	}
	members.flush()
	printDataClaims(w, st.Members)
	var gpus []api.DeviceUse
	for _, m := range st.Members {
		for _, d := range m.Devices {
			if d.Class == api.ClassGPU && d.Cost > 0 {
				gpus = append(gpus, api.DeviceUse{MemberDevice: d, Member: m.Name})
			}
		}
	}
	printGPUChoices(w, gpus)
}

// devicesText names the devices of a member, with their nodes where those are others: gpu0 (whole) of n3, and 0000:3b:00.0 (vf3).
func devicesText(m api.MemberStatus) string {
	parts := make([]string, len(m.Devices))
	for i, d := range m.Devices {
		parts[i] = fmt.Sprintf("%s (%s)", d.Device, deviceAmount(d))
		if d.Node != m.Node {
			parts[i] += " of " + d.Node
		}
	}
	return strings.Join(parts, ", ")
}

// deviceAmount is how much of a device a member has: vf3, whole, slice 1g.10gb, or 8GiB remote.
func deviceAmount(d api.MemberDevice) string {
	text := cmp.Or(d.Part, d.Way)
	switch {
	case d.Memory > 0:
		text = d.Memory.String() + " " + d.Way
	case d.Profile != "":
		text = "slice " + d.Profile
	}
	if d.Gone {
		text += ", gone"
	}
	return text
}

// networksText is the addresses of a member on further networks: storage=10.64.32.2.
func networksText(m api.MemberStatus) string {
	parts := make([]string, len(m.Networks))
	for i, n := range m.Networks {
		parts[i] = n.Name + "=" + n.Address
	}
	return strings.Join(parts, ",")
}

// printGroups writes groups; what few have gets a column only when one has it.
func printGroups(w io.Writer, groups []api.Group) {
	spares := slices.ContainsFunc(groups, func(g api.Group) bool { return g.Spares > 0 })
	networks := slices.ContainsFunc(groups, func(g api.Group) bool { return groupNetworks(g) != "" })
	checks := slices.ContainsFunc(groups, func(g api.Group) bool { return len(g.Checks) > 0 })
	gpus := slices.ContainsFunc(groups, func(g api.Group) bool { return groupGPUs(g) != "" })
	columns := func(cells []string, gpuCell, spareCell, networkCell, checkCell string) []string {
		if gpus {
			cells = append(cells, gpuCell)
		}
		if spares {
			cells = append(cells, spareCell)
		}
		if networks {
			cells = append(cells, networkCell)
		}
		if checks {
			cells = append(cells, checkCell)
		}
		return cells
	}
	header := []string{"GROUP", "SIZE", "CORES", "MEMORY", "STACK", "ENVIRONMENT", "NODE SELECTOR"}
	shaped := slices.ContainsFunc(groups, func(g api.Group) bool { return g.ShapeName != "" })
	if shaped {
		header = slices.Insert(header, 2, "SHAPE")
	}
	t := newTable(w, columns(header, "GPUS", "SPARES", "NETWORKS", "CHECKS")...)
	for _, g := range groups {
		var names []string
		for _, check := range g.Checks {
			names = append(names, check.Name)
		}
		cells := []string{g.Name, strconv.Itoa(g.Size), strconv.Itoa(g.Cores), g.Memory.String(), string(g.Stack), g.Environment, labels(g.NodeSelector)}
		if shaped {
			cells = slices.Insert(cells, 2, g.ShapeName)
		}
		t.row(columns(cells, groupGPUs(g), strconv.Itoa(g.Spares), groupNetworks(g), strings.Join(names, ","))...)
	}
	t.flush()
}

// groupNetworks lists the networks of a group, with its fixed addresses and the security groups of its ports.
func groupNetworks(g api.Group) string {
	var parts []string
	if g.Interface != "" {
		parts = append(parts, g.OwnNetwork().InterfaceText()) // on the cluster's own, which has no name
	}
	for _, n := range g.Networks {
		parts = append(parts, n.String())
	}
	return strings.Join(parts, ",")
}

// otherTechnology is what carries a cluster's own network, empty for tunnels.
func otherTechnology(t api.Technology) string {
	if t == api.TechnologyVXLAN {
		return ""
	}
	return string(t)
}

// membersText is how many members are ready, and what is to be known of others.
func membersText(st api.ClusterStatus) string {
	return fmt.Sprintf("%d/%d%s", st.ReadyMembers, st.TotalMembers, othersText(st.Members))
}

// othersText counts the members that stand beside those that come up and serve: ", 1 lost, 2 spare".
func othersText(members []api.MemberStatus) string {
	text := ""
	for _, phase := range []api.MemberPhase{api.MemberLost, api.MemberWaiting, api.MemberUnhealthy, api.MemberSpare} {
		n := 0
		for _, m := range members {
			if m.Phase == phase {
				n++
			}
		}
		if n > 0 {
			text += fmt.Sprintf(", %d %s", n, phase)
		}
	}
	return text
}

// otherProject is a project that is not the default one.
func otherProject(project string) string {
	if project == api.DefaultProject {
		return ""
	}
	return project
}

// pausedText says that a cluster was asked to pause when its phase does not say so.
func pausedText(st api.ClusterStatus) string {
	if !st.Paused || st.Phase == api.ClusterPaused || st.Phase == api.ClusterPausing {
		return ""
	}
	return "asked for"
}

// pausedFilesText says what is kept of members whose machines are off.
func (a *app) pausedFilesText(st api.ClusterStatus) string {
	var bytes int64
	var at time.Time
	for _, f := range st.PausedFiles {
		bytes += f.Bytes
		if f.SavedAt.After(at) {
			at = f.SavedAt
		}
	}
	if len(st.PausedFiles) == 0 {
		return ""
	}
	size := "less than 1MiB"
	if bytes >= 1<<20 {
		size = sizeText(bytes)
	}
	return fmt.Sprintf("%s of %s, saved %s ago", size, plural(len(st.PausedFiles), "machine"), a.age(at))
}

// savedText says that a cluster was asked to be saved when its phase does not say so.
func savedText(st api.ClusterStatus) string {
	if !st.Saved || st.Phase == api.ClusterSaved || st.Phase == api.ClusterSaving {
		return ""
	}
	return "asked for"
}

// limitText is the time limit of a cluster and when it ends.
func (a *app) limitText(cl api.Cluster) string {
	switch {
	case cl.Spec.TimeLimit == 0:
		return ""
	case cl.Status.ExpiresAt == nil:
		return cl.Spec.TimeLimit.String() + " from when it is placed"
	default:
		ends := cl.Status.ExpiresAt.In(a.Now().Location()).Format(timeFormat)
		return fmt.Sprintf("%s, ends %s (%s)", cl.Spec.TimeLimit, ends, a.until(cl.Status.ExpiresAt))
	}
}

func (a *app) clusterEvents() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "events NAME", Short: "Show the events of a cluster",
		Long:              "Show the events of a cluster, oldest first. The events of a deleted cluster stay until its name is used again.",
		Args:              oneArg("cluster"),
		ValidArgsFunction: a.completeClusters(1),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new events until the cluster is gone")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		if follow {
			return a.followEvents(cmd.Context(), c, args[0], out)
		}
		events, err := c.Events(cmd.Context(), args[0], 0)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, events, func(w io.Writer) {
			t := newTable(w, "AGE", "REASON", "MEMBER", "NODE", "MESSAGE")
			for _, e := range events {
				t.row(a.age(e.Time), e.Reason, e.Member, e.Node, e.Message)
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) followEvents(ctx context.Context, c *client.Client, name string, out *format) error {
	for e, err := range c.FollowEvents(ctx, name, 0) {
		if err != nil {
			return err
		}
		err = out.printStream(a.Streams.Out, e, func(w io.Writer) {
			text := e.Message
			if e.Member != "" && !strings.Contains(text, e.Member) {
				text = e.Member + ": " + text
			}
			fmt.Fprintf(w, "%s  %-14s  %s\n", e.Time.Local().Format(time.TimeOnly), printable(e.Reason), printable(text))
		})
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// oneArg wants exactly one argument: the name of a thing.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 || args[0] == "":
			return usage("name the %s: '%s'", what, cmd.UseLine())
		case len(args) > 1:
			return usage("'%s' takes one %s, %q is one too many", cmd.CommandPath(), what, args[1])
		default:
			return nil
		}
	}
}
