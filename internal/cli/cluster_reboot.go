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
)

// rebootFlags are the flags of `cluster reboot`.
type rebootFlags struct {
	hard    bool
	noWait  bool
	timeout time.Duration
}

func (a *app) clusterReboot() *cobra.Command {
	var f rebootFlags
	cmd := &cobra.Command{
		Use: "reboot NAME [MEMBER...]", Short: "Reboot virtual machines of a cluster",
		Long: `Reboot all members of a cluster, or the members named, and wait until they are ready again. Each system is asked to shut down first
and is reset after 30 seconds; --hard resets it at once. A member keeps its name, rank, node, address and shared home, and a guest of another
system keeps its disk. Other changes to the root file system are lost. Jobs that run on the members end as lost.
Only virtual machines can reboot.`,
		Example: "  nearmetal cluster reboot v1\n  nearmetal cluster reboot v1 v1-1 --hard",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usage("name the cluster, and members if only some are to reboot: '%s'", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
			}
			return nil
		},
		ValidArgsFunction: a.completeClusters(1),
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.hard, "hard", false, "reset the members without asking their systems to shut down")
	flags.BoolVar(&f.noWait, "no-wait", false, "do not wait until they are ready again")
	flags.Var(timeoutFlag(&f.timeout, waitTimeout), "timeout", "how long to wait (0: no limit)")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.reboot(cmd.Context(), args[0], unique(args[1:]), f, out)
	}
	return cmd
}

// reboot requests it, waits unless --no-wait is given, and prints the cluster.
func (a *app) reboot(ctx context.Context, name string, members []string, f rebootFlags, out *format) error {
	c, err := a.client(0)
	if err != nil {
		return err
	}
	cl, err := c.RebootCluster(ctx, name, api.RebootRequest{Members: members, Hard: f.hard})
	if err != nil {
		return unknownOutcome(err, name)
	}
	if !f.noWait {
		if cl, err = a.await(ctx, c, cl, untilRebooted(cl, f.timeout)); err != nil {
			return err
		}
	}
	if err := out.print(a.Streams.Out, cl, func(w io.Writer) { a.printCluster(w, cl) }); err != nil {
		return err
	}
	return notRebooted(cl)
}

// untilRebooted waits until every member of the request has booted again and the cluster is ready.
func untilRebooted(asked api.Cluster, timeout time.Duration) await {
	var wanted api.RebootStatus
	if asked.Status.Reboot != nil {
		wanted = *asked.Status.Reboot
	}
	return await{what: "ready after its reboot", timeout: timeout, done: func(cl api.Cluster) (bool, error) {
		now := cl.Status.Reboot
		if now == nil {
			return false, nil
		}
		if current, err := answersRequest(cl, "reboot", now.AskedAt, wanted.AskedAt); err != nil || !current {
			return false, err
		}
		ready := !slices.ContainsFunc(cl.Status.Members, func(m api.MemberStatus) bool {
			return m.Phase != api.MemberReady && slices.ContainsFunc(now.Members, func(r api.MemberRebooting) bool {
				return r.Member == m.Name && r.Phase == api.RebootDone
			})
		})
		return now.Ended && ready && cl.Status.Phase == api.ClusterReady, nil
	}}
}

// notRebooted is the error of a request some of whose members did not boot again.
func notRebooted(cl api.Cluster) error {
	if cl.Status.Reboot == nil {
		return nil
	}
	var failed []string
	for _, m := range cl.Status.Reboot.Members {
		if m.Phase == api.RebootFailed {
			failed = append(failed, fmt.Sprintf("%s did not reboot: %s", m.Member, m.Message))
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("cluster %q: %s", ref(cl), strings.Join(failed, "; "))
}
