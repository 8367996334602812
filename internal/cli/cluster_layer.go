package cli

import (
	"cmp"
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

func (a *app) clusterLayer() *cobra.Command {
	cmd := &cobra.Command{Use: "layer", Short: "Add library layers to a running cluster, list and remove them", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.Long = cmd.Short + `. A layer is what the recipe of a built environment adds to its base, such as an MPI or a solver. All members of the
cluster have it read-only at /layers/ENVIRONMENT, beside their root, and so have members that come later. Members run on meanwhile.`
	cmd.AddCommand(a.layerAdd(), a.layerList(), a.layerRemove())
	return cmd
}

// layerFlags are the flags of the commands that wait.
type layerFlags struct {
	noWait  bool
	timeout time.Duration
}

func (f *layerFlags) add(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&f.noWait, "no-wait", false, "do not wait until all members "+what)
	cmd.Flags().Var(timeoutFlag(&f.timeout, 0), "timeout", "how long to wait (0: no limit)")
}

// clusterAndLayer checks that a command has the names of a cluster and of an environment.
func clusterAndLayer(cmd *cobra.Command, args []string) error {
	if len(args) != 2 || slices.Contains(args, "") {
		return usage("name the cluster and the environment: '%s'", cmd.UseLine())
	}
	return nil
}

func (a *app) layerAdd() *cobra.Command {
	var f layerFlags
	cmd := &cobra.Command{
		Use: "add NAME ENVIRONMENT[:PATH]", Short: "Add the layer of an environment to a running cluster",
		Long: `Add the own layer of a built environment to all members of a cluster while they run, read-only at /layers/ENVIRONMENT or at PATH. The command
waits until all members have it. The layer is that of the image which the name stands for now: a later build changes nothing in the cluster.

Members must run on the stack "container" or "metal". On whole machines the layer is in memory. Programs in it find their libraries by their own path,
or by variables such as LD_LIBRARY_PATH: nothing of a layer is laid into the root.`,
		Example: `  nearmetal cluster layer add c1 openfoam
  nearmetal cluster layer add c1 openmpi-5:/opt/openmpi-5`,
		Args: clusterAndLayer, ValidArgsFunction: a.completeClusterAndEnvironment,
	}
	f.add(cmd, "have the layer")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		layer := api.Layer{}
		var given bool
		if layer.Environment, layer.Path, given = strings.Cut(args[1], ":"); layer.Environment == "" || given && layer.Path == "" {
			return usage("%q is no layer; write ENVIRONMENT or ENVIRONMENT:PATH", args[1])
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		cl, err := c.AddLayer(cmd.Context(), args[0], layer)
		if err != nil {
			return unknownOutcome(err, args[0])
		}
		if !f.noWait && hasPlaces(cl) {
			if cl, err = a.await(cmd.Context(), c, cl, untilLayer(layer.Environment, f.timeout)); err != nil {
				return err
			}
		}
		return out.print(a.Streams.Out, cl, func(w io.Writer) { fmt.Fprintln(w, addedText(cl, layer)) })
	}
	return cmd
}

func (a *app) layerRemove() *cobra.Command {
	var f layerFlags
	cmd := &cobra.Command{
		Use: "remove NAME ENVIRONMENT", Short: "Remove a layer from a running cluster",
		Long: `Remove a layer from all members of a cluster while they run, and wait until no member has it any more. A member that has files of the layer open
keeps it, and the command says which processes these are; it goes on once they have ended or closed the files. With --timeout the command ends before
that; the layer is removed nevertheless as soon as it can be. Until then its environment can't be deleted.`,
		Example: `  nearmetal cluster layer remove c1 openfoam
  nearmetal cluster layer remove c1 openfoam --timeout 1m`,
		Args: clusterAndLayer, ValidArgsFunction: a.completeClusterAndLayer,
	}
	f.add(cmd, "have let go of the layer")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		cl, err := c.RemoveLayer(cmd.Context(), args[0], args[1])
		if err != nil {
			return unknownOutcome(err, args[0])
		}
		if !f.noWait && hasPlaces(cl) {
			if cl, err = a.await(cmd.Context(), c, cl, untilNoLayer(args[1], f.timeout)); err != nil {
				return err
			}
		}
		return out.print(a.Streams.Out, cl, func(w io.Writer) {
			if layerNamed(cl, args[1]) != nil {
				fmt.Fprintf(w, "Layer %q is being removed from cluster %q; see 'nearmetal cluster layer list %s'.\n", args[1], ref(cl), ref(cl))
				return
			}
			fmt.Fprintf(w, "Cluster %q does not have layer %q any more.\n", ref(cl), args[1])
		})
	}
	return cmd
}

