package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

// Columns of the picture of a member's history, and the pause between two pictures.
const (
	sparkWidth = 20
	topEvery   = 2 * time.Second
)

func (a *app) clusterTop() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use: "top NAME", Short: "Show what a cluster's members use", Args: oneArg("cluster"), ValidArgsFunction: a.completeClusters(1),
		Long: `Show what each member of a cluster uses: processors, memory, network and disk, with the last minutes of its processors as a picture and their
mean and maximum. On a terminal it is shown again every two seconds, until Ctrl-C. For a member that has a whole machine, the machine's sensors are shown, too.

Nodes report every five seconds. What they don't know is shown as "-". The processors and the disk of virtual machines are seen from outside, so their memory is what the machine
has, which a guest seldom gives back.`,
		Example: "  nearmetal cluster top c1\n  nearmetal cluster top c1 --once\n  nearmetal cluster top c1 -o json",
	}
	out := outputFlag(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "show it once and end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		for {
			all, err := c.ClusterTop(ctx, args[0])
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			var page bytes.Buffer
			if err := out.print(&page, all, func(w io.Writer) { printTop(w, all) }); err != nil {
				return err
			}
			again := !once && *out == formatTable && onTerminal(a.Streams.Out)
			if again {
				fmt.Fprint(a.Streams.Out, "\x1b[H\x1b[2J") // to the beginning, and clear (ECMA-48)
			}
			if _, err := page.WriteTo(a.Streams.Out); err != nil || !again {
				return err
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(topEvery):
			}
		}
	}
	return cmd
}

func printTop(w io.Writer, all []api.MemberTop) {
	header := []string{"MEMBER", "NODE", "PHASE", "CPU", "OF", "MEAN", "MAX", "HISTORY", "MEMORY", "OF", "SENT", "RECEIVED", "READ", "WRITTEN", "SENSORS"}
	power := slices.ContainsFunc(all, func(m api.MemberTop) bool { return newestPower(m.Points) != nil })
	if power {
		header = append(header, "POWER")
	}
	t := newTable(w, header...)
	for _, m := range all {
		var last api.UsePoint
		memory := ""
		if n := len(m.Points); n > 0 {
			last = m.Points[n-1]
			memory = sizeText(last.MemoryBytes)
		}
		mean, most := cpuOf(m.Points)
		cells := []string{
			m.Member, m.Node, string(m.Phase), coresUsed(last.CPUCores), limitText(int64(m.Cores), fmt.Sprint(m.Cores)), coresUsed(mean), coresUsed(most), spark(m),
			memory, limitText(m.LimitBytes, sizeText(m.LimitBytes)), rateText(last.SentRate), rateText(last.ReceivedRate), rateText(last.DiskReadRate), rateText(last.DiskWrittenRate), sensorText(m.Sensors),
		}
		if power {
			cells = append(cells, memberPowerText(newestPower(m.Points)))
		}
		t.row(cells...)
	}
	t.flush()
}

// newestPower is the last point with a power, of the last two: power comes a moment after the rest. nil: it is not known.
func newestPower(points []api.UsePoint) *api.UsePoint {
	for i := len(points) - 1; i >= max(0, len(points)-2); i-- {
		if points[i].PowerWatts != nil {
			return &points[i]
		}
	}
	return nil
}

// memberPowerText is a power with its tag, unless it is measured.
func memberPowerText(p *api.UsePoint) string {
	if p == nil {
		return ""
	}
	text := wattsText(p.PowerWatts)
	if p.PowerTag != api.EnergyMeasured {
		text += " " + string(p.PowerTag)
	}
	return text
}

func coresUsed(n *float64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%.2f", *n)
}

func limitText(limit int64, text string) string {
	if limit == 0 {
		return ""
	}
	return text
}

func rateText(n *float64) string {
	if n == nil {
		return ""
	}
	return sizeText(int64(*n)) + "/s"
}

// cpuOf returns mean and maximum of what is known of a member's processors.
func cpuOf(points []api.UsePoint) (mean, most *float64) {
	sum, n, top := 0.0, 0, 0.0
	for _, p := range points {
		if p.CPUCores != nil {
			sum, n, top = sum+*p.CPUCores, n+1, max(top, *p.CPUCores)
		}
	}
	if n == 0 {
		return nil, nil
	}
	sum /= float64(n)
	return &sum, &top
}

// spark draws the newest points of a member's processors, as parts of its cores or, without a limit, of the most that was used. Points that are not known
// are dots.
func spark(m api.MemberTop) string {
	bars := []rune(" ▁▂▃▄▅▆▇█")
	points := m.Points[max(0, len(m.Points)-sparkWidth):]
	full := float64(m.Cores)
	if _, most := cpuOf(points); full == 0 && most != nil {
		full = *most
	}
	var b strings.Builder
	for _, p := range points {
		switch {
		case p.CPUCores == nil:
			b.WriteRune('·')
		case full <= 0:
			b.WriteRune(bars[0])
		default:
			b.WriteRune(bars[min(int(*p.CPUCores/full*float64(len(bars)-1)+0.5), len(bars)-1)])
		}
	}
	return b.String()
}

// sensorText is the state of a machine's sensors with its hottest temperature and its draw.
func sensorText(all *api.MachineSensors) string {
	if all == nil {
		return ""
	}
	parts := []string{string(all.State)}
	var hottest, draw *api.Sensor
	for i := range all.Sensors {
		s := &all.Sensors[i]
		if s.Value == nil {
			continue
		}
		if s.Kind == api.SensorTemperature && (hottest == nil || *s.Value > *hottest.Value) {
			hottest = s
		}
		if s.Kind == api.SensorPower && (draw == nil || *s.Value > *draw.Value) {
			draw = s
		}
	}
	for _, s := range []*api.Sensor{hottest, draw} {
		if s != nil {
			parts = append(parts, sensors.Value(*s))
		}
	}
	return strings.Join(parts, ", ")
}
