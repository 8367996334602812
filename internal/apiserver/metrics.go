package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
)

// maxMeasuredPorts bounds the ports in one answer: each has six series. The rest is counted.
const maxMeasuredPorts = 10_000

// measure is one metric of ports in one direction.
type measure struct {
	direction string
	of        func(*api.PortCounters) int64
}

// portMetrics are the metrics of ports by name, with their help.
func portMetrics() []struct {
	name, help string
	measures   [2]measure
} {
	return []struct {
		name, help string
		measures   [2]measure
	}{
		{"nearmetal_port_bytes_total", "Bytes that passed a port since it was made, as the member sees it.", [2]measure{
			{"sent", func(c *api.PortCounters) int64 { return c.SentBytes }}, {"received", func(c *api.PortCounters) int64 { return c.ReceivedBytes }},
		}},
		{"nearmetal_port_packets_total", "Packets that passed a port since it was made, as the kernel passes them.", [2]measure{
			{"sent", func(c *api.PortCounters) int64 { return c.SentPackets }}, {"received", func(c *api.PortCounters) int64 { return c.ReceivedPackets }},
		}},
		{"nearmetal_port_dropped_packets_total", "Packets that the links of a port dropped since it was made, without those that rules dropped.", [2]measure{
			{"sent", func(c *api.PortCounters) int64 { return c.SentDropped }}, {"received", func(c *api.PortCounters) int64 { return c.ReceivedDropped }},
		}},
	}
}

// measuredPort is a port with counters, and its labels.
type measuredPort struct {
	labels   string
	counters *api.PortCounters
}

// metrics writes the counters of the ports that the token may see, in the text format of Prometheus (version 0.0.4).
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	ports, omitted := s.measuredPorts(r)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	out := bufio.NewWriter(w)
	for _, m := range portMetrics() {
		fmt.Fprintf(out, "# HELP %s %s\n# TYPE %[1]s counter\n", m.name, m.help)
		for _, p := range ports {
			for _, d := range m.measures {
				fmt.Fprintf(out, "%s{%s,direction=%q} %d\n", m.name, p.labels, d.direction, d.of(p.counters))
			}
		}
	}
	fmt.Fprintf(out, "# HELP nearmetal_ports_omitted Ports with counters beyond the %d that are listed.\n# TYPE nearmetal_ports_omitted gauge\nnearmetal_ports_omitted %d\n",
		maxMeasuredPorts, omitted)
	fmt.Fprintf(out, "# HELP nearmetal_server_goroutines Goroutines of the server.\n# TYPE nearmetal_server_goroutines gauge\nnearmetal_server_goroutines %d\n", runtime.NumGoroutine())
	fmt.Fprintf(out, "# HELP nearmetal_server_heap_live_bytes Memory that the server's last garbage collection found in use.\n# TYPE nearmetal_server_heap_live_bytes gauge\nnearmetal_server_heap_live_bytes %d\n", heapLive())
	s.fabricMetrics(r.Context(), out)
	_ = out.Flush() // a client that does not take the answer is gone
}

// heapLive is what the last garbage collection found in use, in bytes. Resident memory is more: what was freed since, and pages of the store's file.
func heapLive() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// fabricMetrics writes how many alarms and faults each fabric has, by kind. All users may know of them.
func (s *Server) fabricMetrics(ctx context.Context, out io.Writer) {
	_, _ = fmt.Fprintf(out, "# HELP nearmetal_fabric_alarms Alarms of a fabric that have begun and not ended, by kind.\n# TYPE nearmetal_fabric_alarms gauge\n")
	for _, cell := range s.cfg.Fabrics.Names() {
		open, err := s.openAlarms(ctx, cell)
		if err != nil {
			continue // the fabric is then missing, not without alarms
		}
		counts := map[string]int{}
		for _, kind := range site.AlarmKinds() {
			counts[string(kind)] = 0
		}
		for key := range open {
			kind, _, _ := strings.Cut(key, " ")
			counts[kind]++
		}
		for _, kind := range slices.Sorted(maps.Keys(counts)) {
			_, _ = fmt.Fprintf(out, "nearmetal_fabric_alarms{fabric=%q,kind=%q} %d\n", cell, kind, counts[kind])
		}
	}
}

// measuredPorts returns the ports with counters, up to the limit, and how many more there are.
func (s *Server) measuredPorts(r *http.Request) (ports []measuredPort, omitted int) {
	view, p := s.cfg.Reader.View(), who(r.Context())
	all := networksOf(p, view)
	for i := range all {
		n := &all[i]
		s.count(view, n)
		for j := range n.Ports {
			port := &n.Ports[j]
			switch {
			case port.Counters == nil:
			case len(ports) == maxMeasuredPorts:
				omitted++
			default:
				labels := fmt.Sprintf("project=%q,network=%q,cluster=%q,member=%q,node=%q", n.Project, n.Name, port.Cluster, port.Member, port.Node)
				ports = append(ports, measuredPort{labels, port.Counters})
			}
		}
	}
	return ports, omitted
}

// documentMetrics adds the metrics.
func (s *Server) documentMetrics() {
	s.documentStream("/v1/metrics", "get-metrics", "Read metrics",
		"Counters of the ports that the token may see, in the text format of Prometheus: bytes, packets and dropped packets by project, network, cluster, "+
			"member, node and direction; how many alarms each fabric has, by kind; and the goroutines of the server. At most "+strconv.Itoa(maxMeasuredPorts)+" ports are listed; `nearmetal_ports_omitted` counts the rest.",
		nil, map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}}})
}
