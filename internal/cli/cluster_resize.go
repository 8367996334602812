package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// resizeFlags are the flags of `cluster resize`.
type resizeFlags struct {
	group        string
	cores        int
	memory, disk string
	reboot       bool
	noWait       bool
	timeout      time.Duration
}

func (a *app) clusterResize() *cobra.Command {
	var f resizeFlags
	cmd := &cobra.Command{
		Use: "resize NAME [--cores N] [--memory SIZE] [--disk SIZE]", Short: "Change the cores, memory or disk of members",
		Long: `Give each member of a group other cores, another memory, or a larger disk. The nodes of the members must have room for the growth;
otherwise the resize is refused, and nothing is changed. A running member takes its new cores, memory and disk at once where its machine
and its guest allow it. Otherwise its cores and memory change when it reboots: the command names the members that have their new size, and
those that need a reboot, and --reboot reboots these right away. Until then a member keeps its former cores and memory, and can't be saved
or moved. New members and replacements get the new size.
Only virtual machines can be resized, and none with a device other than a network adapter's virtual function. Disks can only grow.`,
		Example: `  nearmetal cluster resize v1 --cores 2 --memory 1GiB
  nearmetal cluster resize v1 --cores 2 --reboot
  nearmetal cluster resize w1 --group windows --disk 40GiB`,
		Args: oneArg("cluster to resize"), ValidArgsFunction: a.completeClusters(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.group, "group", "", "group to resize (optional when there is only one)")
	flags.IntVar(&f.cores, "cores", 0, "number of cores of each member")
	flags.StringVar(&f.memory, "memory", "", "memory of each member, such as 1GiB")
	flags.StringVar(&f.disk, "disk", "", "size of each member's private disk, such as 40GiB")
	flags.BoolVar(&f.reboot, "reboot", false, "reboot the members that need it, and wait until they are ready with the new size")
	flags.BoolVar(&f.noWait, "no-wait", false, "do not wait until the members have the new size")
	flags.Var(timeoutFlag(&f.timeout, waitTimeout), "timeout", "how long to wait (0: no limit)")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := f.request(cmd)
		if err != nil {
			return err
		}
		return a.resize(cmd.Context(), args[0], req, f, out)
	}
	return cmd
}

// request reads the flags.
func (f *resizeFlags) request(cmd *cobra.Command) (api.ResizeRequest, error) {
	req := api.ResizeRequest{Group: f.group, Cores: f.cores}
	given := cmd.Flags().Changed
	if given("cores") && f.cores < 1 {
		return req, usage("--cores: %d is too small; give at least 1 core", f.cores)
	}
	for _, size := range []struct {
		flag, value string
		to          *api.Bytes
	}{{"memory", f.memory, &req.Memory}, {"disk", f.disk, &req.Disk}} {
		if !given(size.flag) {
			continue
		}
		var err error
		if *size.to, err = api.ParseBytes(size.value); err != nil {
			return req, usage("--%s: %v", size.flag, err)
		}
		if *size.to <= 0 {
			return req, usage("--%s: %q is too small", size.flag, size.value)
		}
	}
	switch {
	case !given("cores") && !given("memory") && !given("disk"):
		return req, usage("give the new size of each member: --cores, --memory or --disk")
	case f.reboot && f.noWait:
		return req, usage("--reboot conflicts with --no-wait: members reboot once their new size is claimed")
	}
	return req, nil
}

// resize requests it, waits until the members have taken what they can, and reboots those that need it with --reboot.
func (a *app) resize(ctx context.Context, name string, req api.ResizeRequest, f resizeFlags, out *format) error {
	c, err := a.client(0)
	if err != nil {
		return err
	}
	cl, err := c.ResizeCluster(ctx, name, req)
	if err != nil {
		return unknownOutcome(inFlags(err), name)
	}
	if !f.noWait {
		if cl, err = a.await(ctx, c, cl, untilClaimed(cl, f.timeout)); err != nil {
			return err
		}
		if cold := resizing(cl, api.ResizeReboot); f.reboot && len(cold) > 0 {
			if cl, err = a.rebootResized(ctx, c, cl, cold, f.timeout); err != nil {
				return err
			}
		}
	}
	return out.print(a.Streams.Out, cl, func(w io.Writer) {
		a.printCluster(w, cl)
		fmt.Fprintln(w)
		if hot := sized(cl, req.Group); !f.noWait && len(hot) > 0 {
			fmt.Fprintf(w, "The new size of %s is in effect.\n", strings.Join(hot, ", "))
		}
		if cold := resizing(cl, api.ResizeReboot); len(cold) > 0 {
			fmt.Fprintf(w, "The new size of %s takes effect at a reboot: nearmetal cluster reboot %s\n", strings.Join(cold, ", "), strings.Join(append([]string{ref(cl)}, cold...), " "))
		}
	})
}

// sized returns the members of a group that have its size. The group may be "" in a cluster of one.
func sized(cl api.Cluster, group string) []string {
	var names []string
	for _, m := range cl.Status.Members {
		if m.Resizing == nil && (group == "" || m.Group == group) {
			names = append(names, m.Name)
		}
	}
	return names
}

// rebootResized reboots members, and waits until they are ready with their new size.
func (a *app) rebootResized(ctx context.Context, c *client.Client, cl api.Cluster, members []string, timeout time.Duration) (api.Cluster, error) {
	cl, err := c.RebootCluster(ctx, ref(cl), api.RebootRequest{Members: members})
	if err != nil {
		return cl, unknownOutcome(err, ref(cl))
	}
	rebooted := untilRebooted(cl, timeout)
	done := rebooted.done
	rebooted.what = "ready with its new size"
	rebooted.done = func(cl api.Cluster) (bool, error) {
		over, err := done(cl)
		return over && len(resizing(cl, "")) == 0, err
	}
	if cl, err = a.await(ctx, c, cl, rebooted); err != nil {
		return cl, err
	}
	return cl, notRebooted(cl)
}

// untilClaimed waits until the new size of every member is in effect, or takes effect at a reboot.
func untilClaimed(asked api.Cluster, timeout time.Duration) await {
	seen := false
	return await{what: "resized", timeout: timeout, done: func(cl api.Cluster) (bool, error) {
		seen = seen || slices.EqualFunc(cl.Spec.Groups, asked.Spec.Groups, func(x, y api.Group) bool { return x.Shape == y.Shape })
		return seen && len(resizing(cl, api.ResizeWaiting)) == 0 && len(resizing(cl, api.ResizeApplying)) == 0, nil
	}}
}

// resizing returns the members whose resize is in a phase, or in any for "".
func resizing(cl api.Cluster, phase api.ResizePhase) []string {
	var names []string
	for _, m := range cl.Status.Members {
		if m.Resizing != nil && (phase == "" || m.Resizing.Phase == phase) {
			names = append(names, m.Name)
		}
	}
	return names
}

// resizingText describes a member's pending resize.
func resizingText(r *api.MemberResizing) string {
	size := fmt.Sprintf("%d cores, %s", r.Cores, r.Memory)
	if r.Cores == 1 {
		size = fmt.Sprintf("1 core, %s", r.Memory)
	}
	if r.Disk > 0 {
		size += fmt.Sprintf(", a disk of %s", r.Disk)
	}
	switch r.Phase {
	case api.ResizeReboot:
		return "resize to " + size + ": takes effect at a reboot"
	case api.ResizeWaiting:
		return "resize to " + size + ": " + r.Message
	default:
		return "resize to " + size
	}
}
