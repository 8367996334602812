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
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// scaleFlags are the flags of `cluster scale`.
type scaleFlags struct {
	group   string
	size    int
	remove  []string
	queue   bool
	noWait  bool
	timeout time.Duration
}

func (a *app) clusterScale() *cobra.Command {
	var f scaleFlags
	cmd := &cobra.Command{
		Use:   "scale NAME --size N | --remove MEMBER...",
		Short: "Change the number of members of a cluster",
		Long: `Change the number of members of a cluster. Wait until new members are ready and nothing is left of released ones. Members that
stay keep their names, ranks and addresses; their jobs go on. A smaller size releases the highest ranks first, --remove those that are
named. New members that find no room now are refused with the reason and nothing is changed, or wait with --queue. Ctrl-C
ends the waiting only.`,
		Example: `  nearmetal cluster scale c1 --size 8
  nearmetal cluster scale c2 --group compute --size 32 --queue
  nearmetal cluster scale c1 --remove c1-3 c1-5`,
		ValidArgsFunction: a.completeScale,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.group, "group", "", "group to scale (optional when there is only one)")
	flags.IntVar(&f.size, "size", 0, "number of members the group is to have")
	flags.StringSliceVar(&f.remove, "remove", nil, "member to release; more may follow, or be separated by commas")
	flags.BoolVar(&f.queue, "queue", false, "wait in the queue when there is no room now")
	flags.BoolVar(&f.noWait, "no-wait", false, "do not wait until it is done")
	flags.Var(timeoutFlag(&f.timeout, waitTimeout), "timeout", "how long to wait (0: no limit, the default with --queue)")
	out := outputFlag(cmd)
	_ = cmd.RegisterFlagCompletionFunc("remove", a.completeMembers) // only fails for a flag that does not exist
	cmd.Args = func(cmd *cobra.Command, args []string) error { return scaleArgs(cmd, args, f) }
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.queue && !cmd.Flags().Changed("timeout") {
			f.timeout = 0
		}
		f.remove = unique(append(f.remove, args[1:]...))
		return a.scale(cmd.Context(), args[0], f, out)
	}
	return cmd
}

// scaleArgs finds what can't be meant before anything is sent.
func scaleArgs(cmd *cobra.Command, args []string, f scaleFlags) error {
	sized, removes := cmd.Flags().Changed("size"), cmd.Flags().Changed("remove")
	switch {
	case len(args) == 0 || args[0] == "":
		return usage("name the cluster: '%s'", cmd.UseLine())
	case sized && removes:
		return usage("--size conflicts with --remove: --size gives the number of members, --remove names the ones to release")
	case !sized && !removes:
		return usage("give the new number of members (--size N), or name the members to release (--remove MEMBER...)")
	case len(args) > 1 && !removes:
		return usage("'%s' takes one cluster, %q is one too many", cmd.CommandPath(), args[1])
	case sized && f.size < 1:
		return usage("--size: %d is too small; give at least 1 member, or delete the cluster ('nearmetal cluster delete %s')", f.size, args[0])
	case sized && f.size > manifest.MaxMembers:
		return usage("--size: %d is too large; the limit is %d", f.size, manifest.MaxMembers)
	case removes && (slices.Contains(f.remove, "") || slices.Contains(args[1:], "") || len(f.remove) == 0):
		return usage("--remove: a name is empty; name the members to release, nothing was changed")
	case removes && f.group != "":
		return usage("--group conflicts with --remove, which names members of any group")
	case removes && f.queue:
		return usage("--queue conflicts with --remove: releasing members never waits for room")
	}
	return nil
}

// scale asks for it, waits unless told not to, and prints the cluster.
func (a *app) scale(ctx context.Context, name string, f scaleFlags, out *format) error {
	c, err := a.client(0)
	if err != nil {
		return err
	}
	cl, err := c.ScaleCluster(ctx, name, api.ScaleRequest{Group: f.group, Size: f.size, Remove: f.remove, Queue: f.queue})
	if err != nil {
		return unknownOutcome(inFlags(err), name)
	}
	if !f.noWait {
		if cl, err = a.await(ctx, c, cl, untilSettled(cl, f.timeout)); err != nil {
			return err
		}
	}
	return out.print(a.Streams.Out, cl, func(w io.Writer) { a.printCluster(w, cl) })
}

// unknownOutcome says of a request that was interrupted that it may have been carried out.
func unknownOutcome(err error, name string) error {
	if exitCode(err) != ExitInterrupted {
		return err
	}
	return fmt.Errorf("interrupted; whether cluster %q was changed is not known, see 'nearmetal cluster show %s'", name, name)
}

