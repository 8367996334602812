package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) copyCommand() *cobra.Command {
	var recursive bool
	cmd := &cobra.Command{
		Use:   "cp SOURCE... DESTINATION",
		Short: "Copy files to and from a cluster",
		Long: `Copy files between this machine and a member of a cluster. A path on a member is written CLUSTER:PATH (the member of rank 0) or
CLUSTER/MEMBER:PATH; without a leading / it is below the home directory, which all members share. Write ./ before a name of this machine that
has a colon. It uses the system's scp, as 'cluster ssh' uses ssh; the exit code is that of scp.`,
		Example: `  nearmetal cp input.dat c1:
  nearmetal cp -r c1:results ./results
  nearmetal cp c1/c1-3:/tmp/core .`,
		Args: func(_ *cobra.Command, args []string) error { _, err := planCopy(args); return err },
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy directories recursively")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		plan, err := planCopy(args)
		if err != nil {
			return err
		}
		return a.throughSSH(cmd.Context(), "scp", plan.cluster, plan.member, func(acc *access) []string {
			var words []string
			if recursive {
				words = append(words, "-r")
			}
			return append(append(words, "--"), plan.words(acc.member)...)
		})
	}
	return a.connects(passesInterrupts(cmd))
}

// copyPlan is what is copied, and the one member it goes to or comes from.
type copyPlan struct {
	cluster, member string
	paths           []copyPath
}

// copyPath is a path of this machine, or of a member.
type copyPath struct {
	remote                bool
	cluster, member, path string
}

// planCopy reads the paths: either the sources or the destination are on one member, the others are of this machine.
func planCopy(args []string) (copyPlan, error) {
	var plan copyPlan
	if len(args) < 2 {
		return plan, usage("name what to copy and where to: 'nearmetal cp SOURCE... DESTINATION'")
	}
	for _, arg := range args {
		p := readPath(arg)
		if p.path == "" && !p.remote {
			return plan, usage("a path is empty; nothing was copied")
		}
		plan.paths = append(plan.paths, p)
	}
	to := plan.paths[len(args)-1]
	for i, from := range plan.paths[:len(args)-1] {
		switch {
		case from.remote && to.remote:
			return plan, usage("both %q and %q are on members; copy to this machine first", args[i], args[len(args)-1])
		case !from.remote && !to.remote:
			return plan, usage("neither %q nor %q is on a cluster; a path there is written CLUSTER:PATH or CLUSTER/MEMBER:PATH", args[i], args[len(args)-1])
		case from.remote && i > 0 && (from.cluster != plan.paths[0].cluster || from.member != plan.paths[0].member):
			return plan, usage("%q and %q are on different members; copy from one at a time", args[0], args[i])
		}
	}
	there := to
	if !to.remote {
		there = plan.paths[0]
	}
	plan.cluster, plan.member = there.cluster, there.member
	return plan, nil
}

// readPath tells paths of members from those of this machine: nothing before their colon begins a path of a file system.
func readPath(arg string) copyPath {
	where, path, colon := strings.Cut(arg, ":")
	if !colon || where == "" || strings.ContainsAny(where[:1], "/.~") {
		return copyPath{path: arg}
	}
	cluster, member, _ := strings.Cut(where, "/")
	if cluster == "" || strings.Contains(member, "/") {
		return copyPath{path: arg}
	}
	return copyPath{remote: true, cluster: cluster, member: member, path: path}
}

// words are the paths as scp reads them.
func (p copyPlan) words(member string) []string {
	words := make([]string, len(p.paths))
	for i, path := range p.paths {
		switch {
		case path.remote:
			words[i] = member + ":" + path.path
		case strings.HasPrefix(path.path, "/"):
			words[i] = path.path
		default:
			words[i] = "./" + path.path // neither a colon nor a dash means anything after it
		}
	}
	return words
}
