package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (a *app) shapeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "shape", Short: "Show and set the named shapes of members", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.Long = cmd.Short + `. A shape says how many cores and how much memory each member gets: 'nearmetal cluster create --shape NAME', or
"shape: NAME" in a file. Cores and memory that are given as well go before those of the shape. A cluster keeps what it was made with when
the shape is changed or removed. A new site has no shapes.`
	cmd.AddCommand(a.shapeList(), a.shapeShow(), a.shapeSet(), a.shapeDelete())
	return a.connects(cmd)
}

func (a *app) shapeList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List shapes", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		all, err := c.Shapes(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			t := newTable(w, "NAME", "CORES", "MEMORY", "DESCRIPTION")
			for _, s := range all {
				t.row(s.Name, strconv.Itoa(s.Cores), s.Memory.String(), s.Description)
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) printShape(w io.Writer, s api.NamedShape) {
	fields(w, "Name", s.Name, "Description", s.Description, "Cores", strconv.Itoa(s.Cores), "Memory", s.Memory.String(), "Disk", diskText(s.Disk), "Set", a.age(s.UpdatedAt)+" ago")
}

func (a *app) shapeShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show NAME", Short: "Show a shape", Args: oneArg("shape"), ValidArgsFunction: a.completeShapes}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		s, err := c.Shape(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, s, func(w io.Writer) { a.printShape(w, s) })
	}
	return cmd
}

// diskText is the size of a private disk.
func diskText(d api.Bytes) string {
	if d == 0 {
		return "that of the environment"
	}
	return d.String()
}

func (a *app) shapeSet() *cobra.Command {
	var s api.ShapeSettings
	var memory, disk string
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Create or replace a shape", Args: oneArg("shape"), ValidArgsFunction: a.completeShapes,
		Long:    "Create or replace a shape. Existing clusters keep the resources they were created with. Needs an administrator.",
		Example: `  nearmetal shape set m4 --cores 4 --memory 8GiB --description "for CFD"`,
	}
	flags := cmd.Flags()
	flags.IntVar(&s.Cores, "cores", 0, "cores of each member")
	flags.StringVar(&memory, "memory", "", "memory of each member, like 8GiB")
	flags.StringVar(&disk, "disk", "", "private disk of each member whose environment was imported, like 20GiB")
	flags.StringVar(&s.Description, "description", "", "description for users")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !flags.Changed("cores") || !flags.Changed("memory") {
			return usage("a shape has both cores and memory; give --cores and --memory")
		}
		var err error
		if s.Memory, err = api.ParseBytes(memory); err != nil {
			return usage("--memory: %v", err)
		}
		if disk != "" {
			if s.Disk, err = api.ParseBytes(disk); err != nil {
				return usage("--disk: %v", err)
			}
		}
		if err := manifest.CheckShape(args[0], s, manifest.Flags("cores", "memory")); err != nil {
			return usage("%v", err)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		shape, err := c.SetShape(cmd.Context(), args[0], s)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, shape, func(w io.Writer) { a.printShape(w, shape) })
	}
	return cmd
}

func (a *app) shapeDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete a shape; existing clusters are unchanged", Args: oneArg("shape"),
		ValidArgsFunction: a.completeShapes,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		if err := c.DeleteShape(cmd.Context(), args[0]); err != nil {
			return err
		}
		fmt.Fprintf(a.Streams.Out, "shape %s deleted\n", args[0])
		return nil
	}
	return cmd
}
