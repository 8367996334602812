package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func (a *app) envCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "env", Aliases: []string{"environment", "image"}, Short: "Build, import, show, check and delete environments", Args: cobra.ArbitraryArgs, RunE: needCommand,
	}
	cmd.AddCommand(
		a.envBuild(), a.envBuilds(), a.envCancel(), a.envCheck(), a.envDelete(), a.envImport(), a.envList(), a.envLog(), a.envRecipe(), a.envShow(),
	)
	return a.connects(cmd)
}

func (a *app) envList() *cobra.Command {
	var builtBy string
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List environments", Args: noArgs}
	cmd.Flags().StringVar(&builtBy, "built-by", "", "only those whose image this node has built")
	_ = cmd.RegisterFlagCompletionFunc("built-by", a.completeNodes(0)) // only fails for a flag that does not exist
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Environments(cmd.Context())
		if err != nil {
			return err
		}
		if builtBy != "" {
			all = slices.DeleteFunc(all, func(e api.Environment) bool { return !hasBuilt(builtBy, e.Image) })
		}
		builds, err := c.Builds(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			// Where none was built, there is nothing to say of images.
			cells := func(all []string) []string { return slices.Delete(all, 3, 6) }
			if slices.ContainsFunc(all, func(e api.Environment) bool { return e.Image != nil }) {
				cells = func(all []string) []string { return all }
			}
			t := newTable(w, cells([]string{"NAME", "STACKS", "NODES", "SIZE", "BUILT", "BUILT BY", "DESCRIPTION"})...)
			for _, e := range all {
				ok := 0
				for _, n := range e.Nodes {
					if n.OK {
						ok++
					}
				}
				size, built, by := "", "", ""
				if e.Image != nil {
					size, built, by = bytesText(e.Image.RootBytes), a.age(e.Image.BuiltAt), builderNames(e.Image)
				}
				t.row(cells([]string{e.Name, stackNames(e.Stacks), fmt.Sprintf("%d of %d", ok, len(e.Nodes)), size, built, by, e.Description})...)
			}
			t.flush()
			for _, b := range builds {
				if !b.Phase.Ended() {
					fmt.Fprintln(w, buildLine(b))
				}
			}
		})
	}
	return cmd
}

func (a *app) envShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show an environment and where it runs", Args: oneArg("environment"),
		ValidArgsFunction: a.completeEnvironments,
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		e, err := c.Environment(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, e, func(w io.Writer) {
			of := []string{"Name", e.Name, "Description", e.Description, "Stacks", stackNames(e.Stacks)}
			if e.Project != "" {
				of = append(of, "Project", e.Project)
			}
			fields(w, append(of, a.imageFields(e.Image)...)...)
			fmt.Fprintln(w)
			whereTable(w, e.Nodes)
		})
	}
	return cmd
}

// hasBuilt tells whether a node has built an image.
func hasBuilt(node string, img *api.Image) bool {
	return img != nil && slices.ContainsFunc(img.BuiltBy, func(by api.BuiltBy) bool { return by.Node == node })
}

// builderNames are the nodes that have built an image.
func builderNames(img *api.Image) string {
	var names []string
	for i := range img.BuiltBy {
		names = append(names, img.BuiltBy[i].Node)
	}
	return strings.Join(names, ",")
}

// imageFields are the fields of a built environment's image.
func (a *app) imageFields(img *api.Image) []string {
	if img == nil {
		return nil
	}
	r := &img.Requirements
	var needs []string
	for _, need := range []struct{ what, value string }{
		{"architecture", r.Architecture}, {"firmware", string(r.Firmware)}, {"CPU flags", strings.Join(r.CPUFlags, " ")}, {"devices", strings.Join(r.Devices, " ")},
	} {
		if need.value != "" {
			needs = append(needs, need.what+" "+need.value)
		}
	}
	if r.MemoryBytes > 0 {
		needs = append(needs, r.MemoryBytes.String()+" memory besides its root")
	}
	if r.DiskBytes > 0 {
		needs = append(needs, "a disk of "+r.DiskBytes.String())
	}
	var built, bases []string
	for i := range img.BuiltBy {
		by := &img.BuiltBy[i]
		text := fmt.Sprintf("node %s, %s ago", by.Node, a.age(by.At))
		if by.Trusted {
			text += ", a trusted builder"
		}
		built = append(built, text)
	}
	verified := ""
	if img.Verified() {
		verified = "yes: different nodes built the same image"
	}
	for _, name := range slices.Sorted(maps.Keys(img.Bases)) {
		bases = append(bases, name+" "+img.Bases[name])
	}
	root := "none, it is kernel and initrd only"
	if img.Disk != nil {
		return []string{
			"Digest", img.Digest, "Recipe digest", img.RecipeDigest, "Architecture", img.Architecture, "Needs", strings.Join(needs, ", "),
			"System", string(img.Disk.OS), "Firmware", string(img.Disk.Firmware), "Disk", fmt.Sprintf("%s, %s packed", img.Disk.Size, sizeText(img.RootBytes)),
			"Ready when", probeText(img.Disk.Probe), "Imported", fmt.Sprintf("%s ago, by build %s", a.age(img.BuiltAt), img.BuildID), "Imported by", strings.Join(built, "; "),
			"Verified", verified,
		}
	}
	if img.RootBytes > 0 {
		root = fmt.Sprintf("%s, %s unpacked", sizeText(img.RootBytes), sizeText(img.RootUnpackedBytes))
	}
	services := make([]string, len(img.Services))
	for i, s := range img.Services {
		services[i] = string(s)
	}
	return []string{
		"Digest", img.Digest, "Recipe digest", img.RecipeDigest, "Services", strings.Join(services, ", "), "Architecture", img.Architecture, "Kernel", img.KernelVersion, "Needs", strings.Join(needs, ", "),
		"Root", root, "Kernel and initrd", bytesText(img.MetalBytes),
		"Built", fmt.Sprintf("%s ago, by build %s", a.age(img.BuiltAt), img.BuildID), "Built by", strings.Join(built, "; "), "Verified", verified,
		"Built on", strings.Join(bases, ", "),
	}
}

