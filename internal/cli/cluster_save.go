package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// saveFlags say what is saved of a cluster.
type saveFlags struct {
	memory   bool
	files    string
	member   string
	keepKeys []string
	noHome   bool
}

func (a *app) clusterSave() *cobra.Command {
	var f saveFlags
	cmd := a.turns(turn{
		verb: "save", short: "Save virtual machines with their memory, or the files of a whole machine",
		long: `Save every member with its memory to its node's disk, and wait until all are saved. A saved cluster keeps its addresses and its shared home,
and releases its cores and memory. Its time limit keeps running. If the save of one member fails, all members continue.
Only virtual machines can be saved so, and none with a device other than a network adapter's virtual function.

With --files, make an environment of the files that one member of a cluster of whole machines has changed since it booted, and wait until a trusted builder
('nearmetal node trust') has built it. The cluster goes on. The environment belongs to the cluster's project, and is laid over the environment that the cluster has:
'nearmetal cluster create NAME --stack metal --env ENVIRONMENT' boots it on any machines that suit that one. Without --member, the files are those of the first member.

If the home is a volume that outlives the cluster (--home user, or a volume at /home), it gets a snapshot of the environment's name: deleted with 'volume snapshot delete'.
'nearmetal cluster restore NAME --files ENVIRONMENT' makes another cluster of them.

Left out are files that Nearmetal wrote for the member, with its keys and certificates, the machine's identity, root's password, logs, and what is in /tmp, /var/tmp and /run. What was
saved is searched for private keys afterwards. If there is one, nothing is saved, and its path is printed: delete it, or name it with --keep-key. Files that programs write
meanwhile may be saved half written.`,
		goal: api.ClusterSaved, ask: (*client.Client).SaveCluster, is: func(st api.ClusterStatus) bool { return st.Saved },
	})
	cmd.Example = "  nearmetal cluster save v1                    # virtual machines, with their memory\n  nearmetal cluster save m1 --files my-solver  # whole machines: an environment"
	cmd.Flags().BoolVar(&f.memory, "memory", true, "save the memory with the disks; --files is the other way")
	cmd.Flags().StringVar(&f.files, "files", "", "name of the environment to make of the files that a whole machine changed")
	cmd.Flags().StringVar(&f.member, "member", "", "with --files: the member whose files are saved (default: the first)")
	cmd.Flags().StringArrayVar(&f.keepKeys, "keep-key", nil, "with --files: absolute path of a private key to save on purpose; may be repeated")
	cmd.Flags().BoolVar(&f.noHome, "no-home", false, "with --files: make no snapshot of the home")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch changed := cmd.Flags().Changed; {
		case changed("files"):
			return a.saveFiles(cmd, args, f)
		case changed("member") || changed("keep-key") || changed("no-home"):
			return usage("--member, --keep-key and --no-home need --files; nothing was changed")
		case !f.memory:
			return usage("--memory=false: give --files ENVIRONMENT to save the files of a whole machine; nothing was changed")
		}
		return run(cmd, args)
	}
	return cmd
}

// saveFiles has an environment made of the files that a member changed.
func (a *app) saveFiles(cmd *cobra.Command, args []string, f saveFlags) error {
	switch changed := cmd.Flags().Changed; {
	case len(args) != 1:
		return usage("--files saves one cluster, and %d are named; nothing was changed", len(args))
	case f.files == "":
		return usage("--files: the name of the new environment is empty; nothing was changed")
	case changed("memory"):
		return usage("--memory conflicts with --files; nothing was changed")
	case changed("timeout"):
		return usage("--timeout does not apply to --files; interrupt the command, and the build goes on")
	}
	c, err := a.client(0)
	if err != nil {
		return err
	}
	b, err := a.readFiles(cmd.Context(), c, args[0], f)
	if err != nil {
		return err
	}
	printSaved(a.Streams.Err, b)
	if noWait, _ := cmd.Flags().GetBool("no-wait"); noWait {
		fmt.Fprintln(a.Streams.Out, b.ID)
		return nil
	}
	out := formatTable
	return a.awaitBuild(cmd.Context(), c, b, viewSteps, &out)
}

// readFiles waits until the server has read all files.
func (a *app) readFiles(ctx context.Context, c *client.Client, name string, f saveFlags) (api.Build, error) {
	p := a.progress()
	defer p.stop()
	p.say("reading the files of cluster " + name)
	return c.SaveFiles(ctx, name, api.SaveFilesRequest{Environment: f.files, Member: f.member, KeepKeys: f.keepKeys, NoHome: f.noHome})
}
