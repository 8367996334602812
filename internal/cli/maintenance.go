package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// nodeMaintenance is `node maintenance`.
func (a *app) nodeMaintenance() *cobra.Command {
	var from, lasts, reason string
	cmd := &cobra.Command{
		Use: "maintenance NODE... --from TIME --for DURATION --reason TEXT", Short: "Announce maintenance of nodes",
		Long: `Announce maintenance of nodes. No member is placed there whose time limit reaches into the window, and none without a time limit. At the
beginning of the window the node is drained, at its end undrained, unless an operator drained it before. Members that are still there stay.

--from is a time such as 2026-12-01T08:00:00+01:00, "2026-12-01 08:00" by the local clock, or "now".`,
		Example: `  nearmetal node maintenance n3 n4 --from "2026-12-01 08:00" --for 4h --reason "new firmware"
  nearmetal node maintenance list
  nearmetal node maintenance cancel n3 k2v9qd`,
		Args: someArgs("nodes"), ValidArgsFunction: a.completeNodes(0),
	}
	cmd.Flags().StringVar(&from, "from", "", "when it begins")
	cmd.Flags().StringVar(&lasts, "for", "", "how long it lasts, such as 4h or 2d")
	cmd.Flags().StringVar(&reason, "reason", "", "what is done, shown to users")
	cmd.AddCommand(a.maintenanceList(), a.maintenanceCancel())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := api.MaintenanceRequest{Reason: reason}
		var err error
		if req.From, err = readTime(from, a.Now()); err != nil {
			return usage("--from: %v", err)
		}
		if req.For, err = api.ParseDuration(lasts); err != nil {
			return usage("--for: %v", err)
		}
		if reason == "" {
			return usage("--reason is missing; say what is done")
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		var failed []error
		for _, name := range unique(args) {
			n, err := c.AnnounceMaintenance(cmd.Context(), name, req)
			if err != nil {
				failed = append(failed, err)
				continue
			}
			fmt.Fprintf(a.Streams.Out, "node %s has maintenance from %s to %s, %s\n", n.Name, req.From.Local().Format(timeFormat), req.From.Add(req.For.Std()).Local().Format(timeFormat), leftText(n.Members))
		}
		return joined(failed)
	}
	return cmd
}

// readTime reads a time as people write it.
func readTime(text string, now time.Time) (time.Time, error) {
	if text == "now" {
		return now.UTC().Truncate(time.Second), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02 15:04:05"} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time; write one such as 2026-12-01T08:00:00Z, \"2026-12-01 08:00\" or now", text)
}

func (a *app) maintenanceList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the maintenance windows of nodes", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		nodes, err := c.Nodes(cmd.Context())
		if err != nil {
			return err
		}
		type nodeWindow struct {
			Node string `json:"node"`
			api.MaintenanceWindow
		}
		all := []nodeWindow{}
		for _, n := range nodes {
			if n.Control != nil {
				for _, w := range n.Control.Windows {
					all = append(all, nodeWindow{n.Name, w})
				}
			}
		}
		return out.print(a.Streams.Out, all, func(w io.Writer) {
			t := newTable(w, "NODE", "ID", "FROM", "TO", "BEGUN", "BY", "REASON")
			for _, one := range all {
				t.row(one.Node, one.ID, one.From.Local().Format(timeFormat), one.To.Local().Format(timeFormat), yesNo(one.Begun), one.By, one.Reason)
			}
			t.flush()
		})
	}
	return cmd
}

func (a *app) maintenanceCancel() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel NODE ID", Short: "Cancel a maintenance window of a node", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeNodes(1),
		Long: "Cancel a maintenance window of a node. A node that is drained for it is undrained.",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		return a.cancelMaintenance(cmd.Context(), c, args[0], args[1])
	}
	return cmd
}

func (a *app) cancelMaintenance(ctx context.Context, c *client.Client, name, id string) error {
	if _, err := c.CancelMaintenance(ctx, name, id); err != nil {
		return err
	}
	fmt.Fprintf(a.Streams.Out, "maintenance window %s of node %s is cancelled\n", id, name)
	return nil
}

// windowsText lists the maintenance windows of a node.
func windowsText(n api.Node) string {
	if n.Control == nil {
		return ""
	}
	var parts []string
	for _, w := range n.Control.Windows {
		parts = append(parts, fmt.Sprintf("%s to %s: %s (%s)", w.From.Local().Format(timeFormat), w.To.Local().Format(timeFormat), w.Reason, w.ID))
	}
	return strings.Join(parts, "; ")
}
