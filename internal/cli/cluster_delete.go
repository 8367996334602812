package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// deleteFlags are the flags of `cluster delete`.
type deleteFlags struct{ yes, noWait, trace bool }

func (a *app) clusterDelete() *cobra.Command {
	var f deleteFlags
	cmd := &cobra.Command{
		Use: "delete NAME...", Aliases: []string{"rm"}, Short: "Delete clusters, with their shared homes, and wait until nothing is left of them",
		Long: `Delete clusters and wait until they are gone: every member has ended and was cleaned, and a last look found nothing left. Jobs on them end.

The shared home of a cluster (/home on every member) is deleted with it, also when it is a volume of its own (--home SIZE), which its node wipes
at once. The home of a user (--home user) and other volumes outlive the cluster, and their files are not counted. When the home holds files, this command says how many and asks for
confirmation. Without a terminal it refuses unless --yes is given. An empty home needs no confirmation. Copy what you need first, with
'nearmetal cp'.`,
		Example: `  nearmetal cp -r c1:results . && nearmetal cluster delete c1 --yes`,

		ValidArgsFunction: a.completeClusters(0),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usage("name the clusters to delete; nothing was deleted ('nearmetal cluster list' lists the clusters)")
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "delete the files in shared homes without confirmation")
	cmd.Flags().BoolVar(&f.noWait, "no-wait", false, "do not wait until they are gone")
	cmd.Flags().BoolVar(&f.trace, "trace", false, "show on standard error where the time went, once they are gone")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.trace && f.noWait {
			return usage("--trace shows what was waited for; it can't be given together with --no-wait")
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		return a.deleteAll(cmd.Context(), c, args, f)
	}
	return cmd
}

// deleteAll asks for all to be deleted, then waits for each. What can't be deleted does not hold up the others.
func (a *app) deleteAll(ctx context.Context, c *client.Client, names []string, f deleteFlags) error {
	var asked []api.Cluster
	var failed []error
	for _, name := range unique(names) {
		cl, err := a.deleteOne(ctx, c, name, f.yes)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		asked = append(asked, cl)
	}
	for _, cl := range asked {
		if f.noWait {
			fmt.Fprintf(a.Streams.Out, "cluster %s is being deleted\n", ref(cl))
			continue
		}
		if err := a.awaitGone(ctx, c, cl); err != nil {
			failed = append(failed, err)
			continue
		}
		fmt.Fprintf(a.Streams.Out, "cluster %s deleted\n", ref(cl))
		if f.trace {
			if err := a.showTrace(ctx, c, ref(cl), "delete"); err != nil {
				failed = append(failed, err)
			}
		}
	}
	return joined(failed)
}

// deleteOne asks for one cluster to be deleted, once it is clear that the files in its home may go with it.
func (a *app) deleteOne(ctx context.Context, c *client.Client, name string, yes bool) (api.Cluster, error) {
	if yes {
		return c.DeleteCluster(ctx, name)
	}
	cl, err := c.Cluster(ctx, name)
	if err != nil {
		return cl, err
	}
	if cl.Status.Phase != api.ClusterDeleting {
		if err := a.confirmHome(ctx, c, name); err != nil {
			return cl, err
		}
	}
	return c.DeleteCluster(ctx, name)
}

// confirmHome returns nil when the home of a cluster is empty, or the user agrees to lose what it holds.
func (a *app) confirmHome(ctx context.Context, c *client.Client, name string) error {
	usage, err := c.ClusterHome(ctx, name)
	holds := "holds " + homeText(usage)
	switch {
	case client.HasCode(err, "home_unknown"), client.HasCode(err, "no_such_path"): // the latter is an older server's
		holds = fmt.Sprintf("can't be inspected (%v)", err)
	case err != nil:
		return err
	case usage.Empty():
		return nil
	}
	in, ok := a.Streams.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return &exitError{ExitUsage, fmt.Errorf("cluster %q was not deleted: its shared home %s, and is deleted with the cluster; "+
			"copy what you need ('nearmetal cp -r %s: DIRECTORY'), then repeat the command with --yes", name, holds, name)}
	}
	fmt.Fprintf(a.Streams.Err, "The shared home of cluster %q %s, and is deleted with the cluster.\nDelete it? [y/N] ", name, holds)
	agreed, err := answeredYes(ctx, in)
	if err != nil {
		fmt.Fprintln(a.Streams.Err)
		return fmt.Errorf("cluster %q was not deleted: %w", name, err)
	}
	if !agreed {
		return &exitError{ExitFailed, fmt.Errorf("cluster %q was not deleted", name)}
	}
	return nil
}

// answeredYes reads a line from the terminal. Nothing but y and yes agrees.
func answeredYes(ctx context.Context, in *os.File) (bool, error) {
	line := make(chan string, 1)
	go func() { // an interrupt does not end a read; the process ends soon after
		text, _ := bufio.NewReader(in).ReadString('\n')
		line <- strings.ToLower(strings.TrimSpace(text))
	}()
	select {
	case text := <-line:
		return text == "y" || text == "yes", nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// homeText is how much a home holds: "12 files (3.4 MiB)".
func homeText(u api.HomeUsage) string {
	size := sizeText(u.Bytes)
	if u.Bytes < 1<<20 {
		size = plural(int(u.Bytes), "byte")
	}
	text := fmt.Sprintf("%s (%s)", plural(int(u.Files), "file"), size)
	if u.AtLeast {
		return "at least " + text
	}
	return text
}

// awaitGone waits until nothing is left of the cluster.
func (a *app) awaitGone(ctx context.Context, c *client.Client, cl api.Cluster) error {
	p := a.progress()
	defer p.stop()
	if cl.Status.Phase != api.ClusterRefused { // a refusal was told by who waited for the cluster
		p.say(stateLine(cl))
	}
	for change, err := range c.WatchCluster(ctx, ref(cl)) {
		switch {
		case client.HasCode(err, "cluster_not_found"):
			return nil
		case errors.Is(err, context.Canceled):
			return fmt.Errorf("interrupted; cluster %q is still being deleted, see 'nearmetal cluster show %s'", ref(cl), ref(cl))
		case err != nil:
			return err
		case change.Synced:
			continue
		case change.Deleted || change.Cluster.UID != cl.UID:
			return nil // gone, perhaps with another of the same name in its place
		}
		p.say(stateLine(change.Cluster))
	}
	return ctx.Err()
}
