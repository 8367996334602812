package topology

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Place is a port as the counters name it: the GUID of a switch, or of a host's port, and the port's number.
type Place struct{ GUID, Port string }

// Counters are what each port has counted, by IBTA's names of the counters.
type Counters map[Place]map[string]int64

// Lines of ibqueryerrors(8), with --data or --counters:
//
//	GUID 0x200002 port 2: [SymbolErrorCounter == 120] [PortXmitData == 1872 (7.312KB)]
var (
	countersLine = regexp.MustCompile(`^\s*GUID 0x([0-9a-fA-F]{1,16}) port (\d+):(.*)$`)
	counterWord  = regexp.MustCompile(`\[(\w+) == (\d+)[^\]]*\]`)
)

// ParseCounters reads what ibqueryerrors prints. Lines about anything but a port are skipped, since the program prints explanations among
// them; a counter that is no number of 63 bits is an error.
func ParseCounters(text string) (Counters, error) {
	all := Counters{}
	for line := range strings.Lines(text) {
		m := countersLine.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		at := Place{guid(m[1]), m[2]}
		if all[at] == nil {
			all[at] = map[string]int64{}
		}
		for _, c := range counterWord.FindAllStringSubmatch(m[3], -1) {
			n, err := strconv.ParseInt(c[2], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("counter %s of port %s of device %s is %s, which is out of range", c[1], at.Port, at.GUID, c[2])
			}
			all[at][c[1]] = n
		}
	}
	return all, nil
}

// Add takes in another reading of the same moment.
func (c Counters) Add(o Counters) {
	for at, counts := range o {
		if c[at] == nil {
			c[at] = map[string]int64{}
		}
		maps.Copy(c[at], counts)
	}
}

// Reading is a fabric at one moment.
type Reading struct {
	At       time.Time
	Topology api.FabricTopology
	Counters Counters
}

// cableError is a counter that a bad cable or a bad port moves, and how often a minute that is too often. Discarded packets and waits are
// none: congestion makes them.
type cableError struct {
	counter, words string
	perMinute      float64
}

// cableErrors are the counters of IBA 1.4, section 16.1.3.5. The bit error rate that the architecture allows, 10^-12, makes six symbol
// errors a minute at 100 Gbit/s.
func cableErrors() []cableError {
	return []cableError{
		{"SymbolErrorCounter", "symbol errors", 10},
		{"LinkErrorRecoveryCounter", "link error recoveries", 1},
		{"LinkDownedCounter", "times down", 1},
		{"PortRcvErrors", "receive errors", 10},
		{"LocalLinkIntegrityErrors", "link integrity errors", 1},
		{"ExcessiveBufferOverrunErrors", "buffer overruns", 1},
	}
}

// quiet is how long a link must count no errors before it is trusted again.
const quiet = 10 * time.Minute

// sentCounter counts what a port sent, in units of 4 bytes.
const (
	sentCounter = "PortXmitData"
	bitsPerUnit = 32
)

// Count puts the counters of a reading into its topology: errors since they were cleared, and loads since the reading before, which may be
// nil.
func Count(before *Reading, now *Reading) {
	for i := range now.Topology.Links {
		l := &now.Topology.Links[i]
		for _, e := range []*api.FabricEnd{&l.From, &l.To} {
			at := placeOf(*e)
			e.Errors, e.SentBitsPerSecond = nil, 0
			for name, n := range now.Counters[at] {
				if n > 0 && isError(name) {
					if e.Errors == nil {
						e.Errors = map[string]int64{}
					}
					e.Errors[name] = n
				}
			}
			if before != nil {
				if seconds := now.At.Sub(before.At).Seconds(); seconds > 0 {
					e.SentBitsPerSecond = int64(float64(grown(before.Counters[at], now.Counters[at], sentCounter)) * bitsPerUnit / seconds)
				}
			}
		}
	}
}

func isError(name string) bool {
	return slices.ContainsFunc(cableErrors(), func(e cableError) bool { return e.counter == name })
}

