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

// migrateFlags are those of 'cluster migrate'.
type migrateFlags struct {
	to        string
	offline   bool
	bandwidth string
	downtime  time.Duration
	noWait    bool
	timeout   time.Duration
}

func (a *app) clusterMigrate() *cobra.Command {
	var f migrateFlags
	cmd := &cobra.Command{
		Use: "migrate NAME [MEMBER...]", Short: "Move members of a cluster to other nodes",
		Long: `Move virtual machines with their memory to other nodes, one after the other, and wait until all have moved: all members, or the named
ones. Members run while they move, and pause for a moment at the end. With --offline they are saved, carried and restored instead.
A member that can't move keeps running on its node, and the message gives the reason.
Only virtual machines can move, and none with a device other than a network adapter's virtual function.`,
		Example: "  nearmetal cluster migrate v1\n  nearmetal cluster migrate v1 v1-0 --to n2 --bandwidth 100MiB/s",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usage("name the cluster, and members if not all are to move: '%s'", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
			}
			return nil
		},
		ValidArgsFunction: a.completeClusters(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.to, "to", "", "node to move to (default: any other node)")
	flags.BoolVar(&f.offline, "offline", false, "save the members, carry their state and restore it there")
	flags.StringVar(&f.bandwidth, "bandwidth", "", "maximum bandwidth of a live move, like 100MiB/s (default: no limit)")
	flags.Var(timeoutFlag(&f.downtime, 0), "downtime", "maximum pause at the end of a live move (default: 300ms)")
	flags.BoolVar(&f.noWait, "no-wait", false, "do not wait until they have moved")
	flags.Var(timeoutFlag(&f.timeout, 0), "timeout", "how long to wait (default: no limit)")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.migrate(cmd.Context(), args[0], unique(args[1:]), f, out)
	}
	return cmd
}

// migrate asks for it, waits unless told not to, and prints what each move took.
func (a *app) migrate(ctx context.Context, name string, members []string, f migrateFlags, out *format) error {
	req := api.MigrateRequest{Members: members, To: f.to, Offline: f.offline, Downtime: api.Duration(f.downtime)}
	if f.bandwidth != "" {
		rate, err := api.ParseBytes(strings.TrimSuffix(f.bandwidth, "/s"))
		if err != nil || rate <= 0 {
			return usage("--bandwidth: %q is no rate; write one such as 100MiB/s", f.bandwidth)
		}
		req.Bandwidth = rate
	}
	switch {
	case f.offline && f.bandwidth != "":
		return usage("--bandwidth conflicts with --offline: it bounds the move of a running member")
	case f.offline && f.downtime > 0:
		return usage("--downtime conflicts with --offline: it bounds how long a running member stands still")
	}
	c, err := a.client(0)
	if err != nil {
		return err
	}
	cl, err := c.MigrateCluster(ctx, name, req)
	if err != nil {
		return unknownOutcome(inFlags(err), name)
	}
	if f.noWait {
		return out.print(a.Streams.Out, cl, func(w io.Writer) { a.printCluster(w, cl) })
	}
	if cl, err = a.await(ctx, c, cl, untilMoved(cl, f.timeout)); err != nil {
		return err
	}
	if err := out.print(a.Streams.Out, cl, func(w io.Writer) { printMoves(w, cl) }); err != nil {
		return err
	}
	return notMoved(cl)
}

// untilMoved waits until the requested move has ended, and the members that moved can be reached again.
func untilMoved(asked api.Cluster, timeout time.Duration) await {
	var wanted api.MoveStatus
	if asked.Status.Move != nil {
		wanted = *asked.Status.Move
	}
	return await{what: "where it was to move", timeout: timeout, done: func(cl api.Cluster) (bool, error) {
		move := cl.Status.Move
		if move == nil {
			return false, nil
		}
		if current, err := answersRequest(cl, "move", move.AskedAt, wanted.AskedAt); err != nil || !current {
			return false, err
		}
		return move.Ended && !slices.ContainsFunc(move.Members, func(m api.MemberMoving) bool { return arrives(cl, m) }), nil
	}}
}

// arrives reports whether a member has moved, but can't be reached yet, or its report is still missing. The report comes before the remains on the
// old node are cleaned.
func arrives(cl api.Cluster, m api.MemberMoving) bool {
	if m.Phase != api.MoveMoved {
		return false
	}
	waits := m.Report == nil && (cl.Status.Phase == api.ClusterRestoring || leaving(cl.Status.Members) > 0)
	return waits || slices.ContainsFunc(cl.Status.Members, func(now api.MemberStatus) bool {
		return now.Name == m.Member && now.Node == m.To && now.Phase == api.MemberStarting
	})
}

// printMoves writes what became of a move for people.
func printMoves(w io.Writer, cl api.Cluster) {
	t := newTable(w, "MEMBER", "FROM", "TO", "MOVED", "STOOD STILL", "TOOK", "SENT", "MESSAGE")
	for _, m := range cl.Status.Move.Members {
		still, took, sent := "-", "-", "-"
		if r := m.Report; r != nil {
			took, sent = seconds(r.TotalSeconds), bytesText(r.Bytes)
			if r.DowntimeSeconds > 0 {
				still = seconds(r.DowntimeSeconds)
			}
		}
		t.row(m.Member, m.From, m.To, yesNo(m.Phase == api.MoveMoved), still, took, sent, m.Message)
	}
	t.flush()
}

func seconds(s float64) string { return fmt.Sprintf("%.2fs", s) }

// notMoved is the error of a move after which members are where they were. The reasons are in what was printed.
func notMoved(cl api.Cluster) error {
	var stayed []string
	for _, m := range cl.Status.Move.Members {
		if m.Phase == api.MoveFailed {
			stayed = append(stayed, m.Member)
		}
	}
	if len(stayed) == 0 {
		return nil
	}
	return fmt.Errorf("of cluster %q, %s did not move", ref(cl), strings.Join(stayed, ", "))
}

// movingText says which members of a cluster are on their way, for a line that tells how far something is.
func movingText(cl api.Cluster) string {
	var parts []string
	for _, m := range cl.Status.Members {
		if m.Moving == nil {
			continue
		}
		parts = append(parts, m.Name+" "+onItsWay(m.Moving))
	}
	return strings.Join(parts, ", ")
}

// onItsWay says where a member moves, and how far it is.
func onItsWay(m *api.MemberMoving) string {
	text := fmt.Sprintf("moves from %s to %s", m.From, m.To)
	if m.SentBytes > 0 { // pages of zeros are not sent, so that no part of the whole is known
		text += fmt.Sprintf(" (%s sent)", bytesText(m.SentBytes))
	}
	return text
}