func (a *app) clusterPause() *cobra.Command {
	return a.turns(turn{
		verb: "pause", short: "Freeze the members of clusters where they are",
		long: `Freeze every process of every member, and wait until all stand still. A paused cluster keeps what it holds; its usage and its time
limit go on. Members that die meanwhile are replaced once it is resumed.

A whole machine is powered off instead: its programs end, and its files stay. First the files that were changed in its root are saved, since the root is in memory. If one
machine can't be saved, none is powered off, and the cluster goes on. What is in /tmp and /run, and what programs write after their machine was read, is lost: end them first.
The machines stay the cluster's, and their disks are left alone.`,
		goal: api.ClusterPaused, ask: (*client.Client).PauseCluster, is: func(st api.ClusterStatus) bool { return st.Paused },
	})
}

func (a *app) clusterResume() *cobra.Command {
	return a.turns(turn{
		verb: "resume", short: "Wake the members of paused clusters", long: `Wake the members of paused clusters, and wait until all are ready. Whole machines boot again, with the files that they had; programs are not started again.
A machine that was lost meanwhile, or was powered on, is replaced by another one: that has the files of the root, and not those of the disks.`,
		goal: api.ClusterReady, ask: (*client.Client).ResumeCluster, is: func(st api.ClusterStatus) bool { return !st.Paused },
	})
}

// turn is a change of clusters that another command undoes.
type turn struct {
	verb, short, long string
	// goal is the phase that it ends in.
	goal api.ClusterPhase
	ask  func(*client.Client, context.Context, string) (api.Cluster, error)
	// is tells whether a cluster is meant to get there.
	is func(api.ClusterStatus) bool
}

// turns is the command of a turn.
func (a *app) turns(t turn) *cobra.Command {
	var noWait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: t.verb + " NAME...", Short: t.short, Long: t.long,
		Args: someArgs("clusters to " + t.verb), ValidArgsFunction: a.completeClusters(0),
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until they are "+string(t.goal))
	cmd.Flags().Var(timeoutFlag(&timeout, waitTimeout), "timeout", "how long to wait for each (0: no limit)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		var asked []api.Cluster
		var failed []error
		for _, name := range unique(args) {
			cl, err := a.asking(cmd.Context(), c, t, name)
			if err != nil {
				failed = append(failed, unknownOutcome(err, name))
				continue
			}
			asked = append(asked, cl)
		}
		for _, cl := range asked {
			if !noWait {
				if cl, err = a.await(cmd.Context(), c, cl, t.end(timeout)); err != nil {
					failed = append(failed, err)
					continue
				}
			}
			fmt.Fprintf(a.Streams.Out, "cluster %s is %s\n", ref(cl), cl.Status.Phase)
		}
		return joined(failed)
	}
	return cmd
}

// asking asks for a turn. A pause is answered once the files of whole machines are saved.
func (a *app) asking(ctx context.Context, c *client.Client, t turn, name string) (api.Cluster, error) {
	if t.goal != api.ClusterPaused {
		return t.ask(c, ctx, name)
	}
	p := a.progress()
	defer p.stop()
	if p.terminal {
		p.say("pausing cluster " + name + "; of whole machines, files are saved first")
	}
	return t.ask(c, ctx, name)
}

// end waits until a cluster is where the turn leads. It may turn back by itself, or because somebody else asked for that.
func (t turn) end(timeout time.Duration) await {
	seen := false
	return await{what: string(t.goal), timeout: timeout, done: func(cl api.Cluster) (bool, error) {
		is := t.is(cl.Status)
		switch {
		case seen && !is && strings.HasPrefix(cl.Status.Message, "it could not be "):
			return false, &exitError{ExitConflict, fmt.Errorf("cluster %q did not become %s: %s", ref(cl), t.goal, printable(cl.Status.Message))}
		case seen && !is:
			return false, &exitError{ExitConflict, fmt.Errorf("somebody else changed cluster %q back before it was %s", ref(cl), t.goal)}
		}
		seen = seen || is
		if is && cl.Status.Phase == api.ClusterReady && strings.HasPrefix(cl.Status.Message, "it could not be paused") {
			return false, &exitError{ExitConflict, fmt.Errorf("cluster %q did not become %s: %s", ref(cl), t.goal, printable(cl.Status.Message))}
		}
		return seen && cl.Status.Phase == t.goal, nil
	}}
}

// someArgs wants one argument or more, none of them empty.
func someArgs(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 || slices.Contains(args, "") {
			return usage("name the %s: '%s'; nothing was changed", what, strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		}
		return nil
	}
}