// grown is by how much a counter grew. One that is smaller than before was cleared in between.
func grown(before, now map[string]int64, name string) int64 {
	if now[name] < before[name] {
		return now[name]
	}
	return now[name] - before[name]
}

// placeOf is how the counters name an end of a link.
func placeOf(e api.FabricEnd) Place {
	if e.Host {
		return Place{cmp.Or(e.At, e.ID), e.Port}
	}
	return Place{e.ID, e.Port}
}

// Faults returns the links with too many errors: those that counted them since the reading before, and those of old that have not been
// quiet for long enough. A link that is gone has no fault.
func Faults(old []api.FabricFault, before, now *Reading) []api.FabricFault {
	since := map[string]api.FabricFault{}
	for _, f := range old {
		since[linkOf(f.Message)] = f
	}
	var faults []api.FabricFault
	for i := range now.Topology.Links {
		l := &now.Topology.Links[i]
		name := LinkText(*l)
		had, was := since[name]
		what := ""
		if before != nil {
			what = excess(before, now, l)
		}
		switch {
		case what != "":
			f := api.FabricFault{Message: name + ": " + what, Nodes: nodesOf(&now.Topology, l), Since: now.At, LastSeenAt: now.At}
			if was {
				f.Since = had.Since
			}
			faults = append(faults, f)
		case was && now.At.Sub(had.LastSeenAt) < quiet:
			faults = append(faults, had)
		}
	}
	MarkFaults(&now.Topology, faults)
	return faults
}

// MarkFaults writes the faults to their links.
func MarkFaults(t *api.FabricTopology, faults []api.FabricFault) {
	by := map[string]string{}
	for _, f := range faults {
		by[linkOf(f.Message)] = f.Message
	}
	for i := range t.Links {
		t.Links[i].Fault = by[LinkText(t.Links[i])]
	}
}

// linkOf is the link that a message of a fault begins with.
func linkOf(message string) string {
	name, _, _ := strings.Cut(message, ": ")
	return name
}

// excess is what a link counted since the reading before, if it is more than a link in order counts. Each kind is counted at the end that
// has more of it.
func excess(before, now *Reading, l *api.FabricLink) string {
	took := now.At.Sub(before.At)
	var words []string
	bad := false
	for _, e := range cableErrors() {
		n := int64(0)
		for _, end := range []api.FabricEnd{l.From, l.To} {
			at := placeOf(end)
			if _, known := before.Counters[at]; known || len(before.Counters) > 0 {
				n = max(n, grown(before.Counters[at], now.Counters[at], e.counter))
			}
		}
		if n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, e.words))
		}
		bad = bad || n > 0 && float64(n) >= e.perMinute*max(1, took.Minutes())
	}
	if !bad {
		return ""
	}
	return fmt.Sprintf("%s in %.0f s", strings.Join(words, ", "), took.Seconds())
}

// LinkText names a link for people: "link between switch leaf1 port 3 and node n2".
func LinkText(l api.FabricLink) string {
	return "link between " + endText(l.From) + " and " + endText(l.To)
}

func endText(e api.FabricEnd) string {
	name := strings.ReplaceAll(cmp.Or(e.Name, e.ID), ": ", ":")
	switch {
	case e.Host && e.Port == "1":
		return "node " + name
	case e.Host:
		return "node " + name + " port " + e.Port
	}
	return "switch " + name + " port " + e.Port
}

// nodesOf are the site's nodes at the ends of a link.
func nodesOf(t *api.FabricTopology, l *api.FabricLink) []string {
	var nodes []string
	for _, e := range []api.FabricEnd{l.From, l.To} {
		if e.Host {
			if i, ok := slices.BinarySearchFunc(t.Hosts, e.ID, func(h api.FabricHost, id string) int { return cmp.Compare(h.ID, id) }); ok && t.Hosts[i].Node != "" {
				nodes = append(nodes, t.Hosts[i].Node)
			}
		}
	}
	return nodes
}