func whereTable(w io.Writer, nodes []api.EnvironmentNode) {
	t := newTable(w, "NODE", "RUNS THERE", "DIGEST", "PROBLEMS")
	for _, n := range nodes {
		t.row(n.Node, yesNo(n.OK), shorten(n.Digest, 20), strings.Join(n.Problems, "; "))
	}
	t.flush()
}

func stackNames(stacks []api.Stack) string {
	names := make([]string, len(stacks))
	for i, s := range stacks {
		names[i] = string(s)
	}
	return strings.Join(names, ",")
}

func (a *app) envCheck() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "check NAME", Short: "Report where an environment can run", Args: oneArg("environment"), ValidArgsFunction: a.completeEnvironments,
		Long: `Report for every node, or for one (--node), whether an environment can run there, and if not, the reason. The exit code is 5 if it can
run on none of them.`,
	}
	cmd.Flags().StringVar(&node, "node", "", "only this node")
	_ = cmd.RegisterFlagCompletionFunc("node", a.completeNodes(0)) // only fails for a flag that does not exist
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		check, err := c.CheckEnvironment(cmd.Context(), args[0], node)
		if err != nil {
			return err
		}
		if err := out.print(a.Streams.Out, check, func(w io.Writer) { whereTable(w, check.Nodes) }); err != nil {
			return err
		}
		for _, n := range check.Nodes {
			if n.OK {
				return nil
			}
		}
		return &exitError{ExitRefused, fmt.Errorf("environment %q can run on none of these nodes", args[0])}
	}
	return cmd
}

func (a *app) envDelete() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "delete NAME...", Aliases: []string{"rm"}, Short: "Delete built environments", Args: someArgs("environments to delete"),
		ValidArgsFunction: a.completeEnvironments,
		Long: `Delete built environments with their images. Members of a project delete what was made of its clusters' files, and administrators the others, too.
Environments that members, clusters or machines use are refused. So is the environment
inspect, which machines boot for inspection, unless --force is given.`,
	}
	cmd.Flags().BoolVar(&force, "force", false, "also delete inspect: until it is built again, machines can't be inspected or enrolled")
	return a.onEach(cmd, func(ctx context.Context, c *client.Client, name string) (string, error) {
		return "environment " + name + " deleted", c.DeleteEnvironment(ctx, name, force)
	})
}

func (a *app) envRecipe() *cobra.Command {
	cmd := &cobra.Command{
		Use: "recipe [NAME]", Short: "Print an environment's recipe", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRecipes,
		Long: `Print the recipe that an environment was built from, or else the one of that name that comes with the product. Without a name, list those
that come with it. Redirect it to a file, change it, and build from that.`,
		Example: "  nearmetal env recipe debian-mpi > mine.yaml\n  nearmetal env build -f mine.yaml",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			all, err := c.Recipes(cmd.Context())
			for _, r := range all {
				fmt.Fprintln(a.Streams.Out, r.Name)
			}
			return err
		}
		e, err := c.Environment(cmd.Context(), args[0])
		if err == nil && e.Recipe != "" {
			_, err = io.WriteString(a.Streams.Out, e.Recipe)
			return err
		}
		if err != nil && !client.HasCode(err, "environment_not_found") {
			return err
		}
		r, err := c.Recipe(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		_, err = io.WriteString(a.Streams.Out, r.Text)
		return err
	}
	return cmd
}

func (a *app) completeRecipes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		all, err := c.Recipes(ctx)
		var names []string
		for _, r := range all {
			names = append(names, r.Name)
		}
		return names, err
	})
}
