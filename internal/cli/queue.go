package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

func (a *app) clusterExplain() *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain NAME", Short: "Explain the state of a cluster", Args: oneArg("cluster"), ValidArgsFunction: a.completeClusters(1),
		Long: `Explain the state of a cluster: its members that wait for room, their place in the queue, the binding constraint, and the latest start
if nothing changes but time limits that end. For groups of whole machines, the command lists the machines that the members have, and whether the
other machines would fit, in the order in which they would be taken.

For groups with datasets, it lists which nodes have how much of them, and for datasets that are read through a cache, what became of what was
read ('nearmetal dataset show' explains the columns).

Of members that could have several GPUs, it lists which they have and why. EXPECTED is how many times as long as on a local GPU an average kernel was
expected to take, by the FIGURES beside it. OBSERVED is how many times as long as the server worked on them the member's own calls took of which its programs
waited for the answers, as the server counts. 'nearmetal measure gpu --member' measures kernels both ways.`,
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		ex, err := c.Explain(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, ex, func(w io.Writer) {
			fields(w, "Cluster", ex.Cluster, "Phase", string(ex.Phase), "Message", ex.Message)
			if len(ex.Waiting) > 0 {
				fmt.Fprintln(w)
				a.printWaiting(w, ex.Waiting, false)
			}
			printMachineFits(w, ex.Machines)
			printData(w, ex.Data)
			if len(ex.Caches) > 0 {
				fmt.Fprintln(w)
				printCaches(w, ex.Caches)
			}
			printDataDecisions(w, ex.DataDecisions)
			printDataChoices(w, ex.DataChoices)
			printDataReads(w, ex.DataReads, a.age)
			printDataOutcomes(w, ex.DataOutcomes)
			printGPUChoices(w, ex.GPUs)
		})
	}
	return cmd
}

// printGPUChoices lists which GPUs members have of those that they could have, why these, and what that was expected to cost.
func printGPUChoices(w io.Writer, uses []api.DeviceUse) {
	if len(uses) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "MEMBER", "GPU", "NODE", "HELD", "EXPECTED", "OBSERVED", "REASON", "FIGURES")
	for _, u := range uses {
		t.row(u.Member, u.Device, u.Node, deviceAmount(u.MemberDevice), times(u.Cost), times(u.Observed), u.Why, u.Figures)
	}
	t.flush()
}

// times is how many times as long something takes, "" where that is not known.
func times(n float64) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", n)
}

// printMachineFits lists machines that members of groups have, or could have.
func printMachineFits(w io.Writer, fits []api.MachineFit) {
	if len(fits) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "GROUP", "MACHINE", "MEMBER", "FITS", "REASON")
	for _, f := range fits {
		t.row(f.Group, f.Node, orElse(f.Member, "-"), yesNo(f.Fits), f.Reason)
	}
	t.flush()
}

// printData prints what nodes have of a cluster's datasets.
func printData(w io.Writer, data []api.DataHeld) {
	if len(data) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "GROUP", "NODE", "DATASETS HERE", "OF", "MEMBERS HERE")
	for _, d := range data {
		t.row(d.Group, d.Node, datasetBytes(d.HeldBytes), datasetBytes(d.OfBytes), orElse(strings.Join(d.Members, ","), "-"))
	}
	t.flush()
}

func (a *app) queueCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "queue", Short: "List requests that wait for room, in queue order", Args: noArgs,
		Long: `List requests that wait for room, in queue order: replacements of lost members first, which have no position, then new clusters and
members by priority, by the use of their project and user, and by age. EARLIEST is the latest start if nothing changes but time
limits that end.`,
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		waiting, err := c.Queue(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, waiting, func(w io.Writer) { a.printWaiting(w, waiting, true) })
	}
	return a.connects(cmd)
}

// printWaiting writes requests that wait; whose they are only where they are many clusters'.
func (a *app) printWaiting(w io.Writer, waiting []api.Waiting, whose bool) {
	projects := severalProjects(waiting, func(w api.Waiting) string { return w.Project })
	row := func(cluster, project, user string, others ...string) []string {
		if !whose {
			return others
		}
		return projects.row(append([]string{cluster, project, user}, others...)...)
	}
	t := newTable(w, row("CLUSTER", "PROJECT", "USER", "POSITION", "KIND", "MEMBERS", "CORES", "PRIORITY", "WAITING", "EARLIEST", "REASON")...)
	for _, r := range waiting {
		t.row(row(r.Cluster, r.Project, r.User, countText(r.Position), r.Kind, strconv.Itoa(r.Members), strconv.Itoa(r.Cores),
			strconv.Itoa(r.Priority), a.age(r.Since), a.until(r.Earliest), r.Reason)...)
	}
	t.flush()
}
