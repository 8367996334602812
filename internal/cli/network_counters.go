package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// printCounters writes what passed the ports of a network. Ports whose agents report nothing show dashes.
func printCounters(w io.Writer, n *api.NetworkStatus) {
	if len(n.Ports) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "CLUSTER", "MEMBER", "ADDRESS", "BYTES SENT", "PACKETS SENT", "DROPPED", "BYTES RECEIVED", "PACKETS RECEIVED", "DROPPED")
	for i := range n.Ports {
		p := &n.Ports[i]
		cells := []string{p.Cluster, p.Member, p.Address.String(), "", "", "", "", "", ""}
		if c := p.Counters; c != nil {
			for i, count := range []int64{c.SentBytes, c.SentPackets, c.SentDropped, c.ReceivedBytes, c.ReceivedPackets, c.ReceivedDropped} {
				cells[3+i] = strconv.FormatInt(count, 10)
			}
		}
		t.row(cells...)
	}
	t.flush()
}