func (a *app) layerList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list NAME", Short: "List the layers of a cluster", Args: oneArg("cluster"), ValidArgsFunction: a.completeClusters(1),
		Example: "  nearmetal cluster layer list c1",
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
		return out.print(a.Streams.Out, cl.Status.Layers, func(w io.Writer) {
			t := newTable(w, "LAYER", "STATE", "PATH", "IMAGE", "MESSAGE")
			for _, l := range cl.Status.Layers {
				t.row(l.Environment, l.State, l.MountPath(), shorten(l.Digest, 20), waitingText(l))
			}
			t.flush()
		})
	}
	return cmd
}

// hasPlaces reports whether a cluster has members that can get a layer now: none waits for room, nor is off for a pause.
func hasPlaces(cl api.Cluster) bool {
	return !cl.Status.Paused && slices.ContainsFunc(cl.Status.Members, func(m api.MemberStatus) bool { return m.Node != "" })
}

// layerNamed returns the layer of a cluster with this name; nil when there is none.
func layerNamed(cl api.Cluster, environment string) *api.LayerStatus {
	i := slices.IndexFunc(cl.Status.Layers, func(l api.LayerStatus) bool { return l.Environment == environment })
	if i < 0 {
		return nil
	}
	return &cl.Status.Layers[i]
}

// untilLayer waits until every member has a layer.
func untilLayer(environment string, timeout time.Duration) await {
	return await{what: "having layer " + environment, timeout: timeout, line: layersLine, done: func(cl api.Cluster) (bool, error) {
		l := layerNamed(cl, environment)
		if l == nil || l.State == api.LayerRemoving {
			return true, &exitError{ExitConflict, fmt.Errorf("layer %q was removed from cluster %q meanwhile", environment, ref(cl))}
		}
		return l.State == api.LayerReady, nil
	}}
}

// untilNoLayer waits until no member has a layer.
func untilNoLayer(environment string, timeout time.Duration) await {
	return await{what: "without layer " + environment, timeout: timeout, line: layersLine, done: func(cl api.Cluster) (bool, error) {
		l := layerNamed(cl, environment)
		if l != nil && l.State != api.LayerRemoving {
			return true, &exitError{ExitConflict, fmt.Errorf("layer %q was added to cluster %q again meanwhile", environment, ref(cl))}
		}
		return l == nil, nil
	}}
}

// layersLine says what the layers of a cluster wait for.
func layersLine(cl api.Cluster) string {
	for _, l := range cl.Status.Layers {
		if text := waitingText(l); text != "" {
			return text
		}
	}
	return ""
}

// waitingText says which members do not have the layers of their cluster yet.
func waitingText(l api.LayerStatus) string {
	switch {
	case l.State == api.LayerReady || l.Waiting == 0 && l.Message == "":
		return ""
	case l.Waiting > 1:
		return fmt.Sprintf("%s, and %d more", cmp.Or(l.Message, "a member is at work"), l.Waiting-1)
	default:
		return cmp.Or(l.Message, "a member is at work")
	}
}

// addedText says what became of a layer that was added.
func addedText(cl api.Cluster, layer api.Layer) string {
	at := layer.MountPath()
	l := layerNamed(cl, layer.Environment)
	switch {
	case !hasPlaces(cl):
		return fmt.Sprintf("Cluster %q is %s; its members get layer %q when they run, at %s.", ref(cl), cl.Status.Phase, layer.Environment, at)
	case l == nil || l.State != api.LayerReady:
		return fmt.Sprintf("Layer %q is being added to cluster %q at %s; see 'nearmetal cluster layer list %s'.", layer.Environment, ref(cl), at, ref(cl))
	default:
		return fmt.Sprintf("Cluster %q has layer %q at %s.", ref(cl), layer.Environment, at)
	}
}

// layersText lists the layers of a cluster: openfoam (/layers/openfoam), openmpi-5 (/opt/openmpi-5, removing).
func layersText(layers []api.LayerStatus) string {
	var texts []string
	for _, l := range layers {
		text := l.MountPath()
		if l.State != api.LayerReady {
			text += ", " + l.State
		}
		texts = append(texts, l.Environment+" ("+text+")")
	}
	return strings.Join(texts, ", ")
}

// completeClusterAndEnvironment completes a cluster and then an environment.
func (a *app) completeClusterAndEnvironment(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.completeClusters(1)(cmd, args, typed)
	}
	return a.completeEnvironments(cmd, nil, typed)
}

// completeClusterAndLayer completes a cluster and then one of its layers.
func (a *app) completeClusterAndLayer(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.completeClusters(1)(cmd, args, typed)
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		cl, err := c.Cluster(ctx, args[0])
		var names []string
		for _, l := range cl.Status.Layers {
			names = append(names, l.Environment)
		}
		return names, err
	})
}
